//! What a member of a session, which has its keys, can cost the other members.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use net::api::{Family, MULTICAST_VERSION, SessionGrant, SessionRequest};
use net::client::{Client, ClientOptions};
use net::interface;
use net::udp::{Arrivals, GroupReceiver, Train, wait};
use proto::multicast::{
    BlockHeader, Cause, Downstream, Lacking, NeedBlocks, NeedRange, NeedSymbols, ObjectRange,
    ReceiverCounters, ReceiverId, Report, Shape, Status, Upstream, VERSION, open_train, seal,
};
use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};

use super::{HOSTS, NEIGHBOUR, RATE, SINK};
use crate::context::{Context, json_line, timed};
use crate::crew::Crew;
use crate::figure::{Bar, Figure, median};
use crate::room::{Fetched, Room, collect, last, star};
use crate::transfer::{Load, library};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[
        (
            "hostile.member",
            "last of 2 hosts while a member of their session forges packets or asks for too much, over without, the \
             worst; at most 1.5",
        ),
        (
            "hostile.member_named",
            "part of what a member can do from its own address for which a host or the server names it; at least 1",
        ),
    ],
    measure,
};

const MEBIBYTES: u64 = 128;
const RUNS: usize = 3;
/// How many blocks ahead of the server a block is forged.
const AHEAD: u16 = 20;
/// Pause between two rounds of packets.
const PAUSE: Duration = Duration::from_millis(5);

/// What the member does.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Deed {
    /// Sends a block of each object before the server does, with other content.
    Blocks,
    /// The same with another length of the object.
    Lengths,
    /// The same with a symbol of its repair.
    Symbols,
    /// The same with a timestamp a second ahead.
    Timestamps,
    /// Sends STATUS packets that say that much more was sent, and BYE packets.
    Control,
    /// Asks again for what was sent, as urgently as possible.
    Greed,
    /// Says under five names that packets are lost and wait in queues.
    Slowness,
    /// The same after it left under each of these names.
    Leavers,
}

impl Deed {
    /// Whether it sends packets to the group, and could give them the server's address.
    fn is_to_group(self) -> bool {
        self <= Self::Control
    }

    /// Whether it can be told from what honest receivers send.
    fn has_culprit(self) -> bool {
        self <= Self::Greed
    }

    /// Receivers that the member pretends to be.
    fn names(self) -> u32 {
        if self > Self::Greed { 5 } else { 1 }
    }
}

const DEEDS: &[(Deed, &str)] = &[
    (Deed::Blocks, "forges a block of each object"),
    (Deed::Lengths, "forges lengths of objects"),
    (Deed::Symbols, "forges symbols of repair"),
    (Deed::Timestamps, "forges timestamps"),
    (Deed::Control, "forges STATUS and BYE"),
    (Deed::Greed, "asks for repairs without end"),
    (Deed::Slowness, "five identities report loss"),
    (Deed::Leavers, "five identities that left report loss"),
];

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let (repo, loads) = library(context, &[MEBIBYTES], false)?;
    let load = &loads[0];
    let without = (0..RUNS).map(|_| Ok(run(context, &repo, load, None)?.0)).collect::<Result<Vec<_>>>()?;
    let without = median(&without);
    let mut rows = vec![json!({ "member": "does nothing", "last host s": without })];
    let (mut worst, mut named): (f64, Vec<bool>) = (0.0, vec![]);
    for &(deed, words) in DEEDS {
        // Packets that pretend to come from the server need a raw socket, and so root on the member's machine.
        let ways: &[bool] = if deed.is_to_group() { &[false, true] } else { &[false] };
        for &pretends in ways {
            let (seconds, details) = run(context, &repo, load, Some((deed, pretends)))?;
            worst = worst.max(seconds / without);
            if deed.has_culprit() && !pretends {
                named.push(details["named"] == true);
            }
            let address = if pretends { ", with the server's address" } else { "" };
            let mut row = json!({
                "member": format!("{words}{address}"), "last host s": seconds, "over without": seconds / without,
            });
            row.as_object_mut()
                .expect("made as one")
                .extend(details.as_object().cloned().unwrap_or_default());
            rows.push(row);
        }
    }
    let workload = format!("{}, 100 Mbit/s links, {HOSTS} hosts and the member", load.words);
    Ok(vec![
        Figure::new("hostile.member", &[worst], "ratio", Bar::AtMost(1.5))
            .on(&workload, SINK)
            .with(json!(rows)),
        Figure::new("hostile.member_named", &[part_of(&named)], "ratio", Bar::AtLeast(1.0))
            .on(&workload, SINK),
    ])
}

