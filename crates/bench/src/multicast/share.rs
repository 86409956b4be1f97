//! Figures of several senders that share a link: four sessions of one server, a session and a TCP flow, and two
//! independent servers.

use std::path::Path;
use std::time::Duration;

use lab::Sample;
use serde_json::{Value, json};

use super::{GIGABIT, RUNS, SINK, least, most, star};
use crate::context::Context;
use crate::crew::Crew;
use crate::figure::{Bar, Figure, median};
use crate::flow::Flow;
use crate::room::{Fetched, Room, collect};
use crate::transfer::{Load, add_debian, add_random, library};
use crate::{Group, Result};

pub(super) const FOUR_SESSIONS: Group = Group {
    figures: &[
        (
            "multicast.four_sessions",
            "Jain's index of four sessions on one server link, 1 Gbit/s; at least 0.95",
        ),
        (
            "multicast.four_sessions_sum",
            "sum of four sessions over their link, repeated bytes not counted; at least 0.90",
        ),
        ("multicast.four_sessions_cov", "coefficient of variation of a session's 100 ms rates; at most 0.1"),
    ],
    measure: four_sessions,
};

pub(super) const TCP: Group = Group {
    figures: &[(
        "multicast.vs_tcp",
        "least share of the link that a session and a TCP flow (cubic) get beside each other; at least 0.25",
    )],
    measure: vs_tcp,
};

pub(super) const TWO_SERVERS: Group = Group {
    figures: &[
        (
            "multicast.two_servers",
            "Jain's index of two servers that share receivers' ports, 1 Gbit/s; at least 0.9",
        ),
        (
            "multicast.two_servers_sum",
            "sum of two servers over their receivers' port, repeated bytes not counted; at least 0.85",
        ),
    ],
    measure: two_servers,
};

/// Seconds from the start after which rates must be steady; earlier samples are not used.
const FIRST_SECOND: f64 = 1.0;
/// Time between two samples of the counters.
const INTERVAL: Duration = Duration::from_millis(100);
/// Bits per second; slow enough that a Debian image takes seconds.
const TCP_LINK: u64 = GIGABIT / 2;
#[expect(clippy::cast_precision_loss, reason = "ten digits")]
const LINK: f64 = GIGABIT as f64;

/// Samples of all links during some fetches, and the part of this time in which all fetches ran: from
/// [`FIRST_SECOND`] after the start until shortly before the first host had received everything. In seconds on the
/// meter's clock.
struct Watched {
    samples: Vec<Sample>,
    from: f64,
    until: f64,
}

/// Starts the fetches (host, server, image) at the same time and samples all links until the last fetch has ended.
fn watch(room: &Room, fetches: &[(u32, u32, &str)]) -> Result<(Watched, Vec<Fetched>)> {
    let meter = room.star.meter(INTERVAL)?;
    let mut crew = Crew::new();
    // The meter's clock when the crew's clock shows 0.
    let offset = meter.elapsed().as_secs_f64();
    let mut members = vec![];
    for &(host, server, name) in fetches {
        members.push(crew.start(&mut room.fetch_command(host, server, name, "null:"))?);
    }
    let fetched = collect(&mut crew, &members)?;
    let first = fetched.iter().map(|host| host.received).fold(f64::INFINITY, f64::min);
    let until = offset + first - INTERVAL.as_secs_f64();
    let watched = Watched { samples: meter.stop()?, from: offset + FIRST_SECOND, until };
    if watched.inside().len() < 6 {
        return Err(format!("the first host was done after {first:.1} s, too soon to measure rates").into());
    }
    Ok((watched, fetched))
}

impl Watched {
    /// The samples from `from` to `until`.
    fn inside(&self) -> Vec<&Sample> {
        let inside = |sample: &&Sample| (self.from..=self.until).contains(&sample.at.as_secs_f64());
        self.samples.iter().filter(inside).collect()
    }

    /// Bits per second of `counter` between each two consecutive samples.
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    fn rates(&self, counter: impl Fn(&Sample) -> u64) -> Vec<f64> {
        let rate = |pair: &[&Sample]| {
            let bytes = counter(pair[1]) - counter(pair[0]);
            bytes as f64 * 8.0 / (pair[1].at - pair[0].at).as_secs_f64()
        };
        self.inside().windows(2).map(rate).collect()
    }

