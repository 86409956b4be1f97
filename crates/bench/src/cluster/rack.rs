//! A cluster in the lab: a metadata service, devices and clients, each in a network namespace of its own; the parts are
//! processes of the program under test.

use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use cluster::State;
use cluster::client::{Cluster, ClusterAccess};
use cluster::wire::ClusterStatus;
use futures::executor::block_on;
use lab::{Star, StarOptions};
use object_store::ObjectStoreExt as _;
use object_store::path::Path as ObjectPath;

use super::tcp::Tcp;
use crate::Result;
use crate::context::{Context, said};

const METADATA_PORT: u16 = 7400;
pub(super) const DEVICE_PORT: u16 = 7420;
/// Longest wait for the cluster to be as wanted.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(50);

/// A cluster that runs until this is dropped. Host 0 of the lab has the metadata service, the next ones a device each,
/// and the last ones are clients.
pub(super) struct Rack {
    pub(super) star: Star,
    devices: u32,
    folder: PathBuf,
    parts: Vec<Child>,
    program: PathBuf,
}

impl Rack {
    /// Starts a cluster of 8 + 2 with `devices` devices, and waits until all have joined. No link has a limit yet.
    pub(super) fn start(context: &Context, devices: u32, clients: u32) -> Result<Self> {
        let options = StarOptions { hosts: 1 + devices + clients, ..StarOptions::default() };
        let (star, folder) = (Star::build(&options)?, context.folder()?);
        let mut rack = Self { star, devices, folder, parts: vec![], program: context.diskcast.clone() };
        rack.star.hosts().iter().try_for_each(|host| Tcp::Now.apply(host, Tcp::RECEIVE_BYTES))?;
        let metadata = rack.folder.join("metadata").to_string_lossy().into_owned();
        rack.run_part(0, &["metadata", &metadata], METADATA_PORT)?;
        rack.until("the metadata service", |_| true)?;
        for number in rack.device_hosts() {
            rack.start_device(number)?;
        }
        let count = devices as usize;
        rack.until("all devices", |status| status.formed && up(status) == count)?;
        Ok(rack)
    }

    fn start_device(&mut self, host: u32) -> Result<()> {
        let folder = self.device_folder(host).to_string_lossy().into_owned();
        let (metadata, domain) = (self.metadata(), format!("host-{host}"));
        let words = ["device", &folder, "--metadata", &metadata, "--domain", &domain, "--scrub-rate", "1M"];
        let is_new = !self.device_folder(host).join("device.redb").exists();
        let words: Vec<&str> = words.into_iter().chain(is_new.then_some("--new")).collect();
        self.run_part(host, &words, DEVICE_PORT)
    }

    fn run_part(&mut self, host: u32, words: &[&str], port: u16) -> Result<()> {
        let host = self.star.host(host);
        let mut command = host.command(&self.program.to_string_lossy());
        command.args(words).args(["--listen", &format!("{}:{port}", host.ipv4()), "--no-tls", "--quiet"]);
        command.arg("--cluster-token").arg(self.folder.join("cluster.token"));
        self.parts.push(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?);
        Ok(())
    }

    fn metadata(&self) -> String {
        format!("{}:{METADATA_PORT}", self.star.host(0).ipv4())
    }

    /// The hosts of the devices.
    pub(super) fn device_hosts(&self) -> std::ops::RangeInclusive<u32> {
        1..=self.devices
    }

    /// The host of client `number`, from 0.
    pub(super) fn client_host(&self, number: u32) -> u32 {
        1 + self.devices + number
    }

    /// Where the device of a host keeps its objects.
    pub(super) fn device_folder(&self, host: u32) -> PathBuf {
        self.folder.join(format!("device-{host}"))
    }

    /// Where the device of a host serves.
    pub(super) fn device_address(&self, host: u32) -> std::net::SocketAddr {
        (self.star.host(host).ipv4(), DEVICE_PORT).into()
    }

