//! The machine's side of a probe: joins the group, counts what arrives, and reports.

use std::collections::BTreeMap;
use std::time::Duration;

use base::Result;

use super::packet::{From, PACKET_BYTES_MIN, Packet};
use super::packet_socket::{GroupListener, Querier};
use super::server::low_bits;
use super::{ROUND, header_bytes};
use crate::api::{ProbeGrant, ProbeView};
use crate::clock::{Clock, Stop};
use crate::interface::Interface;
use crate::udp::{Arrivals, GroupReceiver, ReportSocket, wait};

/// Packets that arrived before, and do not for this time, have stopped.
const STOPPED_AFTER: Duration = Duration::from_secs(3);
/// Rounds from which a loss is computed.
const ROUNDS_MIN: u64 = 8;
/// Time from one request for the server's view to the next.
const VIEW_INTERVAL: Duration = Duration::from_secs(2);

/// How a machine listens to a probe.
#[derive(Debug, Clone)]
pub struct ListenOptions {
    /// The interface on which it joins the group.
    pub interface: Interface,
    /// How long it listens.
    pub time: Duration,
    /// Ends the listening early.
    pub stop: Stop,
}

/// What a machine heard of a probe.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Heard {
    /// How long it has listened.
    pub time: Duration,
    /// Rounds that the server had sent at the end.
    pub rounds_sent: u32,
    /// Packets that arrived, by the length of the IP packet in bytes; 0 for sizes of which none arrived.
    pub sizes: BTreeMap<u16, u32>,
    /// Rounds of which any packet arrived.
    pub rounds: u32,
    /// The last of those, and the first.
    pub last_round: u32,
    /// See [`Self::last_round`].
    pub first_round: u32,
    /// Packets of the rounds after the first and before the last, which may have been heard in part.
    pub between: u64,
    /// When packets stopped to arrive for the first time, since the beginning.
    pub stopped_after: Option<Duration>,
    /// After that: whether packets arrived again when the machine had left the group and joined it again. `None`: it
    /// did not come to that.
    pub came_back: Option<bool>,
    /// Packets of the group that reached the machine, whether or not a firewall let them through. `None` without the
    /// right to look.
    pub reached: Option<u64>,
    /// Who sends queries; `None` if none was heard, or without the right to look.
    pub querier: Option<Querier>,
    /// Reports that the machine sent.
    pub reports_sent: u32,
    /// Reports that the server got.
    pub reports_arrived: u32,
    /// The machine's packets that the server got, by the length of the IP packet in bytes; 0 for sizes of which none
    /// arrived. Empty if the server is too old to count them.
    pub sizes_at_server: BTreeMap<u16, u32>,
}

impl Heard {
    /// Share of the packets between the first and the last round that are missing, of the sizes that arrive at all;
    /// `None` if few rounds arrived.
    #[must_use]
    pub fn loss(&self) -> Option<f64> {
        let sizes = self.sizes.values().filter(|&&count| count > 0).count() as u64;
        let rounds = u64::from((self.last_round - self.first_round).saturating_sub(1));
        #[expect(clippy::cast_precision_loss, reason = "a share for people")]
        (rounds >= ROUNDS_MIN).then(|| 1.0 - (self.between as f64 / (sizes * rounds) as f64).min(1.0))
    }
}

/// Listens to the probe of `grant`; `view` asks the server for its view, and `observe` is told what is known about once
/// a second.
///
/// # Errors
/// `Io` if the group cannot be joined; those of `view`.
pub fn listen(
    grant: &ProbeGrant,
    options: &ListenOptions,
    view: &dyn Fn() -> Result<ProbeView>,
    observe: &mut dyn FnMut(&Heard),
) -> Result<Heard> {
    let mut listener = Listener::start(grant, options)?;
    let (mut viewed_at, mut observed_at) = (Duration::ZERO, Duration::ZERO);
    while listener.clock.elapsed() < options.time && !options.stop.is_stopped() {
        listener.turn()?;
        let now = listener.clock.elapsed();
        if now.saturating_sub(viewed_at) >= VIEW_INTERVAL {
            viewed_at = now;
            listener.take_view(view()?);
        }
        if now.saturating_sub(observed_at) >= Duration::from_secs(1) {
            observed_at = now;
            observe(&listener.heard);
        }
    }
    listener.take_view(view()?);
    listener.heard.time = listener.clock.elapsed();
    Ok(listener.heard)
}

/// The sizes of the server's packets that this machine can send as well.
fn sizes_of_both(of_server: &[u16], mtu: u32) -> Vec<u16> {
    of_server.iter().copied().filter(|&size| u32::from(size) <= mtu).collect()
}

struct Listener<'a> {
    grant: &'a ProbeGrant,
    options: &'a ListenOptions,
    clock: Clock,
    /// `None` only while it joins again.
    group: Option<GroupReceiver>,
    reports: ReportSocket,
    packets: Option<GroupListener>,
    arrivals: Arrivals,
    key: proto::multicast::Key,
    heard: Heard,
    /// Times since the listening began.
    heard_at: Option<Duration>,
    reported_at: Duration,
    /// Sizes of the IP packets that it sends besides its reports, in bytes.
    sizes: Vec<u16>,
    /// Packets of the last round so far.
    of_round: u64,
    joined_again: bool,
}

