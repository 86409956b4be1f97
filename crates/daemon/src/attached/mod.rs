//! Runs one attached disk in one process: creates or opens it in its folder, serves it by NBD, and listens on its
//! control socket. `formats/attached.md`.
//!
//! If the process dies, only the machine that uses this disk is affected. Everything that a new process needs is in
//! the folder, and a client that reconnects finds the disk unchanged.

mod commit;
mod control;
mod event;
mod listen;
mod protocol;
mod quiesce;
mod settings;
mod socket;
mod tls;
mod watch;

use std::cell::RefCell;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use image::Manifest;
use mirror::nbd::Server;
use mirror::{BootProfiles, Images, Mirror, MirrorOptions, MulticastOptions, Served, Source, Swarm};
use net::client::Client;
use net::clock::Stop;
use parking_lot::{Condvar, Mutex, MutexGuard};
use store::Stamp;

use crate::auth::tokens::{Keeper, Place};
use commit::Committer;
use control::{Asker, Control, Rule};
use listen::{counting, exports, listen};
use watch::Watcher;

pub use event::{Event, Log};
pub use protocol::{
    Afterwards, Answer, CommitRequest, Committed, Conversation, Damaged, Orders, Request, Status, Waits, ask,
};
pub use quiesce::{MAY_BE_FROZEN, Quiesce};
use settings::of_disk;
pub use settings::{CacheSettings, KeySettings, ServerSettings, Settings, TlsSettings};

/// Maximum number of NBD connections at the same time; further ones are refused.
const CLIENTS_MAX: usize = 64;
/// Maximum number of damaged objects in a status.
const DAMAGED_MAX: usize = 16;
/// A status reports only reads that have waited at least this long.
const WAITS_MIN: Duration = Duration::from_secs(1);
/// Time for requests in flight to finish when the disk is detached.
const GRACE: Duration = Duration::from_secs(5);
/// Maximum time at the end for sending the list of chunks that the machine read, if it has not finished starting.
const PARTING_MAX: Duration = Duration::from_secs(3);

/// Makes the creator and the time of a version.
pub type Stamper = Arc<dyn Fn() -> Stamp + Send + Sync>;

/// Options for attaching a disk.
pub struct AttachOptions {
    /// Folder of the disk.
    pub folder: PathBuf,
    /// Settings of the disk, which are written to `folder`.
    pub settings: Settings,
    /// The version that a new disk begins as; `None` to open an existing disk.
    pub begin: Option<Manifest>,
    /// Sources of content that is not local, in the order in which they are asked.
    pub sources: Vec<Source>,
    /// Server or repository with the boot profiles; not used if the settings have `without_profile`.
    pub boot_profiles: Option<Arc<dyn BootProfiles>>,
    /// How to receive by multicast, if at all.
    pub multicast: Option<MulticastOptions>,
    /// The swarm of one of `sources`, if the disk takes part in one.
    pub swarm: Option<Arc<Swarm>>,
    /// Receives the commits; without it they are refused.
    pub commit_to: Option<Arc<dyn Images>>,
    /// Name of each server, a client for it with short timeouts, and the place of its token, so that tokens are
    /// renewed in time.
    pub tokens: Vec<(String, Arc<Client>, Place)>,
    /// Makes creator and time of a commit.
    pub stamp: Stamper,
    /// Cancels the requests of the sources.
    pub stop: Stop,
    /// Receives the events.
    pub log: Log,
}

impl AttachOptions {
    /// Creates or opens the disk, locks it for this process, and writes its settings.
    fn open(&mut self) -> Result<Mirror> {
        let Self { folder, settings, begin, sources, .. } = self;
        settings.claim(folder)?;
        check(settings)?;
        make_folder(folder)?;
        let options = MirrorOptions {
            data: settings.device.clone(),
            give_up: settings.give_up_seconds.map(Duration::from_secs),
            ahead_chunks_max: settings.ahead_chunks,
            background_bytes_per_second: settings.background_bytes_per_second,
            ..MirrorOptions::default()
        };
        let mirror = match begin {
            Some(manifest) => {
                // The settings first: after a crash there must be no disk without settings.
                settings.keep(folder)?;
                Mirror::create(folder, manifest, sources.clone(), &options)
            }
            None => Mirror::open(folder, sources.clone(), &options),
        };
        let mirror = mirror.map_err(of_disk(&settings.name))?;
        settings.keep(folder)?;
        Ok(mirror)
    }
}

