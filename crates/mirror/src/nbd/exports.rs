//! The disks that a server offers, by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use parking_lot::RwLock;

use crate::Served;

/// Maximum length in bytes of an export's name or description, by the protocol.
pub(super) const NAME_BYTES_MAX: usize = 4096;

/// A disk on offer.
#[derive(Clone)]
pub struct Export {
    /// The disk. All connections share it, so a flush on one of them covers all.
    pub disk: Arc<dyn Served>,
    /// One line of text for people.
    pub description: String,
}

/// Finds the disks on offer. Called from many threads.
pub trait Exports: Send + Sync {
    /// Names and descriptions of all disks, for clients that ask for the list.
    fn list(&self) -> Vec<(String, String)>;

    /// The disk of this name; the empty name is the default. `NotFound` if there is none.
    fn find(&self, name: &str) -> Result<Export>;
}

/// A table of disks that may change while they are served. If it has only one disk, that is the default.
#[derive(Default)]
pub struct ExportTable(RwLock<BTreeMap<String, Export>>);

impl ExportTable {
    /// Offers a disk. `Invalid` if the name is empty or too long, `Exists` if it is taken.
    pub fn insert(&self, name: &str, export: Export) -> Result<()> {
        if name.is_empty() || name.len().max(export.description.len()) > NAME_BYTES_MAX {
            let text = format!("a name of {} bytes for a disk, where 1 to {NAME_BYTES_MAX} fit", name.len());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let mut table = self.0.write();
        if table.contains_key(name) {
            return Err(Error::new(ErrorKind::Exists, format!("a disk `{name}` is served already")));
        }
        table.insert(name.to_owned(), export);
        Ok(())
    }

    /// Removes a disk from the offer and returns it. Connections that use it keep it.
    pub fn remove(&self, name: &str) -> Option<Export> {
        self.0.write().remove(name)
    }
}

impl Exports for ExportTable {
    fn list(&self) -> Vec<(String, String)> {
        let table = self.0.read();
        table.iter().map(|(name, export)| (name.clone(), export.description.clone())).collect()
    }

    fn find(&self, name: &str) -> Result<Export> {
        let table = self.0.read();
        let alone = || table.values().next().filter(|_| name.is_empty() && table.len() == 1);
        let export = table.get(name).or_else(alone);
        export.cloned().ok_or_else(|| Error::new(ErrorKind::NotFound, format!("no disk `{name}` is served")))
    }
}
