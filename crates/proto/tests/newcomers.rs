//! Hosts that were admitted and never report count for a short time only: then those that report are heard as often as
//! if they were alone.

use base::{Duration, Instant};
use proto::multicast::{
    Cause, Downstream, Key, Lacking, MachineId, NeedRange, ObjectRange, ReceiverCounters, ReceiverId, Report,
    Server, ServerEvent, Shape, Transmit, Upstream, open_downstream, seal,
};

use crate::common::server_config;

const SHAPE: Shape = Shape { session: 1, epoch: 1, objects: 400, heads: 1, block_bytes: 1024 };
const OBJECT_BYTES: u32 = 10 * 1024;
const KEY: Key = Key([7; 16]);
const SILENT: u32 = 700;
/// So slow that the share of STATUS alone is one packet in half a second.
const BITS_PER_SECOND: u64 = 1_000_000;

/// The report interval, as the STATUS of a server say it that one receiver reports to, each with its time.
fn intervals(silent: u32, until: Duration) -> Vec<(Instant, Duration)> {
    let mut now = Instant::ZERO;
    let mut server = Server::new(now, server_config(SHAPE, OBJECT_BYTES, BITS_PER_SECOND));
    (0..=silent).for_each(|receiver| server.admit(now, ReceiverId(receiver), MachineId(receiver)));
    let mut told = Vec::new();
    let mut report_at = now;
    while now < Instant::ZERO + until {
        if now >= report_at {
            report_at = now + Duration::from_millis(50);
            let counters = ReceiverCounters { blocks_arrived: 1, ..ReceiverCounters::default() };
            let report =
                Report { receiver: ReceiverId(0), timestamp_us: 0, seen: 0, crowded: false, counters };
            let objects = ObjectRange { first: 0, count: u32::try_from(SHAPE.objects).unwrap() };
            let whole = vec![NeedRange { objects, cause: Cause::Late, urgent: false }];
            server.handle_input(now, &Upstream::Need(report, Lacking { whole, ..Lacking::default() }));
        }
        while let Some(event) = server.poll_event() {
            if let ServerEvent::Load(object) = event {
                server.loaded(object, true);
            }
        }
        while let Some(transmit) = server.poll_transmit(now) {
            let Transmit::Control(mut packet) = transmit else { continue };
            seal(&KEY, &mut packet);
            if let Ok(Downstream::Status(status)) = open_downstream(&KEY, &SHAPE, &packet) {
                told.push((now, status.report_interval));
            }
        }
        now = server.poll_timeout().map_or(report_at, |at| at.min(report_at)).max(now);
        server.handle_timeout(now);
    }
    told
}

#[test]
fn silent_hosts_make_the_reports_of_others_seldom_for_a_short_time_only() {
    let alone = intervals(0, Duration::from_secs(2)).last().unwrap().1;
    let beside = intervals(SILENT, Duration::from_secs(2));
    assert!(beside[0].1 > Duration::from_secs(3), "at first they count: {:?}", beside[0]);
    // 150 ms later they are silent. It falls by a quarter with each STATUS, from 4 s to 40 ms or less by 17.
    let fallen = beside.iter().find(|(_, interval)| *interval <= alone * 4 / 3).expect("it falls");
    assert!(fallen.0 < Instant::ZERO + Duration::from_millis(1500), "{fallen:?}, alone {alone:?}");
    let later = beside.iter().filter(|(at, _)| *at > fallen.0 + Duration::from_millis(50)).count();
    assert!(later <= 4, "STATUS takes its usual share again: {later} packets");
}