/// Creates or opens a disk like [`Attached::start`], but does not serve it. Returns its base version.
///
/// # Errors
/// Those of [`Attached::start`], except for sockets.
pub fn prepare(mut options: AttachOptions) -> Result<Manifest> {
    let mirror = options.open()?;
    options.stop.stop();
    mirror.close().map_err(of_disk(&options.settings.name))?;
    Ok(mirror.base())
}

/// How a disk's process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The disk will be attached again: the connections of its clients were closed without an answer.
    Left,
    /// It was detached by a request.
    Detached,
}

/// Whether `folder` contains a disk.
#[must_use]
pub fn exists(folder: &Path) -> bool {
    folder.join("journal").exists()
}

/// A disk that is served until it is detached or left. Dropping this is like the death of the process: no data is
/// lost, and nothing stays frozen.
pub struct Attached {
    disk: Arc<Disk>,
    /// Its threads use the disk; this handle ends them when it is dropped.
    _control: Control,
    _watcher: Watcher,
}

/// The state that the threads share.
struct Disk {
    folder: PathBuf,
    settings: Settings,
    sources: Vec<String>,
    nbd: Vec<String>,
    mirror: Arc<Mirror>,
    server: Server,
    clients: Arc<AtomicU64>,
    commit_to: Option<Arc<dyn Images>>,
    stamp: Stamper,
    log: Log,
    /// Locked during a commit: the disk cannot be detached meanwhile.
    committing: Mutex<()>,
    /// The client that requested the last commit.
    asker: Mutex<Weak<Asker>>,
    /// Locked while something may be frozen: the process must not end meanwhile.
    moment: Mutex<()>,
    stop: Stop,
    keeper: Keeper,
    phase: Mutex<Phase>,
    changed: Condvar,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Runs,
    Ends,
    /// Detached, but the client has not got the answer yet.
    Closed,
    /// The process may end.
    Over(End),
}

impl Attached {
    /// Creates or opens a disk, which is served as soon as this returns.
    ///
    /// # Errors
    /// `Refused` if another process runs the disk, a socket or an address is in use, or an address may not be served
    /// without TLS; `NotFound` if there is no disk and `begin` is `None`; `Malformed` if its files are damaged; `Io`.
    pub fn start(mut options: AttachOptions) -> Result<Self> {
        let mirror = Arc::new(options.open()?);
        let AttachOptions {
            folder,
            settings,
            sources,
            boot_profiles,
            multicast,
            swarm,
            commit_to,
            stamp,
            stop,
            log,
            tokens,
            ..
        } = options;
        if let Some(swarm) = swarm.filter(|_| !mirror.is_complete()) {
            mirror.join_swarm(&swarm).map_err(of_disk(&settings.name))?;
        }
        if let Some(profiles) = boot_profiles.filter(|_| !settings.without_profile) {
            mirror.follow_boots(profiles, &stamp()).map_err(of_disk(&settings.name))?;
        }
        if let Some(multicast) = multicast.filter(|_| !mirror.is_complete()) {
            mirror.join_multicast(multicast).map_err(of_disk(&settings.name))?;
        }
        let names = sources.into_iter().map(|source| source.name).collect();
        let clients = Arc::new(AtomicU64::new(0));
        let server =
            Server::new(exports(&settings, &mirror)?, CLIENTS_MAX, counting(&clients, Arc::clone(&log)));
        let nbd = listen(&server, &settings, &folder)?;
        let control = socket::listen(&folder.join(protocol::SOCKET))?;
        let tells = Arc::clone(&log);
        let tell = Box::new(move |server: &str, news| tells(&Event::of_token(server, news)));
        let keeper = Keeper::start(tokens, tell)?;
        let watcher = Watcher::start(Arc::clone(&mirror), Arc::clone(&log))?;
        let disk = Arc::new(Disk {
            folder,
            settings,
            sources: names,
            nbd,
            mirror,
            server,
            clients,
            commit_to,
            stamp,
            log,
            committing: Mutex::default(),
            asker: Mutex::default(),
            keeper,
            moment: Mutex::default(),
            stop,
            phase: Mutex::new(Phase::Runs),
            changed: Condvar::new(),
        });
        let control = Control::start(control, Arc::clone(&disk) as Arc<dyn Rule>)?;
        Ok(Self { disk, _control: control, _watcher: watcher })
    }

