//! `cargo run --release -p diskcast-fuzz -- TARGET ROUNDS [SEED]`: fuzzes one target, or `all`, for longer than the
//! tests do.
#![expect(clippy::print_stderr, reason = "a developer's tool talks to its developer")]

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default| words.get(at).map_or(Some(default), |word| word.parse().ok());
    let (Some(name), Some(rounds), Some(seed)) = (words.first(), number(1, 100_000), number(2, 0)) else {
        return usage();
    };
    let chosen: Vec<_> = fuzz::TARGETS.iter().filter(|target| name == "all" || name == target.name).collect();
    if chosen.is_empty() {
        return usage();
    }
    for target in chosen {
        fuzz::run(target, rounds, seed);
        eprintln!("{}: {rounds} rounds from seed {seed}", target.name);
    }
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    let names: Vec<_> = fuzz::TARGETS.iter().map(|target| target.name).collect();
    eprintln!("usage: diskcast-fuzz all|{} [ROUNDS] [SEED]", names.join("|"));
    ExitCode::from(2)
}
