//! Takes the objects of a fetch: first the nodes of the tree, then, once the tree is complete, the chunks for the
//! installer.

use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use base::limits::{CHUNK_OVERHEAD_MAX, NODE_BYTES_MAX};
use base::{Error, ErrorKind, Result, RunSet};
use bytes::Bytes;
use image::{
    Catalogue, CatalogueBuilder, Cipher, InstallReport, Installer, ObjectRef, ObjectSource, Offer,
    SignedManifest,
};
use proto::peer::SeekerCounters;

use super::by_peers::Peers;
use super::by_unicast::{fetch_all, pull_chunks, runs};
use super::counted::Arrived;
use super::on_target::{OnTarget, keep};
use super::sharing::Sharing;
use super::unicast_fallback::{self, UnicastFallback};
use crate::api::SessionGrant;
use crate::clock::Stop;
use crate::multicast::receiver::{Accept, Consumer, SessionView, Wish};
use crate::peer::Node;
use crate::udp;
use crate::waker::Waker;

/// Begins the install once the tree is known. It may take a long time: it runs in its own thread.
pub type Begin = Box<dyn FnOnce(Arc<Catalogue>) -> Result<Installer> + Send>;

/// Number of nodes that are requested of a session at once, from the first missing one on. Nodes whose digests are
/// not known yet are included, so a tree does not take a round trip per level.
const NODES_AHEAD: u64 = 256;
/// Objects that are fetched at the same time by unicast.
const AT_ONCE: usize = 8;
/// The same while the server's session runs: multicast to the others has precedence.
const BESIDE_AT_ONCE: usize = 2;
/// Objects that are ordered ahead outside of a session, so that each thread that fetches always has one; and how long
/// one that the installer had no room for waits.
const ASIDE: usize = 2 * unicast_fallback::AT_ONCE;
const ASIDE_WAIT: Duration = Duration::from_millis(10);

/// Takes the objects of one version, from any transport, until the version is installed.
pub(super) struct Intake {
    name: String,
    source: Arc<dyn ObjectSource>,
    begin: Option<Begin>,
    stage: Stage,
    object_bytes_mean: u32,
    object_bytes_max: u64,
    /// Nodes of the tree, as the session's grant says.
    heads: u64,
    /// The nodes below this number were requested of the session.
    nodes_wanted: u64,
    /// Whether the session was told which chunks are wanted.
    chunks_wanted: bool,
    fallback: UnicastFallback,
    /// Wakes the session's thread when there is something to do.
    waker: Arc<Waker>,
    broken: bool,
    /// Counts the blocks of sessions; those of the present one that are counted, and how long each is.
    arrived: Arc<Arrived>,
    blocks: u64,
    block_bytes: u16,
    sharing: Sharing,
    /// This machine among those that serve each other, if it is.
    node: Option<Arc<Node>>,
    /// What they get from its target.
    on_target: Option<Arc<OnTarget>>,
    /// Objects that the session is not asked for, because other machines have them.
    elsewhere: RunSet,
    /// What pulls from other machines counted.
    peer_counters: SeekerCounters,
    /// Nodes that arrived, for others.
    nodes: Vec<(u64, Bytes)>,
}

/// The state of the fetch.
enum Stage {
    /// Nodes of the tree are missing.
    Tree(CatalogueBuilder),
    /// The tree is complete. A thread begins the install, which may read the whole target.
    Beginning(JoinHandle<Result<(Arc<Catalogue>, Installer)>>),
    /// Chunks are being installed.
    Chunks(Arc<Catalogue>, Installer),
    /// An earlier step failed.
    Failed,
}

