//! Runs all tests, and says where the time went. Cargo runs each test program by `cargo xtask timed`, which passes on
//! what the program prints, and notes how long each test took and what it left out.
//!
//! libtest tells times only where unstable options are allowed; what is built does not know of that.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, io};

use crate::leftovers::Place;
use crate::tool;

/// Where `timed` writes, as an environment variable.
const NOTES: &str = "DISKCAST_TEST_TIMES";
/// Where the simulators begin with seeds that other landings did not try.
const MOVING: &str = "DISKCAST_MOVING";
const MOVING_SECONDS: (&str, &str) = ("DISKCAST_MOVING_SECONDS", "4");
/// The file of all times, below the build folder: seconds, result, program and name, one test a line.
const TIMES: &str = "test-times.tsv";
/// So many tests a core run at a time, since many of them wait.
const TESTS_A_CORE: usize = 3;
/// Rows of the table at the end.
const SLOWEST: usize = 20;

/// What is known of a test that ran.
#[derive(Debug, PartialEq)]
struct Ran {
    seconds: f64,
    result: String,
    program: String,
    name: String,
}

/// Builds and runs all tests of the workspace, and returns the table at the end. `Err` also if a test fails.
pub(crate) fn run(root: &Path) -> Result<String, String> {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    let times = target.join(TIMES);
    let failed = |what: &str, error: io::Error| format!("{what} {}: {error}", times.display());
    fs::create_dir_all(&target)
        .and_then(|()| fs::write(&times, ""))
        .map_err(|error| failed("write", error))?;
    let begin = Instant::now();
    cargo(root, &["test", "--workspace", "--no-run"], None)?;
    let built = begin.elapsed();
    let place = Place::new().map_err(|error| failed("make folders beside", error))?;
    let own = env::current_exe().map_err(|error| failed("find the program beside", error))?;
    let runner = format!("target.'cfg(all())'.runner = ['{}', 'timed']", own.display());
    let kinds = ["test", "--workspace", "--no-fail-fast", "--lib", "--bins", "--tests"];
    let all = cargo(root, &[&["--config", &runner], &kinds[..]].concat(), Some((&times, &place)));
    let left = place.leave();
    let examples = cargo(root, &["test", "--workspace", "--quiet", "--doc"], None);
    let notes = fs::read_to_string(&times).map_err(|error| failed("read", error))?;
    let ran: Vec<Ran> = notes.lines().filter_map(read).collect();
    let table = table(&ran, built, begin.elapsed(), &times);
    let mut reasons: Vec<String> = [all, examples].into_iter().filter_map(Result::err).collect();
    reasons.extend(left.iter().map(|what| format!("left behind: {what}")));
    // The reasons are last: who sees only the end of what was printed needs them most.
    if reasons.is_empty() { Ok(table) } else { Err(format!("{table}\n{}", reasons.join("\n"))) }
}

fn cargo(root: &Path, words: &[&str], run: Option<(&Path, &Place)>) -> Result<(), String> {
    let program = tool::cargo();
    let mut cargo = Command::new(&program);
    if run.is_some() && may_mount() {
        // Where mounts are private, a program in a namespace of its own (a host of the lab) keeps what others unmount.
        // Here it hears of that; and what is mounted goes with the last test.
        cargo = Command::new("unshare");
        cargo.args(["--mount", "sh", "-c", "mount --make-rshared / && exec \"$@\"", "sh"]).arg(&program);
    }
    cargo.args(words).current_dir(root);
    tool::forget_package(&mut cargo);
    if let Some((notes, place)) = run {
        cargo.env(NOTES, notes).env("TMPDIR", &place.disk).env("DISKCAST_TEST_MEMORY", &place.memory);
        if env::var_os(MOVING).is_none()
            && let Some(first) = first_moving(root)
        {
            println!("the simulators' moving seeds begin at {first} ({MOVING})");
            cargo.env(MOVING, first.to_string());
        }
        if env::var_os(MOVING_SECONDS.0).is_none() {
            cargo.env(MOVING_SECONDS.0, MOVING_SECONDS.1);
        }
    }
    let status = cargo.status().map_err(|error| format!("start cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`cargo {}` failed", words.join(" "))) }
}