    /// Mean bits per second of `counter` from the first sample to the last.
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    fn mean(&self, counter: impl Fn(&Sample) -> u64) -> f64 {
        let inside = self.inside();
        let (first, last) = (inside[0], inside[inside.len() - 1]);
        (counter(last) - counter(first)) as f64 * 8.0 / (last.at - first.at).as_secs_f64()
    }
}

/// The share of useful bytes in the payload that the next `count` ended sessions of a server sent: the image, each byte
/// counted once. The rest were repairs and repetitions.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn useful(room: &mut Room, server: usize, count: usize) -> Result<f64> {
    let (mut image, mut sent) = (0, 0);
    for _ in 0..count {
        let served = room.ended_session(server)?;
        image += served.number("image_bytes")?;
        sent += served.number("payload_bytes")?;
    }
    Ok((image as f64 / sent as f64).min(1.0))
}

/// Jain's index of fairness: 1 if all values are equal, 1/n if only one of n is not 0.
#[expect(clippy::cast_precision_loss, reason = "few values")]
fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    sum * sum / (values.len() as f64 * squares)
}

/// The coefficient of variation: standard deviation divided by mean.
#[expect(clippy::cast_precision_loss, reason = "few values")]
fn variation(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    variance.sqrt() / mean
}

fn four_sessions(context: &Context) -> Result<Vec<Figure>> {
    let repo = context.folder()?;
    let (mut jains, mut sums, mut variations, mut rows) = (vec![], vec![], vec![], vec![]);
    type Add = fn(&Context, &Path, &str) -> Result<Load>;
    let kinds: [(&str, Add); 2] =
        [("random", |context, repo, name| add_random(context, repo, 256, name)), ("debian", add_debian)];
    for (kind, add) in kinds {
        let names: Vec<String> = (1..=4).map(|index| format!("{kind}-{index}")).collect();
        let loads: Vec<Load> = names.iter().map(|name| add(context, &repo, name)).collect::<Result<_>>()?;
        let (mut jain_runs, mut sum_runs, mut variation_runs) = (vec![], vec![], vec![]);
        for _ in 0..RUNS {
            let mut room = Room::open_with(context, &[&repo], &star(4, GIGABIT, 0))?;
            let fetches: Vec<_> =
                names.iter().zip(1..).map(|(name, host)| (host, 0, name.as_str())).collect();
            let (watched, _) = watch(&room, &fetches)?;
            let means: Vec<f64> = (1..=4).map(|host| watched.mean(|sample| sample.received[host])).collect();
            let varied: Vec<f64> =
                (1..=4).map(|host| variation(&watched.rates(|sample| sample.received[host]))).collect();
            let useful = useful(&mut room, 0, 4)?;
            let sum = means.iter().sum::<f64>() / LINK;
            jain_runs.push(jain(&means));
            sum_runs.push(sum * useful);
            variation_runs.push(most(&varied));
            rows.push(json!({
                "workload": loads[0].words, "Mbit/s of each": megabits(&means), "Jain": jain(&means),
                "sum over link": sum, "of it useful": useful, "variation of the worst": most(&varied),
                "seconds seen": watched.until - watched.from,
            }));
        }
        jains.push(median(&jain_runs));
        sums.push(median(&sum_runs));
        variations.push(median(&variation_runs));
    }
    let workload = "four images of 256 MiB of incompressible data, and four of a Debian disk, one to each of \
        four hosts; the worse";
    let figure = |name: &str, value: f64, bar| Figure::new(name, &[value], "ratio", bar).on(workload, SINK);
    Ok(vec![
        figure("multicast.four_sessions", least(&jains), Bar::AtLeast(0.95)).with(json!(rows)),
        figure("multicast.four_sessions_sum", least(&sums), Bar::AtLeast(0.90)),
        figure("multicast.four_sessions_cov", most(&variations), Bar::AtMost(0.1)),
    ])
}

/// Rates as text, in Mbit/s.
fn megabits(rates: &[f64]) -> String {
    rates.iter().map(|rate| format!("{:.0}", rate / 1e6)).collect::<Vec<_>>().join(" ")
}

