//! Figures of many attached disks that are committed through one server at the same moment: the share of its link
//! that they use. Each machine is a host of the lab that runs `diskcast attach`; its changes are random bytes, so
//! that nothing can be compressed or shared.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base::Chance;
use serde_json::{Value, json};
use store::{Location, Repository, Shape};

use crate::context::{Context, json_line, keep_secret, said};
use crate::crew::Crew;
use crate::figure::{Bar, Figure, median};
use crate::nbd::stamp;
use crate::programs::Program;
use crate::room::{Room, star};
use crate::site::DISK;
use crate::{Group, Result};

pub(crate) const GROUP: Group = Group {
    figures: &[
        (
            "mirror.commit_16",
            "16 disks committed at once, bytes stored a second over the server's 1 Gbit/s; at least 0.8",
        ),
        (
            "mirror.commit_16_slow",
            "16 disks committed at once over 200 Mbit/s, bytes stored a second over the link; at least 0.8",
        ),
    ],
    measure,
};

const MACHINES: u32 = 16;
/// Rate of each machine's link, and of the server's.
const RATE: u64 = 1_000_000_000;
/// Rate of the server's link in the second figure: so slow that processors are not the limit.
const SLOW_RATE: u64 = 200_000_000;
/// Buffer of the server's link.
const SERVER_BUFFER_BYTES: u64 = 1 << 20;
const ROUNDS: u64 = 3;
const MIB: usize = 1 << 20;
const DISK_BYTES: u64 = 4 << 30;
/// Bytes of content at the start of the image.
const CONTENT_BYTES: usize = 64 * MIB;
/// Bytes at the start of the disk that each machine changes before a commit.
const CHANGED_BYTES: usize = 16 * MIB;
const PORT: u16 = 7717;
const HTTP_PORT: u16 = 8080;
/// Time limit for a commit.
const PATIENCE: Duration = Duration::from_secs(120);

/// Machines whose disks are attached.
struct Machines {
    attached: Vec<Program>,
    _nginx: Program,
    room: Room,
    repository: PathBuf,
    folder: PathBuf,
}

/// The result of sending from all machines at the same time.
struct Sent {
    /// Seconds from the start of the first machine to the end of the last.
    seconds: f64,
    /// Payload bytes.
    bytes: u64,
    /// Bytes on the server's link, with all headers.
    wire_bytes: u64,
    /// Share of the time in which this machine's processors worked.
    busy: f64,
}

impl Sent {
    /// Share of a link of `rate` bits per second that the payload used, without headers.
    fn share(&self, rate: u64) -> f64 {
        self.bytes as f64 * 8.0 / rate as f64 / self.seconds
    }

    fn words(&self) -> Value {
        let (bytes, wire) = (self.bytes as f64, self.wire_bytes as f64);
        json!({
            "s": self.seconds, "MB/s": bytes / 1e6 / self.seconds, "bytes on the link over bytes stored": wire / bytes,
            "processors busy": self.busy,
        })
    }
}

impl Machines {
    fn start(context: &Context) -> Result<Self> {
        let (repository, folder) = (context.folder()?, context.folder()?);
        make_image(&repository)?;
        let room = Room::open_with(context, &[&repository], &star(MACHINES, RATE, 0))?;
        let token = folder.join("write.token");
        let mut mint = Command::new(room.binary());
        keep_secret(
            &token,
            &said(mint.args(["token", "--write", "--state"]).arg(repository.join("state-0")))?,
        )?;
        let server = room.star.host(0);
        let nginx = Program::start(
            server.command("nginx").arg("-c").arg(nginx_configuration(&folder)?).args(["-e", "stderr"]),
        )?
        .until_port(server, SocketAddr::from((server.ipv4(), HTTP_PORT)))?;
        let mut machines = Self { attached: Vec::new(), _nginx: nginx, room, repository, folder };
        for machine in 1..=MACHINES {
            let url = format!("https://{}:{PORT}", machines.room.star.host(0).ipv4());
            let mut attach = machines.diskcast(machine);
            attach.args(["attach", DISK, "--name", &name(machine), "--from", &url, "--folder"]);
            attach.arg(&machines.folder).arg("--token-file").arg(&token);
            machines.attached.push(Program::start(&mut attach)?.until_socket(&machines.socket(machine))?);
        }
        Ok(machines)
    }

