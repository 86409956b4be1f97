//! `diskcast-sim --cloud`: runs one simulated cloud and prints the result as a line of JSON.

use base::Duration;
use sim::cloud::{Boot, Cloud, Way};

/// Parses the arguments after `--cloud` into the cloud and the boot of its machines.
pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Option<(Cloud, Boot)> {
    let machines = words.next()?.parse().ok()?;
    let way = match words.next()?.as_str() {
        "demand" => Way::Demand,
        "profile" => Way::Profile,
        "multicast" => Way::Multicast,
        "here" => Way::Here,
        _ => return None,
    };
    let (mut cloud, mut chunk_kib, mut spread) = (Cloud::new(machines, way), 256, 1);
    while let Some(word) = words.next() {
        let number: u64 = words.next()?.parse().ok()?;
        let count = usize::try_from(number).ok().filter(|&count| count > 0);
        match word.as_str() {
            "--seed" => cloud.seed = number,
            "--storage" => cloud.storage = count?,
            "--copies" => cloud.replicas = count?,
            "--round-trip-us" => cloud.round_trip = Duration::from_micros(number),
            "--computes-ms" => cloud.computes = Duration::from_millis(number),
            "--chunk" => chunk_kib = number,
            "--spread" => spread = number.max(1),
            _ => return None,
        }
    }
    let boot = Boot::recorded();
    if chunk_kib == 256 && spread == 1 {
        return Some((cloud, boot));
    }
    if !(64..=4096).contains(&chunk_kib) || !chunk_kib.is_power_of_two() {
        return None;
    }
    cloud.dirty_object_bytes = cloud.dirty_object_bytes * chunk_kib / 256;
    cloud.random_chunks = usize::try_from((1024 / chunk_kib).max(1)).ok()?;
    Some((cloud, boot.scaled(chunk_kib, spread)))
}

/// Runs the cloud and returns the line of JSON.
#[must_use]
pub(crate) fn show(cloud: &Cloud, boot: &Boot) -> String {
    let outcome = cloud.run(boot);
    let seconds = |time: Duration| time.as_secs_f64();
    format!(
        "{{\"machines\":{},\"mean_boot\":{},\"all_booted\":{},\"boot_bytes\":{},\"all_committed\":{},\
         \"commit_bytes\":{},\"frozen\":{},\"steps\":{}}}",
        cloud.machines,
        seconds(outcome.mean_boot()),
        seconds(outcome.all_booted),
        outcome.boot_bytes,
        seconds(outcome.all_committed()),
        outcome.commit_bytes,
        seconds(outcome.frozen),
        outcome.steps,
    )
}