impl<'a> Listener<'a> {
    fn start(grant: &'a ProbeGrant, options: &'a ListenOptions) -> Result<Self> {
        // The packet socket first, so that it hears all that the group's socket could.
        let packets = GroupListener::open(grant.group.ip(), options.interface.index);
        let group = GroupReceiver::join(grant.group, &options.interface, None)?;
        let reports = ReportSocket::open(grant.report, &options.interface)?;
        let heard = Heard {
            sizes: grant.sizes.iter().map(|&size| (size, 0)).collect(),
            reached: packets.as_ref().map(|_| 0),
            ..Heard::default()
        };
        Ok(Self {
            grant,
            options,
            clock: Clock::start(),
            group: Some(group),
            reports,
            packets,
            arrivals: Arrivals::default(),
            key: grant.key.into(),
            heard,
            heard_at: None,
            reported_at: Duration::ZERO,
            sizes: sizes_of_both(&grant.sizes, options.interface.mtu()),
            of_round: 0,
            joined_again: false,
        })
    }

    fn turn(&mut self) -> Result<()> {
        let failed = |error| base::Error::from_source(base::ErrorKind::Io, "listen to the probe", error);
        let Some(group) = self.group.take() else { return self.join_again() };
        let _ = wait(&[&group], None, ROUND / 4).map_err(failed)?;
        let now = self.clock.elapsed();
        while group.receive(&mut self.arrivals).map_err(failed)? {
            self.count(now);
        }
        self.group = Some(group);
        if let Some(packets) = &mut self.packets {
            packets.listen(now);
            self.heard.reached = Some(packets.packets);
            self.heard.querier = packets.querier;
        }
        if now.saturating_sub(self.reported_at) >= ROUND {
            self.reported_at = now;
            self.report();
        }
        self.heed_silence(now);
        Ok(())
    }

    fn count(&mut self, now: Duration) {
        let probe = low_bits(self.grant.probe);
        for (_, datagram) in self.arrivals.packets() {
            let Some(packet) = Packet::open(From::Server, &self.key, probe, datagram) else { continue };
            let expected =
                usize::from(packet.ip_bytes) - usize::from(header_bytes(self.grant.group.is_ipv4()));
            if datagram.len() != expected {
                continue;
            }
            if self.heard_at.is_none() {
                (self.heard.first_round, self.heard.last_round, self.heard.rounds) =
                    (packet.round, packet.round, 1);
            } else if packet.round > self.heard.last_round {
                if self.heard.last_round > self.heard.first_round {
                    self.heard.between += self.of_round;
                }
                self.of_round = 0;
                self.heard.last_round = packet.round;
                self.heard.rounds += 1;
            }
            self.of_round += 1;
            self.heard_at = Some(now);
            *self.heard.sizes.entry(packet.ip_bytes).or_default() += 1;
            self.heard.reports_arrived = self.heard.reports_arrived.max(packet.reports);
            if self.joined_again {
                self.heard.came_back = Some(true);
            }
        }
    }

    fn report(&mut self) {
        self.heard.reports_sent += 1;
        let headers = header_bytes(self.grant.report.is_ipv4());
        let packet = Packet {
            probe: low_bits(self.grant.probe),
            round: self.heard.last_round,
            ip_bytes: u16::try_from(PACKET_BYTES_MIN).expect("short") + headers,
            reports: self.heard.reports_sent,
        };
        // What cannot be sent counts as lost.
        let _ = self.reports.send(&packet.encode(From::Machine, &self.key, PACKET_BYTES_MIN));
        for &ip_bytes in &self.sizes {
            let packet = Packet { ip_bytes, ..packet };
            let payload_bytes = usize::from(ip_bytes.saturating_sub(headers));
            let _ = self.reports.send(&packet.encode(From::MachineSized, &self.key, payload_bytes));
        }
    }

    /// Leaves the group and joins it again once, when packets have stopped to arrive: a switch that had forgotten this
    /// machine learns of it again.
    fn heed_silence(&mut self, now: Duration) {
        let Some(heard_at) = self.heard_at else { return };
        if now.saturating_sub(heard_at) < STOPPED_AFTER || self.joined_again {
            return;
        }
        self.heard.stopped_after = Some(heard_at);
        self.heard.came_back = Some(false);
        self.joined_again = true;
        // The membership ends when its socket is closed. Only a new one is told to the switch.
        self.group = None;
    }

    fn join_again(&mut self) -> Result<()> {
        self.group = Some(GroupReceiver::join(self.grant.group, &self.options.interface, None)?);
        Ok(())
    }

    fn take_view(&mut self, view: ProbeView) {
        self.heard.rounds_sent = view.rounds;
        self.heard.reports_arrived = self.heard.reports_arrived.max(view.reports);
        self.heard.sizes_at_server = view.sizes.unwrap_or_default();
        self.heard.sizes_at_server.retain(|size, _| self.sizes.contains(size));
    }
}
