//! Disks in formats that diskcast does not read itself: `qemu-nbd` reads them, where it is installed, and serves them
//! to this process alone.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use disk::{ArchivedDisk, Geometry, ReadAt, Source};
use mirror::nbd::{ExportAddress, NbdDisk, ServerAddress};
use serde_json::json;

use crate::clock;
use crate::exit::{Exit, Failure, Result};

/// How long `qemu-nbd` may take to open a disk.
const START_MAX: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(10);
/// Clients that it serves at once: as many as an [`NbdDisk`] opens.
const CLIENTS: &str = "--shared=8";

/// A disk that `qemu-nbd` serves.
pub(crate) struct Foreign {
    // In this order: the connections are closed before the program is ended.
    disk: NbdDisk,
    _program: Program,
    name: String,
    linked: Vec<PathBuf>,
}

impl Foreign {
    /// The other files that the disk consists of.
    pub(crate) fn linked(&self) -> &[PathBuf] {
        &self.linked
    }
}

/// A running `qemu-nbd`, and the folder of its socket.
struct Program {
    child: Child,
    folder: tempfile::TempDir,
}

impl Drop for Program {
    fn drop(&mut self) {
        // It ends with its last client, too: also when this process is killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts `qemu-nbd` on `source`, or on a `member` of it, which is in the format that QEMU calls `format`. `None` if it
/// is not installed.
pub(crate) fn open(
    source: &Source,
    member: Option<&ArchivedDisk<'_>>,
    format: &str,
    backing: bool,
) -> Result<Option<Foreign>> {
    let name = member.map_or(source.name(), ReadAt::name).to_owned();
    let linked = match member {
        None => disk::linked_files(source, source.path(), format, backing)?,
        // Nothing is beside it.
        Some(member) => disk::linked_files(member, Path::new(""), format, false)?,
    };
    let program = match Program::start(source, member.map(ArchivedDisk::place), format) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        started => started?,
    };
    let (disk, program) = program.connect(&name)?;
    Ok(Some(Foreign { disk, _program: program, name, linked }))
}

impl Program {
    /// `part` is where the disk lies in the source: offset and length in bytes.
    fn start(source: &Source, part: Option<(u64, u64)>, format: &str) -> std::io::Result<Self> {
        let folder = disk::private_folder(None)?;
        let driver = if source.is_device() { "host_device" } else { "file" };
        let path = if part.is_some() { source.open_path() } else { reopen_path(source, format) };
        let mut file = json!({ "driver": driver, "filename": path, "read-only": true });
        if let Some((offset, bytes)) = part {
            file = json!({ "driver": "raw", "offset": offset, "size": bytes, "file": file });
        }
        let mut disk = json!({ "driver": format, "read-only": true, "file": file });
        if ["qcow2", "qed", "vmdk"].contains(&format) {
            disk["backing"] = serde_json::Value::Null;
        }
        let child = Command::new("qemu-nbd")
            .args(["--read-only", CLIENTS, "--cache=writeback"])
            .arg(format!("--socket={}", socket(folder.path()).display()))
            .arg(format!("json:{disk}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        Ok(Self { child, folder })
    }

    /// Connects as soon as the program listens.
    fn connect(mut self, name: &str) -> Result<(NbdDisk, Self)> {
        let server = ServerAddress::Unix(socket(self.folder.path()));
        let address = ExportAddress { server, export: String::new() };
        let began = clock::now();
        loop {
            let ended = self.child.try_wait()?.is_some();
            match NbdDisk::open(&address) {
                Ok(disk) => return Ok((disk.with_sectors_by_table(), self)),
                Err(error) if !ended && error.kind() == base::ErrorKind::Unreachable => {}
                Err(_) if ended => return Err(self.words(name)),
                Err(error) => return Err(error.into()),
            }
            if clock::now().duration_since(began) > START_MAX {
                return Err(Failure::new(Exit::Failed, format!("qemu-nbd does not open `{name}`")));
            }
            clock::pause(PAUSE);
        }
    }

    /// Why the program ended, in its own words.
    fn words(&mut self, name: &str) -> Failure {
        let mut words = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            let _ = stderr.read_to_string(&mut words);
        }
        let words = words.trim().lines().last().unwrap_or("it ended without a word").to_owned();
        Failure::new(Exit::Failed, format!("qemu-nbd can not read `{name}`: {words}"))
    }
}

/// The path of the very file that is watched; of a VMDK its name, by which its extents are found.
fn reopen_path(source: &Source, format: &str) -> PathBuf {
    match std::path::absolute(source.path()) {
        // What QEMU is told is text.
        Ok(path) if format == "vmdk" && path.exists() && path.to_str().is_some() => path,
        _ => source.open_path(),
    }
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("socket")
}

impl ReadAt for Foreign {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> base::Result<()> {
        self.disk.read_exact_at(buf, offset)
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn next_data(&self, offset: u64) -> u64 {
        self.disk.next_data(offset)
    }
}
