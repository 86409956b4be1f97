//! The fast path: a program at each port (`redirect.bpf.c`, traffic control's hook) redirects REQUESTs by itself. This
//! loads it, fills its maps from what members report, and tells it every half second that the agent works.
//!
//! On Linux 6.6 and later the program leaves the ports when the agent ends, in whatever way. Before, and if the agent
//! hangs, it lets all requests pass once the agent has said nothing for two seconds.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{Array, HashMap as KernelMap, MapData, PerCpuArray};
use aya::programs::{SchedClassifier, TcAttachType, TestRun as _, TestRunOptions, tc};
use base::{Error, ErrorKind, Result};
use proto::peer::{BATCH_OBJECTS, Contact, MemberId, Report, SwarmId, Window};

use super::agent::{Agent, Change, Heard};
use super::ports::{Bridge, Port};
use super::rules::ALIVE;
use net::mac::Mac;

/// Bounds, as in the program. What does not fit goes to the server.
const SWARMS: usize = 64;
const MEMBERS: usize = 64;
const ROWS: u32 = 16_384;
const CONFIG_BYTES: usize = 40;
const MEMBER_BYTES: usize = 40;

/// What the program returns for a frame that it redirects (`linux/pkt_cls.h`).
const TC_ACT_REDIRECT: u32 = 7;

/// Which members hold each object of a batch.
type Row = [u64; BATCH_OBJECTS as usize];

/// The program, at its ports until this is dropped.
pub(super) struct Fast {
    ebpf: Ebpf,
    config: Array<MapData, [u8; CONFIG_BYTES]>,
    redirected: PerCpuArray<MapData, u64>,
    maps: Maps,
    swarms: HashMap<SwarmId, Swarm>,
    server: SocketAddr,
    own: Mac,
    ports: Vec<Port>,
}

struct Maps {
    swarms: KernelMap<MapData, u64, [u32; 4]>,
    members: Array<MapData, [u8; MEMBER_BYTES]>,
    rows: Array<MapData, Row>,
    near: KernelMap<MapData, u64, u64>,
}

/// A swarm as the program knows it.
struct Swarm {
    slot: usize,
    first: u32,
    members: Vec<Option<(MemberId, u32)>>,
    rows: Vec<Row>,
}

impl Fast {
    /// Loads the program and attaches it to the ports. `Unsupported` if the kernel does not take it.
    pub(super) fn start(server: SocketAddr, bridge: &Bridge) -> Result<Self> {
        let mut fast = Self::load(server, bridge.mac)?;
        fast.look_at_ports(bridge);
        match fast.ports == bridge.ports && fast.renew() {
            true => Ok(fast),
            false => {
                Err(Error::new(ErrorKind::Unsupported, "attach the program for the kernel to the ports"))
            }
        }
    }

    fn load(server: SocketAddr, own: Mac) -> Result<Self> {
        let context =
            |error| Error::from_source(ErrorKind::Unsupported, "load the program for the kernel", error);
        let bytes = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/redirect.bpf.o"));
        let mut ebpf = Ebpf::load(bytes).map_err(context)?;
        program(&mut ebpf)?.load().map_err(|error| {
            Error::from_source(ErrorKind::Unsupported, "load the program for the kernel", error)
        })?;
        let maps = Maps {
            swarms: KernelMap::try_from(map(&mut ebpf, "SWARM")?).map_err(of_map)?,
            members: Array::try_from(map(&mut ebpf, "MEMBER")?).map_err(of_map)?,
            rows: Array::try_from(map(&mut ebpf, "ROW")?).map_err(of_map)?,
            near: KernelMap::try_from(map(&mut ebpf, "NEAR")?).map_err(of_map)?,
        };
        let config = Array::try_from(map(&mut ebpf, "CONFIG")?).map_err(of_map)?;
        let redirected = PerCpuArray::try_from(map(&mut ebpf, "REDIRECTED")?).map_err(of_map)?;
        let swarms = HashMap::new();
        Ok(Self { ebpf, config, redirected, maps, swarms, server, own, ports: Vec::new() })
    }

    /// Attaches the program to ports that are new. Those that are gone took it with them.
    pub(super) fn look_at_ports(&mut self, bridge: &Bridge) {
        self.own = bridge.mac;
        self.ports.retain(|port| bridge.ports.contains(port));
        for port in &bridge.ports {
            if self.ports.contains(port) {
                continue;
            }
            // Before Linux 6.6 the hook needs a queueing discipline, which may be there already.
            let _ = tc::qdisc_add_clsact(&port.name);
            let attached = program(&mut self.ebpf)
                .is_ok_and(|program| program.attach(&port.name, TcAttachType::Ingress).is_ok());
            if attached {
                self.ports.push(port.clone());
            }
        }
    }

