//! Figures of the garbage that killed processes leave: ten processes capture, commit, tag, remove and prune in one
//! repository for five minutes and are killed at random; then two plain prunes run alone. Everything beyond a fresh
//! copy of all versions is garbage.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use base::Chance;
use image::NoProgress;
use lab::{Engine, Gateway};
use serde_json::json;
use store::{Copier, Location, Reference, Repository, Scope, Setting};

use crate::context::{Context, timed};
use crate::figure::{Bar, Figure};
use crate::fuse::Example;
use crate::{Group, Result, s3};

pub(crate) const GROUP: Group = Group {
    figures: &[
        (
            "versions.garbage",
            "copies of chunks and nodes too many, after five minutes of random kills in three kinds of stores and two \
             prunes; at most 0",
        ),
        ("versions.garbage_records", "records of leases, appends and prunes that are left then; at most 10"),
        ("versions.garbage_prunes", "seconds that these two prunes take; at most 60"),
    ],
    measure,
};

const SECONDS: u64 = 300;
const PROCESSES: u64 = 10;
const IMAGES: [&str; 3] = ["a", "b", "c"];
const DISK_BYTES: usize = 1 << 20;
/// Bytes of the disk that change before each command.
const CHANGED_BYTES: usize = 16 << 10;
/// Killed commands per million.
const KILLED_PER_MILLION: u32 = 400_000;
/// Maximum microseconds until a command is killed.
const LIVES_MICROS_MAX: u64 = 150_000;

/// A repository, and the settings by which diskcast's programs and this process reach it.
struct Place<'a> {
    context: &'a Context,
    name: &'static str,
    repository: String,
    variables: Vec<(&'static str, String)>,
    setting: Setting,
    /// Folder of its records as files.
    files: PathBuf,
}

/// What was left in one place.
struct Left {
    garbage: i64,
    records: usize,
    seconds: f64,
    /// Number of commands by how they ended.
    ends: BTreeMap<String, u64>,
}

impl Place<'_> {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.context.diskcast(Path::new(&self.repository));
        command.envs(self.variables.iter().cloned()).env("DISKCAST_CACHE", "off").arg("--quiet").args(words);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    fn open(&self) -> Result<Repository> {
        let location: Location = self.repository.parse()?;
        Ok(Repository::open_with(&location, &self.setting)?)
    }

    fn measure(&self, seconds: u64) -> Result<Left> {
        let mut first = vec![0; DISK_BYTES];
        Chance::from_seed(0).fill(&mut first);
        let disk = self.context.folder()?.join("disk.img");
        std::fs::write(&disk, first)?;
        for image in IMAGES {
            timed(&mut self.command(&["capture", path(&disk)?, image]))?;
        }
        let until = Instant::now() + Duration::from_secs(seconds);
        let outcomes = std::thread::scope(|scope| {
            let act = |seed| move || self.act(seed, until).map_err(|error| base::chain(&*error));
            let actors: Vec<_> = (0..PROCESSES).map(|seed| scope.spawn(act(seed))).collect();
            actors.into_iter().map(|actor| actor.join().map_err(|_| "an actor panicked")).collect::<Vec<_>>()
        });
        let mut ends = BTreeMap::new();
        for outcome in outcomes {
            outcome??.into_iter().for_each(|(end, count)| *ends.entry(end).or_default() += count);
        }
        let begun = Instant::now();
        for _ in 0..2 {
            timed(&mut self.command(&["prune"]))?;
        }
        let seconds = begun.elapsed().as_secs_f64();
        let records = count(&self.files, &["leases", "appends", "prunes", "candidates"]);
        Ok(Left { garbage: self.garbage()?, records, seconds, ends })
    }

    /// Runs one command after the other until `until`; counts how they ended.
    fn act(&self, seed: u64, until: Instant) -> Result<BTreeMap<String, u64>> {
        let mut chance = Chance::from_seed(seed);
        let folder = self.context.folder()?;
        let disk = folder.join("disk.img");
        let mut content = vec![0; DISK_BYTES];
        Chance::from_seed(0).fill(&mut content);
        let mut ends = BTreeMap::new();
        while Instant::now() < until {
            let at = usize::try_from(chance.below((DISK_BYTES - CHANGED_BYTES) as u64))?;
            // Few different contents, so that deleted objects are stored again.
            Chance::from_seed(chance.below(8)).fill(&mut content[at / 65_536 * 65_536..][..CHANGED_BYTES]);
            std::fs::write(&disk, &content)?;
            let words = self.deed(&mut chance, path(&disk)?)?;
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let lives = chance.hits(KILLED_PER_MILLION).then(|| chance.below(LIVES_MICROS_MAX));
            let end = run(self.command(&words), lives.map(Duration::from_micros))?;
            *ends.entry(format!("{} {end}", words[0])).or_default() += 1;
        }
        Ok(ends)
    }

    /// The next command.
    fn deed(&self, chance: &mut Chance, disk: &str) -> Result<Vec<String>> {
        let image = IMAGES[usize::try_from(chance.below(IMAGES.len() as u64))?];
        let version = |back: u64| -> Result<String> {
            let versions = self.open()?.versions(&image.parse()?).unwrap_or_default();
            let newest = versions.last().copied().unwrap_or(1);
            Ok(format!("{image}@{}", newest.saturating_sub(back).max(1)))
        };
        let words = match chance.below(8) {
            0 | 1 => vec!["capture".to_owned(), disk.to_owned(), image.to_owned()],
            2 => vec!["commit".to_owned(), image.to_owned(), disk.to_owned()],
            3 => vec!["tag".to_owned(), version(0)?, "stable".to_owned()],
            4 => vec!["prune".to_owned()],
            _ => vec!["remove".to_owned(), version(chance.below(4))?, "--yes".to_owned()],
        };
        Ok(words)
    }

    /// Number of copies of objects, minus those that a copy of all versions has.
    fn garbage(&self) -> Result<i64> {
        let from = self.open()?;
        let mut damaged = from.verify(&Scope::All, &NoProgress)?.damaged;
        // A tag that was put on a version while another process removed it resolves to nothing.
        damaged.retain(|damage| !damage.path.starts_with("tags/"));
        if !damaged.is_empty() {
            return Err(format!("{}: damaged: {damaged:?}", self.name).into());
        }
        let folder = self.context.folder()?;
        let to = Repository::create(&Location::Folder(folder.clone()))?;
        for image in from.images()? {
            let mut copier = Copier::new(&from, &to, &image)?;
            for number in from.versions(&image)? {
                copier.copy(&Reference::Version(image.clone(), number))?;
            }
        }
        let objects = |folder: &Path| i64::try_from(count(folder, &["chunks", "nodes"]));
        Ok(objects(&self.files)? - objects(&folder)?)
    }
}

