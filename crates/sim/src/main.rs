//! The program `diskcast-sim`. It replays a seed or searches for a failing one: `cargo run --release -p diskcast-sim
//! -- --seed 7`. With `--room 10000 --loss 10000` it shows how a transfer grows with the number of receivers. With
//! `--until-broken` it runs the seeds that find seeded bugs, and prints the first that breaks a rule.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a tool for developers that prints its findings"
)]

mod clouds;
mod stripes;
mod sweeps;

use std::process::ExitCode;

use base::Duration;
use sim::{Family, Room, Scenario, Violation, run};

const USAGE: &str = "usage: diskcast-sim --mirror [--seed N] [--count N] [--verbose]
       diskcast-sim [--seed N] [--count N] [--calm | --harsh | --ailing] [--verbose]
       diskcast-sim --room RECEIVERS [--loss PER_MILLION] [--mib N] [--rate BITS_PER_SECOND] [--skew] [--slow RECEIVERS]
                    [--seed N] [--json] [--verbose]
       diskcast-sim --prune [--seed N] [--count N]
       diskcast-sim --peers [--seed N] [--count N] [--verbose]
       diskcast-sim --cluster [--seed N] [--count N]
       diskcast-sim --deploy [--seed N] [--count N] [--hosts N]
       diskcast-sim --checkpoint [--seed N] [--count N] [--verbose]
       diskcast-sim --until-broken [--mirror | --prune | --peers | --cluster | --deploy | --checkpoint] [--first N]
                    [--count N]
       diskcast-sim --cloud MACHINES demand|profile|multicast|here [--storage N] [--copies N] [--round-trip-us N]
                    [--computes-ms N] [--chunk KIB] [--spread N] [--seed N]
       diskcast-sim --striped read|write|boot CLIENTS DEVICES [--data N] [--parity N] [--contents N] [--at-once N]
                    [--disk BYTES_PER_SECOND] [--component BYTES] [--seed N]
       diskcast-sim --sweep | --skews | --mix | --hall | --thesis
                    [frisbee|multicast|swp2p|unicast|server|switch|hybrid|torrent ...]
                    [--delay S ...] [--receivers N] [--racks N] [--batch CHUNKS] [--handling-us N]
                    [--server-handling-us N] [--within-ms N] [--misses PER_MILLION] [--sessions N] [--mib N]
                    [--seed N] [--json]";

/// Experiments with receivers that serve each other.
const EXPERIMENTS: [&str; 5] = ["--sweep", "--skews", "--mix", "--hall", "--thesis"];

