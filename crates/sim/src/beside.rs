//! The rule that hosts that ail slow nobody: a healthy host takes at most [`SLOWER_MAX`] times its time without them.
//!
//! Losses, and what each host draws, differ between two runs, and so do their times: a few hosts are unlucky, above all
//! with heavy loss. A host that took too long is looked at again with other dice. The rule is broken if the median of
//! its times beside the hosts that ail is too long for the longest of its times without them.
//!
//! Faults are the same in both. A host that is slower, but no slower than it may be, can meet a fault that begins just
//! after it is done without the others: it may take longer by twice the time that this lasts, since a receiver that
//! hears nothing asks ever more seldom. A host whose disk becomes slow is left out. What it takes depends on how much
//! happens to arrive while its disk is slow, more than on the network.

use base::Instant;

use crate::checkers::Violation;
use crate::scenario::{Fault, Scenario};

/// A healthy host may take this many times its time without the hosts that ail, and the scenario's `slower_by`.
const SLOWER_MAX: f64 = 1.5;
/// How often the dice are thrown again.
const THROWS: u64 = 4;

/// When each host was done.
type Done = Vec<Option<Instant>>;

/// The broken rules of a run in which hosts were done at `done`; `run` runs other scenarios. A healthy host that is
/// never done is for another rule.
pub(crate) fn slowed(scenario: &Scenario, done: &Done, run: impl Fn(&Scenario) -> Done) -> Vec<Violation> {
    let healthy = scenario.healthy();
    if healthy.hosts.len() == scenario.hosts.len() {
        return Vec::new();
    }
    // The hosts that ail are the last ones, so the others have the same numbers in both.
    let suspects = too_slow(&healthy, std::slice::from_ref(done), &[run(&healthy)]);
    if suspects.is_empty() {
        return Vec::new();
    }
    let with_dice = |scenario: &Scenario, throw: u64| match throw {
        0 => scenario.clone(),
        _ => Scenario { seed: scenario.seed ^ throw << 40, ..scenario.clone() },
    };
    let runs = |scenario| (0..=THROWS).map(|throw| run(&with_dice(scenario, throw))).collect::<Vec<_>>();
    let still = too_slow(&healthy, &runs(scenario), &runs(&healthy));
    let slowed = still.into_iter().filter(|slow| suspects.iter().any(|suspect| suspect.host == slow.host));
    slowed.map(|slow| slow.violation(scenario)).collect()
}

/// A host that took too long.
struct Slow {
    host: usize,
    alone: f64,
    beside: f64,
}

impl Slow {
    fn violation(&self, scenario: &Scenario) -> Violation {
        let Self { host, alone, beside } = self;
        let ail: Vec<_> = scenario.hosts.iter().filter_map(|host| host.ailment).collect();
        let what = format!("host {host} takes {beside:.3} s instead of {alone:.3} s, beside {ail:?}");
        Violation { rule: "hosts that ail slow nobody", what }
    }
}

/// The hosts of `healthy` that took too long in the runs `beside` others, for the time that they took in those `alone`.
fn too_slow(healthy: &Scenario, beside: &[Done], alone: &[Done]) -> Vec<Slow> {
    let seconds = |runs: &[Done], host: usize| {
        let starts = healthy.hosts[host].starts;
        let done = runs.iter().filter_map(|run| run[host]);
        let mut seconds: Vec<f64> = done.map(|done| done.since(starts).as_secs_f64()).collect();
        seconds.sort_by(f64::total_cmp);
        seconds
    };
    let has_slow_disk = |host: usize| {
        let is_its = |fault| matches!(fault, Fault::SlowDisk { host: slow, .. } if slow == host);
        healthy.events.iter().any(|event| is_its(event.fault))
    };
    let judged = (0..healthy.hosts.len()).filter(|&host| !has_slow_disk(host));
    let slow = judged.filter_map(|host| {
        let (beside, alone) = (seconds(beside, host), seconds(alone, host));
        let (beside, alone) = (*beside.get(beside.len() / 2)?, *alone.last()?);
        let may = alone * SLOWER_MAX + healthy.slower_by.as_secs_f64();
        let most = may + faults_between(healthy, host, alone, may);
        (beside > most).then_some(Slow { host, alone, beside })
    });
    slow.collect()
}

