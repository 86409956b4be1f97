//! The ways in which a host can use a machine's disk that is on a server.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use mirror::Mirror;
use mirror::nbd::{Export, ExportTable, Server};
use serde_json::Value;

use crate::Result;
use crate::context::{Context, json_line, said};
use crate::programs::Program;
use crate::site::DISK;

const CLIENTS_MAX: usize = 16;

/// How the host gets the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The disk is a local file.
    Local,
    /// `nbdcopy` copies all of it first.
    Copied,
    /// `diskcast fetch` fetches all of it first.
    Fetched,
    /// An overlay over `qemu-nbd`.
    Qemu,
    /// An overlay over `nbdkit file`.
    Nbdkit,
    /// `nbdkit curl` with these filters, from nginx.
    Curl(&'static [&'static str]),
    /// A disk attached in this process, which has access to its counters.
    Attached,
    /// A disk run by `diskcast attach`.
    Program,
}

impl Way {
    /// All ways without diskcast's attached disks.
    pub(crate) const OTHERS: [Self; 7] = [
        Self::Local,
        Self::Copied,
        Self::Fetched,
        Self::Qemu,
        Self::Nbdkit,
        Self::Curl(&["cow"]),
        Self::Curl(&["cow", "cache"]),
    ];

    /// Its name in the tables.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Local => "local raw file".to_owned(),
            Self::Copied => "nbdcopy first".to_owned(),
            Self::Fetched => "diskcast fetch first".to_owned(),
            Self::Qemu => "qemu-nbd".to_owned(),
            Self::Nbdkit => "nbdkit file".to_owned(),
            Self::Curl(filters) => format!("nbdkit curl + {}", filters.join(" + ")),
            Self::Attached => "diskcast".to_owned(),
            Self::Program => "diskcast attach".to_owned(),
        }
    }

    /// Details of it for the tables; empty if the name says all.
    pub(crate) fn flags(self) -> &'static str {
        match self {
            Self::Local => "pread",
            Self::Copied => "of nbdkit file, then pread",
            Self::Fetched => "by multicast, then pread",
            Self::Qemu | Self::Nbdkit => "a qcow2 overlay in qemu-nbd on the host",
            Self::Curl(_) => "on the host, from nginx",
            Self::Attached => "",
            Self::Program => "the order at the server",
        }
    }
}

/// A disk that the host can use.
pub(crate) struct Had {
    pub place: Place,
    /// Seconds until the first byte could be read, if they count.
    pub before: f64,
    /// The disk, if it is attached in this process.
    pub mirror: Option<Arc<Mirror>>,
    _server: Option<Server>,
    _program: Option<Program>,
}

/// Where it can be read.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    File(PathBuf),
    /// The Unix socket of an NBD server with the export [`DISK`].
    Socket(PathBuf),
}

impl Had {
    /// A file that was complete after `before` seconds.
    pub(crate) fn file(path: PathBuf, before: f64) -> Self {
        Self { place: Place::File(path), before, mirror: None, _server: None, _program: None }
    }

    /// A disk that a program serves.
    pub(crate) fn served(socket: &Path, program: Program) -> Self {
        let place = Place::Socket(socket.to_owned());
        Self { place, before: 0.0, mirror: None, _server: None, _program: Some(program) }
    }

    /// A disk attached in this process.
    pub(crate) fn attached(socket: PathBuf, mirror: Arc<Mirror>) -> Result<Self> {
        let table = Arc::new(ExportTable::default());
        table.insert(DISK, Export { disk: mirror.clone(), description: String::new() })?;
        let server = Server::new(table, CLIENTS_MAX, Arc::new(|_| {}));
        server.listen_unix(UnixListener::bind(&socket)?)?;
        let place = Place::Socket(socket);
        Ok(Self { place, before: 0.0, mirror: Some(mirror), _server: Some(server), _program: None })
    }

    /// Runs `diskcast WORDS` for a disk of `diskcast attach`, and returns its JSON line of type `kind`.
    pub(crate) fn ask(&self, context: &Context, words: &[&str], kind: &str) -> Result<Value> {
        let Place::Socket(socket) = &self.place else { return Err("a file is not attached".into()) };
        let disks = socket.ancestors().nth(2).ok_or("a socket is in its disk's folder")?;
        let mut ask = Command::new(&context.diskcast);
        json_line(&said(ask.arg("--json").args(words).arg("--folder").arg(disks))?, kind)
    }

    /// Detaches a disk of `diskcast attach`, so that its server knows: the server would wait a while for a killed
    /// client.
    pub(crate) fn detach(&self, context: &Context) -> Result<()> {
        self.ask(context, &["detach", DISK, "--discard", "--force"], "detached").map(drop)
    }
}
