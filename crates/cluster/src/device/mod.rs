//! The object device: keeps objects with attributes and a part of the index on one disk, and checks a capability on
//! every command. formats/cluster.md, section 6.
//!
//! - `tables` what a device remembers, in an embedded database
//! - `commit` makes changes durable, many with one flush
//! - `object` one object: its checksums, its changes
//! - `file` its file
//! - `recent` what was appended lately, in memory
//! - `store` all objects of the device
//! - `folder` whether a folder holds a device, and whose; `orphans` files that the database does not know
//! - `index` the slots that it holds
//! - `guard` who may do what, now
//! - `ahead` reads ahead of streams
//! - `routes`, `index_routes` the commands over HTTP
//! - `attributes` what a device says of its objects
//! - `rebuild` computes components of lost devices
//! - `scrub` looks for damage and mends it
//! - `agent` joins the cluster, keeps the lease, copies slots

mod agent;
mod ahead;
mod attributes;
mod commit;
mod damage;
mod file;
mod folder;
mod guard;
mod index;
mod index_routes;
mod object;
mod orphans;
mod rate;
mod rebuild;
mod recent;
mod routes;
mod scrub;
mod store;
mod tables;
mod work;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::Result;
use proto::cluster::{DeviceId, DeviceKey};

pub use agent::{Agent, AgentSetting};

use ahead::Ahead;
use damage::Scrubs;
use guard::Guard;
use index::Index;
use rate::Rates;
use store::Store;

use crate::buffers::Buffers;
use crate::database::Opening;

/// Memory for the bodies of requests that is kept for later ones.
const SPARE_BYTES_MAX: usize = 64 << 20;

/// A device: what it keeps, and who may use it.
#[derive(Debug)]
pub struct Device {
    store: Store,
    index: Index,
    guard: Guard,
    rates: Rates,
    scrubs: Scrubs,
    ahead: Ahead,
    buffers: Buffers,
    identity: String,
    folder: PathBuf,
}

impl Device {
    /// The device in `folder`; with [`Opening::OrNew`] an empty folder becomes one.
    ///
    /// # Errors
    /// `Refused` if the folder holds no device, or objects without their database, or if another process uses it;
    /// `Corrupt` if what it remembers is damaged, `Io`.
    pub fn open(folder: &Path, opening: Opening) -> Result<Arc<Self>> {
        folder::admit(folder, opening)?;
        let store = Store::open(folder)?;
        let identity = store.tables().identity()?;
        let guard = Guard::new(store.tables().map()?);
        let index = Index::open(Arc::clone(store.tables()), Arc::clone(store.commits()))?;
        Ok(Arc::new(Self {
            store,
            index,
            guard,
            rates: Rates::default(),
            scrubs: Scrubs::default(),
            ahead: Ahead::default(),
            buffers: Buffers::new(SPARE_BYTES_MAX),
            identity,
            folder: folder.to_owned(),
        }))
    }

    /// Makes it a device that belongs to no cluster, with a lease for ever: for who keeps objects on it alone.
    pub fn stand_alone(&self, device: DeviceId, key: DeviceKey) {
        self.guard.joined(device, key, 1);
        self.guard.renewed(base::Instant(u64::MAX));
    }
}
