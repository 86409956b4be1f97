//! Remembers which repository each address had, and the newest versions and moves of tags that a trusted key signed
//! there. So a repository or server that goes back to an older state is noticed. docs/security.md, "What signatures
//! show".

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use base::{Error, ErrorKind};
use mirror::Sighting;
use serde::{Deserialize, Serialize};
use store::Reference;

use crate::commands::Context;
use crate::exit::{Exit, Failure, Result};
use crate::repository;
use crate::ui::output::Output;

/// Longest file that is read.
const FILE_BYTES_MAX: u64 = 2 << 20;
/// Most versions and tags that are remembered. The ones that changed longest ago are forgotten first.
const MARKS_MAX: usize = 4096;
/// Most addresses that are remembered.
const PLACES_MAX: usize = 512;

/// The file of what this machine has seen, and what the options say about it.
#[derive(Clone)]
pub(crate) struct Seen {
    /// `None`: nothing is remembered.
    file: Option<PathBuf>,
    allows_older: bool,
    dry_run: bool,
    output: Output,
}

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Memory {
    places: Vec<Place>,
    marks: Vec<Mark>,
}

/// The repository that was at an address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    place: String,
    repository: String,
}

/// The newest version of an image, or the newest move of a tag, in one repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    repository: String,
    /// `image` or `image:tag`.
    name: String,
    number: u64,
}

/// What is seen now.
struct Sight<'a> {
    place: &'a str,
    repository: &'a str,
    reference: &'a Reference,
    version: u64,
    tag_move: Option<u64>,
}

impl Seen {
    pub(crate) fn of(context: &Context) -> Self {
        let keys = &context.global.keys;
        let file = match &keys.seen {
            Some(file) if file == Path::new("off") => None,
            Some(file) => Some(file.clone()),
            // Without a home folder there is no place to remember anything.
            None => repository::default_seen_file().ok(),
        };
        let (allows_older, dry_run) = (keys.allow_older, context.global.dry_run);
        Self { file, allows_older, dry_run, output: context.output }
    }

    /// Refuses what is older than what this machine has seen, and remembers what is newer. Does nothing unless keys
    /// are trusted: otherwise anybody can make newer versions as well.
    pub(crate) fn check(&self, place: &str, reference: &Reference, found: &Sighting) -> Result<()> {
        self.judge(place, reference, found).map_err(|error| {
            Failure::new(Exit::Refused, base::chain(&error)).hint(
                "if that was meant, --allow-older accepts it and remembers it; NAME@VERSION names a certain version",
            )
        })
    }

    /// [`Self::check`] without a hint.
    pub(crate) fn judge(&self, place: &str, reference: &Reference, found: &Sighting) -> base::Result<()> {
        let (Some(file), Some(repository)) = (&self.file, &found.repository) else { return Ok(()) };
        let version = found.version.manifest.number;
        let sight = Sight { place, repository, reference, version, tag_move: found.tag_move };
        let before = self.read(file);
        if !self.allows_older {
            before.check(&sight)?;
        }
        let mut after = before.clone();
        after.add(&sight, self.allows_older);
        if after != before && !self.dry_run {
            self.remember(file, &sight);
        }
        Ok(())
    }

    /// Adds `sight` to the file. That this fails is only worth a warning: what was found is right all the same.
    fn remember(&self, file: &Path, sight: &Sight<'_>) {
        let done = (|| -> base::Result<()> {
            let io = |error| Error::from_io(format!("write `{}`", file.display()), error);
            if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
                daemon::private_file::make_folder(folder)?;
            }
            // Another command may add something at the same time.
            let mut options = OpenOptions::new();
            let lock = options.write(true).create(true).truncate(false).mode(0o600);
            let lock = lock.open(file.with_extension("lock")).map_err(io)?;
            lock.lock().map_err(io)?;
            let mut memory = self.read(file);
            memory.add(sight, self.allows_older);
            let text = serde_json::to_string(&memory).expect("numbers and text");
            daemon::private_file::write_private(file, &text)
        })();
        if let Err(error) = done {
            self.output.warning(&format!("does not remember what it saw: {}", base::chain(&error)));
        }
    }

    /// What the file holds; nothing if there is none. A damaged one is forgotten, with a warning.
    fn read(&self, file: &Path) -> Memory {
        let read = || -> std::io::Result<Memory> {
            let mut bytes = Vec::new();
            File::open(file)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
            Ok(serde_json::from_slice(&bytes)?)
        };
        match read() {
            Ok(memory) => memory,
            Err(error) => {
                if error.kind() != std::io::ErrorKind::NotFound {
                    let file = file.display();
                    self.output.warning(&format!("forgets what it saw: read `{file}`: {error}"));
                }
                Memory::default()
            }
        }
    }
}