    /// The state of the disk now.
    #[must_use]
    pub fn status(&self) -> Status {
        self.disk.status()
    }

    /// Returns a function that makes [`Self::wait`] return [`End::Left`], for use on another thread.
    pub fn leaver(&self) -> impl FnOnce() + Send + use<> {
        let disk = Arc::clone(&self.disk);
        move || disk.leave()
    }

    /// Returns a function to call before the process exits abruptly. When it returns, nothing is frozen for a commit,
    /// and no commit freezes anything any more. It takes at most as long as freezing and thawing may take.
    pub fn thawer(&self) -> impl Fn() + Send + Sync + use<> {
        let disk = Arc::clone(&self.disk);
        move || disk.thaw()
    }

    /// Waits until the disk is detached or left.
    #[must_use]
    pub fn wait(&self) -> End {
        let mut phase = self.disk.phase.lock();
        loop {
            if let Phase::Over(end) = *phase {
                return end;
            }
            self.disk.changed.wait(&mut phase);
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.disk.thaw();
    }
}

impl Disk {
    fn status(&self) -> Status {
        let (base, counters) = (self.mirror.base(), self.mirror.counters());
        let swarm = self.mirror.swarm_traffic();
        let damaged = self.mirror.damage();
        let said = |mirror::Damage { what, source, why }| Damaged { what, source, why };
        Status {
            name: self.settings.name.clone(),
            image: base.image,
            number: base.number,
            process: std::process::id(),
            program: env!("CARGO_PKG_VERSION").to_owned(),
            nbd: self.nbd.clone(),
            sources: self.sources.clone(),
            read_only: self.settings.read_only,
            clients: self.clients.load(Ordering::Relaxed),
            size_bytes: self.mirror.geometry().size_bytes,
            local_bytes: self.mirror.local_bytes(),
            dirty_bytes: self.mirror.dirty_bytes(),
            demanded_bytes: counters.demanded_bytes,
            demanded_chunks: counters.demanded_chunks,
            prefetched_bytes: counters.prefetched_bytes,
            prefetched_unused_bytes: counters.prefetched_unused_bytes(),
            background_bytes: counters.background_bytes,
            node_bytes: counters.node_bytes,
            multicast_bytes: counters.arrived_bytes,
            peer_bytes: swarm.peer_bytes,
            served_bytes: swarm.served_bytes,
            retries: counters.retries,
            lies: counters.lies,
            waits: self.waits(),
            damaged_count: damaged.len() as u64,
            damaged: damaged.into_iter().take(DAMAGED_MAX).map(said).collect(),
            tokens: self.keeper.status(),
        }
    }

    fn waits(&self) -> Option<Waits> {
        let waiting = self.mirror.waiting().filter(|waiting| waiting.waited >= WAITS_MIN)?;
        let mirror::Waiting { what, waited, why } = waiting;
        Some(Waits { what, seconds: waited.as_secs(), why })
    }

    /// Enters `Phase::Ends`; false if the disk ends already.
    fn begin_end(&self) -> bool {
        let mut phase = self.phase.lock();
        *phase == Phase::Runs && std::mem::replace(&mut *phase, Phase::Ends) == Phase::Runs
    }

    fn set_phase(&self, phase: Phase) {
        *self.phase.lock() = phase;
        self.changed.notify_all();
    }