#[expect(clippy::cast_precision_loss, reason = "a ratio of small numbers")]
fn part_of(named: &[bool]) -> f64 {
    named.iter().filter(|named| **named).count() as f64 / named.len() as f64
}

/// Seconds until the last host has everything, and what the hosts and the server say of the member.
fn run(context: &Context, repo: &Path, load: &Load, deed: Option<(Deed, bool)>) -> Result<(f64, Value)> {
    let mut room = Room::open_with(context, &[repo], &star(NEIGHBOUR, RATE, 0))?;
    let log = timed(context.diskcast(repo).args(["log", &load.name, "--json"]))?;
    let manifest = json_line(&log.output, "version")?["manifest"].as_str().unwrap_or_default().to_owned();
    let reference = format!("{}@1", load.name);
    let member = deed.map(|(deed, pretends)| {
        let server = format!("https://{}:7717", room.star.host(0).ipv4());
        let token = std::fs::read_to_string(room.token(0))?;
        let member = Member { server, token, reference: reference.clone(), manifest, deed, pretends };
        member.start(&room)
    });
    let member = member.transpose()?;
    let mut crew = Crew::new();
    let hosts = (1..=HOSTS)
        .map(|host| crew.start(&mut room.fetch_command(host, 0, &reference, "null:")))
        .collect::<Result<Vec<_>>>()?;
    let fetched = collect(&mut crew, &hosts)?;
    let packets = member.map(Running::stop).transpose()?;
    let said = fetched.iter().flat_map(Fetched::notes).find(|note| note.contains("forged"));
    let by_unicast: u64 = fetched.iter().map(Fetched::unicast_bytes).max().unwrap_or(0);
    let seconds = last(&fetched);
    let address = room.star.host(NEIGHBOUR).ipv4().to_string();
    let session = room.ended_session(0)?.statistics;
    let overdrawn: u64 = session["receivers"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|receiver| receiver["overdrawn"].as_u64().unwrap_or(0))
        .sum();
    let details = json!({
        "packets of the member": packets, "most KiB by unicast": by_unicast >> 10, "a host says": said,
        "requests ignored": overdrawn, "named": said.is_some_and(|note| note.contains(&address)) || overdrawn > 0,
    });
    Ok((seconds, details))
}

struct Member {
    server: String,
    token: String,
    reference: String,
    manifest: String,
    deed: Deed,
    /// Whether its packets to the group carry the server's address.
    pretends: bool,
}

/// A member at work.
struct Running {
    over: Arc<AtomicBool>,
    work: JoinHandle<std::result::Result<u64, String>>,
}

impl Running {
    /// Ends it, and returns how many packets it has sent.
    fn stop(self) -> Result<u64> {
        self.over.store(true, Ordering::Release);
        Ok(self.work.join().map_err(|_| "the member panicked")??)
    }
}

