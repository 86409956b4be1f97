//! The repository's own checks. `cargo xtask tidy` prints every breach of the house rules and fails if there is one.
//! `cargo xtask test` runs all tests and says how long they took. `cargo xtask mutants` shows that the simulator's
//! checkers find seeded bugs. `cargo xtask measure` prints the sizes of crates and functions.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a tool for developers, which talks to them and tells how long things take"
)]

mod circles;
mod exports;
mod imports;
mod leftovers;
mod measure;
mod mutants;
mod prose;
mod run;
mod sources;
mod tool;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("tidy") => report(&tidy(&root())),
        Some("mutants") => hunt(&root(), std::env::args().nth(2).as_deref() == Some("--landing")),
        Some("test") => test(&root()),
        Some("timed") => timed(),
        Some("measure") => {
            print!("{}", measure::table(&root()));
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("usage: cargo xtask tidy|test|measure|mutants [--landing]");
            ExitCode::from(2)
        }
    }
}

/// Every breach of the house rules below `root`, as `path:line: what`.
fn tidy(root: &Path) -> Vec<String> {
    let mut breaches = imports::check(root);
    breaches.extend(circles::check(root));
    breaches.extend(exports::check(root));
    breaches.extend(sources::check(root));
    breaches.extend(prose::check(root));
    breaches.extend(mutants::check(root));
    breaches.sort();
    breaches
}

fn report(breaches: &[String]) -> ExitCode {
    breaches.iter().for_each(|breach| println!("{breach}"));
    if breaches.is_empty() {
        println!("tidy");
        ExitCode::SUCCESS
    } else {
        println!("{} breaches of the house rules (CONTRIBUTING.md tells them)", breaches.len());
        ExitCode::FAILURE
    }
}

/// Searches for seeded bugs with the simulator: all, or those that concern a landing.
fn hunt(root: &Path, landing: bool) -> ExitCode {
    match mutants::hunt(root, landing) {
        Ok(()) => {
            println!("every seeded bug was caught, and nothing without one");
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            wrong.iter().for_each(|line| println!("{line}"));
            ExitCode::FAILURE
        }
    }
}

/// Runs all tests.
fn test(root: &Path) -> ExitCode {
    match run::run(root) {
        Ok(table) => {
            println!("{table}");
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            println!("{wrong}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one test program, for [`test`].
fn timed() -> ExitCode {
    match run::timed(&std::env::args().skip(2).collect::<Vec<_>>()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("run a test program: {error}");
            ExitCode::FAILURE
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the root").to_owned()
}

#[cfg(test)]
mod house {
    #[test]
    fn the_repository_keeps_its_own_rules() {
        let breaches = super::tidy(&super::root());
        assert!(breaches.is_empty(), "run `cargo xtask tidy`:\n{}", breaches.join("\n"));
    }
}
