//! The table of machines of a running server: every change is durable before anybody learns of it.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use net::api::{JobRequest, JobsMade, MachineCall, MachineChange, MachineLog, MachineStatus, Machines, Work};
use net::clock::Clock;
use net::mac::Mac;
use net::netboot::LeaseBook;
use parking_lot::Mutex;

use super::ledger::{Ledger, Redb};
use super::machine::{Call, Decision, Now, Step};
use super::nonces::Nonces;
use super::silence::Watch;
use super::table::{Swept, Table};
use crate::clock;

/// Longest log of a machine that is kept, in bytes.
const LOG_BYTES_MAX: usize = 32 << 10;

/// The table of machines of one server.
pub(crate) struct Fleet {
    table: Mutex<Table>,
    ledger: Box<dyn Ledger>,
    clock: Clock,
    nonces: Nonces,
}

impl Fleet {
    /// The table that the server keeps in the folder `state`. `Refused` if another server has it open; `Corrupt`;
    /// `Io`.
    pub(crate) fn open(state: &Path, watch: Watch) -> Result<Arc<Self>> {
        let ledger = Redb::open(&state.join("machines.redb"))?;
        let clock = Clock::start();
        let table = Table::of(ledger.load()?, ledger.last_job()?, watch, clock.now());
        let nonces = Nonces::draw()?;
        Ok(Arc::new(Self { table: Mutex::new(table), ledger: Box::new(ledger), clock, nonces }))
    }

    /// Changes the table by `work`, and makes the change durable before anybody learns of it.
    fn change<T>(&self, work: impl FnOnce(&mut Table) -> Result<T>) -> Result<T> {
        let mut table = self.table.lock();
        let done = work(&mut table)?;
        let changed = table.take_changed();
        if !changed.is_empty() {
            // What could not be kept is kept with the next change.
            self.ledger.save(&changed, table.last_job()).inspect_err(|_| table.keep_changed(&changed))?;
        }
        Ok(done)
    }

    /// As [`Self::change`], but what could not be made durable has not happened: its caller is told so.
    fn change_or_nothing<T>(&self, work: impl FnOnce(&mut Table) -> Result<T>) -> Result<T> {
        let mut table = self.table.lock();
        let mut next = table.clone();
        let done = work(&mut next)?;
        let changed = next.take_changed();
        if !changed.is_empty() {
            self.ledger.save(&changed, next.last_job())?;
        }
        *table = next;
        Ok(done)
    }

    /// A machine asks what to do, from the address `from`. Returns also what it is to sign next. `Invalid` if its key
    /// is none.
    pub(crate) fn call(&self, call: &MachineCall, from: IpAddr) -> Result<(String, Decision)> {
        let mac: Mac = call.facts.mac.parse()?;
        let key = base::hex::decode::<32>(&call.key).map(|key| base::hex::encode(&key)).ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "the key of a machine has 64 hexadecimal digits")
        })?;
        let now = self.now();
        let signature = call.signature.as_ref();
        let proven = signature.is_some_and(|signature| self.nonces.is_proof(mac, &key, signature, now.at));
        let MachineCall { facts, outcome, working, progress, .. } = call;
        let (outcome, progress) = (outcome.as_ref(), progress.as_ref());
        let call = Call { facts, key: &key, from, outcome, working: *working, progress, proven };
        let decision = self.change(|table| table.call(mac, call, now))?;
        Ok((self.nonces.nonce(mac, &key, now.at), decision))
    }

    /// A machine was seen in a step of its boot.
    pub(crate) fn seen(&self, mac: Mac, step: Step) {
        self.table.lock().seen(mac, step, self.clock.now());
    }

    /// Whether firmware of this machine is to start our system, and not its disk.
    pub(crate) fn boots_ours(&self, mac: Mac) -> bool {
        self.table.lock().boots_ours(mac, clock::unix_seconds())
    }

    /// Whether an agent can wake other machines on its network.
    pub(crate) fn has_wakers(&self) -> bool {
        self.table.lock().has_wakers(self.clock.now())
    }

    /// The cards and names of the machines that these words mean. `NotFound` if a word means none.
    pub(crate) fn named(&self, words: &[String]) -> Result<Vec<(Mac, Option<String>)>> {
        let table = self.table.lock();
        Ok(table.meant(words)?.into_iter().map(|mac| (mac, table.name(mac))).collect())
    }

    /// The name of a machine.
    pub(crate) fn name(&self, mac: Mac) -> Option<String> {
        self.table.lock().name(mac)
    }

    /// All machines.
    pub(crate) fn list(&self) -> Machines {
        self.table.lock().list(self.clock.now())
    }

    /// An administrator's change.
    pub(crate) fn apply(&self, change: &MachineChange) -> Result<Vec<MachineStatus>> {
        self.change_or_nothing(|table| table.apply(change, self.clock.now()))
    }

    /// Gives machines a job. `work` has the version that was meant.
    pub(crate) fn give(&self, request: &JobRequest, work: &Work) -> Result<JobsMade> {
        self.change_or_nothing(|table| table.give(request, work, self.clock.now()))
    }

    /// Does `work` with a copy of the table: nothing changes.
    fn plan<T>(&self, work: impl FnOnce(&mut Table) -> Result<T>) -> Result<T> {
        let mut copy = self.table.lock().clone();
        work(&mut copy)
    }

    /// What [`Self::apply`] would return.
    pub(crate) fn plan_change(&self, change: &MachineChange) -> Result<Vec<MachineStatus>> {
        self.plan(|table| table.apply(change, self.clock.now()))
    }

    /// What [`Self::give`] would return.
    pub(crate) fn plan_job(&self, request: &JobRequest, work: &Work) -> Result<JobsMade> {
        self.plan(|table| table.give(request, work, self.clock.now()))
    }

    /// Names machines of which nothing is heard any more, and such as are to boot; what can't be kept is named next
    /// time. Call it about once a second.
    pub(crate) fn sweep(&self) -> Swept {
        self.change_or_nothing(|table| Ok(table.sweep(self.now()))).unwrap_or_default()
    }

    /// Keeps what the console of a machine showed.
    pub(crate) fn keep_log(&self, mac: &str, job: u64, text: &str) -> Result<()> {
        let end = text.len().saturating_sub(LOG_BYTES_MAX);
        let text = text[text.ceil_char_boundary(end)..].to_owned();
        self.ledger.save_log(mac.parse()?, &MachineLog { job, text })
    }

    /// What it showed. `NotFound`.
    pub(crate) fn log(&self, mac: &str) -> Result<MachineLog> {
        let mac: Mac = mac.parse()?;
        let none = || Error::new(ErrorKind::NotFound, format!("there is no log of {mac}"));
        self.ledger.log(mac)?.ok_or_else(none)
    }

    fn now(&self) -> Now {
        Now { at: self.clock.now(), unix: clock::unix_seconds() }
    }
}