    /// The binary under test, in a machine's host.
    fn diskcast(&self, machine: u32) -> Command {
        let mut command = self.room.star.host(machine).command(&self.room.binary().to_string_lossy());
        command.args(["--json", "--quiet"]);
        command
    }

    fn socket(&self, machine: u32) -> PathBuf {
        self.folder.join(name(machine)).join("nbd.sock")
    }

    fn noise(&self, machine: u32) -> PathBuf {
        self.folder.join(format!("{}.noise", name(machine)))
    }

    /// Each machine changes its disk and flushes it, with content that was never written before.
    fn change(&self, round: u64) -> Result<()> {
        let mut noise = vec![0; CHANGED_BYTES];
        for machine in 1..=MACHINES {
            Chance::from_seed(round << 32 | u64::from(machine)).fill(&mut noise);
            let (name, file) = (name(machine), self.noise(machine));
            std::fs::write(&file, &noise)?;
            let disk = format!("nbd+unix:///{name}?socket={}", self.socket(machine).display());
            said(Command::new("nbdcopy").arg("--flush").arg(&file).arg(disk))?;
        }
        // Later write-back by other programs would be measured as well.
        said(&mut Command::new("sync")).map(drop)
    }

    /// All machines run their `command` at the same moment.
    fn at_once(&self, command: impl Fn(u32) -> Command) -> Result<(Sent, Vec<String>)> {
        let received = || -> Result<u64> { Ok(self.room.star.traffic()?[0].received.bytes) };
        let (before, worked) = (received()?, processors()?);
        let mut crew = Crew::new();
        let members: Vec<_> =
            (1..=MACHINES).map(|machine| crew.start(&mut command(machine))).collect::<Result<_>>()?;
        let ended = crew.wait(&members, PATIENCE)?;
        let now = processors()?;
        if ended.len() < members.len() {
            return Err("some hang".into());
        }
        ended.iter().try_for_each(|one| one.check())?;
        let seconds = ended.iter().map(|one| one.ended).fold(0.0, f64::max);
        let busy = (now.0 - worked.0) / (now.1 - worked.1);
        let sent = Sent { seconds, bytes: 0, wire_bytes: received()? - before, busy };
        Ok((sent, ended.into_iter().map(|one| one.output).collect()))
    }

    /// All disks are committed, each to an image of its own.
    fn commit(&self) -> Result<Sent> {
        let (mut sent, outputs) = self.at_once(|machine| {
            let (name, mut command) = (name(machine), self.diskcast(machine));
            command.args(["commit", &name, "--disk", &name, "--folder"]).arg(&self.folder);
            command
        })?;
        for output in outputs {
            let committed = json_line(&output, "committed")?;
            sent.bytes += committed["stored_bytes"].as_u64().ok_or("no stored_bytes in a commit's report")?;
        }
        Ok(sent)
    }

    /// Checks that the newest versions begin with the written bytes.
    fn check(&self) -> Result<()> {
        let repository = Repository::open(&Location::Folder(self.repository.clone()))?;
        let mut found = vec![0; CHANGED_BYTES];
        for machine in 1..=MACHINES {
            repository.snapshot(&name(machine).parse()?)?.read(0, &mut found)?;
            if found != std::fs::read(self.noise(machine))? {
                return Err(format!("the version of {} is not what was written", name(machine)).into());
            }
        }
        Ok(())
    }

    /// Sends the same bytes as files, with one curl per machine.
    fn upload(&self) -> Result<Sent> {
        let (mut sent, _) = self.at_once(|machine| {
            let url = format!("http://{}:{HTTP_PORT}/{}", self.room.star.host(0).ipv4(), name(machine));
            let mut command = self.room.star.host(machine).command("curl");
            command.arg("-sSfT").arg(self.noise(machine)).arg(url);
            command
        })?;
        sent.bytes = u64::from(MACHINES) * CHANGED_BYTES as u64;
        Ok(sent)
    }
}

