//! The program of `make bench`. It measures the headline figures and compares them with the tools that users have
//! today, prints a line for each figure, and appends a JSON line to `bench/results.jsonl`. After that run it writes
//! `docs/measurements.md` and the plots from that file; `--report` only writes them again, and measures nothing.
//! `--only` measures figures by name, also those that are no headlines.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a developer's tool talks to its developer")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

mod again;
mod attached;
mod boots;
mod capture;
mod cloud;
mod cluster;
mod coder;
mod cold;
mod commits;
mod context;
mod crew;
mod deploy;
mod devices;
mod disks;
mod fetch;
mod figure;
mod flow;
mod frisbee;
mod fuse;
mod garbage;
mod headline;
mod histories;
mod hostile;
mod install;
mod kills;
mod lists;
mod load;
mod machine;
mod multicast;
mod nbd;
mod netboot;
mod network;
mod opennebula;
mod peer;
mod plain;
mod programs;
mod prune;
mod puts;
mod reader;
mod real;
mod replay;
mod report;
mod rivals;
mod room;
mod s3;
mod scale;
mod sealed;
mod shares;
mod side_by_side;
mod site;
mod swarm;
mod sweep_plot;
mod thesis;
mod threads;
mod torrent;
mod trace;
mod transfer;
mod versions;
mod way;

use std::process::ExitCode;

use context::Context;
use figure::Figure;

/// Any error of a measurement, shown to the developer as it is.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Figures that are measured together in one run, on one workload.
struct Group {
    /// Names of the figures, each with a description that includes its bar.
    figures: &'static [(&'static str, &'static str)],
    measure: fn(&Context) -> Result<Vec<Figure>>,
}

const USAGE: &str = "usage: diskcast-bench [--list | --only PATTERNS | --report | --replay ROUND-TRIP-MS | \
    --garbage SECONDS | --boot-order FILE | --peers HOSTS RATE LOSS-PERCENT MEBIBYTES [TOOL]]";

const GROUPS: &[&[&Group]] = &[
    &[
        &capture::GROUP,
        &again::GROUP,
        &install::GROUP,
        &install::ZEROS,
        &disks::GROUP,
        &disks::COMMITS,
        &devices::GROUP,
        &devices::PLANS,
        &devices::delta::GROUP,
        &devices::guest_io::GROUP,
    ],
    &[&fetch::GROUP, &fetch::INSTALLED, &sealed::GROUP],
    multicast::GROUPS,
    swarm::GROUPS,
    network::GROUPS,
    hostile::GROUPS,
    &[&versions::LARGE, &versions::WRITERS, &histories::GROUP, &rivals::GROUP, &scale::GROUP, &lists::GROUP],
    // The last two remove many files; after that, ext4 creates new files slowly.
    &[&puts::GROUP, &s3::GROUP, &prune::GROUP, &garbage::GROUP],
    &[&cloud::GROUP, &boots::GROUP],
    &[&nbd::GROUP, &fuse::GROUP, &attached::GROUP, &commits::GROUP, &kills::GROUP],
    &[&replay::NEAR, &replay::FAR, &cold::GROUP, &real::GROUP],
    &[&netboot::GROUP, &netboot::THREE],
    &[&deploy::GROUP, &deploy::slow_link::GROUP, &opennebula::GROUP],
    torrent::GROUPS,
    thesis::GROUPS,
    &[&coder::GROUP],
    cluster::GROUPS,
    &[&frisbee::TABLE_1, &frisbee::TABLE_2, &frisbee::TABLE_5],
];

fn groups() -> impl Iterator<Item = &'static Group> {
    GROUPS.iter().copied().flatten().copied()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--list"] => list(),
        ["--report"] => report::write(&describe),
        [] => measure_headlines(),
        ["--only", pattern] => measure(pattern),
        ["--peers", hosts, rate, percent, mebibytes] => Context::new()
            .and_then(|context| multicast::explore(&context, [hosts, rate, percent, mebibytes, ""])),
        ["--peers", hosts, rate, percent, mebibytes, tool] => Context::new()
            .and_then(|context| multicast::explore(&context, [hosts, rate, percent, mebibytes, tool])),
        ["--replay", round_trip_ms] => {
            Context::new().and_then(|context| replay::explore(&context, round_trip_ms))
        }
        ["--garbage", seconds] => Context::new().and_then(|context| garbage::explore(&context, seconds)),
        ["--boot-order", path] => Context::new().and_then(|context| replay::write_order(&context, path)),
        // `multicast.unshaped` runs this in the lab's hosts.
        ["--bare-send", rate] => multicast::bare_send(rate),
        ["--bare-receive", threads] => multicast::bare_receive(threads),
        _ => Err(USAGE.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", base::chain(&*error));
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::unnecessary_wraps, reason = "one shape for all verbs")]
fn list() -> Result<()> {
    for (name, what) in groups().flat_map(|group| group.figures) {
        let mark = if headline::contains(name) { '*' } else { ' ' };
        println!("{mark} {name:<28} {what}");
    }
    println!("\n* headline figures, which `make bench` measures; ONLY='NAME …' measures any");
    Ok(())
}