fn path(path: &Path) -> Result<&str> {
    Ok(path.to_str().ok_or("a path that is not UTF-8")?)
}

/// The files below these folders of `root`.
fn count(root: &Path, folders: &[&str]) -> usize {
    let mut waiting: Vec<_> = folders.iter().map(|folder| root.join(folder)).collect();
    let mut count = 0;
    while let Some(folder) = waiting.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.path().is_dir() {
                true => waiting.push(entry.path()),
                false => count += 1,
            }
        }
    }
    count
}

/// Runs `command`, and kills it after `lives` if that is given; returns how it ended. An unexpected exit code is an
/// error.
fn run(mut command: Command, lives: Option<Duration>) -> Result<&'static str> {
    let mut child = command.spawn()?;
    if let Some(lives) = lives {
        std::thread::park_timeout(lives);
        // Fails if the command has already ended.
        let _ = child.kill();
    }
    let output = child.wait_with_output()?;
    match output.status.code() {
        None => Ok("killed"),
        Some(0) => Ok("done"),
        // The version was removed meanwhile, or has a tag.
        Some(10 | 11) => Ok("refused"),
        Some(code) => {
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            Err(format!("{command:?} ended with {code}: {}", words.trim()).into())
        }
    }
}

fn measure(context: &Context) -> Result<Vec<Figure>> {
    measure_for(context, SECONDS)
}

/// Runs the measurement for this number of seconds, for developers.
pub(crate) fn explore(context: &Context, seconds: &str) -> Result<()> {
    measure_for(context, seconds.parse()?)?
        .iter()
        .for_each(|figure| println!("{}\n{}", figure.line(), figure.details));
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "small counts")]
fn measure_for(context: &Context, seconds: u64) -> Result<Vec<Figure>> {
    let gateway = Gateway::start(Engine::VersityGw, &context.scratch)?;
    let (folder, beneath) = (context.folder()?, context.folder()?);
    let example = Example::start(&beneath)?;
    let plain = |name, repository: &Path, files: &Path| Place {
        context,
        name,
        repository: repository.display().to_string(),
        variables: Vec::new(),
        setting: Setting::default(),
        files: files.to_owned(),
    };
    let places = [
        plain("folder", &folder, &folder),
        plain("folder without unnamed files", &example.at.join("repo"), &beneath.join("repo")),
        Place {
            context,
            name: "versitygw",
            repository: "s3://images/garbage".to_owned(),
            variables: Gateway::variables(gateway.address()).into(),
            setting: s3::setting(&gateway)?,
            files: gateway.folder().join("images/garbage"),
        },
    ];
    let (mut garbage, mut records, mut prunes, mut details) = (vec![], vec![], vec![], vec![]);
    for place in &places {
        let left = place.measure(seconds)?;
        garbage.push(left.garbage as f64);
        records.push(left.records as f64);
        prunes.push(left.seconds);
        details.push(json!({
            "place": place.name, "garbage": left.garbage, "records": left.records, "deeds": left.ends,
        }));
    }
    // The worst of the three counts.
    let worst = |runs: &[f64]| runs.iter().copied().fold(0.0, f64::max);
    let figure = |name, runs: &[f64], unit, bar| {
        let sink = "a folder, a folder without unnamed files, versitygw; the worst of them";
        let workload = format!("{PROCESSES} processes for {seconds} s, 4 in 10 killed, then two prunes");
        Figure::new(name, &[worst(runs)], unit, Bar::AtMost(bar)).on(&workload, sink).with(json!(runs))
    };
    Ok(vec![
        figure("versions.garbage", &garbage, "copies", 0.0).with(json!(details)),
        figure("versions.garbage_records", &records, "records", 10.0),
        figure("versions.garbage_prunes", &prunes, "s", 60.0),
    ])
}