impl Intake {
    /// Takes the version of `sealed`. Objects that arrive damaged by multicast are fetched from `source`.
    pub(super) fn new(
        sealed: &SignedManifest,
        begin: Begin,
        source: Arc<dyn ObjectSource>,
        cipher: Cipher,
        arrived: &Arc<Arrived>,
    ) -> Result<Self> {
        let manifest = &sealed.manifest;
        let name = format!("{}@{}", manifest.image, manifest.number);
        let builder = CatalogueBuilder::from_manifest(manifest, cipher)
            .map_err(|error| error.within(format!("read the manifest of `{name}`")))?;
        let statistics = &manifest.statistics;
        let mean = statistics.encoded_bytes / statistics.data_chunks.max(1);
        let object_bytes_mean = u32::try_from(mean).unwrap_or(u32::MAX).clamp(1 << 12, manifest.chunk_bytes);
        let waker = Waker::new()
            .map_err(|error| Error::from_source(ErrorKind::Io, format!("fetch `{name}`"), error))?;
        let waker = Arc::new(waker);
        let fallback = UnicastFallback::new(Arc::clone(&source), Arc::clone(&waker));
        let mut intake = Self {
            name,
            source,
            begin: Some(begin),
            stage: Stage::Tree(builder),
            object_bytes_mean,
            object_bytes_max: u64::from(manifest.chunk_bytes.max(NODE_BYTES_MAX) + CHUNK_OVERHEAD_MAX),
            heads: 0,
            nodes_wanted: 0,
            chunks_wanted: false,
            fallback,
            waker,
            broken: false,
            arrived: Arc::clone(arrived),
            blocks: 0,
            block_bytes: 0,
            sharing: Sharing::default(),
            node: None,
            on_target: None,
            elsewhere: RunSet::new(),
            peer_counters: SeekerCounters::default(),
            nodes: Vec::new(),
        };
        intake.leave_tree_if_whole();
        Ok(intake)
    }

    /// Gets objects from other machines, too, and keeps what arrives for them, if only on the target.
    pub(super) fn serve_with(&mut self, node: Arc<Node>, on_target: Option<Arc<OnTarget>>) {
        (self.node, self.on_target) = (Some(node), on_target);
    }

    /// What pulls from other machines counted.
    pub(super) fn peer_counters(&self) -> SeekerCounters {
        self.peer_counters
    }

    /// Mean length of an object, in bytes.
    pub(super) fn object_bytes_mean(&self) -> u32 {
        self.object_bytes_mean
    }

    /// Largest length of an object, in bytes.
    pub(super) fn object_bytes_max(&self) -> u64 {
        self.object_bytes_max
    }

    /// Whether the fetch itself failed, and not just a session.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Begins a session, of which no object was requested yet. Fails with the reason if it is not a session of this
    /// version.
    pub(super) fn begin_session(&mut self, grant: &SessionGrant) -> std::result::Result<(), String> {
        (self.heads, self.nodes_wanted, self.chunks_wanted) = (grant.heads, 0, false);
        self.elsewhere = RunSet::new();
        if self.node.is_some() {
            let runs = grant.elsewhere.iter();
            self.elsewhere = runs.map(|&(first, count)| first..first.saturating_add(count)).collect();
        }
        (self.blocks, self.block_bytes) = (0, grant.block_bytes);
        self.sharing = Sharing::of_session(grant);
        let Stage::Chunks(catalogue, _) = &self.stage else { return Ok(()) };
        let ours = (catalogue.objects().len() as u64, catalogue.heads());
        let theirs = (grant.stored_objects, grant.heads);
        let differs = || format!("the session has {theirs:?} objects and nodes, the version {ours:?}");
        if ours == theirs { Ok(()) } else { Err(differs()) }
    }

    /// Fetches missing objects by unicast: all nodes, then chunks until `limit` has passed. `beside` says that a
    /// session runs meanwhile. True if nothing is missing then.
    pub(super) fn pull(&mut self, stop: &Stop, limit: Option<Duration>, beside: bool) -> Result<bool> {
        self.pull_until(stop, limit, if beside { BESIDE_AT_ONCE } else { AT_ONCE }, false)
    }

    /// The same by unicast, as long as no other machine is found to lack the same.
    pub(super) fn pull_alone(&mut self, stop: &Stop) -> Result<bool> {
        self.pull_until(stop, None, AT_ONCE, true)
    }