/// Whether mounts can be made here, in a namespace of their own.
fn may_mount() -> bool {
    let mut trial = Command::new("unshare");
    trial.args(["--mount", "mount", "--make-rshared", "/"]).stderr(Stdio::null());
    trial.status().is_ok_and(|status| status.success())
}

/// A first seed by the name of the commit; those of different commits are at least 65,536 apart.
fn first_moving(root: &Path) -> Option<u64> {
    let output = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root).output().ok()?;
    let name = String::from_utf8(output.stdout).ok()?;
    Some(u64::from_str_radix(name.get(..8)?, 16).ok()? << 16)
}

/// Runs the test program `words[0]` with the rest of `words`, and appends its times to the file that [`NOTES`] names.
/// Returns whether it succeeded.
pub(crate) fn timed(words: &[String]) -> io::Result<bool> {
    let (program, rest) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(rest).args(["-Zunstable-options", "--report-time", "--show-output"]);
    command.env("RUSTC_BOOTSTRAP", "1").stdout(Stdio::piped());
    if env::var_os("RUST_TEST_THREADS").is_none() {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        command.env("RUST_TEST_THREADS", (cores * TESTS_A_CORE).to_string());
    }
    let mut child = command.spawn()?;
    let lines = BufReader::new(child.stdout.take().expect("it is piped")).split(b'\n');
    let file = Path::new(program).file_name().unwrap_or_default().to_string_lossy();
    let program = file.rsplit_once('-').map_or(&*file, |(name, _)| name);
    let mut listing = Listing::default();
    let mut ran: BTreeMap<String, Ran> = BTreeMap::new();
    for line in lines {
        let line = String::from_utf8_lossy(&line?).into_owned();
        match listing.read(&line) {
            Line::Ran(name, seconds, result) => {
                let (program, result) = (program.to_owned(), result.to_owned());
                ran.insert(name.to_owned(), Ran { seconds, result, program, name: name.to_owned() });
            }
            Line::LeftOut(test) => {
                if let Some(ran) = ran.get_mut(&test) {
                    "left out".clone_into(&mut ran.result);
                }
                println!("{test}: {line}");
            }
            Line::Hidden => continue,
            Line::Other => {}
        }
        println!("{line}");
    }
    let status = child.wait()?;
    if let Some(notes) = env::var_os(NOTES) {
        let mut text = String::new();
        for Ran { seconds, result, program, name } in ran.values() {
            writeln!(text, "{seconds:.3}\t{result}\t{program}\t{name}").expect("strings grow");
        }
        OpenOptions::new().append(true).open(notes)?.write_all(text.as_bytes())?;
    }
    Ok(status.success())
}

/// A line of what a test program prints.
#[derive(Debug, PartialEq)]
enum Line<'a> {
    /// A test ran: its name, seconds, and result.
    Ran(&'a str, f64, &'a str),
    /// This test says that it left something out.
    LeftOut(String),
    /// What a test printed that succeeded.
    Hidden,
    /// Any other.
    Other,
}

/// The place in what a test program prints.
#[derive(Default)]
struct Listing {
    /// In the part that shows what successful tests printed.
    successes: bool,
    /// The test whose output follows.
    test: String,
}

impl Listing {
    fn read<'a>(&mut self, line: &'a str) -> Line<'a> {
        if line == "successes:" {
            self.successes = true;
        } else if line == "failures:" || line.starts_with("test result: ") {
            self.successes = false;
        }
        if self.successes {
            if let Some(test) = line.strip_prefix("---- ").and_then(|rest| rest.split_once(" stdout ----")) {
                test.0.clone_into(&mut self.test);
            }
            let left_out = line.starts_with("left out") && !self.test.is_empty();
            return if left_out { Line::LeftOut(self.test.clone()) } else { Line::Hidden };
        }
        let parts = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "));
        let Some((name, told)) = parts else { return Line::Other };
        let name = name.split_once(" - should panic").map_or(name, |(name, _)| name);
        let Some((result, time)) = told.split_once(" <") else { return Line::Other };
        let seconds = time.trim_end().trim_end_matches("s>").parse();
        seconds.map_or(Line::Other, |seconds| Line::Ran(name, seconds, result))
    }
}

