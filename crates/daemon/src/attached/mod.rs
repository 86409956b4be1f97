//! One attached disk in a process of its own: made or opened in its folder, served by NBD, ruled by a control socket.
//! `formats/attached.md`.
//!
//! The death of this process hurts one machine only, and not for long: all that a new one needs lies in the folder, and
//! a client that connects again finds the disk as it was.

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

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use image::Manifest;
use mirror::nbd::Server;
use mirror::{BootProfiles, Images, Mirror, MirrorOptions, MulticastOptions, Served, Source};
use net::client::Client;
use net::clock::Stop;
use parking_lot::{Condvar, Mutex, MutexGuard};
use store::Stamp;

use crate::tokens::{Keeper, Place};
use commit::Committer;
use control::{Asker, Control, Rule};
use listen::{counting, exports, listen};
use watch::Watcher;

pub use event::{Event, Log};
pub use protocol::{Answer, CommitRequest, Committed, Damaged, Request, Status, Waits, ask};
pub use quiesce::Quiesce;
use settings::of_disk;
pub use settings::{CacheSettings, KeySettings, ServerSettings, Settings, TlsSettings};

/// Most NBD connections at once; more of them are told that there is no place.
const CLIENTS_MAX: usize = 64;
/// Most pieces of damage that a status has.
const DAMAGED_MAX: usize = 16;
/// A read that waits for less long is no news.
const WAITS_MIN: Duration = Duration::from_secs(1);
/// How long requests in flight have when a disk is detached.
const GRACE: Duration = Duration::from_secs(5);
/// How long the keeping of what a machine read may take then, if it is not up yet.
const PARTING_MAX: Duration = Duration::from_secs(3);

/// Says who and when it is.
pub type Stamper = Arc<dyn Fn() -> Stamp + Send + Sync>;

/// What a disk is attached with.
pub struct AttachOptions {
    /// The disk's own.
    pub folder: PathBuf,
    /// How; kept in `folder`.
    pub settings: Settings,
    /// The version that a new disk begins as. `None` for one that is there.
    pub begin: Option<Manifest>,
    /// Who is asked for what is not here, in this order.
    pub sources: Vec<Source>,
    /// Where it is known what other machines read when they start, unless the disk's settings are without.
    pub boot_profiles: Option<Arc<dyn BootProfiles>>,
    /// How it takes part in multicast, if it does.
    pub multicast: Option<MulticastOptions>,
    /// Where commits go; nowhere if there is none.
    pub commit_to: Option<Arc<dyn Images>>,
    /// Clients of its servers by name, in a hurry, and where the token of each comes from: they are renewed in time.
    pub tokens: Vec<(String, Arc<Client>, Place)>,
    /// Whose a commit is that is made now.
    pub stamp: Stamper,
    /// Ends what the sources wait for.
    pub stop: Stop,
    /// Where events go.
    pub log: Log,
}

impl AttachOptions {
    /// Makes or opens the disk, which from here on is this process's, and keeps its settings.
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
                // First, so that there is no disk of which nobody knows how it is attached.
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

/// Makes or opens a disk as [`Attached::start`] does, but serves it to nobody. Returns its base version.
///
/// # Errors
/// As [`Attached::start`], but for sockets.
pub fn prepare(mut options: AttachOptions) -> Result<Manifest> {
    let mirror = options.open()?;
    options.stop.stop();
    mirror.close().map_err(of_disk(&options.settings.name))?;
    Ok(mirror.base())
}

/// How a disk's process came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It is to be attached again: its clients were left without a word.
    Left,
    /// It was detached by a request.
    Detached,
}

/// Whether there is a disk in `folder`.
#[must_use]
pub fn exists(folder: &Path) -> bool {
    folder.join("journal").exists()
}

/// A disk that is served until it is detached or left. Dropped it is as if the process had died: nothing is lost, and
/// nothing stays frozen.
pub struct Attached {
    disk: Arc<Disk>,
    /// Before the disk, which its threads use.
    _control: Control,
    _watcher: Watcher,
}

/// What threads share.
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
    /// Held while a commit is made: a disk is not detached meanwhile.
    committing: Mutex<()>,
    /// Who asked for the last commit.
    asker: Mutex<Weak<Asker>>,
    /// Held while something may be frozen: the process does not end meanwhile.
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
    /// Detached, but nobody was told yet.
    Closed,
    /// The process may go.
    Over(End),
}

