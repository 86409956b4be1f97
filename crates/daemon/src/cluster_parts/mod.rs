//! The parts of a cluster as services: an object device, and the metadata service. The crate `cluster` has what they
//! do; here are their listeners and their end.

pub mod etcd_files;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use axum::Router;
use base::{Error, ErrorKind, Result};
use cluster::device::{Agent, AgentSetting, Device};
use cluster::metadata::engine::Embedded;
use cluster::metadata::etcd::{Etcd, EtcdSetting};
use cluster::metadata::{ClusterSetting, Instance, Metadata};
use cluster::{Authority, ClusterToken, Opening, Width};
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::cluster_parts::etcd_files::EtcdFiles;
use crate::listener;

/// Changes after which etcd is asked to drop its history.
const ETCD_HISTORY: u64 = 10_000;

/// Receives what an operator should know.
pub type Notes = Arc<dyn Fn(&str) + Send + Sync>;

/// An object device.
pub struct DeviceOptions {
    /// Folder of its objects.
    pub folder: PathBuf,
    /// Whether the folder may become a device: it is made if it is missing. Otherwise it has to hold one.
    pub opening: Opening,
    /// Address and TCP port; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Host and port where clients reach it, if that is not the address that it listens on: `10.0.0.7:7420`.
    pub address: Option<String>,
    /// Hosts and ports of the metadata service.
    pub metadata: Vec<String>,
    /// The cluster's token.
    pub token: ClusterToken,
    /// What fails together with it.
    pub domain: String,
    /// Bytes per second that it rebuilds at most.
    pub rebuild_bytes_per_second: Option<u64>,
    /// Bytes per second of its disk that it looks through for damage.
    pub scrub_bytes_per_second: u64,
    /// Serve TLS and reach the metadata service by TLS; otherwise all in plain HTTP.
    pub tls: bool,
    /// Receives the notes.
    pub notes: Notes,
}

/// Where a metadata service keeps what must survive.
#[derive(Debug, Clone)]
pub enum MetadataPlace {
    /// A database in this folder, for one instance; and whether it may be made.
    Folder(PathBuf, Opening),
    /// etcd, for several instances.
    Etcd {
        /// Its members: `https://10.0.0.1:2379`.
        members: Vec<String>,
        /// How it and the instance recognise each other.
        files: EtcdFiles,
        /// What the keys of this cluster begin with.
        prefix: String,
    },
}

/// An instance of a metadata service.
pub struct MetadataOptions {
    /// Where it keeps its state.
    pub place: MetadataPlace,
    /// Address and TCP port; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The cluster's token.
    pub token: ClusterToken,
    /// Data and parity components of a new cluster's segments.
    pub width: Width,
    /// How long leases last.
    pub lease: Duration,
    /// How long capabilities last; space of what was deleted is used again after that.
    pub reclaim_after: Duration,
    /// Serve TLS and reach devices by TLS; otherwise all in plain HTTP.
    pub tls: bool,
    /// Receives the notes.
    pub notes: Notes,
}

/// A part that runs until it is shut down, dropped, or fails.
pub struct ClusterPart {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    /// What ends when it is shut down.
    serving: Vec<JoinHandle<()>>,
    ended: Option<Receiver<Error>>,
    runtime: Option<Runtime>,
}

