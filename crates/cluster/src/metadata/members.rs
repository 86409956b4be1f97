//! Devices and clients: who joined, who answers, and what they may do. formats/cluster.md, sections 4, 5 and 7.

use std::collections::BTreeMap;

use base::{Error, ErrorKind, Result, hex};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use proto::cluster::{Capability, Device, DeviceId, Holder, Map, State, place_slots, rights, start_over};
use serde::{Deserialize, Serialize};

use super::cluster::{Metadata, SeenClient, SeenDevice, parse};
use super::engine::{Condition, Write, for_each};
use super::segments::gone_key;
use crate::clock::monotonic;
use crate::wire::{
    ClientAnswer, ClientRequest, ClusterStatus, DeviceHealth, DeviceView, Heartbeat, JoinAnswer, JoinRequest,
    Pulse,
};

/// What the engine keeps of a device.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Member {
    pub(super) device: DeviceId,
    pub(super) identity: String,
    pub(super) key_epoch: u32,
    #[serde(default)]
    pub(super) kept: Kept,
}

/// What is remembered of a device's commits, so that an older copy of its folder is recognised.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    /// Its last start.
    pub(super) start: String,
    /// Commits that it told of.
    pub(super) commits: u64,
}

impl Kept {
    /// Whether a device that says this has lost commits. Each start makes one, so of another start they are more.
    pub(super) fn is_older(&self, start: &str, commits: u64) -> bool {
        commits > 0 && if self.start == start { commits < self.commits } else { commits <= self.commits }
    }
}

pub(super) fn member_key(device: DeviceId) -> String {
    format!("device/{:08x}", device.0)
}

impl Metadata {
    fn members(&self) -> Result<Vec<Member>> {
        let mut members = Vec::new();
        for_each(self.engine.as_ref(), "device/", |key, stored| {
            members.push(parse(key, &stored.value)?);
            Ok(())
        })?;
        Ok(members)
    }

    fn member(&self, device: DeviceId) -> Result<Member> {
        let key = member_key(device);
        let found = self.engine.get(&key)?;
        let missing =
            || Error::new(ErrorKind::NotFound, format!("there is no device {device} in this cluster"));
        parse(&key, &found.ok_or_else(missing)?.value)
    }

    /// Refuses a device that has the map of another cluster.
    fn is_of_this_cluster(&self, cluster: &str) -> Result<()> {
        let own = self.map().cluster;
        if cluster.is_empty() || cluster == own {
            return Ok(());
        }
        let text = format!(
            "the device belongs to the cluster {cluster}, and this metadata service has the cluster {own}: it has \
             another's state, or an empty one"
        );
        Err(Error::new(ErrorKind::Invalid, text))
    }

