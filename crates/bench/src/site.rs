//! A site: a lab of a server and a host with shaped links. The server offers a machine's disk by diskcast and by
//! other programs that serve disks; the host uses the disk in various ways.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use image::{Cipher, Manifest};
use lab::{Host, StarOptions};
use mirror::{Mirror, MirrorOptions, Source};
use net::client::Client;
use net::clock::Stop;

use crate::Result;
use crate::context::{Context, said, timed};
use crate::figure::median;
use crate::machine::Machine;
use crate::programs::Program;
use crate::room::{Room, star};
use crate::way::{Had, Way};

/// Name of the image and of every export.
pub(crate) const DISK: &str = "disk";
const RATE: u64 = 1_000_000_000;
const DISKCAST_PORT: u16 = 7717;
const QEMU_PORT: u16 = 10809;
const NBDKIT_PORT: u16 = 10810;
const HTTP_PORT: u16 = 8080;
/// Number of connections that measure the round trip.
const CONNECTIONS: usize = 50;

/// The lab with its servers.
pub(crate) struct Site {
    room: Room,
    machine: Arc<Machine>,
    /// Whether the host is behind a link with a delay.
    far: bool,
    _programs: Vec<Program>,
}

/// A repository with the machine's disk.
pub(crate) fn repository(context: &Context, machine: &Machine) -> Result<PathBuf> {
    let repository = context.folder()?;
    timed(context.diskcast(&repository).arg("capture").arg(&machine.disk).arg(DISK))?;
    Ok(repository)
}

impl Site {
    /// Opens a site in which every packet takes `one_way` from the server to the host, and as long back. With `others`,
    /// the other programs serve the disk too.
    pub(crate) fn open(
        context: &Context,
        machine: &Arc<Machine>,
        repository: &Path,
        one_way: Duration,
        others: bool,
    ) -> Result<Self> {
        let lab = StarOptions { host_delays: vec![(1, one_way)], ..star(1, RATE, 0) };
        let room = Room::open_with(context, &[repository], &lab)?;
        let folder = context.folder()?;
        let mut programs = Vec::new();
        if others {
            let disk = &machine.disk;
            let (server, all) = (room.star.host(0), "0.0.0.0");
            let mut qemu = server.command("qemu-nbd");
            qemu.args(["--persistent", "--shared=16", "--read-only", "--format=raw", "--export-name=disk"]);
            qemu.arg(format!("--bind={all}")).arg(format!("--port={QEMU_PORT}")).arg(disk);
            let mut nbdkit = server.command("nbdkit");
            nbdkit.args(["-f", "-r", "-i", all, "-p", &NBDKIT_PORT.to_string(), "file"]).arg(disk);
            let mut nginx = server.command("nginx");
            nginx.arg("-c").arg(nginx_configuration(&folder, disk)?).arg("-p").arg(&folder);
            for (mut command, port) in [(qemu, QEMU_PORT), (nbdkit, NBDKIT_PORT), (nginx, HTTP_PORT)] {
                let address = SocketAddr::from((server.ipv4(), port));
                programs.push(Program::start(&mut command)?.until_port(server, address)?);
            }
        }
        let far = !one_way.is_zero();
        Ok(Self { room, machine: Arc::clone(machine), far, _programs: programs })
    }

    fn host(&self) -> &Host {
        self.room.star.host(1)
    }

    /// Bytes that the server has sent so far, with Ethernet headers; a segmented super-frame counts one header.
    pub(crate) fn sent(&self) -> Result<u64> {
        Ok(self.room.star.traffic()?[0].sent.bytes)
    }

    /// The round trip between host and server in milliseconds: the median time to open a connection.
    pub(crate) fn round_trip_ms(&self) -> Result<f64> {
        let server = SocketAddr::from((self.room.star.host(0).ipv4(), DISKCAST_PORT));
        let connect = move || -> std::io::Result<Vec<f64>> {
            let time = |_| {
                let begin = Instant::now();
                TcpStream::connect(server).map(|_| begin.elapsed().as_secs_f64() * 1e3)
            };
            (0..CONNECTIONS).map(time).collect()
        };
        let times = self.host().run(connect)?.join().map_err(|_| "connecting panicked")??;
        Ok(median(&times))
    }

    /// Address of a service for the host, as `host:port`.
    fn address(&self, port: u16) -> String {
        format!("{}:{port}", self.room.star.host(0).ipv4())
    }

    /// URL of diskcast's server for the host.
    fn url(&self) -> String {
        format!("https://{}", self.address(DISKCAST_PORT))
    }

