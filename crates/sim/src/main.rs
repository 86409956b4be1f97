//! Replays one seed, or looks for a failing one: `cargo run --release -p diskcast-sim -- --seed 7`.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a tool for developers that prints its findings"
)]

use std::process::ExitCode;

use proto::multicast::Mutant;
use sim::{Scenario, run};

const USAGE: &str = "usage: diskcast-sim [--seed N] [--count N] [--mutant NAME] [--calm] [--verbose]";

struct Arguments {
    seed: u64,
    count: u64,
    mutant: Mutant,
    calm: bool,
    verbose: bool,
}

fn main() -> ExitCode {
    let Some(arguments) = parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let failed =
        (arguments.seed..arguments.seed + arguments.count).filter(|&seed| !replay(seed, &arguments)).count();
    println!("{failed} of {} seeds failed", arguments.count);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn replay(seed: u64, arguments: &Arguments) -> bool {
    let mut scenario = if arguments.calm { Scenario::calm(seed) } else { Scenario::mixed(seed) };
    scenario.mutant = arguments.mutant;
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
    for violation in &outcome.violations {
        println!("  BROKEN: {}: {}", violation.rule, violation.what);
    }
    if arguments.verbose {
        println!("{:#?}", outcome.statistics);
    }
    outcome.violations.is_empty()
}

fn parse(mut words: impl Iterator<Item = String>) -> Option<Arguments> {
    let mut arguments = Arguments { seed: 0, count: 1, mutant: Mutant::None, calm: false, verbose: false };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seed" => arguments.seed = words.next()?.parse().ok()?,
            "--count" => arguments.count = words.next()?.parse().ok()?,
            "--mutant" => {
                let name = words.next()?;
                arguments.mutant = Mutant::ALL.into_iter().find(|mutant| format!("{mutant:?}") == name)?;
            }
            "--calm" => arguments.calm = true,
            "--verbose" => arguments.verbose = true,
            _ => return None,
        }
    }
    Some(arguments)
}