    /// Where the metadata service is, and the token.
    pub(super) fn metadata_access(&self) -> Result<(std::net::SocketAddr, String)> {
        let token = std::fs::read_to_string(self.folder.join("cluster.token"))?;
        Ok((self.metadata().parse()?, token.trim().to_owned()))
    }

    /// What joins this cluster.
    fn access(&self) -> Result<ClusterAccess> {
        let (_, token) = self.metadata_access()?;
        Ok(ClusterAccess::parse(&format!("cluster+http://{}", self.metadata()), token.parse()?)?)
    }

    /// Runs work on a new client of this cluster at a host.
    pub(super) fn with_client<T: Send + 'static>(
        &self,
        host: u32,
        work: impl FnOnce(Cluster) -> std::result::Result<T, String> + Send + 'static,
    ) -> Result<Running<T>> {
        let access = self.access()?;
        let joined = move || work(Cluster::open(&access).map_err(|error| base::chain(&error))?);
        Ok(Running(self.star.host(host).run(joined)?))
    }

    /// Puts `count` random contents of `bytes` each, named by [`name`] from `from` on. Their segments are sealed then.
    pub(super) fn put(&self, from: u64, count: u64, bytes: usize) -> Result<()> {
        self.start_put(from, count, bytes)?.end()
    }

    /// The same by a client that is not waited for.
    pub(super) fn start_put(&self, from: u64, count: u64, bytes: usize) -> Result<Running<()>> {
        let put = move |client: Cluster| {
            (from..from + count).try_for_each(|number| {
                let mut content = vec![0; bytes];
                base::Chance::from_seed(number).fill(&mut content);
                let put = block_on(client.put(&name(number), content.into()));
                put.map(drop).map_err(|error| error.to_string())
            })
        };
        self.with_client(0, put)
    }

    /// What the metadata service says.
    pub(super) fn status(&self) -> Result<ClusterStatus> {
        let access = self.access()?;
        let ask = move || Cluster::status(&access);
        Ok(self.star.host(0).run(ask)?.join().map_err(|_| "asking panicked")??)
    }

    /// Waits until the status is as wanted.
    pub(super) fn until(&self, what: &str, wanted: impl Fn(&ClusterStatus) -> bool) -> Result<ClusterStatus> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.status() {
                Ok(status) if wanted(&status) => return Ok(status),
                Err(error) if Instant::now() > end => return Err(error),
                Ok(_) if Instant::now() > end => return Err(format!("waited in vain for {what}").into()),
                _ => std::thread::park_timeout(LOOK),
            }
        }
    }

    /// Kills the device of a host, and removes what it held.
    pub(super) fn erase_device(&mut self, host: u32) -> Result<()> {
        let part = &mut self.parts[host as usize];
        part.kill()?;
        part.wait()?;
        Ok(std::fs::remove_dir_all(self.device_folder(host))?)
    }

    /// Runs `diskcast cluster` with these words, at the host of the metadata service.
    pub(super) fn order(&self, words: &[&str]) -> Result<String> {
        let mut command = self.star.host(0).command(&self.program.to_string_lossy());
        command.args(["--repo", &format!("cluster+http://{}", self.metadata()), "--cluster-token"]);
        said(command.arg(self.folder.join("cluster.token")).args(["cluster"]).args(words))
    }
}

impl Drop for Rack {
    fn drop(&mut self) {
        for part in &mut self.parts {
            // What they hold goes with the folder.
            let _ = part.kill();
            let _ = part.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Work in the network of a host.
pub(super) struct Running<T>(std::thread::JoinHandle<std::result::Result<T, String>>);

impl<T> Running<T> {
    /// Waits for its end.
    pub(super) fn end(self) -> Result<T> {
        Ok(self.0.join().map_err(|_| "work in a host panicked")??)
    }
}

/// The name of content `number`.
pub(super) fn name(number: u64) -> ObjectPath {
    ObjectPath::from(format!("rack/{number}"))
}

/// Devices that are up.
fn up(status: &ClusterStatus) -> usize {
    status.devices.iter().filter(|view| view.device.state == State::Up).count()
}
