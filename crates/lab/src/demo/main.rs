//! `make demo`: shows the main use of diskcast on real input. It captures and serves one disk. Four hosts fetch it at
//! the same time by multicast, and a fifth joins late. The demo compares all five disks with the source, checks the
//! filesystem of one and boots another. A sixth machine boots at once from an attached disk, whose chunks arrive as the
//! machine reads them.
//!
//! As root, the hosts are a lab, and the source is a Debian disk. Without root, everything runs on loopback with a disk
//! that cannot boot, and the table says which steps were left out.

mod disks;
mod place;
mod program;
mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use base::units::parse_bits_per_second;
use clap::Parser;
use lab::boot::{BootOptions, Medium};

use place::Place;
use program::{Captured, Fetched, Machine, Server};
use report::{AtOnce, Report};

/// Number of hosts that fetch from the start; they are hosts 1 to 4.
const TOGETHER: u32 = 4;
/// The host that joins late.
const LATE: u32 = 5;
/// The host whose machine boots without waiting for its disk.
const AT_ONCE: u32 = 6;
const IMAGE: &str = "debian";

/// Captures a disk, multicasts it to five hosts, verifies and boots it; boots a sixth while its disk still arrives.
#[derive(Parser)]
struct Arguments {
    /// Folder for the disks and the repository, which need about 13 GiB while the demo runs.
    #[arg(long, default_value = "target")]
    folder: PathBuf,
    /// Rate of the lab's links, such as 200M.
    #[arg(long, default_value = "1G", value_parser = |text: &str| {
        parse_bits_per_second(text).ok_or("expected a rate such as 200M")
    })]
    rate: u64,
    /// Use loopback, even as root.
    #[arg(long)]
    loopback: bool,
    /// Keep the repository and the restored disks when the demo ends.
    #[arg(long)]
    keep: bool,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "this is the program's own voice")]
fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(report) => {
            println!("\n{report}");
            let failures = report.failures();
            failures.iter().for_each(|error| eprintln!("the demo failed: {}", base::chain(&***error)));
            if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("the demo failed: {}", base::chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<Report, Failure> {
    let place = Place::choose(arguments.loopback, AT_ONCE + 1, arguments.rate)?;
    let folder = Folder::empty(&arguments.folder, arguments.keep)?;
    step(&format!("{} hosts {}", TOGETHER + 1, place.describe()));
    let source = if place.is_lab() {
        step("making a Debian disk that boots (a minute; it is kept for the next time)");
        disks::debian(&folder.0)?
    } else {
        step("making a disk of this machine's files");
        disks::plain(&folder.0)?
    };

    step(&format!("capturing {}", source.path.display()));
    let captured = program::capture(&source.path, IMAGE, &folder.0)?;
    step(&format!("filling {} target disks with random bytes", TOGETHER + 1));
    let targets = disks::fill_targets(&folder.0, TOGETHER + 1, source.bytes())?;

    let server = Server::start(&place, &folder.0)?;
    let fetched = fetch_all(&place, &server, &targets, &captured)?;
    let statistics = server.stop()?;

    step("comparing all five disks with the source, used and free space");
    disks::compare_all(&source, &targets)?;
    step("checking the filesystem of the first");
    disks::check_filesystem(&source, &targets[0].path)?;
    // What came before is shown, too, if one of these fails.
    let booted = place.is_lab().then(|| boot(&targets[TOGETHER as usize].path));
    let at_once = place.is_lab().then(|| boot_at_once(&place, &folder.0));
    Ok(Report { source, captured, fetched, statistics, booted, at_once, place: place.describe() })
}

/// Fetches on all hosts. The late one starts when the others have received a third of the image.
fn fetch_all(
    place: &Place,
    server: &Server,
    targets: &[disks::Target],
    captured: &Captured,
) -> Result<Vec<Fetched>, Failure> {
    step(&format!("{TOGETHER} hosts fetch it together, another joins late"));
    let before = place.received_bytes()?;
    let start = |host: u32| server.fetch(place, host, IMAGE, &targets[host as usize - 1].path);
    let mut jobs = (1..=TOGETHER).map(start).collect::<Result<Vec<_>, _>>()?;
    // Stops as well when a job ends, because a failed fetch would never bring a third of the image.
    while place.received_bytes()? - before < captured.image_bytes / 3
        && !jobs.iter().any(program::Job::is_done)
    {
        std::thread::yield_now();
    }
    jobs.push(start(LATE)?);
    jobs.into_iter().map(program::finish_fetch).collect()
}

fn boot(disk: &Path) -> Result<Duration, Failure> {
    step("booting the late joiner's disk until its login prompt (emulated, so this takes a while)");
    until_login(Medium::File(disk))
}

/// Boots a machine from an attached disk that has no chunks of the image yet.
fn boot_at_once(place: &Place, folder: &Path) -> Result<AtOnce, Failure> {
    step("booting a sixth machine at once: its disk comes as it is read");
    let server = Server::start(place, folder)?;
    let machine = Machine::attach(place, &server, AT_ONCE, IMAGE, folder)?;
    let until_prompt = until_login(Medium::Nbd { socket: machine.socket(), export: machine.name() })?;
    let moved_bytes = machine.moved_bytes()?;
    machine.detach()?;
    server.stop()?;
    Ok(AtOnce { until_prompt, moved_bytes })
}

fn until_login(medium: Medium<'_>) -> Result<Duration, Failure> {
    let options = BootOptions { timeout: Duration::from_secs(600), ..BootOptions::default() };
    Ok(lab::boot::until_login(medium, &options)?.until_prompt)
}

#[expect(clippy::print_stderr, reason = "this is the program's own voice")]
fn step(what: &str) {
    eprintln!("==> {what}");
}

/// The demo's folder, and whether to keep it. Otherwise dropping this value deletes the folder.
struct Folder(PathBuf, bool);

impl Folder {
    fn empty(parent: &Path, keep: bool) -> Result<Self, Failure> {
        let path = parent.join("demo");
        if path.exists() {
            std::fs::remove_dir_all(&path)?;
        }
        std::fs::create_dir_all(&path)?;
        Ok(Self(path.canonicalize()?, keep))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.1 {
            // `drop` cannot report an error. The next run deletes the folder again.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// Prints the rate of `bytes` in `time`.
fn per_second(bytes: u64, time: Duration) -> String {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "three digits are shown"
    )]
    let rate = (bytes as f64 / time.as_secs_f64().max(1e-6)) as u64;
    base::units::show_bytes_per_second(rate)
}