    fn pull_until(&mut self, stop: &Stop, limit: Option<Duration>, most: usize, alone: bool) -> Result<bool> {
        self.pull_tree(stop, most)?;
        if let Stage::Beginning(_) = self.stage {
            self.begin_chunks()?;
        }
        let Stage::Chunks(catalogue, installer) = &self.stage else { return Err(self.failed_before()) };
        let failed = match &self.node {
            Some(node) => {
                let (server, at_once, arrived) = (self.source.as_ref(), most, self.arrived.as_ref());
                let object_bytes = self.object_bytes_mean;
                let on_target = self.on_target.as_deref();
                let peers =
                    Peers { node, server, at_once, object_bytes, stop, alone, limit, arrived, on_target };
                let pulled = peers.chunks(catalogue, installer);
                pulled.map(|pulled| self.peer_counters.add(&pulled.counters))
            }
            None => pull_chunks(catalogue, installer, (self.source.as_ref(), most), stop, limit),
        };
        if stop.is_stopped() {
            return Err(Error::new(ErrorKind::Stopped, format!("fetch `{}` by unicast", self.name)));
        }
        failed.map_err(|error| error.within(format!("fetch `{}` by unicast", self.name)))?;
        Ok(installer.missing().is_empty())
    }

    /// Fetches missing chunks by unicast, few at a time, until `is_over`, which is asked every [`ASIDE_WAIT`] at least.
    /// What is under way then arrives in the next session.
    pub(super) fn pull_aside(&mut self, is_over: impl Fn() -> bool) -> Result<()> {
        let Stage::Chunks(_, installer) = &self.stage else { return Ok(()) };
        let mut missing = installer.missing().into_iter().flatten();
        let mut under_way = 0_usize;
        while !is_over() {
            self.waker.clear();
            under_way = under_way.saturating_sub(self.take_asides()?.len());
            let next: Vec<u64> = missing.by_ref().take(ASIDE.saturating_sub(under_way)).collect();
            under_way += next.len();
            next.into_iter().for_each(|id| self.get_otherwise(id));
            let waited = udp::wait(&[self.waker.as_ref()], None, ASIDE_WAIT);
            waited.map_err(|error| {
                Error::from_source(ErrorKind::Io, format!("fetch `{}` by unicast", self.name), error)
            })?;
        }
        Ok(())
    }

    /// Fetches all nodes of the tree that are missing, `most` from the server at a time.
    fn pull_tree(&mut self, stop: &Stop, most: usize) -> Result<()> {
        while let Stage::Tree(builder) = &mut self.stage {
            let context = || format!("fetch the tree of `{}`", self.name);
            if stop.is_stopped() {
                return Err(Error::new(ErrorKind::Stopped, context()));
            }
            if let Some(node) = &self.node {
                let (server, at_once, arrived) = (self.source.as_ref(), most, self.arrived.as_ref());
                let object_bytes = self.object_bytes_mean;
                let (alone, limit, on_target) = (false, None, None);
                let peers =
                    Peers { node, server, at_once, object_bytes, stop, alone, limit, arrived, on_target };
                peers.nodes(builder, &mut self.nodes).map_err(|error| error.within(context()))?;
            } else {
                let needed: Vec<(u64, ObjectRef)> =
                    builder.needed().filter_map(|id| Some((id, builder.object(id)?))).collect();
                for (id, bytes) in fetch_all(self.source.as_ref(), &needed, most, stop) {
                    let learned = bytes.and_then(|bytes| builder.learn(id, bytes));
                    learned.map_err(|error| error.within(context()))?;
                }
            }
            self.leave_tree_if_whole();
        }
        Ok(())
    }

    /// Fetches the tree from other machines and begins the install. What takes time comes before a session is joined,
    /// so that its stream does not pass meanwhile.
    pub(super) fn prepare(&mut self, stop: &Stop) -> Result<()> {
        self.pull_tree(stop, BESIDE_AT_ONCE)?;
        self.begin_chunks()
    }

    /// Fetches the tree, if other machines have it and the session would have to send it again.
    pub(super) fn pull_tree_from_others(&mut self, stop: &Stop) -> Result<()> {
        match &self.stage {
            Stage::Tree(builder) if builder.needed().any(|id| self.elsewhere.contains(&(id..id + 1))) => {
                self.pull_tree(stop, BESIDE_AT_ONCE)
            }
            _ => Ok(()),
        }
    }