/// What the figure `name` measures, and its place in the list; `None` if no such figure is measured any more.
fn describe(name: &str) -> Option<(usize, &'static str)> {
    let mut all = groups().flat_map(|group| group.figures).enumerate();
    all.find(|(_, (known, _))| *known == name).map(|(place, (_, what))| (place, *what))
}

/// Measures the headline figures, and writes the report.
fn measure_headlines() -> Result<()> {
    let with_headlines = |group: &&Group| group.figures.iter().any(|(name, _)| headline::contains(name));
    let groups: Vec<_> = groups().filter(with_headlines).collect();
    let missed = headline::measure(&Context::of_headlines()?, &groups)?;
    report::write(&describe)?;
    ended(&missed)
}

/// Measures the groups of all figures that `patterns` select.
fn measure(patterns: &str) -> Result<()> {
    let wanted = |group: &&Group| {
        let is_chosen = |pattern: &str| group.figures.iter().any(|(name, _)| matches(pattern, name));
        choose(patterns, is_chosen)
    };
    let groups: Vec<_> = groups().filter(wanted).collect();
    if groups.is_empty() {
        return Err(format!("no figure is called `{patterns}`; `make bench LIST=1` lists them").into());
    }
    let context = Context::new()?;
    let mut missed = Vec::new();
    for group in groups {
        match (group.measure)(&context) {
            Ok(figures) => {
                for figure in figures {
                    println!("{}", figure.line());
                    context.record(&figure)?;
                }
            }
            Err(error) => missed.extend(not_measured(group, &*error)),
        }
    }
    ended(&missed)
}

/// Says that a group was not measured. Returns the names of its figures.
fn not_measured<'a>(
    group: &'a Group,
    error: &(dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a str> {
    let names: Vec<_> = group.figures.iter().map(|(name, _)| *name).collect();
    eprintln!("error: {} not measured: {}", names.join(", "), base::chain(error));
    names.into_iter()
}

fn ended(missed: &[&str]) -> Result<()> {
    if missed.is_empty() { Ok(()) } else { Err(format!("{} figures were not measured", missed.len()).into()) }
}

/// Whether `patterns` select a group; `fits` says whether one pattern matches it. Patterns are separated by spaces;
/// one that begins with `!` excludes what it matches.
fn choose(patterns: &str, fits: impl Fn(&str) -> bool) -> bool {
    let (without, with): (Vec<_>, Vec<_>) =
        patterns.split_whitespace().partition(|word| word.starts_with('!'));
    with.iter().any(|pattern| fits(pattern)) && !without.iter().any(|pattern| fits(&pattern[1..]))
}

/// Whether `name` matches `pattern`, in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => name.strip_prefix(head).is_some_and(|rest| {
            (0..=rest.len()).any(|skip| rest.is_char_boundary(skip) && matches(tail, &rest[skip..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match() {
        for (pattern, name) in
            [("*", "a.b"), ("fetch.*", "fetch.1_host"), ("*.1_host", "fetch.1_host"), ("a", "a")]
        {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        assert!(!matches("fetch.*", "install.memory"));
        assert!(!matches("fetch", "fetch.1_host"));
    }

    #[test]
    fn several_patterns_add_up_and_some_leave_out() {
        let chosen = |patterns: &str, name: &str| choose(patterns, |pattern| matches(pattern, name));
        assert!(chosen("fetch.* capture.*", "capture.rate") && chosen("* !fetch.*", "capture.rate"));
        assert!(!chosen("* !fetch.*", "fetch.1_host") && !chosen("", "fetch.1_host"));
    }

    #[test]
    fn every_plot_has_a_title() {
        for (name, _) in groups().flat_map(|group| group.figures) {
            let group = name.split('.').next().unwrap();
            assert_ne!(shares::title(group), group, "{name}");
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = groups().flat_map(|group| group.figures).map(|(name, _)| name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