impl Member {
    fn start(self, room: &Room) -> Result<Running> {
        let over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&over);
        let work = move || self.work(&until).map_err(|error| error.to_string());
        Ok(Running { over, work: room.star.host(NEIGHBOUR).run(work)? })
    }

    fn work(&self, over: &AtomicBool) -> Result<u64> {
        let client = Client::connect(&self.server, &self.token.trim().parse()?, ClientOptions::default())?;
        let grants =
            (0..self.deed.names()).map(|number| self.join(&client, number)).collect::<Result<Vec<_>>>()?;
        let mut sender = Sender::open(&grants[0], self.pretends)?;
        match self.deed {
            Deed::Blocks | Deed::Lengths | Deed::Symbols | Deed::Timestamps => {
                self.forge_blocks(&grants[0], &mut sender, over)?
            }
            Deed::Control => forge_control(&grants[0], &mut sender, over)?,
            Deed::Greed | Deed::Slowness | Deed::Leavers => self.report(&grants, &mut sender, over)?,
        }
        Ok(sender.packets)
    }

    fn join(&self, client: &Client, number: u32) -> Result<SessionGrant> {
        Ok(client.join_session(&SessionRequest {
            reference: self.reference.clone(),
            manifest: self.manifest.clone(),
            receiver: format!("member-{number}"),
            families: vec![Family::V4],
            mtu: 1500,
            multicast: MULTICAST_VERSION,
            attached: false,
            peers: false,
        })?)
    }

    /// Waits for the first block of each object, and forges a later one before the server sends it.
    fn forge_blocks(&self, grant: &SessionGrant, sender: &mut Sender, over: &AtomicBool) -> Result<()> {
        let (shape, key) = (shape_of(grant), grant.group_key.into());
        let group = GroupReceiver::join(grant.group, &interface::choose("eth0")?, None)?;
        let mut arrivals = Arrivals::default();
        // It asks for everything, so that the session begins; the hosts want the same.
        let everything = NeedRange {
            objects: ObjectRange { first: 0, count: u32::try_from(shape.objects)? },
            cause: Cause::Late,
            urgent: false,
        };
        sender.report(grant, 0, Lacking { whole: vec![everything], ..Lacking::default() }, 0)?;
        while !over.load(Ordering::Acquire) {
            wait(&[&group], None, PAUSE)?;
            group.receive(&mut arrivals)?;
            let mut forged = Vec::new();
            for Train { from, bytes: train, packet_bytes, .. } in arrivals.trains() {
                if from.ip() != grant.source {
                    continue;
                }
                for packet in open_train(&key, &shape, train, packet_bytes).flatten() {
                    let Downstream::Block(header, _) = packet else { continue };
                    if header.block == 0
                        && !header.repair
                        && shape.blocks(header.object_bytes) > u32::from(AHEAD)
                    {
                        forged.push(header);
                    }
                }
            }
            for header in forged {
                sender.send(grant, self.forged(&shape, header))?;
            }
        }
        Ok(())
    }

    /// What it makes of the first block of an object: a later one, as if the server had sent it soon after.
    fn forged(&self, shape: &Shape, header: BlockHeader) -> Vec<u8> {
        let sequence = header.sequence + u64::from(AHEAD);
        let mut header = BlockHeader { sequence, block: AHEAD, ..header };
        match self.deed {
            Deed::Lengths => header.object_bytes -= 1,
            // The first symbol of the object.
            Deed::Symbols => {
                header.repair = true;
                header.block = u16::try_from(shape.blocks(header.object_bytes)).unwrap_or(u16::MAX);
            }
            Deed::Timestamps => header.timestamp_us = header.timestamp_us.wrapping_add(1_000_000),
            _ => {}
        }
        let len = if header.repair { shape.block_bytes } else { shape.place(header.object_bytes, AHEAD).1 };
        [&header.encode(shape)[..], &vec![0x5a; len.into()]].concat()
    }

    /// Sends reports that ask for what went out, or complain, every few milliseconds.
    fn report(&self, grants: &[SessionGrant], sender: &mut Sender, over: &AtomicBool) -> Result<()> {
        let shape = shape_of(&grants[0]);
        if self.deed == Deed::Leavers {
            grants.iter().try_for_each(|grant| sender.leave(grant))?;
        }
        for round in 0.. {
            if over.load(Ordering::Acquire) {
                return Ok(());
            }
            let first = shape.heads + round * 40 % (shape.objects - shape.heads).saturating_sub(40).max(1);
            let lacking = match self.deed {
                Deed::Slowness | Deed::Leavers => Lacking::default(),
                _ => greedy(&shape, first),
            };
            for grant in grants {
                sender.report(grant, u64::MAX >> 2, lacking.clone(), round)?;
            }
            std::thread::park_timeout(PAUSE);
        }
        Ok(())
    }
}

/// Requests of heads, urgent objects, blocks and symbols, from object `first` on.
fn greedy(shape: &Shape, first: u64) -> Lacking {
    let run = |first, count, urgent| NeedRange {
        objects: ObjectRange { first, count },
        cause: Cause::Lost,
        urgent,
    };
    let last = (first + 20).min(shape.objects);
    let blocks = |object| NeedBlocks { object, first_block: 8, bitmap: vec![0xff], cause: Cause::Lost };
    Lacking {
        whole: vec![run(0, u32::try_from(shape.heads).unwrap_or(1).max(1), false), run(first, 2, true)],
        blocks: (first..last).map(blocks).collect(),
        symbols: vec![NeedSymbols {
            first,
            counts: vec![16; usize::try_from(last - first).unwrap_or(0)],
            cause: Cause::Lost,
        }],
    }
}

