//! A cluster in this process, on loopback: real devices and a real metadata service, each on a listener of its own,
//! which tests stop and start as they like.

#![allow(clippy::unwrap_used, reason = "tests fail by it")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use cluster::client::{Cluster, ClusterAccess};
use cluster::device::{Agent, AgentSetting, Device};
use cluster::metadata::engine::Embedded;
use cluster::metadata::etcd::{Etcd, EtcdAccess, EtcdSetting};
use cluster::metadata::{ClusterSetting, Instance, Metadata};
use cluster::{Authority, ClusterToken, Opening, Width};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// A cluster whose parts can be stopped and started.
pub struct ClusterSite {
    /// What its parts run on.
    pub runtime: Runtime,
    folder: PathBuf,
    token: ClusterToken,
    width: Width,
    lease: Duration,
    lifetime: Duration,
    /// Members of etcd, if the state is there.
    etcd: Vec<String>,
    metadata_port: u16,
    metadata: Option<Running>,
    devices: Vec<(u16, Option<Running>)>,
}

/// A part that runs; dropped, it is gone at once, like a process that was killed.
struct Running {
    tasks: Vec<tokio::task::JoinHandle<()>>,
    _stop: watch::Sender<bool>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

impl ClusterSite {
    /// A cluster of `count` devices in `folder`, which waits until all have joined.
    pub fn start(folder: &Path, width: (u8, u8), count: usize) -> Self {
        Self::start_with(Vec::new(), folder, width, count, Duration::from_secs(3600))
    }

    /// As [`Self::start`], with capabilities that last for `lifetime`: so long what was deleted keeps its space.
    pub fn start_reclaiming(folder: &Path, width: (u8, u8), count: usize, lifetime: Duration) -> Self {
        Self::start_with(Vec::new(), folder, width, count, lifetime)
    }

    /// As [`Self::start`], with the state of the metadata service in etcd.
    pub fn start_over(etcd: Vec<String>, folder: &Path, width: (u8, u8), count: usize) -> Self {
        Self::start_with(etcd, folder, width, count, Duration::from_secs(3600))
    }

    fn start_with(
        etcd: Vec<String>,
        folder: &Path,
        width: (u8, u8),
        count: usize,
        lifetime: Duration,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let mut site = Self {
            runtime,
            folder: folder.to_owned(),
            token: ClusterToken::random().unwrap(),
            width: Width::new(width.0, width.1).unwrap(),
            lease: Duration::from_millis(1500),
            lifetime,
            etcd,
            metadata_port: 0,
            metadata: None,
            devices: (0..count).map(|_| (0, None)).collect(),
        };
        site.start_metadata();
        (0..count).for_each(|device| site.start_device(device));
        site.wait_for("all devices", |status| status.formed && status.devices.len() == count);
        site
    }

    /// Starts the metadata service, at the port that it had.
    pub fn start_metadata(&mut self) {
        let setting =
            ClusterSetting { width: self.width, lease: self.lease, lifetime: self.lifetime, tls: true };
        let listener = self.listen(self.metadata_port);
        self.metadata_port = listener.local_addr().unwrap().port();
        let (stop, stopped) = watch::channel(false);
        let _context = self.runtime.enter();
        let (router, watching) = if self.etcd.is_empty() {
            let metadata = Metadata::open(self.embedded(), self.token.clone(), &setting).unwrap();
            (metadata.router(), self.runtime.spawn(metadata.run(stopped, |_| {})))
        } else {
            let (members, prefix) = (self.etcd.clone(), "site".to_owned());
            let access = EtcdAccess::default();
            let etcd = EtcdSetting { members, access, prefix, lease: self.lease, history: 10_000 };
            let address = format!("https://127.0.0.1:{}", self.metadata_port);
            let etcd = Etcd::open(&etcd).unwrap();
            let instance = Instance::new(etcd, address, self.token.clone(), setting).unwrap();
            (instance.router(), self.runtime.spawn(instance.run(stopped, |_| {})))
        };
        let serving = self.runtime.spawn(serve(self.tls(), listener, router));
        self.metadata = Some(Running { tasks: vec![serving, watching], _stop: stop });
    }

    fn embedded(&self) -> Arc<Embedded> {
        loop {
            // The tasks of the one before may still hold the file for a moment.
            match Embedded::open(&self.folder.join("metadata.redb"), Opening::OrNew) {
                Ok(engine) => return Arc::new(engine),
                Err(_) => self.runtime.block_on(tokio::task::yield_now()),
            }
        }
    }

    /// Stops the metadata service at once.
    pub fn stop_metadata(&mut self) {
        self.metadata = None;
    }

    /// The folder of a device, from 0.
    pub fn device_folder(&self, device: usize) -> PathBuf {
        self.folder.join(format!("device-{device}"))
    }

