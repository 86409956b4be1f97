//! What the table of machines keeps through restarts.

use std::fs::OpenOptions;
use std::net::Ipv4Addr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use base::{Error, ErrorKind, Result};
use net::api::MachineLog;
use net::mac::Mac;
use redb::backends::FileBackend;
use redb::{
    Database, DatabaseError, Key, ReadOnlyTable, ReadableDatabase as _, ReadableTable as _, TableDefinition,
    TableError, Value,
};

use super::machine::Record;

/// Records of machines as JSON, by the address of their card.
const MACHINES: TableDefinition<&str, &[u8]> = TableDefinition::new("machines-1");

/// Logs of machines as JSON, by the same.
const LOGS: TableDefinition<&str, &[u8]> = TableDefinition::new("logs-1");

/// Addresses that were given, as text, and when, in seconds since 1970, by the address of the card.
const LEASES: TableDefinition<&str, (&str, u64)> = TableDefinition::new("leases-1");

/// The number of the last job that was ever given, by [`LAST_JOB`]. Records of machines go, and take theirs along.
const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers-1");
const LAST_JOB: &str = "last-job";

/// Where records are kept. A replicated engine can stand in for the embedded one.
pub(super) trait Ledger: Send + Sync {
    /// All records.
    fn load(&self) -> Result<Vec<(Mac, Record)>>;

    /// Number of the last job that was ever given; 0 if none was.
    fn last_job(&self) -> Result<u64>;

    /// Keeps these records, or removes them, and the number of the last job; all or none, and durable when this
    /// returns.
    fn save(&self, changed: &[(Mac, Option<Record>)], last_job: u64) -> Result<()>;

    /// Keeps the newest log of a machine.
    fn save_log(&self, mac: Mac, log: &MachineLog) -> Result<()>;

    /// That log.
    fn log(&self, mac: Mac) -> Result<Option<MachineLog>>;

    /// Keeps that a machine has this address since this time, in seconds since 1970, or none any more; durable when
    /// this returns.
    fn save_lease(&self, mac: Mac, lease: Option<(Ipv4Addr, u64)>) -> Result<()>;

    /// All of these.
    fn leases(&self) -> Result<Vec<(Mac, Ipv4Addr, u64)>>;
}

/// An embedded database in one file.
pub(super) struct Redb(Database);

impl Redb {
    /// The database at `path`, made the first time. `Refused` if it was made before and is missing: all machines would
    /// be strangers, and their keys and jobs forgotten. Also `Refused` if another process has it open.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let mark = path.with_extension("made");
        // An empty file is no database: a new one would be made in it.
        if mark.exists() && path.metadata().map_or(0, |found| found.len()) == 0 {
            let (table, mark) = (path.display(), mark.display());
            let text = format!(
                "the table of machines `{table}` is missing: put it back from a copy, or remove `{mark}` to begin with \
                 an empty one, to which all machines are strangers"
            );
            return Err(Error::new(ErrorKind::Refused, text));
        }
        // It says which machines there are, and who has admitted them: for its owner alone.
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
        let file = file.map_err(|error| {
            Error::from_io(format!("open the table of machines `{}`", path.display()), error)
        })?;
        let opened = FileBackend::new(file)
            .and_then(|file| Database::builder().create_with_backend(file))
            .map_err(|error| {
                let kind = match &error {
                    DatabaseError::DatabaseAlreadyOpen => ErrorKind::Refused,
                    DatabaseError::Storage(redb::StorageError::Corrupted(_)) => ErrorKind::Corrupt,
                    _ => ErrorKind::Io,
                };
                Error::from_source(kind, format!("open the table of machines `{}`", path.display()), error)
            });
        let opened = opened?;
        if !mark.exists() {
            let marked = std::fs::write(&mark, b"");
            marked.map_err(|error| Error::from_io(format!("write `{}`", mark.display()), error))?;
        }
        Ok(Self(opened))
    }

    /// A table, to read; `None` if nothing was ever written to it.
    fn table<K: Key + 'static, V: Value + 'static>(
        &self,
        definition: TableDefinition<K, V>,
    ) -> Result<Option<ReadOnlyTable<K, V>>> {
        match self.0.begin_read().map_err(failed)?.open_table(definition) {
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            opened => opened.map(Some).map_err(failed),
        }
    }
}

fn failed(error: impl Into<redb::Error>) -> Error {
    Error::from_source(ErrorKind::Io, "keep the table of machines", error.into())
}

impl Ledger for Redb {
    fn load(&self) -> Result<Vec<(Mac, Record)>> {
        let Some(table) = self.table(MACHINES)? else { return Ok(Vec::new()) };
        let mut records = Vec::new();
        for entry in table.iter().map_err(failed)? {
            let (mac, record) = entry.map_err(failed)?;
            let damaged = |what: &str| {
                Error::new(ErrorKind::Corrupt, format!("the record of machine `{}` {what}", mac.value()))
            };
            let record = serde_json::from_slice(record.value()).map_err(|_| damaged("can't be read"))?;
            records.push((mac.value().parse().map_err(|_| damaged("has no address"))?, record));
        }
        Ok(records)
    }