/// Starts a device.
///
/// # Errors
/// `Refused` for an address that is in use, a folder that holds no device, or objects without their database, or one
/// that another process uses; `Invalid` for an address that is none; `Corrupt` if the device's database is damaged;
/// `Io`.
pub fn serve_device(options: DeviceOptions) -> Result<ClusterPart> {
    let (runtime, listener, address) = listen(options.listen)?;
    if address.ip().is_unspecified() && options.address.is_none() {
        let text = format!("clients can't reach a device at {address}: say where they do");
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let reached = options.address.unwrap_or_else(|| address.to_string());
    options.metadata.iter().try_for_each(|place| host(place).map(drop))?;
    let host = host(&reached)?;
    let tls = options.tls.then(|| Authority::of(&options.token)?.server(Some(host))).transpose()?;
    if options.opening == Opening::OrNew {
        if options.folder.join("device.redb").exists() {
            (options.notes)(&format!(
                "`{}` holds a device already: start it without --new, so that an empty folder in its place is refused",
                options.folder.display()
            ));
        }
        crate::private_file::make_folder(&options.folder)?;
    }
    let device = Device::open(&options.folder, options.opening)?;
    let router = device.router();
    let scheme = if options.tls { "https" } else { "http" };
    let agent = Agent::new(
        device,
        AgentSetting {
            metadata: options.metadata.iter().map(|place| format!("{scheme}://{place}")).collect(),
            token: options.token,
            address: format!("{scheme}://{reached}"),
            domain: options.domain,
            rebuild_bytes_per_second: options.rebuild_bytes_per_second,
            scrub_bytes_per_second: options.scrub_bytes_per_second,
        },
    )?;
    let (stop, stopped) = watch::channel(false);
    let (tell, ended) = channel();
    let notes = options.notes;
    let watched = stopped.clone();
    runtime.spawn(async move {
        if let Err(error) = Arc::new(agent).run(watched, |note| notes(note)).await {
            let _ = tell.send(error);
        }
    });
    Ok(part((runtime, listener, address), (tls, router), (stop, stopped), Some(ended)))
}

/// Starts a metadata service, or one instance of it: it leads as soon as no other one does.
///
/// # Errors
/// As [`serve_device`].
pub fn serve_metadata(options: MetadataOptions) -> Result<ClusterPart> {
    let (runtime, listener, address) = listen(options.listen)?;
    let host = (!address.ip().is_unspecified()).then(|| address.ip().to_string());
    let tls = options.tls.then(|| Authority::of(&options.token)?.server(host.as_deref())).transpose()?;
    let scheme = if options.tls { "https" } else { "http" };
    let setting = ClusterSetting {
        width: options.width,
        lease: options.lease,
        lifetime: options.reclaim_after,
        tls: options.tls,
    };
    let (stop, stopped) = watch::channel(false);
    let (notes, watched) = (options.notes, stopped.clone());
    let context = runtime.enter();
    let (router, running) = match options.place {
        MetadataPlace::Folder(folder, opening) => {
            crate::private_file::make_folder(&folder)?;
            let engine = Arc::new(Embedded::open(&folder.join("metadata.redb"), opening)?);
            let metadata = Metadata::open(engine, options.token, &setting)?;
            let router = metadata.router();
            (router, runtime.spawn(async move { metadata.run(watched, |note| notes(note)).await }))
        }
        MetadataPlace::Etcd { members, files, prefix } => {
            let (access, lease) = (files.read()?, options.lease);
            let etcd = EtcdSetting { members, access, prefix, lease, history: ETCD_HISTORY };
            let own = format!("{scheme}://{address}");
            let instance = Instance::new(Etcd::open(&etcd)?, own, options.token, setting)?;
            let router = instance.router();
            (router, runtime.spawn(async move { instance.run(watched, |note| notes(note)).await }))
        }
    };
    drop(context);
    let mut part = part((runtime, listener, address), (tls, router), (stop, stopped), None);
    // A leader gives the lead away before it ends.
    part.serving.push(running);
    Ok(part)
}

/// The host in `HOST:PORT`.
fn host(place: &str) -> Result<&str> {
    let wrong = || Error::new(ErrorKind::Invalid, format!("`{}`: expected HOST:PORT", place.escape_debug()));
    let parts =
        place.rsplit_once(':').filter(|(host, port)| !host.contains('/') && port.parse::<u16>().is_ok());
    parts.map(|(host, _)| host).filter(|host| !host.is_empty()).ok_or_else(wrong)
}

fn listen(address: SocketAddr) -> Result<(Runtime, TcpListener, SocketAddr)> {
    let runtime =
        Runtime::new().map_err(|error| Error::from_io("start the threads of the service", error))?;
    let bound = runtime.block_on(TcpListener::bind(address));
    let what = || format!("listen on {address}");
    let listener = bound.map_err(|error| Error::from_source(ErrorKind::Refused, what(), error))?;
    let address = listener.local_addr().map_err(|error| Error::from_io(what(), error))?;
    Ok((runtime, listener, address))
}

fn part(
    (runtime, listener, address): (Runtime, TcpListener, SocketAddr),
    (tls, router): (Option<Arc<ServerConfig>>, Router),
    (stop, stopped): (watch::Sender<bool>, watch::Receiver<bool>),
    ended: Option<Receiver<Error>>,
) -> ClusterPart {
    let serving = runtime.spawn(listener::serve(listener, tls, (router, None), stopped));
    ClusterPart { address, stop, serving: vec![serving], ended, runtime: Some(runtime) }
}

impl ClusterPart {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Calls `tell` if the part can't go on, with the reason. Once.
    pub fn on_failure(&mut self, tell: impl FnOnce(Error) + Send + 'static) {
        let Some(ended) = self.ended.take() else { return };
        std::thread::spawn(move || {
            if let Ok(error) = ended.recv() {
                tell(error);
            }
        });
    }

    /// Ends it: running requests may finish.
    pub fn shutdown(mut self) {
        self.stop.send_replace(true);
        for serving in self.serving.drain(..) {
            let runtime = self.runtime.as_ref().expect("it is taken when dropped");
            // It only ends, or was ended.
            let _ = runtime.block_on(serving);
        }
    }
}

impl Drop for ClusterPart {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