    /// Bytes of the missing chunks; `u64::MAX` while the tree is not known.
    pub(super) fn missing_bytes(&self) -> u64 {
        let Stage::Chunks(catalogue, installer) = &self.stage else { return u64::MAX };
        let index = |id: u64| usize::try_from(id).expect("chunks of the catalogue are missing");
        let missing = installer.missing().into_iter();
        let bytes = |range: Range<u64>| {
            let objects = &catalogue.objects()[index(range.start)..index(range.end)];
            objects.iter().map(|object| u64::from(object.len)).sum::<u64>()
        };
        missing.map(bytes).sum()
    }

    /// Waits until everything is written, durable and verified.
    pub(super) fn finish(mut self) -> Result<InstallReport> {
        if let Stage::Beginning(_) = self.stage {
            self.begin_chunks()?;
        }
        match std::mem::replace(&mut self.stage, Stage::Failed) {
            Stage::Chunks(_, installer) => {
                installer.finish().map_err(|error| error.within(format!("install `{}`", self.name)))
            }
            _ => Err(self.failed_before()),
        }
    }

    fn failed_before(&self) -> Error {
        Error::new(ErrorKind::Io, format!("install `{}`: it failed before", self.name))
    }

    /// If the tree is complete, starts the thread that begins the install.
    fn leave_tree_if_whole(&mut self) {
        if !matches!(&self.stage, Stage::Tree(builder) if builder.is_complete()) {
            return;
        }
        let Stage::Tree(builder) = std::mem::replace(&mut self.stage, Stage::Failed) else { return };
        if let Some(node) = &self.node {
            for (id, bytes) in self.nodes.drain(..) {
                if builder.object(id).is_some_and(|object| object.verify(&bytes).is_ok()) {
                    let _ = node.spool().put(id, &bytes);
                }
            }
        }
        let begin = self.begin.take().expect("an install is begun once");
        let (waker, on_target) = (Arc::clone(&self.waker), self.on_target.clone());
        let beginning = std::thread::spawn(move || {
            let begun = builder.finish().map(Arc::new).and_then(|catalogue| {
                if let Some(target) = on_target {
                    target.learn(&catalogue);
                }
                let installer = begin(Arc::clone(&catalogue))?;
                Ok((catalogue, installer))
            });
            waker.wake();
            begun
        });
        self.stage = Stage::Beginning(beginning);
    }

    /// Waits for the thread that begins the install.
    fn begin_chunks(&mut self) -> Result<()> {
        let stage = std::mem::replace(&mut self.stage, Stage::Failed);
        let Stage::Beginning(beginning) = stage else {
            self.stage = stage;
            return Ok(());
        };
        let context = || format!("begin to install `{}`", self.name);
        let begun = beginning.join().map_err(|_| Error::new(ErrorKind::Io, context()))?;
        let (catalogue, installer) = begun.map_err(|error| error.within(context()))?;
        if let (Some(node), Some(target)) = (&self.node, &self.on_target) {
            target.begin(&installer.missing().into_iter().collect(), node);
        }
        self.stage = Stage::Chunks(catalogue, installer);
        Ok(())
    }

    /// What the session should be told next.
    fn new_wishes(&mut self) -> Result<Vec<Wish>> {
        match &self.stage {
            Stage::Tree(builder) => {
                let first = builder.needed().next().unwrap_or(0);
                let told = self.nodes_wanted.max(first);
                self.nodes_wanted = (first + NODES_AHEAD).min(self.heads).max(told);
                let is_missing = |id: &u64| !builder.has(*id);
                let fresh: Vec<u64> = (told..self.nodes_wanted).filter(is_missing).collect();
                Ok(runs(&fresh).map(Wish::Want).collect())
            }
            Stage::Beginning(beginning) if !beginning.is_finished() => Ok(Vec::new()),
            Stage::Beginning(_) => {
                self.begin_chunks()?;
                self.new_wishes()
            }
            Stage::Chunks(catalogue, installer) if !std::mem::replace(&mut self.chunks_wanted, true) => {
                let lengths = catalogue.objects().iter().map(|object| object.len).collect();
                let missing = installer.missing().into_iter();
                let here =
                    missing.flat_map(|run| self.elsewhere.gaps(run).collect::<Vec<_>>()).map(Wish::Want);
                Ok([Wish::Lengths(lengths)].into_iter().chain(here).chain([Wish::Nothing]).collect())
            }
            Stage::Chunks(..) => Ok(Vec::new()),
            Stage::Failed => Err(self.failed_before()),
        }
    }