    /// Says that the agent works. False if the kernel does not hear it.
    pub(super) fn renew(&mut self) -> bool {
        let alive = u64::try_from(ALIVE.as_nanos()).expect("two seconds");
        let mut config = [0; CONFIG_BYTES];
        config[..8].copy_from_slice(&(monotonic_nanoseconds() + alive).to_ne_bytes());
        config[8..24].copy_from_slice(&address(self.server.ip()));
        config[24..26].copy_from_slice(&self.server.port().to_be_bytes());
        config[26] = u8::from(self.server.is_ipv4());
        config[28..34].copy_from_slice(&self.own.0);
        self.config.set(0, config, 0).is_ok()
    }

    /// Requests that the program has redirected.
    pub(super) fn redirected(&self) -> u64 {
        self.redirected.get(&0, 0).map_or(0, |counts| counts.iter().sum())
    }

    /// Takes what members told since the last time.
    pub(super) fn apply(&mut self, agent: &mut Agent) {
        for change in agent.take_changes() {
            match change {
                Change::Reported(swarm, member, heard, report) => self.report(swarm, member, &heard, &report),
                Change::Gone(swarm, member) => self.gone(swarm, member),
            }
        }
    }

    fn report(&mut self, id: SwarmId, member: MemberId, heard: &Heard, report: &Report) {
        if !self.swarms.contains_key(&id) {
            let Some(swarm) = self.room(report.objects.div_ceil(BATCH_OBJECTS)) else { return };
            self.swarms.insert(id, swarm);
        }
        let Some(swarm) = self.swarms.get_mut(&id) else { return };
        let Some(index) = swarm.member(&mut self.maps, member, heard) else { return };
        swarm.hold(&mut self.maps, index, report);
        // Last, so that the program never finds what is not complete.
        let value = [number(swarm.slot), swarm.first, swarm.batches(), 0];
        let _ = self.maps.swarms.insert(id.0, value, 0);
    }

    fn gone(&mut self, id: SwarmId, member: MemberId) {
        let Some(swarm) = self.swarms.get_mut(&id) else { return };
        swarm.remove(&mut self.maps, member);
        if swarm.members.iter().all(Option::is_none) {
            let _ = self.maps.swarms.remove(&id.0);
            self.swarms.remove(&id);
        }
    }

    /// A place for a swarm with `batches` batches.
    fn room(&self, batches: u32) -> Option<Swarm> {
        let slot = (0..SWARMS).find(|slot| self.swarms.values().all(|swarm| swarm.slot != *slot))?;
        let mut used: Vec<(u32, u32)> =
            self.swarms.values().map(|swarm| (swarm.first, swarm.first + swarm.batches())).collect();
        used.sort_unstable();
        let mut first = 0;
        for (begin, end) in used {
            if begin - first >= batches {
                break;
            }
            first = end;
        }
        let fits = batches > 0 && batches <= ROWS && first <= ROWS - batches;
        fits.then(|| Swarm {
            slot,
            first,
            members: vec![None; MEMBERS],
            rows: vec![[0; 32]; batches as usize],
        })
    }
}

impl Swarm {
    /// The number of a member, which may be new.
    fn member(&mut self, maps: &mut Maps, member: MemberId, heard: &Heard) -> Option<usize> {
        let known = self.members.iter().position(|known| known.is_some_and(|(id, _)| id == member));
        if known.is_some() {
            return known;
        }
        let free = self.members.iter().position(Option::is_none)?;
        let from = heard.contact.from;
        let mut bytes = [0; MEMBER_BYTES];
        bytes[..8].copy_from_slice(&member.0.to_ne_bytes());
        bytes[8..24].copy_from_slice(&address(from.ip()));
        bytes[24..26].copy_from_slice(&from.port().to_be_bytes());
        bytes[26..32].copy_from_slice(&heard.mac.0);
        bytes[32..36].copy_from_slice(&heard.contact.ingress.to_ne_bytes());
        maps.members.set(self.at(free), bytes, 0).ok()?;
        self.members[free] = Some((member, heard.contact.ingress));
        self.tell_near(maps, heard.contact.ingress);
        Some(free)
    }

    fn batches(&self) -> u32 {
        number(self.rows.len())
    }

    fn at(&self, index: usize) -> u32 {
        number(self.slot * MEMBERS + index)
    }

    fn tell_near(&self, maps: &mut Maps, port: u32) {
        let near =
            self.members.iter().enumerate().filter(|(_, member)| member.is_some_and(|(_, at)| at == port));
        let bits = near.fold(0, |bits, (index, _)| bits | 1_u64 << index);
        let key = (u64::from(number(self.slot)) << 32) | u64::from(port);
        let _ = match bits {
            0 => maps.near.remove(&key),
            _ => maps.near.insert(key, bits, 0),
        };
    }