struct Arguments {
    seed: u64,
    count: Option<u64>,
    calm: bool,
    harsh: bool,
    ailing: bool,
    verbose: bool,
    room: Option<usize>,
    loss_per_million: u32,
    image_mib: u64,
    bits_per_second: u64,
    skew: bool,
    slow: usize,
    json: bool,
    mirror: bool,
    prune: bool,
    peers: bool,
    cluster: bool,
    deploy: bool,
    checkpoint: bool,
    hosts: Option<usize>,
    until_broken: bool,
    first: usize,
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).peekable();
    if words.next_if(|word| word == "--cloud").is_some() {
        let Some((cloud, boot)) = clouds::parse(words) else {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        };
        println!("{}", clouds::show(&cloud, &boot));
        return ExitCode::SUCCESS;
    }
    if words.next_if(|word| word == "--striped").is_some() {
        let Some(striped) = stripes::parse(words) else {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        };
        println!("{}", stripes::show(&striped));
        return ExitCode::SUCCESS;
    }
    if let Some(name) = words.next_if(|word| EXPERIMENTS.contains(&word.as_str())) {
        if sweeps::run(&name, words, |line| println!("{line}")).is_none() {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
        return ExitCode::SUCCESS;
    }
    let Some(arguments) = parse(words) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if let Some(receivers) = arguments.room {
        return if show_room(receivers, &arguments) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    if arguments.until_broken {
        return if search(&arguments) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let replay = match &arguments {
        Arguments { mirror: true, .. } => replay_mirror,
        Arguments { prune: true, .. } => replay_prunes,
        Arguments { peers: true, .. } => replay_peers,
        Arguments { cluster: true, .. } => replay_cluster,
        Arguments { deploy: true, .. } => replay_deploy,
        Arguments { checkpoint: true, .. } => replay_checkpoint,
        _ => replay,
    };
    let count = arguments.count.unwrap_or(1);
    let failed = (arguments.seed..arguments.seed + count).filter(|&seed| !replay(seed, &arguments)).count();
    println!("{failed} of {count} seeds failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn replay(seed: u64, arguments: &Arguments) -> bool {
    let make = match arguments {
        Arguments { calm: true, .. } => Scenario::calm,
        Arguments { harsh: true, .. } => Scenario::harsh,
        Arguments { ailing: true, .. } => Scenario::ailing,
        _ => Scenario::mixed,
    };
    let scenario = make(seed);
    if arguments.verbose {
        println!("{scenario:#?}");
    }
    let outcome = run(&scenario);
    let most = outcome.reports.iter().map(|reports| reports.0).max().unwrap_or(0);
    println!(
        "seed {seed}: trace {:016x}, {} hosts, {} events, {} steps, {} blocks sent, {} useless, at most {most} reports",
        outcome.trace,
        scenario.hosts.len(),
        scenario.events.len(),
        outcome.steps,
        outcome.blocks_sent,
        outcome.blocks_useless,
    );
    if arguments.verbose {
        println!("{:#?}", outcome.statistics);
    }
    tell(&outcome.violations)
}

fn replay_mirror(seed: u64, arguments: &Arguments) -> bool {
    let scenario = sim::mirror::MirrorScenario::mixed(seed);
    if arguments.verbose {
        println!("{scenario:#?}");
    }
    let outcome = sim::mirror::run(&scenario);
    let (steps, crashes, published) = (outcome.steps, outcome.crashes, outcome.published);
    println!(
        "seed {seed}: trace {:016x}, {steps} steps, {crashes} crashes, {published} versions, \
         {} of them merged, {} in doubt",
        outcome.trace, outcome.merged, outcome.recognised
    );
    tell(&outcome.violations)
}

fn replay_prunes(seed: u64, _: &Arguments) -> bool {
    let outcome = sim::run_prunes(seed);
    println!(
        "seed {seed}: trace {:016x}, {} operations, {} versions published, {} objects deleted, {} revoked",
        outcome.trace, outcome.operations, outcome.published, outcome.deleted, outcome.revoked,
    );
    tell(&outcome.violations)
}

fn replay_peers(seed: u64, arguments: &Arguments) -> bool {
    let scenario = sim::swarm::SwarmScenario::mixed(seed);
    if arguments.verbose {
        println!("{scenario:#?}");
    }
    let outcome = sim::swarm::run(&scenario);
    println!(
        "seed {seed}: trace {:016x}, {} steps, {} objects from members, {} from the server",
        outcome.trace, outcome.steps, outcome.peer_objects, outcome.server_objects
    );
    tell(&outcome.violations)
}

fn replay_cluster(seed: u64, _: &Arguments) -> bool {
    let outcome = sim::run_cluster(seed);
    println!(
        "seed {seed}: trace {:016x}, {} steps, {} contents stored, {} segments taken, {} freed, {} maps",
        outcome.trace, outcome.steps, outcome.stored, outcome.taken, outcome.freed, outcome.epochs
    );
    tell(&outcome.violations)
}

fn replay_deploy(seed: u64, arguments: &Arguments) -> bool {
    let scenario = match arguments.hosts {
        Some(hosts) => sim::deploy::DeployScenario::large(hosts, seed),
        None => sim::deploy::DeployScenario::mixed(seed),
    };
    if arguments.verbose {
        println!("{scenario:#?}");
    }
    let outcome = sim::deploy::run(&scenario);
    let counts = outcome.counts;
    println!(
        "seed {seed}: trace {:016x}, {} steps, {} attempts, {} ready, {} failed, {} left out, after {:.1} s",
        outcome.trace,
        outcome.steps,
        outcome.attempts,
        counts.ready,
        counts.failed,
        counts.left_out,
        outcome.took.as_secs_f64(),
    );
    tell(&outcome.violations)
}

fn replay_checkpoint(seed: u64, arguments: &Arguments) -> bool {
    let scenario = sim::checkpoint::CheckpointScenario::mixed(seed);
    if arguments.verbose {
        println!("{scenario:#?}");
    }
    let outcome = sim::checkpoint::run(&scenario);
    let made = if outcome.published { "published" } else { "not made" };
    println!(
        "seed {seed}: trace {:016x}, {} steps, {} rounds, {made}, frozen for {:.1} s at most, after {:.1} s",
        outcome.trace,
        outcome.steps,
        outcome.rounds,
        outcome.frozen.as_secs_f64(),
        outcome.took.as_secs_f64(),
    );
    tell(&outcome.violations)
}

/// Runs trials until one breaks a rule, and prints it. Returns true if none does.
fn search(arguments: &Arguments) -> bool {
    let family = match arguments {
        Arguments { mirror: true, .. } => Family::Mirror,
        Arguments { prune: true, .. } => Family::Prune,
        Arguments { peers: true, .. } => Family::Peers,
        Arguments { cluster: true, .. } => Family::Cluster,
        Arguments { deploy: true, .. } => Family::Deploy,
        Arguments { checkpoint: true, .. } => Family::Checkpoint,
        _ => Family::Multicast,
    };
    let (first, all) = (arguments.first, family.trials().len());
    let count = arguments.count.map_or(all, |count| usize::try_from(count).unwrap_or(all));
    let end = first.saturating_add(count).min(all);
    let broken = sim::until_broken(family, first..end);
    match &broken {
        None => println!("none of {} runs breaks a rule", end.saturating_sub(first)),
        Some(sim::Broken { number, trial, violation }) => {
            println!("BROKEN: run {number}, {trial}: {}: {}", violation.rule, violation.what);
        }
    }
    broken.is_none()
}

fn show_room(receivers: usize, arguments: &Arguments) -> bool {
    let Arguments { bits_per_second, loss_per_million, .. } = *arguments;
    let mut room = Room::new(receivers, arguments.image_mib << 20, bits_per_second, loss_per_million);
    (room.seed, room.slow) = (arguments.seed, arguments.slow.min(receivers));
    if arguments.skew {
        room.starts_over = room.transfer_time();
    }
    #[expect(
        clippy::disallowed_methods,
        reason = "how long the simulation itself takes is shown, not simulated"
    )]
    let began = std::time::Instant::now();
    let outcome = room.run();
    let wall = began.elapsed();
    let seconds = |time: Option<Duration>| time.map_or(f64::NAN, |time| time.as_secs_f64());
    let (last, first, mean) = (seconds(outcome.last()), seconds(outcome.first()), seconds(outcome.mean()));
    println!(
        "{receivers} receivers, loss {} %: last {last:.3} s, mean {mean:.3} s, first {first:.3} s (link time {:.3} s); \
         {:.3} images sent, {} blocks useless; control {:.3} % ({} packets); {:.1} s, {:.0} ns each of {} deliveries",
        f64::from(loss_per_million) / 1e4,
        room.transfer_time().as_secs_f64(),
        outcome.images(),
        outcome.blocks_useless,
        outcome.control_bytes as f64 * 100.0 / outcome.data_bytes as f64,
        outcome.control_packets,
        wall.as_secs_f64(),
        wall.as_nanos() as f64 / outcome.deliveries as f64,
        outcome.deliveries,
    );
    if arguments.json {
        println!(
            "{{\"receivers\":{receivers},\"seconds\":{last},\"seconds_first\":{first},\"seconds_mean\":{mean},\
             \"control_bytes\":{},\"control_packets\":{},\"data_bytes\":{},\"images\":{},\
             \"wall_seconds\":{},\"steps\":{}}}",
            outcome.control_bytes,
            outcome.control_packets,
            outcome.data_bytes,
            outcome.images(),
            wall.as_secs_f64(),
            outcome.steps,
        );
    }
    if arguments.verbose {
        let mut statistics = outcome.statistics;
        statistics.receivers.truncate(1);
        println!("{statistics:#?}");
    }
    tell(&outcome.violations)
}

/// Prints the violations; returns true if there are none.
fn tell(violations: &[Violation]) -> bool {
    for violation in violations {
        println!("  BROKEN: {}: {}", violation.rule, violation.what);
    }
    violations.is_empty()
}

fn parse(mut words: impl Iterator<Item = String>) -> Option<Arguments> {
    let mut arguments = Arguments {
        seed: 0,
        count: None,
        calm: false,
        harsh: false,
        ailing: false,
        verbose: false,
        room: None,
        loss_per_million: 0,
        image_mib: 32,
        bits_per_second: 100_000_000,
        skew: false,
        slow: 0,
        json: false,
        mirror: false,
        prune: false,
        peers: false,
        cluster: false,
        deploy: false,
        checkpoint: false,
        hosts: None,
        until_broken: false,
        first: 0,
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seed" => arguments.seed = words.next()?.parse().ok()?,
            "--count" => arguments.count = Some(words.next()?.parse().ok()?),
            "--until-broken" => arguments.until_broken = true,
            "--first" => arguments.first = words.next()?.parse().ok()?,
            "--prune" => arguments.prune = true,
            "--peers" => arguments.peers = true,
            "--cluster" => arguments.cluster = true,
            "--deploy" => arguments.deploy = true,
            "--checkpoint" => arguments.checkpoint = true,
            "--hosts" => arguments.hosts = Some(words.next()?.parse().ok()?),
            "--room" => arguments.room = Some(words.next()?.parse().ok()?),
            "--loss" => arguments.loss_per_million = words.next()?.parse().ok()?,
            "--mib" => arguments.image_mib = words.next()?.parse().ok()?,
            "--rate" => arguments.bits_per_second = words.next()?.parse().ok()?,
            "--slow" => arguments.slow = words.next()?.parse().ok()?,
            "--skew" => arguments.skew = true,
            "--mirror" => arguments.mirror = true,
            "--json" => arguments.json = true,
            "--calm" => arguments.calm = true,
            "--harsh" => arguments.harsh = true,
            "--ailing" => arguments.ailing = true,
            "--verbose" => arguments.verbose = true,
            _ => return None,
        }
    }
    Some(arguments)
}
