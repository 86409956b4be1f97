//! The table of machines of a running server: every change is durable before anybody learns of it.

use std::path::Path;
use std::sync::Arc;

use base::Result;
use net::api::{DeployRequest, Deployment, MachineCall, MachineChange, MachineStatus, Machines};
use net::clock::Clock;
use net::mac::Mac;
use net::machine_key::is_proof;
use parking_lot::Mutex;

use super::ledger::{Ledger, Redb};
use super::table::{Call, Decision, Step, Table};

/// The table of machines of one server.
pub(crate) struct Fleet {
    table: Mutex<Table>,
    ledger: Box<dyn Ledger>,
    clock: Clock,
}

impl Fleet {
    /// The table that the server keeps in the folder `state`. `Refused` if another server has it open; `Corrupt`;
    /// `Io`.
    pub(crate) fn open(state: &Path) -> Result<Arc<Self>> {
        let ledger = Redb::open(&state.join("machines.redb"))?;
        let clock = Clock::start();
        let table = Table::of(ledger.load()?, clock.now());
        Ok(Arc::new(Self { table: Mutex::new(table), ledger: Box::new(ledger), clock }))
    }

    /// Changes the table by `work`, and makes the change durable before anybody learns of it.
    fn change<T>(&self, work: impl FnOnce(&mut Table) -> Result<T>) -> Result<T> {
        let mut table = self.table.lock();
        let done = work(&mut table)?;
        let changed = table.take_changed();
        if !changed.is_empty() {
            // What could not be kept is kept with the next change.
            self.ledger.save(&changed).inspect_err(|_| table.keep_changed(&changed))?;
        }
        Ok(done)
    }

    /// A machine asks what to do. `nonce` is new.
    pub(crate) fn call(&self, call: &MachineCall, nonce: String) -> Result<Decision> {
        let mac: Mac = call.facts.mac.parse()?;
        let spelled = mac.to_string();
        self.change(|table| {
            let proven = match (table.nonce(mac), &call.signature) {
                (Some(nonce), Some(signature)) => is_proof(&call.key, nonce, &spelled, signature),
                _ => false,
            };
            let MachineCall { facts, key, outcome, working, .. } = call;
            table.call(
                mac,
                Call { facts, key, outcome: outcome.as_ref(), working: *working, proven, nonce },
                self.clock.now(),
            )
        })
    }

    /// A machine was seen in a step of its boot.
    pub(crate) fn seen(&self, mac: Mac, step: Step) {
        // What is only seen is not kept, but for a job that has ended.
        let _ = self.change(|table| {
            table.seen(mac, step, self.clock.now());
            Ok(())
        });
    }

    /// Whether firmware of this machine is to start our system, and not its disk.
    pub(crate) fn boots_ours(&self, mac: Mac) -> bool {
        self.table.lock().boots_ours(mac)
    }

    /// All machines.
    pub(crate) fn list(&self) -> Machines {
        self.table.lock().list(self.clock.now())
    }

    /// An administrator's change.
    pub(crate) fn apply(&self, change: &MachineChange) -> Result<Vec<MachineStatus>> {
        self.change(|table| table.apply(change, self.clock.now()))
    }

    /// Gives machines a job. `reference` is the version that was meant.
    pub(crate) fn deploy(&self, request: &DeployRequest, reference: &str) -> Result<Deployment> {
        self.change(|table| table.deploy(request, reference, self.clock.now()))
    }

    /// Names machines that fell silent. Call it about once a second.
    pub(crate) fn sweep(&self) -> Vec<Mac> {
        self.change(|table| Ok(table.sweep(self.clock.now()))).unwrap_or_default()
    }
}
