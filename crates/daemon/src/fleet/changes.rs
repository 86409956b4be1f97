//! What an administrator changes in the table of machines, and the jobs that he gives.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use base::{Error, ErrorKind, Instant, Result};
use net::api::{
    JobRequest, JobStage, JobStatus, JobsMade, MACHINE, MachineChange, MachineStatus, Meaning, NewMachine,
    Work,
};
use net::mac::Mac;
use net::machine_key::parse_fingerprint;

use super::machine::{Machine, Record, is_name};
use super::table::{MACHINES_MAX, Table};

impl Table {
    /// An administrator's change. Returns the machines that it is about.
    pub(super) fn apply(&mut self, change: &MachineChange, now: Instant) -> Result<Vec<MachineStatus>> {
        let about = match change {
            MachineChange::Add { machines } => self.add(machines)?,
            MachineChange::Admit { machines } => self.admit(machines, now)?,
            MachineChange::Remove { machines } => {
                let macs = self.meant(machines)?;
                return Ok(self.remove(macs, now));
            }
            MachineChange::RemoveStrangers => {
                let strangers = self.machines.iter().filter(|(_, machine)| !machine.record.admitted);
                let macs = strangers.map(|(mac, _)| *mac).collect();
                return Ok(self.remove(macs, now));
            }
            MachineChange::Cancel { machines } => self.cancel(machines)?,
            MachineChange::Open { seconds } => {
                self.open_until = now + Duration::from_secs(*seconds);
                BTreeSet::new()
            }
        };
        Ok(about.into_iter().map(|mac| self.machines[&mac].status(mac, now)).collect())
    }

    fn remove(&mut self, macs: BTreeSet<Mac>, now: Instant) -> Vec<MachineStatus> {
        let gone = macs.iter().map(|mac| self.machines[mac].status(*mac, now)).collect();
        for mac in macs {
            self.machines.remove(&mac);
            self.wakes.drop(mac);
            self.changed.insert(mac);
        }
        gone
    }

    /// What a machine is called.
    fn called_by(&self, mac: Mac) -> String {
        self.machines.get(&mac).map_or_else(|| mac.to_string(), |machine| machine.called_by(mac))
    }

    fn record(&mut self, mac: Mac) -> &mut Record {
        self.changed.insert(mac);
        &mut self.machines.entry(mac).or_default().record
    }

    fn add(&mut self, machines: &[NewMachine]) -> Result<BTreeSet<Mac>> {
        let macs = machines.iter().map(|machine| machine.mac.parse()).collect::<Result<Vec<Mac>>>()?;
        // Everything is checked before anything is changed.
        self.check_new(machines, &macs)?;
        for (machine, mac) in machines.iter().zip(&macs) {
            let record = self.record(*mac);
            record.admitted = true;
            if machine.name.is_some() {
                record.name.clone_from(&machine.name);
            }
            if let Some(groups) = &machine.groups {
                record.groups = groups.iter().cloned().collect();
            }
            if let Some(address) = machine.address {
                record.address = Some(address).filter(|address| !address.is_unspecified());
            }
            if let Some(name) = machine.key.as_deref().and_then(parse_fingerprint) {
                record.confirm(name);
            }
        }
        Ok(macs.into_iter().collect())
    }

    /// `Invalid` if these machines, with the cards `macs`, can't be added as they are.
    fn check_new(&self, machines: &[NewMachine], macs: &[Mac]) -> Result<()> {
        let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        if self.admitted() + macs.len() > MACHINES_MAX {
            return invalid(format!("the table holds {MACHINES_MAX} machines at most"));
        }
        let mut names: BTreeMap<&str, Mac> = self
            .machines
            .iter()
            .filter_map(|(mac, machine)| Some((machine.record.name.as_deref()?, *mac)))
            .collect();
        let mut addresses: BTreeMap<Ipv4Addr, Mac> =
            self.fixed().into_iter().map(|(mac, address)| (address, mac)).collect();
        for (machine, mac) in machines.iter().zip(macs) {
            if let Some(address) = machine.address.filter(|address| !address.is_unspecified())
                && let Some(other) = addresses.insert(address, *mac).filter(|other| other != mac)
            {
                return invalid(format!("{address} is the address of {}, too", self.called_by(other)));
            }
            for text in machine.name.iter().chain(machine.groups.iter().flatten()) {
                if !is_name(text) {
                    return invalid(format!(
                        "`{text}` is not a valid name: expected letters, digits and `-`, 63 at most"
                    ));
                }
            }
            if let Some(key) = machine.key.as_ref().filter(|key| parse_fingerprint(key).is_none()) {
                return invalid(format!(
                    "`{key}` is not the fingerprint of a machine's key, such as 3f2a-91c0-77de-03b5-aa10"
                ));
            }
            if let Some(name) = &machine.name
                && let Some(other) = names.insert(name, *mac).filter(|other| other != mac)
            {
                return invalid(format!("`{name}` is the name of {other}, too"));
            }
        }
        Ok(())
    }