impl Attached {
    /// Makes or opens a disk. It is served when this returns.
    ///
    /// # Errors
    /// `Refused` if another process has it, a socket or an address is in use, or may not be served without TLS;
    /// `NotFound` if there is no disk and none begins; `Malformed` if what is there is damaged; `Io`.
    pub fn start(mut options: AttachOptions) -> Result<Self> {
        let mirror = Arc::new(options.open()?);
        let AttachOptions {
            folder,
            settings,
            sources,
            boot_profiles,
            multicast,
            commit_to,
            stamp,
            stop,
            log,
            tokens,
            ..
        } = options;
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

    /// The disk now.
    #[must_use]
    pub fn status(&self) -> Status {
        self.disk.status()
    }

    /// What ends the disk's process from another thread, as [`End::Left`].
    pub fn leaver(&self) -> impl FnOnce() + Send + use<> {
        let disk = Arc::clone(&self.disk);
        move || disk.leave()
    }

    /// What is to be done before the process ends without a word: when it returns nothing is frozen for a commit, and
    /// nothing will be. It takes no longer than freezing and thawing may.
    pub fn thawer(&self) -> impl Fn() + Send + Sync + use<> {
        let disk = Arc::clone(&self.disk);
        move || disk.thaw()
    }

    /// Waits until the disk was detached or left.
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

    /// Takes the right to end the disk; false if it ends already.
    fn begin_end(&self) -> bool {
        let mut phase = self.phase.lock();
        *phase == Phase::Runs && std::mem::replace(&mut *phase, Phase::Ends) == Phase::Runs
    }

    fn set_phase(&self, phase: Phase) {
        *self.phase.lock() = phase;
        self.changed.notify_all();
    }

    /// Makes the disk durable and serves it no longer. Clients were told, or left, before.
    fn close(&self) -> Result<()> {
        // A server is told what was read before nothing is asked of it any more.
        self.mirror.part(PARTING_MAX);
        self.stop.stop();
        // Who connects from now on finds nobody, instead of waiting for an answer.
        let _ = std::fs::remove_file(self.settings.nbd_socket(&self.folder));
        let closed = self.mirror.close().map_err(of_disk(&self.settings.name));
        let _ = std::fs::remove_file(self.folder.join(protocol::SOCKET));
        closed
    }

    /// Lets no moment of a commit begin any more, and waits until that of the one that runs is over.
    fn thaw(&self) {
        self.begin_end();
        drop(self.moment.lock());
    }

    fn leave(&self) {
        if self.begin_end() {
            // What is frozen may be waiting for this very disk, and is thawed first.
            drop(self.moment.lock());
            self.server.leave();
            // What could not be made durable is recovered when the disk is attached again, as after a crash.
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
    /// The right to commit, or to end without breaking off a commit.
    fn idle(&self) -> Option<MutexGuard<'_, ()>> {
        self.committing.try_lock()
    }

    fn refusal(&self, why: &str) -> Error {
        Error::new(ErrorKind::Refused, format!("the disk `{}` {why}", self.settings.name))
    }

    /// The right to commit for `asker`. Who asked for the commit that runs may have gone, and then it is called off:
    /// its end is waited for.
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
        let Some(to) = &self.commit_to else {
            return Err(self.refusal("has neither a repository nor a server that takes commits"));
        };
        if let Some(quiesce) = &request.quiesce {
            quiesce.check(&self.folder)?;
        }
        let _turn = self.turn(asker)?;
        let stamp = (self.stamp)();
        let hears = Arc::clone(asker);
        let waits = move |words: &str| hears.tell(&Answer::Waits { message: words.to_owned() });
        let to = Arc::clone(to).for_one_commit(Arc::new(waits), asker.gone());
        let committer = Committer {
            name: &self.settings.name,
            mirror: &self.mirror,
            to: &*to,
            stamp: &stamp,
            unless_ending: &|moment| self.unless_ending(moment),
        };
        let done = committer.commit(request, &|answer| asker.tell(answer));
        match &done {
            Err(_) if asker.gone().is_stopped() => (self.log)(&Event::CommitCalledOff),
            Ok(done) if done.changed => (self.log)(&Event::from(done)),
            Ok(_) => {}
            Err(error) => (self.log)(&Event::CommitFailed { error: base::chain(error) }),
        }
        done.map(Answer::Committed)
    }

    fn unless_ending(&self, moment: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let _moment = self.moment.lock();
        if *self.phase.lock() != Phase::Runs {
            return Err(self.refusal("is about to end"));
        }
        moment()
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

/// Deletes a disk that no process runs, and all that it holds. Without `force` only if nothing was written since the
/// last commit.
///
/// # Errors
/// `Refused`; `NotFound` if there is none; `Malformed` if what is there is damaged, unless `force`; `Io`.
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

/// The journal first: without it the rest is no disk.
fn remove(folder: &Path) -> Result<()> {
    let failed = |error| Error::from_source(ErrorKind::Io, format!("delete `{}`", folder.display()), error);
    match std::fs::remove_file(folder.join("journal")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    std::fs::remove_dir_all(folder).map_err(failed)
}

/// What must hold before anything is made.
fn check(settings: &Settings) -> Result<()> {
    match settings.listen {
        Some(address) if settings.tls.is_none() && !address.ip().is_loopback() => {
            let text =
                format!("{address} is no loopback address: without TLS anybody could use the disk there");
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