    /// Starts a device, with what its folder holds, at the port that it had.
    pub fn start_device(&mut self, number: usize) {
        let folder = self.device_folder(number);
        std::fs::create_dir_all(&folder).unwrap();
        let device = loop {
            match Device::open(&folder, Opening::OrNew) {
                Ok(device) => break device,
                // The tasks of the one before may still hold its database for a moment.
                Err(error)
                    if error.kind() == base::ErrorKind::Refused && folder.join("device.redb").exists() =>
                {
                    self.runtime.block_on(tokio::task::yield_now());
                }
                Err(error) => panic!("{error}"),
            }
        };
        let listener = self.listen(self.devices[number].0);
        let port = listener.local_addr().unwrap().port();
        let setting = AgentSetting {
            metadata: vec![format!("https://127.0.0.1:{}", self.metadata_port)],
            token: self.token.clone(),
            address: format!("https://127.0.0.1:{port}"),
            domain: format!("host-{number}"),
            rebuild_bytes_per_second: None,
            scrub_bytes_per_second: 1 << 30,
        };
        let router = device.router();
        let agent = Arc::new(Agent::new(device, setting).unwrap());
        let (stop, stopped) = watch::channel(false);
        let living = self.runtime.spawn(async move {
            let _ = agent.run(stopped, |_| {}).await;
        });
        let tasks = vec![self.runtime.spawn(serve(self.tls(), listener, router)), living];
        self.devices[number] = (port, Some(Running { tasks, _stop: stop }));
    }

    /// Copies the folder of a device that was stopped, once its tasks have let its database go.
    pub fn copy_device(&self, number: usize, to: &Path) {
        let folder = self.device_folder(number);
        while Device::open(&folder, Opening::Existing).is_err() {
            self.runtime.block_on(tokio::task::yield_now());
        }
        let copied = std::process::Command::new("cp").arg("-aT").args([&folder, to]).status();
        assert!(copied.unwrap().success());
    }

    /// Starts one device more, and waits until it has joined. Returns its number, from 0.
    pub fn add_device(&mut self) -> usize {
        let number = self.devices.len();
        self.devices.push((0, None));
        self.start_device(number);
        self.wait_for("the new device", |status| status.devices.len() > number);
        number
    }

    /// Stops a device at once, like a process that is killed.
    pub fn stop_device(&mut self, number: usize) {
        self.devices[number].1 = None;
    }

    /// Where a device serves.
    pub fn device_address(&self, number: usize) -> String {
        format!("https://127.0.0.1:{}", self.devices[number].0)
    }

    fn listen(&self, port: u16) -> TcpListener {
        self.runtime.block_on(async {
            loop {
                match TcpListener::bind(("127.0.0.1", port)).await {
                    Ok(listener) => return listener,
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        })
    }

    fn tls(&self) -> TlsAcceptor {
        TlsAcceptor::from(Authority::of(&self.token).unwrap().server(None).unwrap())
    }

    /// What joins the cluster, for a group.
    pub fn access(&self, group: u32) -> ClusterAccess {
        let location = format!("cluster://127.0.0.1:{}/{group}", self.metadata_port);
        ClusterAccess::parse(&location, self.token.clone()).unwrap()
    }

    /// A client of a group.
    pub fn client(&self, group: u32) -> Cluster {
        Cluster::open(&self.access(group)).unwrap()
    }

    /// What the metadata service says.
    pub fn status(&self) -> cluster::wire::ClusterStatus {
        Cluster::status(&self.access(1)).unwrap()
    }

    /// Waits until what every device has told of itself is newer than this call.
    pub fn hear_all(&self) {
        let silent = |status: &cluster::wire::ClusterStatus| -> Vec<u64> {
            status.devices.iter().map(|device| device.silent_ms).collect()
        };
        let last = std::cell::RefCell::new(silent(&self.status()));
        let heard = std::cell::RefCell::new(vec![0; last.borrow().len()]);
        // The first heartbeat may have been on its way.
        self.wait_for("heartbeats", |status| {
            let now = silent(status);
            let mut heard = heard.borrow_mut();
            for (heard, (now, last)) in heard.iter_mut().zip(now.iter().zip(last.borrow().iter())) {
                *heard += u32::from(now < last);
            }
            last.replace(now);
            heard.iter().all(|heard| *heard >= 2)
        });
    }

    /// Waits until the status is as wanted.
    pub fn wait_for(&self, what: &str, wanted: impl Fn(&cluster::wire::ClusterStatus) -> bool) {
        for _ in 0..600 {
            let status = self.status();
            if wanted(&status) {
                return;
            }
            std::thread::park_timeout(Duration::from_millis(50));
        }
        panic!("waited for {what}: {:#?}", self.status());
    }
}

/// Connections after their handshakes, of which each takes its own time.
struct TlsListener(mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>, SocketAddr);

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        self.0.recv().await.expect("it accepts as long as this is served")
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        Ok(self.1)
    }
}

async fn serve(tls: TlsAcceptor, listener: TcpListener, router: Router) {
    let (greeted, streams) = mpsc::channel(16);
    let served = TlsListener(streams, listener.local_addr().unwrap());
    let accept = async {
        loop {
            let Ok((stream, peer)) = listener.accept().await else { continue };
            let (tls, greeted) = (tls.clone(), greeted.clone());
            tokio::spawn(async move {
                // A client that fails here knows why.
                if let Ok(stream) = tls.accept(stream).await {
                    let _ = greeted.send((stream, peer)).await;
                }
            });
        }
    };
    tokio::select! {
        () = accept => {}
        served = async { axum::serve(served, router).await } => served.unwrap(),
    }
}