    /// Takes an object, and returns whether it was right.
    fn accept(&mut self, id: u64, bytes: &Bytes) -> Result<Accept> {
        match &mut self.stage {
            Stage::Tree(builder) => {
                if self.node.is_some() {
                    self.nodes.push((id, bytes.clone()));
                }
                match builder.take(id, bytes.clone()) {
                    // Nodes that arrived early and are damaged come by unicast.
                    Ok(damaged) => damaged.into_iter().for_each(|(id, name)| self.fallback.order(id, name)),
                    Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(Accept::Bad),
                    Err(error) => return Err(error.within(format!("read the tree of `{}`", self.name))),
                }
                self.leave_tree_if_whole();
                Ok(Accept::Taken)
            }
            // A node that arrived twice.
            Stage::Beginning(_) => Ok(Accept::Taken),
            Stage::Chunks(_, installer) => match installer.try_offer(id, bytes.clone()) {
                Ok(Offer::Taken) => {
                    let keeps = self.sharing.took(id);
                    if let Some(node) = self.node.as_deref().filter(|_| keeps) {
                        keep(node, (self.on_target.as_deref(), installer), id, bytes);
                    }
                    Ok(Accept::Taken)
                }
                Ok(Offer::Known) => Ok(Accept::Taken),
                Ok(Offer::Full) => Ok(Accept::Full),
                Ok(Offer::Wrong(_)) => Ok(Accept::Bad),
                Err(error) => Err(error.within(format!("install `{}`", self.name))),
            },
            Stage::Failed => Err(self.failed_before()),
        }
    }

    fn object(&self, id: u64) -> Option<ObjectRef> {
        match &self.stage {
            Stage::Tree(builder) => builder.object(id),
            Stage::Chunks(catalogue, _) => catalogue.objects().get(usize::try_from(id).ok()?).copied(),
            Stage::Beginning(_) | Stage::Failed => None,
        }
    }

    /// Takes objects that arrived by unicast, while the installer has room. Returns them as [`Wish::Have`].
    fn take_asides(&mut self) -> Result<Vec<Wish>> {
        let mut here = Vec::new();
        loop {
            let Some((id, bytes)) = self.fallback.next() else { return Ok(here) };
            let context = |name: &str| format!("fetch object {id} of `{name}` by unicast");
            let bytes = bytes.map_err(|error| error.within(context(&self.name)))?;
            match self.accept(id, &bytes)? {
                Accept::Taken => here.push(Wish::Have(id)),
                Accept::Bad => return Err(Error::new(ErrorKind::Corrupt, context(&self.name))),
                Accept::Full => {
                    self.fallback.hold(id, bytes);
                    return Ok(here);
                }
            }
        }
    }

    fn noting<T>(&mut self, result: Result<T>) -> Result<T> {
        self.broken |= result.is_err();
        result
    }
}

impl Consumer for Intake {
    fn wishes(&mut self) -> Result<Vec<Wish>> {
        let wishes = self.take_asides().and_then(|mut wishes| {
            wishes.extend(self.new_wishes()?);
            Ok(wishes)
        });
        self.noting(wishes)
    }

    fn take(&mut self, object: u64, bytes: &Bytes) -> Result<Accept> {
        let accepted = self.accept(object, bytes);
        self.noting(accepted)
    }

    fn waker(&self) -> Option<&Waker> {
        Some(&self.waker)
    }

    fn observe(&mut self, view: SessionView) {
        let fresh = view.blocks.saturating_sub(self.blocks);
        self.arrived.add_multicast(fresh * u64::from(self.block_bytes));
        self.blocks = view.blocks;
        self.sharing.see(view.receivers);
    }

    fn get_otherwise(&mut self, object: u64) {
        if let Some(name) = self.object(object) {
            self.fallback.order(object, name);
        }
    }

    fn mend(&mut self, object: u64, damaged: &Bytes) {
        if let Some(name) = self.object(object) {
            self.fallback.mend(object, name, damaged);
        }
    }
}