/// Name of a machine, its disk and its image.
fn name(machine: u32) -> String {
    format!("machine-{machine}")
}

/// Makes an image of 4 GiB with [`CONTENT_BYTES`] of content, half of it random.
fn make_image(repository: &Path) -> Result<()> {
    let repository = Repository::create(&Location::Folder(repository.to_owned()))?;
    let blob = repository.blob(&DISK.parse()?);
    blob.create(&Shape { size_bytes: DISK_BYTES, ..Shape::default() }, &stamp())?;
    let (mut chance, mut content) = (Chance::from_seed(1), vec![0; CONTENT_BYTES]);
    content.chunks_mut(4096).for_each(|page| chance.fill(&mut page[..2048]));
    blob.write(0, &content, &stamp())?;
    Ok(())
}

/// A configuration that accepts uploads (Debian's `nginx-light` has WebDAV). nginx does not flush them.
fn nginx_configuration(folder: &Path) -> Result<PathBuf> {
    let (path, root) = (folder.join("nginx.conf"), folder.join("uploads"));
    std::fs::create_dir(&root)?;
    let text = format!(
        "daemon off;\nuser root;\nworker_processes 2;\npid {folder}/nginx.pid;\nerror_log stderr;\n\
         events {{ worker_connections 256; }}\n\
         http {{ access_log off; client_max_body_size 0; client_body_temp_path {folder}/body;\n\
         proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi;\n\
         scgi_temp_path {folder}/scgi;\n\
         server {{ listen {HTTP_PORT}; root {}; dav_methods PUT; }} }}\n",
        root.display(),
        folder = folder.display(),
    );
    std::fs::write(&path, text)?;
    Ok(path)
}

/// Ticks in which this machine's processors worked, and ticks in all (`man 5 proc_stat`).
fn processors() -> Result<(f64, f64)> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<f64> =
        line.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
    let idle: f64 = ticks.iter().skip(3).take(2).sum();
    let all: f64 = ticks.iter().sum();
    Ok((all - idle, all))
}

/// Commits and uploads in turns, with a server's link of `rate` bits per second.
fn rounds(machines: &Machines, rate: u64) -> Result<(Vec<Sent>, Vec<Sent>)> {
    machines.room.star.shape_host(0, rate, SERVER_BUFFER_BYTES)?;
    let (mut commits, mut uploads) = (vec![], vec![]);
    for round in 0..ROUNDS {
        machines.change(rate + round)?;
        commits.push(machines.commit()?);
        said(&mut Command::new("sync"))?;
        uploads.push(machines.upload()?);
    }
    machines.check()?;
    Ok((commits, uploads))
}

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let machines = Machines::start(context)?;
    let changed =
        format!("{MACHINES} hosts, each with {} MiB of noise of its own on its disk", CHANGED_BYTES / MIB);
    let figure = |name, rate| -> Result<Figure> {
        let (commits, uploads) = rounds(&machines, rate)?;
        let shares = |all: &[Sent]| -> Vec<f64> { all.iter().map(|sent| sent.share(rate)).collect() };
        let words = |all: &[Sent]| -> Vec<Value> { all.iter().map(Sent::words).collect() };
        let sink =
            format!("a repository, durable; {} Mbit/s at the server, headers not counted", rate / 1_000_000);
        Ok(Figure::new(name, &shares(&commits), "ratio", Bar::AtLeast(0.8))
            .peer("nginx + curl -T", "WebDAV without TLS, not flushed", median(&shares(&uploads)), "ratio")
            .on(&changed, &sink)
            .with(json!({ "commits": words(&commits), "curl": words(&uploads) })))
    };
    Ok(vec![figure("mirror.commit_16", RATE)?, figure("mirror.commit_16_slow", SLOW_RATE)?])
}
