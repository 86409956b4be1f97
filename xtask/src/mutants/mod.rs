//! Seeded bugs: `cargo xtask mutants` shows that the simulator's checkers find each of them. The bugs are changes of
//! the sources, made only in a copy of the workspace: programs that are shipped or measured have none.
//!
//! ```text
//! crates/sim/mutants/*.toml --+
//!                             +--> target/mutants/src --cargo build--> diskcast-sim, a process for each bug
//! sources of the workspace ---+
//! ```

mod catalog;
mod choice;
mod copy;
mod hunt;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use std::{env, fs};

use hunt::SWITCH_VARIABLE;

use crate::tool;

/// Source of the module that is added to the copy's `base`.
const SWITCH_SOURCE: &str = "crates/sim/mutants/switch.rs";
const SWITCH_PLACE: &str = "crates/base/src/mutant.rs";
const SWITCH_PARENT: &str = "crates/base/src/lib.rs";

/// How to recognise a program with the switch: the variable, and the mangled name of the function.
const MARKS: [&str; 2] = [SWITCH_VARIABLE, "6mutant2is"];

/// Checks the rules of seeded bugs below `root`: a text that a bug changes must occur exactly once, and only the
/// simulator's sources and these checks may mention them. Returns the breaches.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut breaches = match catalog::read(root) {
        Ok(mutants) => catalog::changed(root, &mutants).err().unwrap_or_default(),
        Err(error) => vec![error],
    };
    let mut files = Vec::new();
    for folder in ["crates", "fuzz"] {
        crate::sources::collect(&root.join(folder), &mut files);
    }
    let crates = fs::read_dir(root.join("crates")).expect("crates/ can be read");
    files.extend(crates.map(|entry| entry.expect("crates/ can be read").path().join("Cargo.toml")));
    files.push(root.join("fuzz/Cargo.toml"));
    for file in files {
        let path = file.strip_prefix(root).expect("below the root").to_string_lossy().into_owned();
        if !path.starts_with("crates/sim/") {
            breaches.extend(mentions(&path, &fs::read_to_string(&file).expect("sources are UTF-8")));
        }
    }
    breaches
}

fn mentions(path: &str, text: &str) -> Vec<String> {
    let lines = text.lines().enumerate().filter(|(_, line)| line.to_lowercase().contains("mutant"));
    lines.map(|(at, _)| format!("{path}:{}: seeded bugs stay in {}", at + 1, catalog::FOLDER)).collect()
}