    /// Makes the disk durable and stops serving it. The NBD clients were told or disconnected before.
    fn close(&self) -> Result<()> {
        // Reports to the server what the machine read, before `stop` cancels all requests.
        self.mirror.part(PARTING_MAX);
        self.stop.stop();
        // Removed, so that new clients get an error at once instead of waiting for an answer.
        let _ = std::fs::remove_file(self.settings.nbd_socket(&self.folder));
        let closed = self.mirror.close().map_err(of_disk(&self.settings.name));
        let _ = std::fs::remove_file(self.folder.join(protocol::SOCKET));
        closed
    }

    /// Prevents any further moment of a commit, and waits for the end of the current one.
    fn thaw(&self) {
        self.begin_end();
        self.call_off();
        drop(self.moment.lock());
    }

    /// Calls off the commit that runs, which may keep its disk frozen while it stores it.
    fn call_off(&self) {
        if let Some(asker) = self.asker.lock().upgrade() {
            asker.gone().stop();
        }
    }

    fn leave(&self) {
        if self.begin_end() {
            self.call_off();
            // A frozen machine may be waiting for this disk: wait until it is thawed.
            drop(self.moment.lock());
            self.server.leave();
            // Anything that could not be made durable is recovered at the next attach, as after a crash.
            let _ = self.close();
            self.set_phase(Phase::Over(End::Left));
        }
    }

    fn detach(&self, discard: bool, force: bool) -> Result<Answer> {
        if discard && !force {
            refuse_dirty(&self.settings.name, self.mirror.dirty_bytes())?;
        }
        let Some(_idle) = self.idle() else { return Err(self.refusal("is being committed")) };
        if !self.begin_end() {
            return Err(self.refusal("ends already"));
        }
        self.server.stop(GRACE);
        let closed = self.close();
        let done = if discard { remove(&self.folder) } else { closed };
        self.set_phase(Phase::Closed);
        done.map(|()| Answer::Detached { discarded: discard })
    }
}

impl Disk {
    /// The lock for a commit, or for an end that interrupts no commit; `None` if a commit runs.
    fn idle(&self) -> Option<MutexGuard<'_, ()>> {
        self.committing.try_lock()
    }

    fn refusal(&self, why: &str) -> Error {
        Error::new(ErrorKind::Refused, format!("the disk `{}` {why}", self.settings.name))
    }

    /// The lock for a commit of `asker`. If another commit runs but its client has disconnected, that commit is
    /// cancelled and this waits for its end.
    fn turn(&self, asker: &Arc<Asker>) -> Result<MutexGuard<'_, ()>> {
        let turn = self.idle().or_else(|| {
            let runs = self.asker.lock().upgrade();
            runs.filter(|asker| asker.look()).map(|_| {
                let message = "waiting for the end of a commit that was called off".to_owned();
                asker.tell(&Answer::Waits { message });
                self.committing.lock()
            })
        });
        let turn = turn.ok_or_else(|| self.refusal("is being committed"))?;
        *self.asker.lock() = Arc::downgrade(asker);
        Ok(turn)
    }

    fn commit(&self, request: &CommitRequest, asker: &Arc<Asker>) -> Result<Answer> {
        if request.orders.is_some() {
            asker.takes_orders();
        }
        let Some(to) = &self.commit_to else {
            return Err(self.refusal("has neither a repository nor a server that takes commits"));
        };
        if let Some(quiesce) = &request.quiesce {
            quiesce.check(&self.folder)?;
        }
        let turn = self.turn(asker)?;
        let stamp = (self.stamp)();
        let hears = Arc::clone(asker);
        let waits = move |words: &str| hears.tell(&Answer::Waits { message: words.to_owned() });
        let to = Arc::clone(to).for_one_commit(Arc::new(waits), asker.gone());
        let begin_moment = || self.begin_moment();
        let committer = Committer {
            name: &self.settings.name,
            mirror: &self.mirror,
            to: &*to,
            stamp: &stamp,
            asker,
            begin_moment: &begin_moment,
            stays: RefCell::new(None),
        };
        let done = committer.commit(request);
        match &done {
            Err(_) if asker.gone().is_stopped() => (self.log)(&Event::CommitCalledOff),
            Ok(done) if done.changed => (self.log)(&Event::from(done)),
            Ok(_) => {}
            Err(error) => (self.log)(&Event::CommitFailed { error: base::chain(error) }),
        }
        let done = done?;
        let held = committer.stays.take();
        let Some(held) = held else { return Ok(Answer::Committed(done)) };
        asker.tell(&Answer::Stored(done));
        committer.wait_for_the_end(|| self.check_runs())?;
        if !self.begin_end() {
            return Err(self.refusal("ends already"));
        }
        let ended = held.end(|| {
            // What the machine still waits for must not be answered.
            self.server.leave();
            self.close()
        });
        drop(turn);
        self.set_phase(Phase::Closed);
        ended.map(|()| Answer::Detached { discarded: false })
    }

    fn begin_moment(&self) -> Result<MutexGuard<'_, ()>> {
        let moment = self.moment.lock();
        self.check_runs().map(|()| moment)
    }

    fn check_runs(&self) -> Result<()> {
        if *self.phase.lock() == Phase::Runs { Ok(()) } else { Err(self.refusal("is about to end")) }
    }
}

