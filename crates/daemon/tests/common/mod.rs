//! A server with its API on loopback, clients of it, and a small disk.

#![allow(dead_code, reason = "every test program uses its own part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::time::Duration;

use base::{Extent, ExtentSet};
use bytes::Bytes;
use daemon::{ServeOptions, Server, serve};
use disk::device::MemoryDisk;
use disk::{DiskMap, Geometry, TableKind};
use image::{CaptureOptions, Manifest, NoProgress, ObjectSink};
use net::client::{Client, ClientOptions};
use net::token::JoinToken;
use store::{Location, Repository};

pub(crate) struct Bench {
    pub(crate) server: Server,
    pub(crate) repository: Arc<Repository>,
    _state: tempfile::TempDir,
    pub(crate) state: daemon::state::StateFolder,
}

pub(crate) fn start(tls: bool) -> Bench {
    start_at(tls, &Location::Memory)
}

pub(crate) fn start_at(tls: bool, location: &Location) -> Bench {
    let folder = tempfile::tempdir().unwrap();
    let repository = Arc::new(Repository::open_or_create(location).unwrap());
    let server = serve(ServeOptions {
        repository: repository.clone(),
        state: folder.path().to_owned(),
        listen: "127.0.0.1:0".parse().unwrap(),
        tls,
        multicast: None,
        token_lifetime: Duration::from_secs(60),
        token_out: None,
        places: Default::default(),
        netboot: None,
        agents: false,
        strict: false,
        public: Default::default(),
        torrent: None,
        log: Arc::new(|_| {}),
    })
    .unwrap();
    let state = daemon::state::StateFolder::open(folder.path()).unwrap();
    Bench { server, repository, _state: folder, state }
}

impl Bench {
    pub(crate) fn client(
        &self,
        images: &[&str],
        right: daemon::auth::authority::Right,
        expires: u64,
    ) -> Client {
        let claims = daemon::auth::authority::Claims {
            lasts: Some(60),
            ..daemon::auth::authority::Claims::plain(
                images.iter().map(ToString::to_string).collect(),
                right,
                expires,
            )
        };
        let secret = self.state.authority().unwrap().mint(&claims).unwrap();
        let token = JoinToken { secret, ..self.server.join_token().clone() };
        let options = ClientOptions {
            patience: Duration::ZERO,
            first_patience: Duration::from_secs(5),
            ..ClientOptions::default()
        };
        Client::connect(&self.server.address().to_string(), &token, options).unwrap()
    }

    pub(crate) fn writer(&self) -> Client {
        self.client(&["web"], daemon::auth::authority::Right::Write, u64::MAX)
    }
}

pub(crate) fn draft(sink: &dyn ObjectSink) -> Bytes {
    draft_of(0, sink)
}

/// A draft of a small disk, whose objects go to `sink`. It contains the numbers from `first`.
pub(crate) fn draft_of(first: u32, sink: &dyn ObjectSink) -> Bytes {
    let disk = MemoryDisk::new((first..first + (1 << 18)).flat_map(u32::to_le_bytes).collect());
    let geometry = Geometry { size_bytes: 1 << 20, logical_sector_bytes: 512, physical_sector_bytes: 512 };
    let window = Extent::new(0, 2048);
    let map = DiskMap {
        geometry,
        table: TableKind::None,
        disk_id: None,
        partitions: Vec::new(),
        window,
        allocated: ExtentSet::of(window),
        warnings: Vec::new(),
    };
    let captured = image::capture(&disk, &map, sink, &CaptureOptions::default(), &NoProgress).unwrap();
    Manifest::draft("web", &map, &captured, "2026-11-20T14:00:00Z").encode(None).unwrap()
}