fn forge_control(grant: &SessionGrant, sender: &mut Sender, over: &AtomicBool) -> Result<()> {
    let shape = shape_of(grant);
    let status = Status {
        sequence: 1 << 40,
        timestamp_us: 0,
        cursor: shape.objects,
        idle: true,
        queue: Some(0),
        receivers: 1000,
        report_interval: base::Duration::from_secs(60),
        echo: None,
        pending: Vec::new(),
        repairs: Vec::new(),
    };
    let bye = [&[VERSION, 3][..], &status.encode(&shape)[2..28]].concat();
    while !over.load(Ordering::Acquire) {
        sender.send(grant, status.encode(&shape))?;
        sender.send(grant, bye.clone())?;
        std::thread::park_timeout(PAUSE);
    }
    Ok(())
}

fn shape_of(grant: &SessionGrant) -> Shape {
    Shape {
        session: u64::try_from(grant.session.0 & u128::from(u64::MAX)).expect("64 bits"),
        epoch: grant.epoch,
        objects: grant.objects,
        heads: grant.heads,
        block_bytes: grant.block_bytes,
    }
}

/// Sends packets to the group, if wanted with the server's address, and reports to the server.
struct Sender {
    socket: Socket,
    /// A raw socket, and the source of what it sends: the server's address and port.
    raw: Option<(Socket, SocketAddr)>,
    packets: u64,
}

impl Sender {
    fn open(grant: &SessionGrant, pretends: bool) -> Result<Self> {
        let own = interface::choose("eth0")?.address(true);
        let to_the_lan = |socket: Socket| -> Result<Socket> {
            if let Some(IpAddr::V4(own)) = own {
                socket.set_multicast_if_v4(&own)?;
            }
            Ok(socket)
        };
        let socket = to_the_lan(Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?)?;
        let raw = match pretends {
            true => {
                // `IPPROTO_RAW`: each packet brings its header.
                let raw = to_the_lan(Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(255)))?)?;
                raw.set_header_included_v4(true)?;
                Some((raw, SocketAddr::new(grant.source, grant.report.port())))
            }
            false => None,
        };
        Ok(Self { socket, raw, packets: 0 })
    }

    fn send(&mut self, grant: &SessionGrant, mut packet: Vec<u8>) -> Result<()> {
        seal(&grant.group_key.into(), &mut packet);
        self.packets += 1;
        match &self.raw {
            Some((raw, source)) => {
                let group = SocketAddr::new(grant.group.ip(), 0);
                raw.send_to(&framed(*source, grant.group, &packet)?, &group.into())?
            }
            None => self.socket.send_to(&packet, &grant.group.into())?,
        };
        Ok(())
    }

    fn report(&mut self, grant: &SessionGrant, seen: u64, lacking: Lacking, round: u64) -> Result<()> {
        let counters = ReceiverCounters {
            blocks_arrived: 100 * (round + 1),
            blocks_lost: 900 * (round + 1),
            queue_us: 50_000,
            ..ReceiverCounters::default()
        };
        let report =
            Report { receiver: ReceiverId(grant.receiver), timestamp_us: 0, seen, crowded: false, counters };
        self.send_up(grant, &Upstream::Need(report, lacking))
    }

    fn leave(&mut self, grant: &SessionGrant) -> Result<()> {
        let receiver = ReceiverId(grant.receiver);
        let report = Report {
            receiver,
            timestamp_us: 0,
            seen: 0,
            crowded: false,
            counters: ReceiverCounters::default(),
        };
        self.send_up(grant, &Upstream::Leave(report))
    }

    fn send_up(&mut self, grant: &SessionGrant, packet: &Upstream) -> Result<()> {
        let mut packet = packet.encode(&shape_of(grant));
        seal(&grant.receiver_key.into(), &mut packet);
        self.packets += 1;
        self.socket.send_to(&packet, &grant.report.into())?;
        Ok(())
    }
}

/// `payload` as a packet of UDP over IPv4 (RFC 768, RFC 791), without a checksum of UDP; the kernel adds the other one.
fn framed(source: SocketAddr, destination: SocketAddr, payload: &[u8]) -> Result<Vec<u8>> {
    let octets = |address: SocketAddr| match address.ip() {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED.octets(),
    };
    let (udp, all) = (u16::try_from(payload.len() + 8)?, u16::try_from(payload.len() + 28)?);
    let [first, second] = all.to_be_bytes();
    Ok([
        &[0x45, 0, first, second, 0, 0, 0, 0, 1, 17, 0, 0][..],
        &octets(source),
        &octets(destination),
        &source.port().to_be_bytes(),
        &destination.port().to_be_bytes(),
        &udp.to_be_bytes(),
        &[0, 0],
        payload,
    ]
    .concat())
}