/// The addresses that machines have, in the same database.
pub(crate) struct Book(pub Arc<Fleet>);

impl LeaseBook for Book {
    fn fixed(&self) -> HashMap<Mac, Ipv4Addr> {
        self.0.table.lock().fixed()
    }

    fn load(&self) -> Result<Vec<(Mac, Ipv4Addr, Duration)>> {
        let now = clock::unix_seconds();
        let age = |since| Duration::from_secs(now.saturating_sub(since));
        let leases = self.0.ledger.leases()?;
        Ok(leases.into_iter().map(|(mac, address, since)| (mac, address, age(since))).collect())
    }

    fn keep(&self, mac: Mac, address: Option<Ipv4Addr>) -> Result<()> {
        self.0.ledger.save_lease(mac, address.map(|address| (address, clock::unix_seconds())))
    }
}

#[cfg(test)]
mod tests {
    use net::api::{NewMachine, Power};

    use super::super::machine::Record;
    use super::*;

    /// A disk that is full.
    struct Full;

    impl Ledger for Full {
        fn load(&self) -> Result<Vec<(Mac, Record)>> {
            let record = Record { admitted: true, ..Record::default() };
            Ok(vec![(Mac([2; 6]), record)])
        }

        fn last_job(&self) -> Result<u64> {
            Ok(0)
        }

        fn save(&self, _: &[(Mac, Option<Record>)], _: u64) -> Result<()> {
            Err(Error::new(ErrorKind::Full, "the disk is full"))
        }

        fn save_log(&self, _: Mac, _: &MachineLog) -> Result<()> {
            unreachable!("no machine sends one")
        }

        fn log(&self, _: Mac) -> Result<Option<MachineLog>> {
            Ok(None)
        }

        fn save_lease(&self, _: Mac, _: Option<(Ipv4Addr, u64)>) -> Result<()> {
            unreachable!("no machine asks for an address")
        }

        fn leases(&self) -> Result<Vec<(Mac, Ipv4Addr, u64)>> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn what_could_not_be_kept_has_not_happened() {
        let clock = Clock::start();
        let watch = Watch { boot_time: Duration::from_secs(60), sees_systems: true, strict: false };
        let table = Table::of(Full.load().unwrap(), 0, watch, clock.now());
        let nonces = Nonces::draw().unwrap();
        let fleet = Fleet { table: Mutex::new(table), ledger: Box::new(Full), clock, nonces };
        let machines = vec!["*".to_owned()];
        let request =
            JobRequest { work: Work::Wipe, machines, disk: None, begins: 0, power: Power::Wake, window: 0 };
        assert_eq!(fleet.give(&request, &Work::Wipe).unwrap_err().kind(), ErrorKind::Full);
        let new = NewMachine { mac: "02:00:00:00:00:09".to_owned(), ..NewMachine::default() };
        assert!(fleet.apply(&MachineChange::Add { machines: vec![new] }).is_err());
        let listed = fleet.list().machines;
        assert!(listed.len() == 1 && listed[0].job.is_none(), "{listed:?}");
        assert_eq!(fleet.sweep(), Swept::default());
    }
}
