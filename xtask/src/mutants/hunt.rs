//! Runs the simulator with each bug until a rule breaks, and then the same run without the bug, which must break
//! none.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::catalog::Mutant;

/// Environment variable that switches on one bug of a process.
pub(super) const SWITCH_VARIABLE: &str = "DISKCAST_MUTANT";

/// The result of a search.
enum Verdict {
    /// This run broke a rule with the bug, and none without it.
    Caught(String),
    /// No run broke a rule.
    Missed,
    /// This run breaks a rule without the bug, too.
    Alike(String),
    /// The simulator itself failed.
    Failed(String),
}

/// Searches for all `mutants` with the program `simulator`, as many at a time as there are cores. Returns the
/// problems, one per line.
pub(super) fn all(simulator: &Path, mutants: &[Mutant]) -> Vec<String> {
    for mutant in mutants.iter().filter(|mutant| !mutant.seen) {
        show(&mutant.name, "no run is known to show it", Duration::ZERO);
    }
    let looked_for: Vec<&Mutant> = mutants.iter().filter(|mutant| mutant.seen).collect();
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(mutant) = looked_for.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let began = Instant::now();
                    let verdict = one(simulator, mutant).unwrap_or_else(Verdict::Failed);
                    let told = match &verdict {
                        Verdict::Caught(run) => run.clone(),
                        Verdict::Missed => "MISSED".to_owned(),
                        Verdict::Alike(run) => format!("NOTHING BUT {run}"),
                        Verdict::Failed(_) => "FAILED".to_owned(),
                    };
                    show(&mutant.name, &told, began.elapsed());
                    wrong.lock().expect("no thread panics").extend(complaint(mutant, &verdict));
                }
            });
        }
    });
    wrong.into_inner().expect("no thread panics")
}

fn complaint(mutant: &Mutant, verdict: &Verdict) -> Option<String> {
    let name = &mutant.name;
    let words = words(mutant, None).join(" ");
    let again = format!("{SWITCH_VARIABLE}={name} target/mutants/diskcast-sim {words}");
    match verdict {
        Verdict::Caught(_) => None,
        Verdict::Missed => Some(format!("no checker sees the bug `{name}`: {again}")),
        Verdict::Alike(run) => {
            Some(format!("{run}, by which the bug `{name}` is seen, fails without it: {again}"))
        }
        Verdict::Failed(why) => Some(format!("the simulator with the bug `{name}` {why}: {again}")),
    }
}

/// Searches for one bug, first in the run that found it before. Then repeats the run that broke a rule without the
/// bug.
fn one(simulator: &Path, mutant: &Mutant) -> Result<Verdict, String> {
    let name = mutant.name.as_str();
    let known =
        mutant.seen_by.map(|number| search(simulator, &words(mutant, Some(number)), name)).transpose()?;
    let found = match known.flatten() {
        None => search(simulator, &words(mutant, None), name)?,
        known => known,
    };
    let Some((number, run)) = found else { return Ok(Verdict::Missed) };
    let alike = search(simulator, &words(mutant, Some(number)), "")?.is_some();
    Ok(if alike { Verdict::Alike(run) } else { Verdict::Caught(run) })
}

/// Number and name of the first run that breaks a rule, of those that `words` ask for, with the bug `name`.
fn search(simulator: &Path, words: &[String], name: &str) -> Result<Option<(usize, String)>, String> {
    let output = Command::new(simulator).args(words).env(SWITCH_VARIABLE, name).output();
    let output = output.map_err(|error| format!("does not start: {error}"))?;
    let told = String::from_utf8_lossy(&output.stdout);
    match (told.lines().find_map(broken_run), output.status.success()) {
        (None, false) => {
            let why = String::from_utf8_lossy(&output.stderr);
            Err(format!("ends with {}: {}", output.status, why.lines().next().unwrap_or_default()))
        }
        (broken, _) => Ok(broken),
    }
}

/// The arguments with which the simulator searches the runs of the bug's family, or does only the run number `alone`.
fn words(mutant: &Mutant, alone: Option<usize>) -> Vec<String> {
    let mut words = vec!["--until-broken".to_owned()];
    // Multicast is the simulator's default.
    words.extend((mutant.family != "multicast").then(|| format!("--{}", mutant.family)));
    if let Some(number) = alone {
        words.extend(["--first", &number.to_string(), "--count", "1"].map(str::to_owned));
    }
    words
}

/// Number and name of the run, if `line` reports one that broke a rule.
fn broken_run(line: &str) -> Option<(usize, String)> {
    let (number, rest) = line.strip_prefix("BROKEN: run ")?.split_once(", ")?;
    let (run, _) = rest.split_once(": ")?;
    Some((number.parse().ok()?, run.to_owned()))
}

fn show(name: &str, told: &str, took: Duration) {
    println!("{name:<26} {told:<30} {:>6.1} s", took.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_simulator_says_is_understood() {
        let line = "BROKEN: run 21, the far room: everything ends: 3: left";
        assert_eq!(broken_run(line), Some((21, "the far room".to_owned())));
        assert_eq!(broken_run("none of 402 runs breaks a rule"), None);
    }
}