    fn last_job(&self) -> Result<u64> {
        let Some(table) = self.table(NUMBERS)? else { return Ok(0) };
        Ok(table.get(LAST_JOB).map_err(failed)?.map_or(0, |number| number.value()))
    }

    fn save(&self, changed: &[(Mac, Option<Record>)], last_job: u64) -> Result<()> {
        let write = self.0.begin_write().map_err(failed)?;
        write.open_table(NUMBERS).map_err(failed)?.insert(LAST_JOB, last_job).map_err(failed)?;
        {
            let mut table = write.open_table(MACHINES).map_err(failed)?;
            for (mac, record) in changed {
                let mac = mac.to_string();
                match record {
                    Some(record) => {
                        let bytes = serde_json::to_vec(record).expect("a record has a form in JSON");
                        table.insert(mac.as_str(), bytes.as_slice()).map_err(failed)?;
                    }
                    None => {
                        table.remove(mac.as_str()).map_err(failed)?;
                        write.open_table(LOGS).map_err(failed)?.remove(mac.as_str()).map_err(failed)?;
                    }
                }
            }
        }
        write.commit().map_err(failed)
    }

    fn save_log(&self, mac: Mac, log: &MachineLog) -> Result<()> {
        let write = self.0.begin_write().map_err(failed)?;
        let bytes = serde_json::to_vec(log).expect("a log has a form in JSON");
        write.open_table(LOGS).map_err(failed)?.insert(&*mac.to_string(), &*bytes).map_err(failed)?;
        write.commit().map_err(failed)
    }

    fn log(&self, mac: Mac) -> Result<Option<MachineLog>> {
        let Some(table) = self.table(LOGS)? else { return Ok(None) };
        let found = table.get(&*mac.to_string()).map_err(failed)?;
        let damaged = |_| Error::new(ErrorKind::Corrupt, format!("the log of {mac} can't be read"));
        found.map(|bytes| serde_json::from_slice(bytes.value()).map_err(damaged)).transpose()
    }

    fn save_lease(&self, mac: Mac, lease: Option<(Ipv4Addr, u64)>) -> Result<()> {
        let write = self.0.begin_write().map_err(failed)?;
        {
            let mut table = write.open_table(LEASES).map_err(failed)?;
            let mac = mac.to_string();
            match lease {
                Some((address, since)) => {
                    drop(table.insert(&*mac, (&*address.to_string(), since)).map_err(failed)?);
                }
                None => drop(table.remove(&*mac).map_err(failed)?),
            }
        }
        write.commit().map_err(failed)
    }

    fn leases(&self) -> Result<Vec<(Mac, Ipv4Addr, u64)>> {
        let Some(table) = self.table(LEASES)? else { return Ok(Vec::new()) };
        let mut leases = Vec::new();
        for entry in table.iter().map_err(failed)? {
            let (mac, lease) = entry.map_err(failed)?;
            let (address, since) = lease.value();
            // One that can't be read holds no address; its machine asks for another.
            if let (Ok(mac), Ok(address)) = (mac.value().parse(), address.parse()) {
                leases.push((mac, address, since));
            }
        }
        Ok(leases)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn records_survive_and_the_file_has_one_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("machines.redb");
        let (one, two) = (Mac([1; 6]), Mac([2; 6]));
        let named = |name: &str| Record { name: Some(name.to_owned()), ..Record::default() };
        {
            let ledger = Redb::open(&path).unwrap();
            assert!(ledger.load().unwrap().is_empty());
            ledger.save(&[(one, Some(named("a"))), (two, Some(named("b")))], 7).unwrap();
            ledger.save(&[(two, None), (one, Some(named("c")))], 8).unwrap();
            let [first, second] = [1, 2].map(|last| Ipv4Addr::new(10, 0, 0, last));
            ledger.save_lease(one, Some((first, 5))).unwrap();
            ledger.save_lease(two, Some((second, 6))).unwrap();
            ledger.save_lease(one, None).unwrap();
            assert_eq!(ledger.leases().unwrap(), [(two, second, 6)]);
            let other = Redb::open(&path).err().unwrap();
            assert_eq!(other.kind(), ErrorKind::Refused, "{other}");
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o077, 0, "for its owner alone");
        }
        // A table that is missing is no empty one.
        std::fs::rename(&path, folder.path().join("kept")).unwrap();
        for is_emptied in [false, true] {
            if is_emptied {
                std::fs::write(&path, b"").unwrap();
            }
            let missing = Redb::open(&path).err().unwrap();
            assert!(missing.kind() == ErrorKind::Refused && missing.to_string().contains("machines.made"));
        }
        std::fs::rename(folder.path().join("kept"), &path).unwrap();
        let ledger = Redb::open(&path).unwrap();
        assert_eq!((ledger.load().unwrap(), ledger.last_job().unwrap()), (vec![(one, named("c"))], 8));
    }
}
