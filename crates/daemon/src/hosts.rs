//! The machines that fetch, as they report it themselves, and what became of those that ended.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use net::api::{HostReport, HostStage, HostStatus};
use net::recent::Recent;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::event::{Event, Log};
use crate::limits::per_address::{Place, places_of};

/// Most machines that are kept; of those that ended, the oldest are forgotten first.
const HOSTS_MAX: usize = 16_384;
/// Most machines that report from one address: many may be behind one router.
const HOSTS_PER_ADDRESS_MAX: u32 = 1024;
/// Shortest and longest time between two reports of a machine. Between them all machines together send one report per
/// `REPORT_EACH`.
const INTERVAL_MIN: Duration = Duration::from_secs(2);
const INTERVAL_MAX: Duration = Duration::from_secs(4);
const REPORT_EACH: Duration = Duration::from_millis(5);
/// A machine that has not reported for this time is gone: two reports are missing at least.
const SILENCE_MAX: Duration = Duration::from_millis(8500);
/// Machines that ended are kept for this time.
const ENDED_KEPT: Duration = Duration::from_secs(24 * 3600);
/// Rates are those of the last seconds, two reports at least.
const RATE_WINDOW: Duration = Duration::from_secs(8);
/// Longest reason that is kept, in characters.
const REASON_CHARS_MAX: usize = 300;
/// Longest name of a machine that is kept, in characters.
const NAME_CHARS_MAX: usize = 64;

/// All machines.
pub(crate) struct Hosts {
    log: Log,
    table: Mutex<HashMap<u128, Host>>,
}

struct Host {
    address: IpAddr,
    report: HostReport,
    /// It said that it ended, or it is gone.
    ended: bool,
    first: Instant,
    heard: Instant,
    /// What it receives from the network, and what of the target is done, in the present stage.
    received: Recent,
    done: Recent,
}

impl Hosts {
    pub(crate) fn new(log: Log) -> Self {
        Self { log, table: Mutex::default() }
    }

    /// Takes a report of the fetch `id` from `address`; returns when the next one is due. If there are too many
    /// machines, it is not kept.
    pub(crate) fn report(&self, id: u128, address: IpAddr, report: HostReport, now: Instant) -> Duration {
        let report = cleaned(report);
        let mut table = self.table.lock();
        if !table.contains_key(&id) && !has_room(&mut table, address) {
            return INTERVAL_MAX;
        }
        let host = table.entry(id).or_insert_with(|| Host::new(address, &report, now));
        let had_ended = host.ended;
        host.hear(address, report, now);
        let ended = (host.ended && !had_ended).then(|| host.event(now));
        let active = u32::try_from(table.values().filter(|host| !host.ended).count()).unwrap_or(u32::MAX);
        drop(table);
        ended.iter().for_each(|event| (self.log)(event));
        (REPORT_EACH * active).clamp(INTERVAL_MIN, INTERVAL_MAX)
    }

    /// Finds machines that are gone, and forgets those that ended long ago. Must be called every second.
    pub(crate) fn sweep(&self, now: Instant) {
        let mut gone = Vec::new();
        {
            let mut table = self.table.lock();
            table.retain(|_, host| !host.ended || now - host.heard < ENDED_KEPT);
            for host in table.values_mut().filter(|host| !host.ended && now - host.heard >= SILENCE_MAX) {
                (host.ended, host.report.stage) = (true, HostStage::Gone);
                gone.push(host.event(now));
            }
        }
        gone.iter().for_each(|event| (self.log)(event));
    }

    /// The versions that machines fetch now, as `image@version`; each may be there several times.
    pub(crate) fn fetched(&self) -> Vec<String> {
        let table = self.table.lock();
        let working = table.values().filter(|host| !host.ended);
        working.map(|host| host.report.reference.clone()).collect()
    }