impl Rule for Disk {
    fn perform(&self, request: Request, asker: &Arc<Asker>) -> Result<Answer> {
        match request {
            Request::Status => Ok(Answer::Status(Box::new(self.status()))),
            Request::Commit(request) => asker.while_here(|| self.commit(&request, asker)),
            Request::Detach { discard, force } => self.detach(discard, force),
        }
    }

    fn answered(&self) {
        let closed = *self.phase.lock() == Phase::Closed;
        if closed {
            self.set_phase(Phase::Over(End::Detached));
        }
    }
}

/// Deletes a disk that no process runs, with all its files. Without `force`, only if nothing was written since the
/// last commit.
///
/// # Errors
/// `Refused` if there are uncommitted writes or a process runs the disk; `NotFound` if there is no disk; `Malformed`
/// if its files are damaged, unless `force`; `Io`.
pub fn discard(folder: &Path, settings: &Settings, force: bool) -> Result<()> {
    if !force && exists(folder) {
        let options = MirrorOptions { data: settings.device.clone(), ..MirrorOptions::default() };
        let mirror = Mirror::open(folder, Vec::new(), &options).map_err(of_disk(&settings.name))?;
        let dirty_bytes = mirror.dirty_bytes();
        mirror.close().map_err(of_disk(&settings.name))?;
        refuse_dirty(&settings.name, dirty_bytes)?;
    }
    remove(folder)
}

fn refuse_dirty(name: &str, bytes: u64) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let text = format!("{bytes} bytes were written to the disk `{name}` and not committed");
    Err(Error::new(ErrorKind::Refused, text))
}

/// Deletes the journal first: a folder without a journal is no disk, so a crash in between leaves nothing that could
/// be attached.
fn remove(folder: &Path) -> Result<()> {
    let failed = |error| Error::from_source(ErrorKind::Io, format!("delete `{}`", folder.display()), error);
    match std::fs::remove_file(folder.join("journal")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    std::fs::remove_dir_all(folder).map_err(failed)
}

/// Whether clients by TCP must show a certificate.
fn asks_for_certificates(settings: &Settings) -> bool {
    settings.tls.as_ref().is_some_and(|tls| tls.client_authority.is_some())
}

/// Checks the settings before anything is created.
fn check(settings: &Settings) -> Result<()> {
    match settings.listen {
        Some(address) if !address.ip().is_loopback() && !asks_for_certificates(settings) => {
            let text = format!(
                "{address} is not a loopback address: anybody who reaches it could read and write the disk. \
                 Clients there must show certificates: give --tls-cert, --tls-key and --tls-client-ca"
            );
            Err(Error::new(ErrorKind::Refused, text))
        }
        _ => Ok(()),
    }
}

fn make_folder(folder: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| {
        Error::from_source(ErrorKind::Io, format!("make the folder `{}`", folder.display()), error)
    })
}