    /// Makes the disk available to the host in the given way, with nothing cached on the host.
    pub(crate) fn have(&self, context: &Context, way: Way) -> Result<Had> {
        let folder = context.folder()?;
        match way {
            Way::Local => Ok(Had::file(self.machine.disk.clone(), 0.0)),
            Way::Copied => {
                let (begin, copy) = (Instant::now(), folder.join("copy"));
                let uri = format!("nbd://{}", self.address(NBDKIT_PORT));
                said(self.host().command("nbdcopy").arg(uri).arg(&copy))?;
                Ok(Had::file(copy, begin.elapsed().as_secs_f64()))
            }
            Way::Fetched => {
                let (begin, copy) = (Instant::now(), folder.join("copy"));
                said(&mut self.room.fetch_command(1, 0, DISK, &copy.to_string_lossy()))?;
                Ok(Had::file(copy, begin.elapsed().as_secs_f64()))
            }
            Way::Qemu => self.overlay(&folder, QEMU_PORT),
            Way::Nbdkit => self.overlay(&folder, NBDKIT_PORT),
            Way::Curl(filters) => {
                let socket = folder.join("socket");
                let mut nbdkit = self.host().command("nbdkit");
                nbdkit.args(["-f", "-U"]).arg(&socket).args(["-e", DISK]);
                nbdkit.args(filters.iter().map(|filter| format!("--filter={filter}")));
                nbdkit.args(["curl", &format!("url=http://{}/disk", self.address(HTTP_PORT))]);
                if filters.contains(&"cache") {
                    nbdkit.arg("cache-on-read=true");
                }
                Ok(Had::served(&socket, Program::start(&mut nbdkit)?.until_socket(&socket)?))
            }
            Way::Attached => self.attach(&folder),
            Way::Program => {
                let token = self.room.token(0).to_string_lossy().into_owned();
                let mut words = vec![DISK, "--token-file", &token];
                if self.far {
                    // Wide area networks carry no multicast.
                    words.push("--no-multicast");
                }
                self.run(context, &folder, &words)
            }
        }
    }

    fn overlay(&self, folder: &Path, port: u16) -> Result<Had> {
        let (socket, overlay) = (folder.join("socket"), folder.join("overlay"));
        let below = format!("nbd://{}/{DISK}", self.address(port));
        let mut create = self.host().command("qemu-img");
        said(create.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b", &below]).arg(&overlay))?;
        let mut qemu = self.host().command("qemu-nbd");
        qemu.args(["--persistent", "--shared=16", "--format=qcow2", "--export-name=disk", "--socket"]);
        qemu.arg(&socket).arg(&overlay);
        Ok(Had::served(&socket, Program::start(&mut qemu)?.until_socket(&socket)?))
    }

    /// Attaches the disk in a thread of the host's network namespace, which its other threads inherit.
    fn attach(&self, folder: &Path) -> Result<Had> {
        let url = self.url();
        let token = std::fs::read_to_string(self.room.token(0))?.trim().parse()?;
        let data = folder.join("attached");
        let attach = move || -> std::result::Result<Mirror, String> {
            let words = |error: &dyn std::error::Error| base::chain(error);
            let options = Source::client_options(Cipher::None, Stop::new());
            let client = Client::connect(&url, &token, options).map_err(|error| words(&error))?;
            let manifest = client.manifest(DISK).map_err(|error| words(&error))?;
            let manifest = Manifest::decode(&manifest).map_err(|error| words(&error))?;
            let sources = vec![Source::server("server", Arc::new(client))];
            Mirror::create(&data, &manifest, sources, &MirrorOptions::default())
                .map_err(|error| words(&error))
        };
        let mirror = Arc::new(self.host().run(attach)?.join().map_err(|_| "attaching panicked")??);
        Had::attached(folder.join("socket"), mirror)
    }

    /// Runs `diskcast attach` with these options, in a folder of its own in `disks`.
    pub(crate) fn run(&self, context: &Context, disks: &Path, words: &[&str]) -> Result<Had> {
        let mut attach = self.command(&context.diskcast.to_string_lossy());
        attach.args(["--quiet", "attach", "--name", DISK, "--from", &self.url()]).args(words);
        attach.arg("--folder").arg(disks).env_remove("DISKCAST_REPO");
        let socket = disks.join(DISK).join("nbd.sock");
        Ok(Had::served(&socket, Program::start(&mut attach)?.until_socket(&socket)?))
    }

    /// A command that runs `program` in the host.
    pub(crate) fn command(&self, program: &str) -> Command {
        self.host().command(program)
    }
}

/// Writes a configuration with which nginx serves one file at its best rate.
fn nginx_configuration(folder: &Path, disk: &Path) -> Result<PathBuf> {
    let path = folder.join("nginx.conf");
    let text = format!(
        "daemon off;\nuser root;\nworker_processes 2;\npid {folder}/nginx.pid;\nerror_log stderr;\n\
         events {{ worker_connections 256; }}\n\
         http {{ access_log off; sendfile on; tcp_nodelay on; keepalive_requests 1000000;\n\
         server {{ listen {HTTP_PORT}; location = /disk {{ alias {}; }} }} }}\n",
        disk.display(),
        folder = folder.display(),
    );
    std::fs::write(&path, text)?;
    Ok(path)
}
