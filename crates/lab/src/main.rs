//! `diskcast-lab`: builds labs and boots disks from the command line, for people and scripts.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use base::units::{parse_bits_per_second, parse_bytes, show_duration};
use base::{Error, ErrorKind};
use clap::{Args, Parser, Subcommand};
use lab::boot::{Boot, BootOptions, Medium};
use lab::{Sample, Star, StarOptions};

const METER_INTERVAL: Duration = Duration::from_millis(100);

/// A star of hosts in network namespaces, and disks booted in an emulator.
#[derive(Parser)]
#[command(name = "diskcast-lab", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Builds a star, runs a command outside of it, and removes the star when the command ends.
    ///
    /// The variable LAB_HOSTS contains the namespaces of hosts 0 (the server), 1, …, and LAB_IPV4 their addresses,
    /// separated by blanks: diskcast-lab run --hosts 3 -- bash -c 'set -- $LAB_HOSTS; ip netns exec $1 ip address'
    Run(Run),
    /// Removes labs whose process no longer runs.
    Sweep,
    /// Boots a disk with its own boot loader until its login prompt; nothing is written to the disk.
    Boot(BootDisk),
}

#[derive(Args)]
struct Run {
    /// Number of hosts, including the server.
    #[arg(long, default_value_t = 2)]
    hosts: u32,
    /// Rate of every link in both directions, such as 1G or 200M; without it, links have no limit.
    #[arg(long, value_parser = |text: &str| parse_bits_per_second(text).ok_or("expected a rate such as 200M"))]
    rate: Option<u64>,
    /// Bytes that can wait before each direction of a link with a rate.
    #[arg(long, default_value = "1M", value_parser = |text: &str| {
        parse_bytes(text).ok_or("expected a size such as 512K")
    })]
    buffer: u64,
    /// A different rate for one host, such as 3=40M; may be repeated.
    #[arg(long = "host-rate", value_name = "HOST=RATE", value_parser = parse_host_rate)]
    host_rates: Vec<(u32, u64)>,
    /// How many frames of a million to each host, except the server, are lost.
    #[arg(long, default_value_t = 0)]
    loss_per_million: u32,
    /// The switch sends multicast to all hosts, not only to those that joined the group.
    #[arg(long)]
    no_snooping: bool,
    /// Writes the byte counters of every link, read ten times a second, to this file as tab-separated values.
    #[arg(long, value_name = "FILE")]
    meter: Option<PathBuf>,
    /// The command, after `--`.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

#[derive(Args)]
struct BootDisk {
    /// The disk: a raw image file or a block device.
    disk: PathBuf,
    /// Seconds to wait for the login prompt.
    #[arg(long, default_value_t = 180)]
    timeout: u64,
    /// Prints the output of the serial console.
    #[arg(long)]
    console: bool,
}

#[expect(clippy::print_stderr, reason = "this is the program's own voice")]
fn main() -> ExitCode {
    let done = match Arguments::parse().verb {
        Verb::Run(run) => run_beside(&run),
        Verb::Sweep => lab::sweep().map(|_| ExitCode::SUCCESS),
        Verb::Boot(disk) => boot(&disk),
    };
    done.unwrap_or_else(|error| {
        eprintln!("diskcast-lab: {}", base::chain(&error));
        ExitCode::FAILURE
    })
}

fn parse_host_rate(text: &str) -> Result<(u32, u64), String> {
    let pair = text
        .split_once('=')
        .and_then(|(host, rate)| Some((host.parse().ok()?, parse_bits_per_second(rate)?)));
    pair.ok_or_else(|| "expected a host and its rate such as 3=40M".to_owned())
}

/// Writes one line for each sample and host: seconds, host, bytes sent and bytes received since the lab was built.
fn write_samples(file: &Path, samples: &[Sample]) -> base::Result<()> {
    let mut text = "seconds\thost\tsent bytes\treceived bytes\n".to_owned();
    for Sample { at, sent, received } in samples {
        for (host, (sent, received)) in sent.iter().zip(received).enumerate() {
            writeln!(text, "{:.3}\t{host}\t{sent}\t{received}", at.as_secs_f64())
                .expect("strings take whatever is written");
        }
    }
    std::fs::write(file, text)
        .map_err(|e| Error::from_source(ErrorKind::Io, format!("write `{}`", file.display()), e))
}

fn run_beside(run: &Run) -> base::Result<ExitCode> {
    let star = Star::build(&StarOptions {
        hosts: run.hosts,
        rate_bits_per_second: run.rate,
        buffer_bytes: run.buffer,
        loss_per_million: run.loss_per_million,
        snooping: !run.no_snooping,
        ..StarOptions::default()
    })?;
    for &(host, rate) in &run.host_rates {
        if host >= run.hosts {
            return Err(Error::new(ErrorKind::Invalid, format!("the star has no host {host}")));
        }
        star.shape_host(host, rate, run.buffer)?;
    }
    let meter = run.meter.as_ref().map(|_| star.meter(METER_INTERVAL)).transpose()?;
    let namespaces: Vec<&str> = star.hosts().iter().map(lab::Host::namespace).collect();
    let addresses: Vec<String> = star.hosts().iter().map(|host| host.ipv4().to_string()).collect();
    let mut command = Command::new(&run.command[0]);
    command
        .args(&run.command[1..])
        .env("LAB_HOSTS", namespaces.join(" "))
        .env("LAB_IPV4", addresses.join(" "));
    let status = command
        .status()
        .map_err(|e| Error::from_source(ErrorKind::Io, format!("start `{}`", run.command[0]), e))?;
    if let (Some(meter), Some(file)) = (meter, &run.meter) {
        write_samples(file, &meter.stop()?)?;
    }
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

#[expect(clippy::print_stdout, reason = "this is the program's own voice")]
fn boot(disk: &BootDisk) -> base::Result<ExitCode> {
    let options = BootOptions { timeout: Duration::from_secs(disk.timeout), ..BootOptions::default() };
    let Boot { until_prompt, console } = lab::boot::until_login(Medium::File(&disk.disk), &options)?;
    if disk.console {
        println!("{console}");
    }
    println!("login prompt after {}", show_duration(until_prompt));
    Ok(ExitCode::SUCCESS)
}