/// By how many seconds a host may be slower since it meets faults that begin so many seconds after its start.
fn faults_between(scenario: &Scenario, host: usize, from: f64, mut to: f64) -> f64 {
    let may = to;
    let mut events: Vec<_> = scenario.events.iter().filter(|event| hits(event.fault, host)).collect();
    events.sort_by_key(|event| event.at);
    for event in events {
        let at = event.at.since(scenario.hosts[host].starts).as_secs_f64();
        if (from..to).contains(&at) {
            to += 2.0 * event.lasts.as_secs_f64();
        }
    }
    to - may
}

/// Whether a fault keeps packets from a host.
fn hits(fault: Fault, host: usize) -> bool {
    match fault {
        Fault::LossBurst { host: hit, .. }
        | Fault::Partition { host: hit }
        | Fault::Crash { host: hit }
        | Fault::Disorder { host: hit } => hit == host,
        Fault::ServerCrash => true,
        Fault::SlowDisk { .. } | Fault::Lie { .. } | Fault::Noise => false,
    }
}

#[cfg(test)]
mod tests {
    use base::Duration;

    use super::*;
    use crate::scenario::Event;

    fn at(milliseconds: u64) -> Option<Instant> {
        Some(Instant::ZERO + Duration::from_millis(milliseconds))
    }

    /// The broken rules if each of two healthy hosts takes a second alone, and host 1 takes these times beside one that
    /// ails, with one throw of the dice after the other.
    fn broken(times_ms: [u64; 5], ails: bool) -> usize {
        broken_with(times_ms, ails, None)
    }

    /// The same with a fault.
    fn broken_with(times_ms: [u64; 5], ails: bool, fault: Option<Event>) -> usize {
        let mut scenario = Scenario { slower_by: Duration::from_millis(100), ..Scenario::ailing(3) };
        scenario.events.extend(fault);
        let ailing = scenario.hosts.iter().filter(|host| host.ailment.is_some()).count();
        let last = scenario.hosts.len() - ailing + usize::from(ails);
        scenario.hosts.truncate(last);
        scenario.hosts.drain(..last - usize::from(ails) - 2);
        scenario.hosts.iter_mut().for_each(|host| host.starts = Instant::ZERO);
        let hosts = scenario.hosts.len();
        let run = |other: &Scenario| {
            let throw = (other.seed ^ scenario.seed) >> 40;
            match other.hosts.len() < hosts {
                true => vec![at(1000); other.hosts.len()],
                false => vec![at(1000), at(times_ms[throw as usize]), None],
            }
        };
        slowed(&scenario, &run(&scenario), run).len()
    }

    #[test]
    fn a_host_is_slowed_if_most_throws_of_the_dice_say_so() {
        assert_eq!(broken([1601; 5], true), 1);
        assert_eq!(broken([1601; 5], false), 0, "nobody ails");
        assert_eq!(broken([1600; 5], true), 0);
        assert_eq!(broken([9000, 1600, 9000, 1600, 1600], true), 0);
        assert_eq!(broken([9000, 9000, 1600, 9000, 1600], true), 1);
    }

    #[test]
    fn who_is_a_little_slower_may_meet_a_fault() {
        let lasts = Duration::from_millis(500);
        let cut = |host, at_ms: u64| {
            let at = Instant::ZERO + Duration::from_millis(at_ms);
            Some(Event { at, lasts, fault: Fault::Partition { host } })
        };
        assert_eq!(broken_with([2600; 5], true, cut(1, 1010)), 0);
        assert_eq!(broken_with([2601; 5], true, cut(1, 1010)), 1);
        assert_eq!(broken_with([2600; 5], true, cut(0, 1010)), 1, "of another host");
        assert_eq!(broken_with([2600; 5], true, cut(1, 990)), 1, "met alone, too");
        assert_eq!(broken_with([2600; 5], true, cut(1, 1610)), 1, "met by who is too slow already");
    }
}