    /// The machines that fetch images that `sees` permits: first those at work, then those that ended, the latest
    /// first.
    pub(crate) fn list(&self, sees: impl Fn(&str) -> bool, now: Instant) -> Vec<HostStatus> {
        let table = self.table.lock();
        let image = |host: &Host| host.report.reference.split('@').next().is_some_and(&sees);
        let mut seen: Vec<&Host> = table.values().filter(|host| image(host)).collect();
        seen.sort_by(|a, b| {
            let order =
                |host: &Host| (host.ended, if host.ended { now - host.heard } else { Duration::ZERO });
            order(a).cmp(&order(b)).then_with(|| a.report.host.cmp(&b.report.host))
        });
        seen.into_iter().map(|host| host.status(now)).collect()
    }
}

/// Whether there is room for another machine of `address`. Forgets the one that ended first if necessary.
fn has_room(table: &mut HashMap<u128, Host>, address: IpAddr) -> bool {
    let is_in = |host: &Host, place: Place| places_of(host.address).any(|at| at == place);
    let is_full = |place: &Place| {
        let here = table.values().filter(|host| is_in(host, *place)).count();
        here >= place.most(HOSTS_PER_ADDRESS_MAX) as usize
    };
    let full = places_of(address).find(is_full);
    if table.len() < HOSTS_MAX && full.is_none() {
        return true;
    }
    let may_go = |host: &Host| host.ended && full.is_none_or(|place| is_in(host, place));
    let oldest = table.iter().filter(|(_, host)| may_go(host)).min_by_key(|(_, host)| host.heard);
    let oldest = oldest.map(|(&id, _)| id);
    oldest.is_some_and(|id| table.remove(&id).is_some())
}

/// The report without control characters and excess lengths: its texts go into logs and onto terminals.
fn cleaned(mut report: HostReport) -> HostReport {
    let text = |text: &str, most| text.chars().filter(|c| !c.is_control()).take(most).collect::<String>();
    report.host = text(&report.host, NAME_CHARS_MAX);
    report.reason = report.reason.map(|reason| text(&reason, REASON_CHARS_MAX));
    if report.stage == HostStage::Gone {
        report.stage = HostStage::Failed;
    }
    report
}

/// How long the fetch had run by then, as its machine says.
fn reported(report: &HostReport) -> Duration {
    Duration::from_millis(report.elapsed_ms)
}

fn arrived(report: &HostReport) -> u64 {
    report.multicast_bytes.saturating_add(report.peer_bytes).saturating_add(report.unicast_bytes)
}

impl Host {
    fn new(address: IpAddr, report: &HostReport, now: Instant) -> Self {
        Self {
            address,
            report: report.clone(),
            ended: false,
            first: now,
            heard: now,
            received: Recent::over(RATE_WINDOW),
            done: Recent::over(RATE_WINDOW),
        }
    }

    fn hear(&mut self, address: IpAddr, report: HostReport, now: Instant) {
        if report.stage != self.report.stage {
            self.received.clear();
            self.done.clear();
        }
        // The clock of the machine says when it counted. An older client does not tell.
        let at = if report.elapsed_ms > 0 { reported(&report) } else { now - self.first };
        self.received.count(at, arrived(&report));
        self.done.count(at, report.done_bytes);
        (self.address, self.heard, self.ended) = (address, now, report.ended);
        self.report = report;
    }

    fn status(&self, now: Instant) -> HostStatus {
        let report = &self.report;
        let is_receiving = matches!(report.stage, HostStage::Tree | HostStage::Receiving);
        // A client that tells nothing of the network before its end has no rate.
        let is_known = !self.ended && is_receiving && arrived(report) > 0;
        let pace = self.done.per_second().filter(|&pace| pace > 0 && !self.ended);
        let left = report.total_bytes.saturating_sub(report.done_bytes);
        HostStatus {
            host: report.host.clone(),
            address: self.address,
            reference: report.reference.clone(),
            stage: report.stage,
            ended: self.ended,
            reason: report.reason.clone(),
            done_bytes: report.done_bytes,
            total_bytes: report.total_bytes,
            rate_bytes_per_second: self.received.per_second().filter(|_| is_known),
            left_seconds: pace.map(|pace| left.div_ceil(pace)),
            runtime_seconds: self.runtime_seconds(now),
            quiet_seconds: (now - self.heard).as_secs(),
            multicast_bytes: report.multicast_bytes,
            peer_bytes: report.peer_bytes,
            unicast_bytes: report.unicast_bytes,
        }
    }

