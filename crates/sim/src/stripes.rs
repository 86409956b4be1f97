//! `diskcast-sim --striped`: runs one simulated cluster for its bandwidth and prints the result as a line of JSON.

use sim::striped::{Striped, Work};

/// Parses the arguments after `--striped`.
pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Option<Striped> {
    let (work, clients, devices) = (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let mut striped = match work.as_str() {
        "read" => Striped::seed_002(Work::Read, clients, devices),
        "write" => Striped::seed_002(Work::Write, clients, devices),
        "boot" => Striped { devices, ..Striped::seed_003(clients) },
        _ => return None,
    };
    let (mut data, mut parity) = (striped.width.data, striped.width.parity);
    while let Some(word) = words.next() {
        let number: u64 = words.next()?.parse().ok()?;
        match word.as_str() {
            "--seed" => striped.seed = number,
            "--data" => data = number.try_into().ok()?,
            "--parity" => parity = number.try_into().ok()?,
            "--contents" => striped.contents = number.try_into().ok().filter(|&count| count > 0)?,
            "--disk" => striped.disk_bytes_per_second = Some(number).filter(|&rate| rate > 0)?,
            "--component" => striped.component_bytes = Some(number).filter(|&bytes| bytes > 0)?,
            "--at-once" => striped.at_once = number.try_into().ok().filter(|&count| count > 0)?,
            _ => return None,
        }
    }
    striped.width = proto::cluster::Width::new(data, parity)?;
    let is_enough = devices >= u32::from(striped.width.components()).max(u32::from(parity) + 1);
    (clients > 0 && is_enough).then_some(striped)
}

/// Runs the cluster and returns the line of JSON.
#[must_use]
pub(crate) fn show(striped: &Striped) -> String {
    let outcome = striped.run();
    let last = outcome.last().as_secs_f64();
    let (bytes, rate) = (outcome.content_bytes, outcome.bytes_per_second());
    let (sent, most) = (outcome.sent_bytes, outcome.most_sent_bytes);
    format!(
        "{{\"seconds\":{last},\"content_bytes\":{bytes},\"bytes_per_second\":{rate},\"sent_bytes\":{sent},\
         \"most_sent_bytes\":{most}}}"
    )
}
