//! Reads the seeded bugs: changes of the sources, written in `crates/sim/mutants/*.toml`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::Path;

use serde::Deserialize;

/// Folder of the files with bugs.
pub(super) const FOLDER: &str = "crates/sim/mutants";
/// Placeholder in `new` for the question whether the bug is switched on.
const SWITCH: &str = "SWITCH";

/// A file of bugs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    mutant: Vec<Mutant>,
}

/// A bug.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mutant {
    pub name: String,
    what: String,
    /// Whether some run of the simulator shows it.
    #[serde(default = "yes")]
    pub seen: bool,
    /// Number of a run that shows it, for bugs that take long to find. That run is only tried first.
    pub seen_by: Option<usize>,
    change: Vec<Change>,
    /// The kind of runs that search for it: the name of its file.
    #[serde(skip)]
    pub family: String,
}

/// One of its changes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    file: String,
    old: String,
    new: String,
}

impl Mutant {
    /// The files that it changes.
    pub(super) fn files(&self) -> impl Iterator<Item = &str> {
        self.change.iter().map(|change| change.file.as_str())
    }

    /// Path of the file that has it.
    pub(super) fn home(&self) -> String {
        format!("{FOLDER}/{}.toml", self.family)
    }
}

fn yes() -> bool {
    true
}

/// A part of a file that a bug replaces.
struct Patch<'a> {
    place: Range<usize>,
    mutant: &'a Mutant,
    new: String,
}

/// All bugs, file after file.
pub(super) fn read(root: &Path) -> Result<Vec<Mutant>, String> {
    let entries = fs::read_dir(root.join(FOLDER)).map_err(|error| format!("{FOLDER}: {error}"))?;
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("folders can be read").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    let mut mutants = Vec::new();
    for path in paths {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = fs::read_to_string(&path).map_err(|error| failed(&error))?;
        let file: File = toml::from_str(&text).map_err(|error| failed(&error))?;
        let family = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        mutants.extend(file.mutant.into_iter().map(|mutant| Mutant { family: family.clone(), ..mutant }));
    }
    Ok(mutants)
}

/// The files that bugs change, with all their changes, by their paths below `root`; or what is wrong with the bugs.
pub(super) fn changed(root: &Path, mutants: &[Mutant]) -> Result<BTreeMap<String, String>, Vec<String>> {
    let files: BTreeSet<&String> =
        mutants.iter().flat_map(|mutant| &mutant.change).map(|change| &change.file).collect();
    let sources = files.into_iter().filter_map(|file| {
        let text = fs::read_to_string(root.join(file)).ok()?;
        Some((file.clone(), text))
    });
    apply(&sources.collect(), mutants)
}

fn apply(
    sources: &BTreeMap<String, String>,
    mutants: &[Mutant],
) -> Result<BTreeMap<String, String>, Vec<String>> {
    let (mut wrong, mut names) = (Vec::new(), BTreeSet::new());
    let mut patches: BTreeMap<&str, Vec<Patch>> = BTreeMap::new();
    for mutant in mutants {
        let name = &mutant.name;
        if !names.insert(name) {
            wrong.push(format!("{}: there are two bugs `{name}`", mutant.home()));
        }
        if mutant.what.is_empty() || !mutant.change.iter().any(|change| change.new.contains(SWITCH)) {
            let home = mutant.home();
            wrong.push(format!("{home}: `{name}` has no `what`, or no {SWITCH} in any `new`"));
        }
        for Change { file, old, new } in &mutant.change {
            match place(sources.get(file), old) {
                Ok(place) => {
                    let new = new.replace(SWITCH, &format!("::base::mutant::is(\"{name}\")"));
                    patches.entry(file).or_default().push(Patch { place, mutant, new });
                }
                Err(what) => {
                    wrong.push(format!("{}: `{name}` changes {what} in {file}: {old:?}", mutant.home()));
                }
            }
        }
    }
    let mut changed = BTreeMap::new();
    for (file, mut patches) in patches {
        patches.sort_by_key(|patch| patch.place.start);
        let overlaps = patches.windows(2).filter(|pair| pair[0].place.end > pair[1].place.start);
        wrong.extend(overlaps.map(|pair| {
            let (one, other) = (pair[0].mutant, pair[1].mutant);
            format!("{}: `{}` changes the same text of {file} as `{}`", other.home(), other.name, one.name)
        }));
        let mut text = sources[file].clone();
        for patch in patches.into_iter().rev().filter(|_| wrong.is_empty()) {
            text.replace_range(patch.place, &patch.new);
        }
        changed.insert(file.to_owned(), text);
    }
    if wrong.is_empty() { Ok(changed) } else { Err(wrong) }
}

/// Where `old` stands in `text`, or what is wrong with it.
fn place(text: Option<&String>, old: &str) -> Result<Range<usize>, String> {
    let text = text.ok_or("a file that is not there")?;
    let found: Vec<usize> = text.match_indices(old).map(|(at, _)| at).collect();
    match found[..] {
        [at] if !old.is_empty() => Ok(at..at + old.len()),
        [] => Err("a text that is not there".to_owned()),
        _ => Err(format!("a text that is there {} times", found.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(name: &str, changes: &[(&str, &str)]) -> Mutant {
        let change = |(old, new): &(&str, &str)| {
            let [file, old, new] = ["a.rs", old, new].map(str::to_owned);
            Change { file, old, new }
        };
        Mutant {
            name: name.to_owned(),
            what: "It is wrong.".to_owned(),
            seen: true,
            seen_by: None,
            change: changes.iter().map(change).collect(),
            family: "prune".to_owned(),
        }
    }

    fn applied(mutants: &[Mutant]) -> Result<String, Vec<String>> {
        let sources = [("a.rs".to_owned(), "if ok { one() }; two(); two();".to_owned())].into();
        apply(&sources, mutants).map(|mut changed| changed.remove("a.rs").unwrap_or_default())
    }

    #[test]
    fn all_changes_go_into_one_source() {
        let changed = applied(&[mutant("B", &[("one()", "SWITCH")]), mutant("A", &[("ok", "ok || SWITCH")])]);
        let [a, b] = ["A", "B"].map(|name| format!("::base::mutant::is(\"{name}\")"));
        assert_eq!(changed.unwrap(), format!("if ok || {a} {{ {b} }}; two(); two();"));
    }

    #[test]
    fn what_cannot_be_changed_is_told_by_name() {
        for (mutants, what) in [
            (vec![mutant("A", &[("three()", "SWITCH")])], "`A` changes a text that is not there in a.rs"),
            (vec![mutant("A", &[("two()", "SWITCH")])], "`A` changes a text that is there 2 times in a.rs"),
            (vec![mutant("A", &[("one()", "ten()")])], "`A` has no `what`, or no SWITCH"),
            (vec![mutant("A", &[("one()", "SWITCH")]), mutant("A", &[("ok", "SWITCH")])], "two bugs `A`"),
            (
                vec![mutant("A", &[("{ one()", "SWITCH")]), mutant("B", &[("one() }", "SWITCH")])],
                "`B` changes the same text of a.rs as `A`",
            ),
        ] {
            let wrong = applied(&mutants).unwrap_err();
            assert!(wrong.len() == 1 && wrong[0].starts_with("crates/sim/mutants/prune.toml: "), "{wrong:?}");
            assert!(wrong[0].contains(what), "{wrong:?}");
        }
    }
}