    /// Replaces what a member holds of the report's objects.
    fn hold(&mut self, maps: &mut Maps, index: usize, report: &Report) {
        let window = &report.window.objects;
        if window.is_empty() {
            return;
        }
        let (bit, mut held) = (1_u64 << index, report.window.held.iter().peekable());
        for batch in window.start / BATCH_OBJECTS..=(window.end - 1) / BATCH_OBJECTS {
            let Some(row) = self.rows.get_mut(batch as usize) else { return };
            let before = *row;
            for (number, holders) in (batch * BATCH_OBJECTS..).zip(row.iter_mut()) {
                if !window.contains(&number) {
                    continue;
                }
                while held.next_if(|run| run.end <= number).is_some() {}
                let has = report.port != 0 && held.peek().is_some_and(|run| run.contains(&number));
                *holders = if has { *holders | bit } else { *holders & !bit };
            }
            if *row != before {
                let _ = maps.rows.set(self.first + batch, *row, 0);
            }
        }
    }

    fn remove(&mut self, maps: &mut Maps, member: MemberId) {
        let Some(index) = self.members.iter().position(|known| known.is_some_and(|(id, _)| id == member))
        else {
            return;
        };
        for (batch, row) in (self.first..).zip(&mut self.rows) {
            let before = *row;
            row.iter_mut().for_each(|holders| *holders &= !(1 << index));
            if *row != before {
                let _ = maps.rows.set(batch, *row, 0);
            }
        }
        let _ = maps.members.set(self.at(index), [0; MEMBER_BYTES], 0);
        let port = self.members[index].take().map_or(0, |(_, port)| port);
        self.tell_near(maps, port);
    }
}

/// How long the program takes for each of `frames`, in nanoseconds: for `runs` calls, the mean of `repeat` runs each.
/// A frame that is redirected is changed, so it can run once only. Beside each time: whether the frame was
/// redirected. The program knows a swarm of 48 members at the server `server`, which hold all of its 1024 objects.
///
/// # Errors
/// `Unsupported` if the kernel does not take the program, or has no test runs.
pub fn measure(
    server: SocketAddr,
    swarm: SwarmId,
    frame: &[u8],
    (runs, repeat): (usize, u32),
) -> Result<Vec<(Duration, bool)>> {
    let mut fast = Fast::load(server, Mac([2; 6]))?;
    for id in 1..=48_u8 {
        let from = SocketAddr::new([10, 77, 1, id].into(), 7700);
        let contact = Contact { from, ingress: u32::from(id) + 1000 };
        let heard = Heard { contact, mac: Mac([id; 6]), at: base::Instant::ZERO };
        let window = Window { objects: 0..1024, held: std::iter::once(0..1024).collect() };
        let report = Report { port: 7700, uploads: 0, place: 0, objects: 1024, window };
        fast.report(swarm, MemberId(u64::from(id) + 1000), &heard, &report);
    }
    let context = |error| Error::from_source(ErrorKind::Unsupported, "run the program for the kernel", error);
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        fast.renew();
        let options = TestRunOptions { data_in: Some(frame), repeat, ..TestRunOptions::default() };
        let ran = program(&mut fast.ebpf)?.test_run(options).map_err(context)?;
        times.push((ran.duration, ran.return_value == TC_ACT_REDIRECT));
    }
    Ok(times)
}

fn number(of: usize) -> u32 {
    u32::try_from(of).expect("bounded by SWARMS, MEMBERS and ROWS")
}

fn program(ebpf: &mut Ebpf) -> Result<&mut SchedClassifier> {
    let found = ebpf.program_mut("redirect").and_then(|program| program.try_into().ok());
    found.ok_or_else(|| Error::new(ErrorKind::Unsupported, "the program for the kernel is not of its kind"))
}

fn map(ebpf: &mut Ebpf, name: &str) -> Result<aya::maps::Map> {
    let missing =
        || Error::new(ErrorKind::Unsupported, format!("the program for the kernel has no map {name}"));
    ebpf.take_map(name).ok_or_else(missing)
}

fn of_map(error: aya::maps::MapError) -> Error {
    Error::from_source(ErrorKind::Unsupported, "read the maps of the program for the kernel", error)
}

fn address(address: IpAddr) -> [u8; 16] {
    let mut bytes = [0; 16];
    match address {
        IpAddr::V4(v4) => bytes[..4].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => bytes = v6.octets(),
    }
    bytes
}

/// The kernel's `CLOCK_MONOTONIC`, in nanoseconds, as its own programs see it.
fn monotonic_nanoseconds() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    now.map_or(0, |now| u64::try_from(Duration::from(now).as_nanos()).unwrap_or(u64::MAX))
}