/// Builds the simulator with all bugs and searches for each, or, with `landing`, for those of [`choice::of_landing`].
/// Returns the problems, one per line.
pub(crate) fn hunt(root: &Path, landing: bool) -> Result<(), Vec<String>> {
    let mut mutants = catalog::read(root).map_err(|error| vec![error])?;
    let mut changed = catalog::changed(root, &mutants)?;
    let failed = |error: std::io::Error| vec![format!("copy the sources to target/mutants: {error}")];
    let parent = fs::read_to_string(root.join(SWITCH_PARENT)).map_err(failed)?;
    changed.insert(SWITCH_PARENT.to_owned(), format!("{parent}\npub mod mutant;\n"));
    changed.insert(SWITCH_PLACE.to_owned(), fs::read_to_string(root.join(SWITCH_SOURCE)).map_err(failed)?);
    let workspace = fs::read_to_string(root.join("Cargo.toml")).map_err(failed)?;
    changed.insert("Cargo.toml".to_owned(), without_lints(&workspace));
    let place = root.join("target/mutants");
    copy::update(root, &place.join("src"), &changed).map_err(failed)?;
    let began = Instant::now();
    let simulator = build_copy(&place).map_err(|error| vec![error])?;
    println!("the simulator with {} seeded bugs was built in {:.0?}", mutants.len(), began.elapsed());
    if landing {
        let all = mutants.len();
        mutants = choice::of_landing(root, mutants).map_err(|error| vec![error])?;
        println!("{} of {all} seeded bugs are looked for; `make mutants` looks for all", mutants.len());
    }
    let mut wrong = hunt::all(&simulator, &mutants);
    let program = shipped(root).map_err(|error| vec![error])?;
    wrong.extend(holds_switch(&program, false));
    // Proves that the search for the switch works.
    wrong.extend(holds_switch(&simulator, true));
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

/// The workspace's `Cargo.toml` with all lints off: warnings about the faulty code are of no interest.
fn without_lints(workspace: &str) -> String {
    let (before, lints) = workspace.split_once("[workspace.lints.rust]\n").unwrap_or((workspace, ""));
    let after = lints.find("\n[profile").map_or("", |at| &lints[at..]);
    format!("{before}[workspace.lints.rust]\nwarnings = \"allow\"\n\n[workspace.lints.clippy]\n{after}")
}

/// Builds the simulator of the copy with the profile of tests, but without debug assertions in our own crates: these
/// would catch some bugs before the checkers see them, and it is the checkers that are tested here. What others wrote
/// is compiled alike in both, so it is there already.
fn build_copy(place: &Path) -> Result<PathBuf, String> {
    let target = place.parent().expect("it lies in the build folder");
    let words = ["--workspace", "--bin", "diskcast-sim"];
    build(&words, &place.join("src"), |cargo| {
        let cargo = cargo.arg("--target-dir").arg(target).env_remove("RUSTC_WORKSPACE_WRAPPER");
        cargo
            .env("CARGO_PROFILE_DEV_DEBUG_ASSERTIONS", "false")
            .env("CARGO_PROFILE_DEV_OVERFLOW_CHECKS", "true")
    })?;
    // Where cargo put it, the simulator without bugs belongs.
    let simulator = place.join("diskcast-sim");
    fs::rename(target.join("debug/diskcast-sim"), &simulator)
        .map_err(|error| format!("move the simulator to {}: {error}", simulator.display()))?;
    Ok(simulator)
}

/// The shipped program, next to this one. `cargo test --workspace` has usually built it; otherwise it is built now.
fn shipped(root: &Path) -> Result<PathBuf, String> {
    let program =
        env::current_exe().map_err(|error| format!("find diskcast: {error}"))?.with_file_name("diskcast");
    if !program.exists() {
        build(&["--package", "diskcast-cli"], root, |cargo| cargo)?;
    }
    Ok(program)
}

fn build(words: &[&str], folder: &Path, more: impl Fn(&mut Command) -> &mut Command) -> Result<(), String> {
    let mut cargo = Command::new(tool::cargo());
    tool::forget_package(&mut cargo);
    cargo.args(["build", "--locked"]).args(words).current_dir(folder);
    let status = more(&mut cargo).status().map_err(|error| format!("start cargo: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("`cargo build {}` fails in {}", words.join(" "), folder.display()))
    }
}

/// A problem if `program` contains any mark of the switch, or, with `expected`, if it lacks one.
fn holds_switch(program: &Path, expected: bool) -> Option<String> {
    match fs::read(program) {
        Ok(bytes) if marks_in(&bytes) == if expected { MARKS.len() } else { 0 } => None,
        Ok(_) if expected => Some(format!("{} lacks the switch of the seeded bugs", program.display())),
        Ok(_) => Some(format!("{} holds the switch of the seeded bugs", program.display())),
        Err(error) => Some(format!("read {}: {error}", program.display())),
    }
}

/// Number of [`MARKS`] that a program contains.
fn marks_in(bytes: &[u8]) -> usize {
    let holds = |mark: &str| bytes.windows(mark.len()).any(|window| window == mark.as_bytes());
    MARKS.iter().filter(|mark| holds(mark)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_seeded_bugs_is_found_in_shipped_sources() {
        let text = "//! Sockets.\nfn f() {\n    if self.mutant.is(Mutant::LeaksSlot) {}\n}\n";
        let found = mentions("crates/net/src/x.rs", text);
        assert_eq!(found, ["crates/net/src/x.rs:3: seeded bugs stay in crates/sim/mutants"]);
    }

    #[test]
    fn lints_are_off_in_the_copy_and_all_else_stays() {
        let text = "[workspace]\n[workspace.lints.rust]\nunused = \"warn\"\n\n[profile.dev]\ndebug = 1\n";
        let copy = without_lints(text);
        assert!(!copy.contains("unused") && copy.contains("warnings = \"allow\""), "{copy}");
        assert!(copy.starts_with("[workspace]") && copy.ends_with("\n[profile.dev]\ndebug = 1\n"), "{copy}");
    }

    #[test]
    fn the_switch_is_found_by_its_variable_and_by_its_symbol() {
        assert_eq!(marks_in(b"_ZN4base5limits DISKCAST_LOG"), 0);
        assert_eq!(marks_in(b"_ZN13diskcast_base6mutant2is17h0"), 1);
        assert_eq!(marks_in(b"_ZN13diskcast_base6mutant2is17h0 DISKCAST_MUTANT"), 2);
    }
}