impl Memory {
    /// `Refused` if `sight` is older than what was seen before, or in another repository.
    fn check(&self, sight: &Sight<'_>) -> base::Result<()> {
        let refused = |text: String| Err(Error::new(ErrorKind::Refused, text));
        let (place, here) = (sight.place, sight.repository);
        if let Some(known) = self.places.iter().find(|known| known.place == place)
            && known.repository != here
        {
            let was = &known.repository;
            return refused(format!(
                "`{place}` had the repository {was} when this machine last used it, and has {} now",
                here.escape_debug()
            ));
        }
        let why = "newer ones were removed, or somebody put back an older state";
        match (sight.reference, sight.tag_move) {
            (Reference::Newest(image), _) => match self.mark(here, image.as_str()) {
                Some(seen) if seen > sight.version => refused(format!(
                    "the newest version of `{image}` is {}, but this machine has seen version {seen}: {why}",
                    sight.version
                )),
                _ => Ok(()),
            },
            (Reference::Tagged(..), Some(moved)) => match self.mark(here, &sight.reference.to_string()) {
                Some(seen) if seen > moved => refused(format!(
                    "the newest move of `{}` is {moved}, onto version {}, but this machine has seen move {seen}: {why}",
                    sight.reference, sight.version
                )),
                _ => Ok(()),
            },
            // Whoever names a version wants that one.
            (Reference::Version(..) | Reference::Tagged(..), _) => Ok(()),
        }
    }

    /// Adds what is newer; if it `goes_back`, also what is older.
    fn add(&mut self, sight: &Sight<'_>, goes_back: bool) {
        let (place, repository) = (sight.place.to_owned(), sight.repository.to_owned());
        if !self.places.iter().any(|known| (&known.place, &known.repository) == (&place, &repository)) {
            self.places.retain(|known| known.place != place);
            self.places.push(Place { place, repository });
        }
        let image = sight.reference.image().as_str();
        let is_newest = matches!(sight.reference, Reference::Newest(_));
        self.set(sight.repository, image, sight.version, goes_back && is_newest);
        if let Some(moved) = sight.tag_move {
            self.set(sight.repository, &sight.reference.to_string(), moved, goes_back);
        }
        self.places.drain(..self.places.len().saturating_sub(PLACES_MAX));
        self.marks.drain(..self.marks.len().saturating_sub(MARKS_MAX));
    }

    fn set(&mut self, repository: &str, name: &str, number: u64, goes_back: bool) {
        let is_known = self
            .mark(repository, name)
            .is_some_and(|known| known == number || (known > number && !goes_back));
        if !is_known {
            self.marks.retain(|mark| (mark.repository.as_str(), mark.name.as_str()) != (repository, name));
            self.marks.push(Mark { repository: repository.to_owned(), name: name.to_owned(), number });
        }
    }

    fn mark(&self, repository: &str, name: &str) -> Option<u64> {
        let mut marks = self.marks.iter();
        marks.find(|mark| mark.repository == repository && mark.name == name).map(|mark| mark.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(
        memory: &mut Memory,
        place: &str,
        repository: &str,
        name: &str,
        version: u64,
        moved: Option<u64>,
    ) -> bool {
        let reference = name.parse().unwrap();
        let sight = Sight { place, repository, reference: &reference, version, tag_move: moved };
        let seen = memory.check(&sight);
        if seen.is_ok() {
            memory.add(&sight, false);
        }
        seen.is_ok()
    }

    #[test]
    fn what_goes_back_is_refused_and_what_was_asked_for_is_not() {
        let mut memory = Memory::default();
        let mut see = |name: &str, version, moved| look(&mut memory, "/a", "1", name, version, moved);
        assert!(see("web", 7, None));
        assert!(!see("web", 6, None));
        assert!(see("web@3", 3, None));
        assert!(!see("web", 6, None), "naming an older version does not make it the newest");
        assert!(see("web@9", 9, None));
        assert!(!see("web", 8, None), "version 9 was seen, by its number");
        assert!(see("other", 1, None));
        // A tag may go back to an older version by a newer move, and not by an older move.
        assert!(see("web:stable", 7, Some(4)));
        assert!(see("web:stable", 3, Some(5)));
        assert!(!see("web:stable", 7, Some(4)));
        assert!(!look(&mut memory, "/a", "2", "web", 9, None), "another repository at the same place");
        assert!(look(&mut memory, "/b", "2", "web", 1, None), "an image of that name in another repository");
    }

    #[test]
    fn who_allows_what_is_older_goes_on_from_there() {
        let mut memory = Memory::default();
        assert!(look(&mut memory, "/a", "1", "web", 7, None));
        let reference = "web".parse().unwrap();
        let older = Sight { place: "/a", repository: "2", reference: &reference, version: 5, tag_move: None };
        memory.add(&older, true);
        assert!(
            look(&mut memory, "/a", "2", "web", 5, None) && !look(&mut memory, "/a", "2", "web", 4, None)
        );
        let older = Sight { version: 3, ..older };
        memory.add(&older, true);
        assert!(look(&mut memory, "/a", "2", "web", 3, None));
        assert_eq!(memory.places.len(), 1);
    }

    #[test]
    fn the_file_stays_small_however_much_is_seen() {
        let mut memory = Memory::default();
        let long = "x".repeat(128);
        for index in 0..MARKS_MAX + 100 {
            let (name, place) = (format!("{}{index:05}:{long}", &long[5..]), format!("/{index}"));
            assert!(look(&mut memory, &place, &"f".repeat(32), &name, 1, Some(u64::MAX)));
        }
        assert_eq!((memory.places.len(), memory.marks.len()), (PLACES_MAX, MARKS_MAX));
        let text = serde_json::to_string(&memory).unwrap();
        assert!((text.len() as u64) < FILE_BYTES_MAX, "{}", text.len());
        assert_eq!(serde_json::from_str::<Memory>(&text).unwrap(), memory);
    }
}
