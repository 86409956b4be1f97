//! The headline figures: those by which diskcast is judged, measured together in one run, from one clean commit, on a
//! machine that does nothing else. All other figures are diagnostics, measured by name.

use std::time::{Duration, Instant};

use crate::context::Context;
use crate::figure::Figure;
use crate::{Group, Result};

/// The headline figures. Their groups took 79 minutes on two cores, before thin ones were measured again.
const NAMES: &[&str] = &[
    "capture.rate",
    "capture.size_vs_zlib4",
    "capture.changed",
    "install.rate_null",
    "install.rate_file",
    "install.zero_runs",
    "disks.capture_rate",
    "disks.capture_size",
    "disks.install_rate",
    "disks.delta",
    "disks.delta_bytes",
    "fetch.1_host",
    "fetch.8_hosts",
    "fetch.server_bytes",
    "versions.sealed_capture",
    "multicast.16_hosts",
    "multicast.16_hosts_bytes",
    "multicast.8_hosts",
    "multicast.16_hosts_loss1",
    "multicast.16_hosts_loss10",
    "multicast.1_host_loss1",
    "multicast.slow_host",
    "multicast.sim_growth",
    "multicast.four_sessions",
    "multicast.sealed",
    "multicast.unshaped",
    "peers.skew",
    "peers.together",
    "peers.one_host",
    "peers.two_switches",
    "peers.p99_latency",
    "peers.start_delay",
    "switch.p99_latency",
    "hostile.flood_full",
    "hostile.flood_small",
    "versions.clone_time",
    "versions.commit_1m",
    "versions.write_rate",
    "versions.folder_put",
    "versions.s3_capture",
    "mirror.sixteen_boots",
    "mirror.commit_time",
    "mirror.commit_pause",
    "mirror.commit_16",
    "mirror.kills",
    "mirror.replay_cold",
    "mirror.replay_wan",
    "mirror.boot_bytes",
    "mirror.cold_read",
    "netboot.three",
    "deploy.overhead",
    "deploy.one_small",
    "deploy.cached",
    "opennebula.one_session",
    "opennebula.one_new",
    "torrent.two_switches",
    "torrent.start",
    "cluster.put",
    "cluster.get",
    "cluster.degraded",
    "cluster.space",
    "cluster.scaling",
    "cluster.incast",
    "cluster.rebuild",
    "cluster.get_minio",
    "cluster.coder",
    "frisbee.table_1",
    "frisbee.table_2",
];

/// A run takes no longer, unless its groups take longer once each.
const RUN_MAX: Duration = Duration::from_secs(88 * 60);
/// More measurements of a thin figure.
const MORE: u32 = 2;

/// Whether a figure is one of them.
pub(crate) fn contains(name: &str) -> bool {
    NAMES.contains(&name)
}

/// The figures of a group, and how long they took.
struct Measured<'a> {
    group: &'a Group,
    figures: Vec<Figure>,
    took: Duration,
}

/// Measures the headline figures of `groups`, and thin ones three times if there is time. Returns the names of those
/// that were not measured.
pub(crate) fn measure<'a>(context: &Context, groups: &[&'a Group]) -> Result<Vec<&'a str>> {
    let begin = Instant::now();
    let (mut all, mut missed) = (Vec::new(), Vec::new());
    for &group in groups {
        match once(context, group) {
            Ok(measured) => {
                keep(context, &measured.figures)?;
                all.push(measured);
            }
            Err(error) => missed.extend(crate::not_measured(group, &*error).filter(|name| contains(name))),
        }
    }
    // The quick ones first: more of them find time.
    all.sort_by_key(|measured| measured.took);
    for measured in all.iter().filter(|measured| measured.figures.iter().any(Figure::is_thin)) {
        let thin = measured.figures.iter().filter(|figure| figure.is_thin());
        if begin.elapsed() + measured.took * MORE > RUN_MAX {
            for Figure { name, .. } in thin {
                println!("{name}: thin, and no time is left to measure it again");
            }
            continue;
        }
        match again(context, measured) {
            Ok(figures) => keep(context, &figures)?,
            Err(error) => drop(crate::not_measured(measured.group, &*error)),
        }
    }
    println!("{} minutes", begin.elapsed().as_secs() / 60);
    Ok(missed)
}

/// Shows figures, and writes them down at once. What comes later in a run counts.
fn keep(context: &Context, figures: &[Figure]) -> Result<()> {
    figures.iter().try_for_each(|figure| {
        println!("{}", figure.line());
        context.record(figure)
    })
}

/// The middle of three measurements, of which `first` is one.
fn again(context: &Context, first: &Measured<'_>) -> Result<Vec<Figure>> {
    let more = (0..MORE).map(|_| once(context, first.group)).collect::<Result<Vec<_>>>()?;
    let middle = |figure: &Figure| {
        let others = more.iter().flat_map(|measured| &measured.figures);
        figure.middle(others.filter(|other| other.name == figure.name))
    };
    Ok(first.figures.iter().map(middle).collect())
}

fn once<'a>(context: &Context, group: &'a Group) -> Result<Measured<'a>> {
    let begin = Instant::now();
    let measured = (group.measure)(context);
    context.free_room()?;
    let figures = measured?.into_iter().filter(|figure| contains(&figure.name)).collect();
    Ok(Measured { group, figures, took: begin.elapsed() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headlines_are_figures() {
        let all: Vec<_> = crate::groups().flat_map(|group| group.figures).map(|(name, _)| *name).collect();
        for name in NAMES {
            assert!(all.contains(name), "{name} is measured by nobody");
        }
        assert!(NAMES.len() <= 72, "{} are too many to look at", NAMES.len());
    }
}
