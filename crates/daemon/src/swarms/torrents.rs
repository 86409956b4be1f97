//! Versions as torrents: their metainfo, which is made once and kept, the node that serves them, and who takes part.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::{Error, ErrorKind, Instant, Result};
use image::SignedManifest;
use net::clock::jitter;
use parking_lot::Mutex;
use store::{Form, FormKind, Reference, Repository};
use tokio::runtime::Handle;
use torrent::torrent_folder::{Of, TorrentFolder};
use torrent::tracker::{self, Announce, Tracker};
use torrent::{Content, Found, InfoHash, Kind, Metainfo, Node, NodeOptions, hash, piece_bytes_for};

use crate::swarms::Places;

/// The folder in the server's own one.
const FOLDER: &str = "torrents";
/// Memory for what is sent to several peers.
const CACHE_BYTES: u64 = 64 << 20;
/// Most names of torrents that are known without a look into the folder.
const NAMES_MAX: usize = 4096;

/// The torrents of a server.
pub(crate) struct Torrents {
    node: Node,
    kept: TorrentFolder,
    tracker: Mutex<Tracker>,
    places: Places,
    /// One version is hashed at a time: that takes all cores.
    hashing: Mutex<()>,
    /// Names that were asked for and are torrents of this server.
    names: Mutex<Vec<InfoHash>>,
    started: tokio::time::Instant,
}

impl Torrents {
    /// Serves the versions of `repository` to peers that connect to `listen`, and keeps their digests below `state`.
    ///
    /// # Errors
    /// `Refused` if the address is in use; `Io`.
    pub(crate) fn start(
        repository: Arc<Repository>,
        state: &Path,
        listen: SocketAddr,
        (places, handle): (Places, Handle),
    ) -> Result<Self> {
        let kept = TorrentFolder::open(&state.join(FOLDER))?;
        let found = kept.clone();
        let node = Node::start(NodeOptions {
            listener: torrent::listen(listen)?,
            handle,
            place: 0,
            is_origin: true,
            cache_bytes: CACHE_BYTES,
            chance: jitter(),
            // What can't be read is not served: the peer learns it from the API.
            find: Some(Arc::new(move |name| find(&found, &repository, name).ok().flatten())),
        })?;
        let (tracker, names) = (Mutex::new(Tracker::new(jitter())), Mutex::default());
        let started = tokio::time::Instant::now();
        Ok(Self { node, kept, tracker, places, hashing: Mutex::new(()), names, started })
    }

    /// Where peers connect.
    pub(crate) fn address(&self) -> SocketAddr {
        self.node.address()
    }

    /// The torrent of a version in a form. Blocks: the first time, all of the version is read.
    ///
    /// # Errors
    /// Those of the repository; `Unsupported` if it has too many pieces.
    pub(crate) fn of(
        &self,
        repository: &Arc<Repository>,
        version: &SignedManifest,
        (form, kind): (FormKind, Kind),
    ) -> Result<Metainfo> {
        let reference = format!("{}@{}", version.manifest.image, version.manifest.number);
        let of = Of { reference, manifest: version.digest(), form: form.to_string() };
        let torrent = match self.kept.of(&of)? {
            Some(torrent) => torrent,
            None => {
                let _alone = self.hashing.lock();
                match self.kept.of(&of)? {
                    Some(torrent) => torrent,
                    None => self.make(repository, version, (form, &of))?,
                }
            }
        };
        Ok(if kind == Kind::V1 { torrent.v1() } else { torrent })
    }

    fn make(
        &self,
        repository: &Arc<Repository>,
        version: &SignedManifest,
        (form, of): (FormKind, &Of),
    ) -> Result<Metainfo> {
        let content = content(repository, version, form)?;
        let chunk_bytes = version.manifest.layout()?.chunk.bytes();
        let hashes = hash(&content, piece_bytes_for(content.len(), chunk_bytes))?;
        let ending = if form == FormKind::Raw { "img" } else { "qcow2" };
        let torrent = Metainfo::new(&format!("{}.{ending}", of.reference), &hashes, Kind::Hybrid);
        self.kept.keep(of, &torrent)?;
        Ok(torrent)
    }

    /// Answers an announce of a client at `address` that reached the server at `here`. Blocks for a look into the
    /// folder.
    ///
    /// # Errors
    /// `Invalid` for something else; `NotFound` for a torrent of others; `Io`.
    pub(crate) fn announce(&self, query: &str, address: IpAddr, here: IpAddr) -> Result<Vec<u8>> {
        let announce = Announce::parse(query)?;
        if !self.knows(&announce.info_hash)? {
            return Err(Error::new(ErrorKind::NotFound, "this server has no such torrent"));
        }
        let origin = SocketAddr::new(here.to_canonical(), self.address().port());
        let from = (address, self.places.of(address));
        Ok(self.tracker.lock().announce(&announce, from, origin, self.now()).encode())
    }

    /// Answers a request for the counts of torrents: of those that are this server's. Blocks as [`Self::announce`].
    ///
    /// # Errors
    /// `Invalid` for something else; `Io`.
    pub(crate) fn scrape(&self, query: &str) -> Result<Vec<u8>> {
        let mut known = Vec::new();
        for name in tracker::scraped(query)? {
            if self.knows(&name)? {
                known.push(name);
            }
        }
        Ok(self.tracker.lock().scrape(&known, self.now()))
    }

    fn now(&self) -> Instant {
        let elapsed = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Instant::ZERO + Duration::from_nanos(elapsed)
    }

    fn knows(&self, name: &InfoHash) -> Result<bool> {
        if self.names.lock().contains(name) {
            return Ok(true);
        }
        let is_known = self.kept.named(name)?.is_some();
        let mut names = self.names.lock();
        if is_known && names.len() < NAMES_MAX {
            names.push(*name);
        }
        Ok(is_known)
    }
}

/// A version as a file.
fn content(repository: &Repository, version: &SignedManifest, form: FormKind) -> Result<FormContent> {
    let reference: Reference = format!("{}@{}", version.manifest.image, version.manifest.number).parse()?;
    Ok(FormContent(repository.form(&reference, form)?))
}

struct FormContent(Form);

impl Content for FormContent {
    fn len(&self) -> u64 {
        self.0.file_bytes()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.0.read_at(offset, into)
    }

    fn keep(&self, _: u64, _: &[u8]) -> Result<()> {
        Err(Error::new(ErrorKind::Refused, "a version is only read"))
    }
}

/// The torrent of that name, if its version is still there.
fn find(kept: &TorrentFolder, repository: &Arc<Repository>, name: &InfoHash) -> Result<Option<Found>> {
    let Some((of, torrent)) = kept.named(name)? else { return Ok(None) };
    let reference: Reference = of.reference.parse()?;
    let (version, _) = repository.signed_manifest(&reference)?;
    if version.digest() != of.manifest {
        return Ok(None);
    }
    let content = content(repository, &version, of.form.parse()?)?;
    Ok(Some((Arc::new(torrent), Arc::new(content))))
}