    /// Whole seconds since its fetch began, which was before its first report; until its end, if it has ended.
    fn runtime_seconds(&self, now: Instant) -> u64 {
        let since = if self.ended { Duration::ZERO } else { now - self.heard };
        let runtime = reported(&self.report).max(self.heard - self.first).saturating_add(since);
        runtime.saturating_add(Duration::from_millis(500)).as_secs()
    }

    /// The event that it has ended.
    fn event(&self, now: Instant) -> Event {
        Event::HostEnded { host: Box::new(self.status(now)) }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use super::*;
    use crate::serve::SWEEP_INTERVAL;

    fn report(host: &str, stage: HostStage, done: u64) -> HostReport {
        HostReport {
            host: host.into(),
            reference: "lab@3".into(),
            stage,
            ended: false,
            reason: None,
            done_bytes: done,
            total_bytes: 1000,
            multicast_bytes: 0,
            peer_bytes: 0,
            unicast_bytes: 0,
            elapsed_ms: 0,
        }
    }

    fn hosts() -> (Hosts, Arc<Mutex<Vec<String>>>) {
        let told = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&told);
        (Hosts::new(Arc::new(move |event: &Event| lines.lock().push(event.to_string()))), told)
    }

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn each_end_is_told_once_and_a_silent_machine_is_gone() {
        let (hosts, told) = hosts();
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        hosts.report(1, HERE, report("pc1", HostStage::Tree, 0), at(0));
        hosts.report(1, HERE, report("pc1", HostStage::Receiving, 0), at(2));
        hosts.report(1, HERE, report("pc1", HostStage::Receiving, 200), at(4));
        hosts.report(2, HERE, report("pc2", HostStage::Receiving, 0), at(4));
        let list = hosts.list(|image| image == "lab", at(5));
        let first = &list[0];
        assert_eq!((first.left_seconds, first.percent(), first.ended), (Some(8), Some(20), false));
        assert_eq!(first.rate_bytes_per_second, None, "an older client does not tell what arrived");
        assert!(hosts.list(|image| image == "other", at(5)).is_empty());
        let ended = HostReport {
            ended: true,
            reason: Some("disk \u{1b}[2J full".into()),
            ..report("pc1", HostStage::Failed, 200)
        };
        hosts.report(1, HERE, ended.clone(), at(6));
        hosts.report(1, HERE, ended, at(6));
        hosts.sweep(at(12));
        assert_eq!(hosts.list(|_| true, at(12))[0].host, "pc2", "machines at work come first");
        hosts.sweep(at(13));
        hosts.sweep(at(14));
        let list = hosts.list(|_| true, at(14));
        assert_eq!(list.iter().filter(|host| host.stage == HostStage::Gone).count(), 1);
        assert_eq!(list.len(), 2);
        assert!(list.iter().all(|host| host.ended && host.left_seconds.is_none()), "{list:?}");
        let told = told.lock();
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].contains("pc1") && told[0].contains("failed: disk [2J full"), "{told:?}");
        assert!(told[1].contains("pc2") && told[1].contains("gone"), "{told:?}");
    }

    #[test]
    fn the_rate_is_that_of_the_network_and_the_time_left_that_of_the_disk() {
        let (hosts, told) = hosts();
        let begin = Instant::now();
        let at = |milliseconds| begin + Duration::from_millis(milliseconds);
        // A target of zeros and text grows eight times as fast as what arrives.
        let fetching = |elapsed_ms: u64| HostReport {
            multicast_bytes: elapsed_ms / 20,
            unicast_bytes: elapsed_ms / 20,
            elapsed_ms,
            ..report("pc1", HostStage::Receiving, elapsed_ms * 8 / 10)
        };
        // The network delays one report by 300 ms.
        for (elapsed, late) in [(100, 0), (600, 300), (1100, 0)] {
            hosts.report(1, HERE, fetching(elapsed), at(900 + elapsed + late));
        }
        let seen = hosts.list(|_| true, at(2500)).remove(0);
        assert_eq!((seen.rate_bytes_per_second, seen.left_seconds), (Some(100), Some(1)));
        assert_eq!(seen.runtime_seconds, 2, "1.1 s when it reported, half a second ago");
        let ended = HostReport { ended: true, stage: HostStage::Written, ..fetching(3600) };
        hosts.report(1, HERE, ended, at(4400));
        let seen = hosts.list(|_| true, at(9000)).remove(0);
        assert_eq!((seen.stage, seen.ended, seen.rate_bytes_per_second), (HostStage::Written, true, None));
        assert_eq!(seen.runtime_seconds, 4, "since the fetch began, not since its first report");
        assert!(told.lock()[0].contains("after 4 s"), "{told:?}");
        // What a machine says of itself may be absurd.
        hosts.report(2, HERE, HostReport { elapsed_ms: u64::MAX, ..fetching(100) }, at(9000));
        hosts.report(2, HERE, HostReport { multicast_bytes: u64::MAX, ..fetching(100) }, at(9500));
        assert_eq!(hosts.list(|_| true, at(9600)).len(), 2);
    }

    #[test]
    fn a_killed_machine_is_gone_within_ten_seconds_and_a_late_report_is_no_death() {
        let (hosts, told) = hosts();
        let begin = Instant::now();
        let next = hosts.report(1, HERE, report("pc1", HostStage::Receiving, 0), begin);
        assert!(2 * INTERVAL_MAX < SILENCE_MAX && next <= INTERVAL_MAX, "one report may be lost");
        // The server sweeps at any moment, each SWEEP_INTERVAL.
        for offset in [0, 1, 499, 999] {
            let mut now = begin + Duration::from_millis(offset);
            while now < begin + SILENCE_MAX {
                hosts.sweep(now);
                assert!(told.lock().is_empty());
                now += SWEEP_INTERVAL;
            }
            assert!(now <= begin + Duration::from_secs(10), "it would be gone after {:?}", now - begin);
        }
        hosts.sweep(begin + SILENCE_MAX + SWEEP_INTERVAL);
        assert_eq!(told.lock().len(), 1);
        assert_eq!(hosts.list(|_| true, begin + SILENCE_MAX)[0].stage, HostStage::Gone);
    }

    #[test]
    fn memory_is_bounded_and_one_address_does_not_take_it_from_the_others() {
        let (hosts, _) = hosts();
        let now = Instant::now();
        for id in 0..5000 {
            hosts.report(id, HERE, report("flood", HostStage::Tree, 0), now);
        }
        assert_eq!(hosts.table.lock().len(), HOSTS_PER_ADDRESS_MAX as usize);
        hosts.report(9999, Ipv4Addr::new(10, 0, 0, 1).into(), report("pc", HostStage::Tree, 0), now);
        assert!(hosts.table.lock().contains_key(&9999));
        hosts.sweep(now + SILENCE_MAX);
        hosts.report(5001, HERE, report("late", HostStage::Tree, 0), now + SILENCE_MAX);
        assert!(hosts.table.lock().contains_key(&5001), "one that is gone makes room");
        hosts.sweep(now + SILENCE_MAX + ENDED_KEPT);
        assert!(hosts.table.lock().len() <= 1);
    }
}