    /// A device joins, or comes back.
    pub(super) fn join(&self, request: &JoinRequest) -> Result<JoinAnswer> {
        let invalid = |what: &str| Err(Error::new(ErrorKind::Invalid, format!("join with {what}")));
        if request.identity.len() != 32 || !request.identity.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return invalid("an identity of 32 hexadecimal digits");
        }
        let scheme = if self.tls { "https://" } else { "http://" };
        let place = request.address.strip_prefix(scheme);
        if place.is_none_or(|place| ["0.0.0.0", "[::]"].iter().any(|all| place.starts_with(all))) {
            return invalid(&format!("an address that clients can reach, which begins with {scheme}"));
        }
        self.is_of_this_cluster(&request.cluster)?;
        let known = self.members()?.into_iter().find(|member| member.identity == request.identity);
        let member = match known {
            // It is asked for what it knows with its first heartbeat.
            Some(member) if self.is_recalling() || request.epoch > self.newest_map()?.epoch => {
                return Ok(self.answer_join(&member, self.map(), false));
            }
            Some(member) => member,
            None if self.is_recalling() => return Err(self.recalling()),
            None => {
                self.check_clock(request.clock)?;
                self.admit(&request.identity)?
            }
        };
        let told = self.commits_of(&member);
        let older = told.is_older(&request.start, request.commits);
        let (free, commits, skew_ms) = (request.free, told.commits, self.skew_of(request.clock));
        let health = DeviceHealth::unknown();
        let seen = SeenDevice { at: monotonic(), free, commits, skew_ms, health, ..SeenDevice::default() };
        self.devices.lock().insert(member.device, seen);
        let map = self.change_map(|map| {
            let device = Device {
                device: member.device,
                address: request.address.clone(),
                domain: request.domain.clone(),
                state: State::Up,
                bytes: request.bytes,
                free: request.free,
            };
            match map.devices.iter_mut().find(|device| device.device == member.device) {
                // A device that is lost, or is to leave, stays so: what it held is somewhere else, or on its way.
                Some(known) if matches!(known.state, State::Lost | State::Draining) => {
                    *known = Device { state: known.state, ..device };
                }
                Some(known) => *known = device,
                None => map.devices.push(device),
            }
            if older {
                start_over(map, member.device);
            }
            let up = map.devices.iter().filter(|device| device.state == State::Up).count();
            place_slots(map, up >= usize::from(map.k) + usize::from(map.m));
            true
        })?;
        // Last: if the map could not be changed, its next try shows the same.
        self.remember_start(&member, request)?;
        Ok(self.answer_join(&member, map, older))
    }

    fn answer_join(&self, member: &Member, map: Map, older: bool) -> JoinAnswer {
        let key = hex::encode(&self.key(member.device, member.key_epoch).to_bytes());
        let now = Some(self.now_ns());
        JoinAnswer { device: member.device, key, key_epoch: member.key_epoch, map, now, older }
    }

    /// Changes what the engine keeps of a device.
    pub(super) fn change_member(&self, device: DeviceId, change: impl Fn(&mut Member)) -> Result<()> {
        let key = member_key(device);
        loop {
            let Some(found) = self.engine.get(&key)? else { return self.member(device).map(drop) };
            let mut member: Member = parse(&key, &found.value)?;
            change(&mut member);
            let text = serde_json::to_vec(&member).expect("it is plain data");
            let condition = Condition::Revision(key.clone(), found.revision);
            if self.engine.commit(&[condition], &[Write::Put(key.clone(), text)])? {
                return Ok(());
            }
        }
    }

    fn admit(&self, identity: &str) -> Result<Member> {
        let number = u32::try_from(self.next("device")?);
        let full = |_| Error::new(ErrorKind::Full, "the cluster has no more numbers for devices");
        let device = DeviceId(number.map_err(full)?);
        let (identity, key_epoch, kept) = (identity.to_owned(), 1, Kept::default());
        let member = Member { device, identity, key_epoch, kept };
        let text = serde_json::to_vec(&member).expect("it is plain data");
        let (key, own) = (member_key(member.device), format!("identity/{}", member.identity));
        let conditions = [Condition::Absent(key.clone()), Condition::Absent(own.clone())];
        let writes =
            [Write::Put(key, text), Write::Put(own.clone(), member.device.0.to_string().into_bytes())];
        if self.engine.commit(&conditions, &writes)? {
            return Ok(member);
        }
        // The same device asked twice: its number is the first one's.
        let lost = || {
            Error::new(
                ErrorKind::Corrupt,
                format!("the number of the device `{}` is missing", member.identity),
            )
        };
        let found = self.engine.get(&own)?.ok_or_else(lost)?;
        self.member(DeviceId(parse(&own, &found.value)?))
    }

    /// A device says that it lives.
    pub(super) fn heartbeat(&self, device: DeviceId, beat: &Heartbeat) -> Result<Pulse> {
        self.is_of_this_cluster(&beat.cluster)?;
        self.is_newest(device, beat.epoch)?;
        let member = self.member(device)?;
        if member.identity != beat.identity {
            return Err(Error::new(ErrorKind::NotFound, format!("device {device} is another one")));
        }
        let &Heartbeat { used, free, commits, health, clock, .. } = beat;
        let skew_ms = self.skew_of(clock);
        let seen = SeenDevice { at: monotonic(), used, free, skew_ms, commits, health };
        self.devices.lock().insert(device, seen);
        self.remember_commits(&member, commits)?;
        let map = self.change_map(|map| {
            let mut changed = false;
            if let Some(known) = map.devices.iter_mut().find(|known| known.device == device)
                && known.state == State::Down
            {
                known.state = State::Up;
                changed = true;
            }
            for &(slot, from) in &beat.ready {
                let holders = map.slots.get_mut(slot).into_iter().flatten();
                let learns = |holder: &&mut Holder| {
                    holder.device == device && holder.from == from && holder.takes_entries()
                };
                for holder in holders.filter(learns) {
                    holder.had.clear();
                    changed |= std::mem::replace(&mut holder.from, 0) != 0;
                }
            }
            if changed {
                place_slots(map, false);
            }
            changed
        })?;
        let key = self.key(device, member.key_epoch);
        let peers = self.capabilities(&map, 0, |capability| Capability {
            group: None,
            rights: rights::READ_INDEX,
            ..capability
        })?;
        let rebuild = self.tasks_for(&map, device)?;
        let compact = self.compaction_for(&map, device);
        let limits = self.limits_of_device(&map)?;
        Ok(Pulse {
            lease_ms: self.lease_ms(),
            key: hex::encode(&key.to_bytes()),
            key_epoch: member.key_epoch,
            epoch: map.epoch,
            now: Some(self.now_ns()),
            map: (map.epoch > beat.epoch).then_some(map),
            peers,
            rebuild,
            compact,
            limits,
        })
    }

    fn lease_ms(&self) -> u64 {
        u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX)
    }

    /// Declares devices down that were silent for one and a half leases: theirs have ended before.
    pub(super) fn sweep_devices(&self) -> Result<()> {
        let patience = self.lease + self.lease / 2;
        let now = monotonic();
        let silent: Vec<DeviceId> = {
            let seen = self.devices.lock();
            let started = *self.started.lock();
            let at = |device: DeviceId| seen.get(&device).map_or(started, |seen| seen.at);
            let map = self.map();
            let up = map.devices.iter().filter(|device| device.state == State::Up);
            let reachable: Vec<_> = up.map(|device| device.device).collect();
            reachable.into_iter().filter(|&device| now.since(at(device)) > patience).collect()
        };
        if silent.is_empty() {
            return Ok(());
        }
        self.change_map(|map| {
            let mut changed = false;
            // One that was heard meanwhile has a lease again.
            let seen = self.devices.lock();
            let quiet = |device: &Device| {
                silent.contains(&device.device)
                    && seen.get(&device.device).is_none_or(|seen| now.since(seen.at) > patience)
            };
            for device in map.devices.iter_mut().filter(|device| quiet(device)) {
                device.state = State::Down;
                changed = true;
            }
            drop(seen);
            changed && {
                place_slots(map, false);
                true
            }
        })
        .map(drop)
    }

    /// Whether a device was heard within its lease.
    pub(super) fn is_heard(&self, device: DeviceId) -> bool {
        let seen = self.devices.lock();
        seen.get(&device).is_some_and(|seen| monotonic().since(seen.at) < self.lease)
    }

    /// The map with the free space that devices told last.
    pub(super) fn map_with_space(&self) -> Map {
        let mut map = self.map();
        let seen = self.devices.lock();
        for device in &mut map.devices {
            device.free = seen.get(&device.device).map_or(device.free, |seen| seen.free);
        }
        map
    }

    /// A client joins.
    pub(super) fn client(&self, request: &ClientRequest) -> Result<ClientAnswer> {
        if request.group == 0 || request.group == u32::MAX {
            return Err(Error::new(ErrorKind::Invalid, "a client's group is 1 to 2^32 - 2"));
        }
        let client = self.next("client")?;
        self.answer_client(client, request.group)
    }

    /// A client says that it lives. After a restart of the service it is known by its number alone. One whose lease has
    /// ended must join again: what it began as it was may have been taken from it.
    pub(super) fn renew(&self, client: u64, request: &ClientRequest) -> Result<ClientAnswer> {
        let known = self.clients.lock().get(&client).copied();
        let forgotten = || Ok::<_, Error>(known.is_none() && self.engine.get(&gone_key(client))?.is_some());
        if self.is_client_gone(client) || forgotten()? {
            return Err(Error::new(ErrorKind::NotFound, format!("the lease of client {client} has ended")));
        }
        match known {
            Some(known) if known.group != request.group => {
                Err(Error::new(ErrorKind::Invalid, format!("client {client} works with another group")))
            }
            _ => self.answer_client(client, request.group),
        }
    }

    fn answer_client(&self, client: u64, group: u32) -> Result<ClientAnswer> {
        self.clients.lock().insert(client, SeenClient { end: monotonic() + self.lease * 3, group });
        let map = self.map();
        // What it writes comes with its segments, and what it deletes with a question of its own.
        let allowed = rights::READ | rights::READ_ATTRIBUTES | rights::LIST | rights::READ_INDEX;
        let capabilities = self.capabilities(&map, client, |capability| Capability {
            group: Some(group),
            rights: allowed,
            ..capability
        })?;
        let lease_ms = self.lease_ms() * 3;
        Ok(ClientAnswer { client, lease_ms, map, capabilities, now: Some(self.now_ns()) })
    }

    /// A capability for each device, as `shape` makes it of one without rights.
    pub(super) fn capabilities(
        &self,
        map: &Map,
        holder: u64,
        shape: impl Fn(Capability) -> Capability,
    ) -> Result<BTreeMap<DeviceId, String>> {
        let members = self.members()?;
        let of = |member: &Member| (member.device, self.seal(&shape(self.blank(member, holder)), member));
        let in_map = |member: &&Member| map.device(member.device).is_some();
        Ok(members.iter().filter(in_map).map(of).collect())
    }

    fn blank(&self, member: &Member, holder: u64) -> Capability {
        Capability {
            device: member.device,
            key_epoch: member.key_epoch,
            group: None,
            number: None,
            range: 0..u64::MAX,
            rights: 0,
            expires: self.now_s() + self.lifetime.as_secs(),
            fence: 0,
            holder,
        }
    }

    fn seal(&self, capability: &Capability, member: &Member) -> String {
        BASE64.encode(capability.seal(&self.key(member.device, member.key_epoch)))
    }

    /// A capability for one object of one device.
    pub(super) fn capability(
        &self,
        device: DeviceId,
        (group, number): (u32, u64),
        (rights, fence): (u32, u32),
        holder: u64,
    ) -> Result<String> {
        let member = self.member(device)?;
        let blank = self.blank(&member, holder);
        let capability = Capability { group: Some(group), number: Some(number), rights, fence, ..blank };
        Ok(self.seal(&capability, &member))
    }

    /// Raises the key epoch of a device: all its capabilities are void from its next heartbeat on, at the latest when
    /// its lease ends.
    pub(super) fn revoke(&self, device: DeviceId) -> Result<()> {
        self.change_member(device, |member| member.key_epoch += 1)
    }

    /// All holders got all entries that are in segments, under this map: those of slots that nobody knew all of are
    /// ready, since nobody can know more.
    pub(super) fn index_rebuilt(&self, epoch: u64) -> Result<()> {
        let mut same = false;
        self.change_map(|map| {
            same = map.epoch == epoch;
            let mut changed = false;
            let blind = |holders: &&mut Vec<Holder>| !holders.iter().any(Holder::is_ready);
            for holders in map.slots.iter_mut().filter(blind).filter(|_| same) {
                for holder in holders.iter_mut().filter(|holder| holder.takes_entries()) {
                    holder.had.clear();
                    holder.from = 0;
                    changed = true;
                }
            }
            if changed {
                place_slots(map, false);
            }
            changed
        })?;
        if same {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unreachable,
            "devices came or went while the index was rebuilt: do it again",
        ))
    }

    fn count(&self, prefix: &str) -> Result<u64> {
        let mut count = 0;
        for_each(self.engine.as_ref(), prefix, |_, _| {
            count += 1;
            Ok(())
        })?;
        Ok(count)
    }

    /// What an operator wants to see.
    pub(super) fn status(&self) -> Result<ClusterStatus> {
        let map = self.map();
        let now = monotonic();
        let (seen, started) = (self.devices.lock().clone(), *self.started.lock());
        let view = |device: &Device| {
            let holds = |ready: bool| {
                let slots = map.slots.iter().flatten();
                slots
                    .filter(|holder| holder.device == device.device && holder.takes_entries())
                    .filter(|holder| !ready || !holder.is_ready())
                    .count()
            };
            let known = seen.get(&device.device);
            DeviceView {
                device: Device { free: known.map_or(device.free, |known| known.free), ..device.clone() },
                used: known.map_or(0, |known| known.used),
                slots: holds(false),
                copying: holds(true),
                silent_ms: u64::try_from(now.since(known.map_or(started, |known| known.at)).as_millis())
                    .unwrap_or(u64::MAX),
                skew_ms: known.and_then(|known| known.skew_ms),
                health: known.map_or_else(DeviceHealth::unknown, |known| known.health),
            }
        };
        let mut devices: Vec<_> = map.devices.iter().map(view).collect();
        devices.sort_by_key(|view| view.device.device);
        let standing = self.standing(&map)?;
        Ok(ClusterStatus {
            cluster: map.cluster.clone(),
            leader: self.engine.leader(),
            waits_for: self.waits_for(),
            epoch: map.epoch,
            k: map.k,
            m: map.m,
            formed: !map.slots.is_empty(),
            devices,
            segments_open: standing.open,
            segments_sealed: standing.sealed,
            segments_lacking: standing.lacking,
            segments_unprotected: standing.unprotected,
            segments_unreadable: standing.unreadable,
            segments_emptied: self.count("emptied/")?,
            compacting: self.compaction.lock().count(),
            rebuilding: self.rebuild.lock().count(),
            records: self.count("record/")?,
            limits: self.limits()?,
        })
    }
}
