//! `diskcast-lab`: labs and booting from the command line, for people and scripts.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use base::units::{parse_bits_per_second, parse_bytes, show_duration};
use clap::{Args, Parser, Subcommand};
use lab::boot::{Boot, BootOptions};
use lab::{Star, StarOptions};

/// A star of hosts in network namespaces, and disks booted in an emulator.
#[derive(Parser)]
#[command(name = "diskcast-lab", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Builds a star, runs a command beside it, and tears the star down when the command ends.
    ///
    /// The command finds the namespaces of hosts 0 (the server), 1, … in LAB_HOSTS and their addresses in LAB_IPV4,
    /// separated by blanks: diskcast-lab run --hosts 3 -- bash -c 'set -- $LAB_HOSTS; ip netns exec $1 ip address'
    Run(Run),
    /// Removes labs whose owner is gone.
    Sweep,
    /// Boots a disk by its own boot loader until its login prompt; nothing is written to the disk.
    Boot(BootDisk),
}

#[derive(Args)]
struct Run {
    /// Hosts, the server among them.
    #[arg(long, default_value_t = 2)]
    hosts: u32,
    /// Rate of every link in both directions, such as 1G or 200M; not shaped if left out.
    #[arg(long, value_parser = |text: &str| parse_bits_per_second(text).ok_or("expected a rate such as 200M"))]
    rate: Option<u64>,
    /// Buffer before each shaped direction of a link.
    #[arg(long, default_value = "1M", value_parser = |text: &str| parse_bytes(text).ok_or("expected a size such as 512K"))]
    buffer: u64,
    /// Frames out of a million that are lost towards each host but the server.
    #[arg(long, default_value_t = 0)]
    loss_per_million: u32,
    /// A switch that floods multicast instead of learning who wants it.
    #[arg(long)]
    no_snooping: bool,
    /// The command, after `--`.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

#[derive(Args)]
struct BootDisk {
    /// The disk: a raw image file or a block device.
    disk: PathBuf,
    /// Seconds until it has failed.
    #[arg(long, default_value_t = 180)]
    timeout: u64,
    /// Prints what the disk wrote to its serial console.
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
        eprintln!("diskcast-lab: {}", base::fault::chain(&error));
        ExitCode::FAILURE
    })
}

fn run_beside(run: &Run) -> lab::Result<ExitCode> {
    let star = Star::build(&StarOptions {
        hosts: run.hosts,
        rate_bits_per_second: run.rate,
        buffer_bytes: run.buffer,
        loss_per_million: run.loss_per_million,
        snooping: !run.no_snooping,
        ..StarOptions::default()
    })?;
    let namespaces: Vec<&str> = star.hosts().iter().map(lab::Host::namespace).collect();
    let addresses: Vec<String> = star.hosts().iter().map(|host| host.ipv4().to_string()).collect();
    let mut command = Command::new(&run.command[0]);
    command
        .args(&run.command[1..])
        .env("LAB_HOSTS", namespaces.join(" "))
        .env("LAB_IPV4", addresses.join(" "));
    let status = command
        .status()
        .map_err(|e| lab::Error::from_source(lab::ErrorKind::Io, format!("start `{}`", run.command[0]), e))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

#[expect(clippy::print_stdout, reason = "this is the program's own voice")]
fn boot(disk: &BootDisk) -> lab::Result<ExitCode> {
    let options = BootOptions { timeout: Duration::from_secs(disk.timeout), ..BootOptions::default() };
    let Boot { until_prompt, console } = lab::boot::until_login(&disk.disk, &options)?;
    if disk.console {
        println!("{console}");
    }
    println!("login prompt after {}", show_duration(until_prompt));
    Ok(ExitCode::SUCCESS)
}