fn vs_tcp(context: &Context) -> Result<Vec<Figure>> {
    let (repo, loads) = library(context, &[256], true)?;
    let (mut worst, mut rows) = (vec![], vec![]);
    // The session goes from host 0 to host 1, so each flow (`from`, `to`) shares one link direction with it.
    for (place, from, to) in [("a receiver's port", 2, 1), ("the server's link", 0, 2)] {
        for load in &loads {
            let mut runs = vec![];
            for _ in 0..RUNS {
                let (session, tcp) = beside_tcp(context, &repo, load, (from, to))?;
                runs.push(session.min(tcp));
                rows.push(json!({
                    "shared": place, "workload": load.words, "session's share": session,
                    "TCP's share": tcp, "sum": session + tcp,
                }));
            }
            worst.push(median(&runs));
        }
    }
    Ok(vec![
        Figure::new("multicast.vs_tcp", &[least(&worst)], "ratio", Bar::AtLeast(0.25))
            .on(
                "256 MiB of incompressible data, and a Debian image, to one host at 500 Mbit/s; TCP began \
                before; delivered bytes",
                SINK,
            )
            .with(json!(rows)),
    ])
}

/// The shares of the link that a session and a TCP flow get at the same time, in delivered bytes.
fn beside_tcp(context: &Context, repo: &Path, load: &Load, (from, to): (u32, u32)) -> Result<(f64, f64)> {
    let mut room = Room::open_with(context, &[repo], &star(2, TCP_LINK, 0))?;
    let link = LINK * 0.5;
    let flow = Flow::start(&room.star, from, to)?;
    // TCP has filled the link when the session starts.
    flow.wait_until(Duration::from_millis(1500));
    let offset = flow.elapsed().as_secs_f64();
    let (watched, _) = watch(&room, &[(1, 0, &load.name)])?;
    let meant = (watched.from + offset, watched.until + offset);
    let tcp = flow.stop()?.rate(meant)? / link;
    let at_host = watched.mean(|sample| sample.received[1]) / link;
    // A receiver's port also carries TCP's bytes if both end there.
    let session = if to == 1 { at_host - tcp } else { at_host } * useful(&mut room, 0, 1)?;
    Ok((session, tcp))
}

fn two_servers(context: &Context) -> Result<Vec<Figure>> {
    let (repo, loads) = library(context, &[512], true)?;
    let (mut jains, mut sums, mut rows) = (vec![], vec![], vec![]);
    for load in &loads {
        let (mut jain_runs, mut sum_runs) = (vec![], vec![]);
        for _ in 0..RUNS {
            // Hosts 0 and 1 serve. Hosts 2 to 5 fetch from both of them.
            let mut room = Room::open_with(context, &[&repo, &repo], &star(5, GIGABIT, 0))?;
            let fetches: Vec<(u32, u32, &str)> = room
                .clients()
                .flat_map(|host| [0, 1].map(|server| (host, server, load.name.as_str())))
                .collect();
            let (watched, _) = watch(&room, &fetches)?;
            let sent = [0, 1].map(|server| watched.mean(|sample| sample.sent[server]));
            let ports: Vec<f64> =
                (2..=5).map(|host| watched.mean(|sample| sample.received[host]) / LINK).collect();
            let useful = f64::midpoint(useful(&mut room, 0, 1)?, useful(&mut room, 1, 1)?);
            jain_runs.push(jain(&sent));
            sum_runs.push(least(&ports) * useful);
            rows.push(two_servers_row(load, &sent, &ports, useful, &room)?);
        }
        jains.push(median(&jain_runs));
        sums.push(median(&sum_runs));
    }
    let workload = "512 MiB of incompressible data, and a Debian image, from two servers to four hosts that \
        fetch from both; the worse";
    let figure = |name: &str, value: f64, bar| {
        Figure::new(name, &[value], "ratio", Bar::AtLeast(bar)).on(workload, SINK)
    };
    Ok(vec![
        figure("multicast.two_servers", least(&jains), 0.9).with(json!(rows)),
        figure("multicast.two_servers_sum", least(&sums), 0.85),
    ])
}

fn two_servers_row(load: &Load, sent: &[f64], ports: &[f64], useful: f64, room: &Room) -> Result<Value> {
    let overflowed: u64 = room.star.traffic()?.iter().map(|link| link.overflowed).sum();
    Ok(json!({
        "workload": load.words, "Mbit/s sent by each": megabits(sent), "Jain": jain(sent),
        "sum over the least port": least(ports), "of it useful": useful, "frames lost by full buffers": overflowed,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_and_variation() {
        assert!((jain(&[2.0, 2.0, 2.0]) - 1.0).abs() < 1e-9);
        assert!((jain(&[1.0, 0.0]) - 0.5).abs() < 1e-9);
        assert!(variation(&[3.0, 3.0]).abs() < 1e-9);
        assert!((variation(&[1.0, 3.0]) - 0.5).abs() < 1e-9);
    }
}
