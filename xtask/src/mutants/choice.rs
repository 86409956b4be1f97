//! Chooses the seeded bugs that a landing looks for: those that a change since the last whole search may have hidden,
//! and an eighth of the others, in turn.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use super::catalog::{FOLDER, Mutant};

/// Holds the commit at which all bugs were found.
const LAST: &str = "crates/sim/mutants/last-search";
/// Sources of the simulator: its worlds and checkers find all bugs.
const SIMULATOR: &str = "crates/sim/src/";
/// Of the others, one in so many is looked for.
const TURNS: usize = 8;

/// Those of `mutants` that a landing of `root` looks for. All, if what has changed can't be told.
pub(super) fn of_landing(root: &Path, mutants: Vec<Mutant>) -> Result<Vec<Mutant>, String> {
    let last = std::fs::read_to_string(root.join(LAST)).map_err(|error| format!("{LAST}: {error}"))?;
    let changed = git(root, &["diff", "--name-only", last.trim()]);
    let commits = git(root, &["rev-list", "--count", "HEAD"]).and_then(|count| count.trim().parse().ok());
    let (Some(changed), Some(commits)) = (changed, commits) else {
        println!("`git diff {}` says nothing: all seeded bugs are looked for", last.trim());
        return Ok(mutants);
    };
    Ok(choose(mutants, &changed.lines().collect::<Vec<_>>(), commits))
}

fn git(root: &Path, words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).current_dir(root).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Bugs of a family are concerned by a change of the simulator, of the file that has them, and of any source of a
/// crate that one of them changes.
fn choose(mutants: Vec<Mutant>, changed: &[&str], turn: usize) -> Vec<Mutant> {
    let mut sources: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for mutant in &mutants {
        let crates = mutant.files().filter_map(|file| Some(format!("{}/src/", file.split_once("/src/")?.0)));
        let family = sources.entry(mutant.family.clone()).or_default();
        family.extend(crates.chain([mutant.home(), SIMULATOR.to_owned(), format!("{FOLDER}/switch.rs")]));
    }
    let is_concerned = |family: &str| {
        sources[family].iter().any(|source| changed.iter().any(|file| file.starts_with(source.as_str())))
    };
    let numbered = mutants.into_iter().enumerate();
    let chosen =
        numbered.filter(|(at, mutant)| is_concerned(&mutant.family) || (at + turn).is_multiple_of(TURNS));
    chosen.map(|(_, mutant)| mutant).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::catalog;

    fn chosen(changed: &[&str], turn: usize) -> BTreeMap<String, usize> {
        let mut families = BTreeMap::new();
        for mutant in choose(catalog::read(&crate::root()).unwrap(), changed, turn) {
            *families.entry(mutant.family).or_default() += 1;
        }
        families
    }

    #[test]
    fn a_change_concerns_the_families_of_its_crate() {
        let all = chosen(&["crates/sim/src/world.rs"], 0);
        let of_store = chosen(&["crates/store/src/lib.rs", "crates/store/tests/main.rs", "README.md"], 0);
        assert_eq!(of_store["prune"], all["prune"]);
        assert!(of_store["multicast"] < all["multicast"] / 4, "{of_store:?}");
        let of_own_file = chosen(&["crates/sim/mutants/mirror.toml"], 0);
        assert_eq!(of_own_file["mirror"], all["mirror"]);
        assert!(of_own_file["prune"] < all["prune"] / 4, "{of_own_file:?}");
    }

    #[test]
    fn each_bug_has_its_turn() {
        let all: usize = chosen(&["crates/sim/src/world.rs"], 0).values().sum();
        let in_turn: usize = (0..TURNS).map(|turn| chosen(&[], turn).values().sum::<usize>()).sum();
        assert_eq!(in_turn, all);
    }
}