fn read(line: &str) -> Option<Ran> {
    let mut parts = line.split('\t');
    let mut next = || parts.next().map(str::to_owned);
    Some(Ran { seconds: next()?.parse().ok()?, result: next()?, program: next()?, name: next()? })
}

/// What is shown at the end: where the time went, and how many tests there were.
fn table(ran: &[Ran], built: Duration, total: Duration, times: &Path) -> String {
    let mut text = String::from("\n");
    let seconds = |time: Duration| format!("{:>8.1} s", time.as_secs_f64());
    let (building, running) = (seconds(built), seconds(total.saturating_sub(built)));
    writeln!(text, "{building}  building\n{running}  running").expect("strings grow");
    let mut programs: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
    for ran in ran {
        let program = programs.entry(&ran.program).or_default();
        *program = (program.0 + 1, program.1 + ran.seconds);
    }
    let mut programs: Vec<_> = programs.into_iter().collect();
    programs.sort_by(|(_, (_, one)), (_, (_, other))| other.total_cmp(one));
    writeln!(text, "\nThe programs with the most time, tests beside each other added up:")
        .expect("strings grow");
    for (program, (tests, seconds)) in programs.iter().take(SLOWEST / 2) {
        writeln!(text, "{seconds:>8.1} s  {program}, {tests} tests").expect("strings grow");
    }
    let mut slowest: Vec<&Ran> = ran.iter().collect();
    slowest.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    writeln!(text, "\nThe slowest tests (all: {}):", times.display()).expect("strings grow");
    for Ran { seconds, program, name, .. } in slowest.iter().take(SLOWEST) {
        writeln!(text, "{seconds:>8.1} s  {program} {name}").expect("strings grow");
    }
    let left_out: Vec<_> = ran.iter().filter(|ran| ran.result == "left out").collect();
    for Ran { program, name, .. } in &left_out {
        writeln!(text, "left out: {program} {name}").expect("strings grow");
    }
    let failed: Vec<_> = ran.iter().filter(|ran| ran.result.starts_with("FAILED")).collect();
    for Ran { program, name, .. } in &failed {
        writeln!(text, "failed: {program} {name}").expect("strings grow");
    }
    let (failed, left_out) = (failed.len(), left_out.len());
    let passed = ran.len() - failed - left_out;
    write!(text, "\n{passed} passed, {failed} failed, {left_out} skipped").expect("strings grow");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_test_program_are_understood() {
        let mut listing = Listing::default();
        let mut read = |line| match listing.read(line) {
            Line::Ran(name, seconds, result) => format!("{name} {seconds} {result}"),
            Line::LeftOut(test) => format!("{test} left out"),
            Line::Hidden => "-".to_owned(),
            Line::Other => "other".to_owned(),
        };
        for (line, what) in [
            ("running 2 tests", "other"),
            ("test a::one ... ok <0.125s>", "a::one 0.125 ok"),
            ("test a::two - should panic ... FAILED <2.000s>", "a::two 2 FAILED"),
            ("successes:", "-"),
            ("---- a::one stdout ----", "-"),
            ("left out: there is no root", "a::one left out"),
            ("test a::one ... ok <1.0s>", "-"),
            ("test result: ok. 2 passed; 0 failed", "other"),
        ] {
            assert_eq!(read(line), what, "{line}");
        }
    }

    #[test]
    fn the_table_shows_the_slowest_first_and_counts_what_was_left_out() {
        let lines =
            ["1.0\tok\tcli\tquick", "9.5\tleft out\tdisk\tslow", "2.0\tFAILED\tcli\twrong", "no line"];
        let ran: Vec<_> = lines.iter().filter_map(|line| read(line)).collect();
        let told = table(&ran, Duration::from_secs(60), Duration::from_secs(90), Path::new("times"));
        let places = ["60.0 s  building", "30.0 s  running", "9.5 s  disk, 1", "3.0 s  cli, 2"];
        let names = ["9.5 s  disk slow", "2.0 s  cli wrong", "1.0 s  cli quick", "left out: disk slow"];
        let mut at = 0;
        for words in places.iter().chain(&names) {
            at += told[at..].find(words).unwrap_or_else(|| panic!("no `{words}` in order in {told}"));
        }
        assert!(told.ends_with("failed: cli wrong\n\n1 passed, 1 failed, 1 skipped"), "{told}");
    }
}