    /// Admits the machines that these words mean. A fingerprint means the one that has the key, and confirms it.
    /// `NotFound`; `Refused`, with nothing changed, if two call with a card and no fingerprint says which one is meant.
    fn admit(&mut self, words: &[String], now: Instant) -> Result<BTreeSet<Mac>> {
        let (mut confirmed, mut meant) = (Vec::new(), BTreeSet::new());
        for word in words {
            if let Some(name) = parse_fingerprint(word) {
                let has_it = |machine: &Machine| machine.keys(now).any(|known| known.is_called(&name));
                let found = self.machines.iter().filter(|(_, machine)| has_it(machine)).map(|(mac, _)| *mac);
                let before = confirmed.len();
                confirmed.extend(found.map(|mac| (mac, name.clone())));
                if confirmed.len() == before {
                    return Err(Error::new(
                        ErrorKind::NotFound,
                        format!("no machine calls with the key {name}"),
                    ));
                }
            } else if word == Meaning::ALL {
                let waits = |machine: &Machine| {
                    !machine.record.admitted && machine.record.facts.is_some() && machine.rival(now).is_none()
                };
                meant.extend(self.machines.iter().filter(|(_, machine)| waits(machine)).map(|(mac, _)| *mac));
            } else {
                meant.extend(self.meant(std::slice::from_ref(word))?);
            }
        }
        let is_named = |mac: &Mac| confirmed.iter().any(|(named, _)| named == mac);
        for mac in meant.iter().filter(|mac| !is_named(mac)) {
            let machine = &self.machines[mac];
            if !machine.record.admitted && machine.rival(now).is_some() {
                let text = format!(
                    "two machines call with the card {mac}: admit the right one by the fingerprint of its key"
                );
                return Err(Error::new(ErrorKind::Refused, text));
            }
        }
        meant.extend(confirmed.iter().map(|(mac, _)| *mac));
        let new = meant.iter().filter(|mac| !self.machines[mac].record.admitted).count();
        if self.admitted() + new > MACHINES_MAX {
            let text = format!("the table holds {MACHINES_MAX} machines at most");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        for (mac, name) in confirmed {
            self.record(mac).confirm(name);
        }
        for mac in &meant {
            self.record(*mac).admitted = true;
        }
        Ok(meant)
    }

    /// The machines that these words mean: a name, an address, a group, or `*` for all that were admitted. `NotFound`
    /// if a word means none.
    pub(super) fn meant(&self, words: &[String]) -> Result<BTreeSet<Mac>> {
        let mut meant = BTreeSet::new();
        for word in words {
            let meaning = Meaning::of(word);
            let fits = |(mac, machine): &(&Mac, &Machine)| {
                let Record { name, groups, admitted, .. } = &machine.record;
                meaning.is((**mac, name.as_deref()), groups, *admitted)
            };
            let found: Vec<Mac> = self.machines.iter().filter(fits).map(|(mac, _)| *mac).collect();
            if found.is_empty() {
                let text = match word == Meaning::ALL {
                    true => "no machine was admitted".to_owned(),
                    false => format!("no machine and no group is called `{word}`"),
                };
                return Err(Error::new(ErrorKind::NotFound, text));
            }
            meant.extend(found);
        }
        Ok(meant)
    }

    /// Takes jobs back. `Refused`, with nothing changed, if a machine is at work.
    fn cancel(&mut self, words: &[String]) -> Result<BTreeSet<Mac>> {
        let macs = self.meant(words)?;
        for mac in &macs {
            self.machines[mac].check_free(*mac)?;
        }
        for mac in &macs {
            self.record(*mac).job = None;
            self.wakes.drop(*mac);
        }
        Ok(macs)
    }

    /// Gives machines a job; `work` has the version that was meant. `Refused`, with nothing changed, if one of them was
    /// not admitted, or is at work.
    pub(super) fn give(&mut self, request: &JobRequest, work: &Work, now: Instant) -> Result<JobsMade> {
        let macs = self.meant(&request.machines)?;
        for mac in &macs {
            let machine = &self.machines[mac];
            machine.check_free(*mac)?;
            if !machine.record.admitted {
                let name = machine.called_by(*mac);
                let text = format!("{name} was not admitted: diskcast hosts admit {mac}");
                return Err(Error::new(ErrorKind::Refused, text));
            }
        }
        let with = self.last_job + 1;
        for mac in &macs {
            self.last_job += 1;
            let (work, disk) = of_machine(work, request.disk.as_deref(), &self.machines[mac].called_by(*mac));
            let job = JobStatus {
                job: self.last_job,
                work,
                disk,
                begins: request.begins,
                power: request.power,
                with,
                window: request.window,
                stage: JobStage::Queued,
                reason: None,
                exit: None,
            };
            self.record(*mac).job = Some(job);
            self.machines.entry(*mac).or_default().expected = None;
        }
        let machines = macs.into_iter().map(|mac| self.machines[&mac].status(mac, now)).collect();
        Ok(JobsMade { work: work.clone(), machines })
    }
}

/// The work and the target of one machine, which `name` means.
fn of_machine(work: &Work, disk: Option<&str>, name: &str) -> (Work, Option<String>) {
    match work {
        Work::Put(put) => (Work::Put(put.of_machine(name)), disk.map(|target| target.replace(MACHINE, name))),
        work => (work.clone(), disk.map(str::to_owned)),
    }
}
