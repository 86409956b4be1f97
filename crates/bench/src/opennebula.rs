//! Figures of OpenNebula's drivers: many machines that start by their scripts, and one, beside what a driver does
//! today. The front-end is host 0, which also serves the images; each host has folders of its own.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use lab::{Sshd, Star, StarOptions};
use serde_json::json;

use crate::context::{Context, said};
use crate::crew::Crew;
use crate::figure::{Bar, Figure, median};
use crate::{Group, Result};

pub(crate) const GROUP: Group = Group {
    figures: &[
        (
            "opennebula.one_session",
            "images that the server sends for 100 machines on 10 hosts, of which 15 start at a time; at most 1.2",
        ),
        (
            "opennebula.one",
            "time of a machine's disk on a host that has the image over `ssh HOST cp --reflink`; at most 1.2",
        ),
        ("opennebula.one_new", "the same on a host that lacks the image, over scp of the file; at most 1.1"),
    ],
    measure,
};

const RATE: u64 = 1_000_000_000;
const IMAGE_MIB: usize = 64;
const HOSTS: u32 = 10;
const MACHINES: u32 = 100;
/// What OpenNebula runs at the same time by default (`-t 15`).
const AT_ONCE: u32 = 15;
const ROUNDS: usize = 5;
const ON: &str = "network namespaces on one machine, files on its disk (XFS for single machines)";

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let mut figures = vec![one_session(context)?];
    figures.extend(one(context)?);
    Ok(figures)
}

/// A front-end with drivers, and hosts.
struct Cloud {
    star: Star,
    sshd: Sshd,
    folder: PathBuf,
    crew: Mutex<Crew>,
    diskcast: PathBuf,
}

impl Cloud {
    fn new(context: &Context, hosts: u32) -> Result<Self> {
        let options =
            StarOptions { hosts: 1 + hosts, rate_bits_per_second: Some(RATE), ..StarOptions::default() };
        let (star, folder) = (Star::build(&options)?, context.folder()?);
        let mut disk = vec![0; IMAGE_MIB << 20];
        base::Chance::from_seed(1).fill(&mut disk);
        std::fs::write(folder.join("disk.img"), disk)?;
        said(
            context
                .diskcast(&folder.join("repository"))
                .arg("capture")
                .arg(folder.join("disk.img"))
                .arg("web"),
        )?;
        for name in ["datastores", "remotes"] {
            std::fs::create_dir(folder.join(name))?;
        }
        said(
            Command::new(context.root.join("integrations/opennebula/install.sh")).arg(folder.join("remotes")),
        )?;
        let shown = folder.join("datastores");
        let own = |host: &lab::Host| {
            // Blocks can be shared on XFS.
            let image = folder.join(format!("host-{}.xfs", host.index()));
            let made = std::fs::File::create(&image).and_then(|file| file.set_len(4 << 30)).is_ok();
            if made {
                format!("mkfs.xfs -q {0} && mount -o loop {0} {1}", image.display(), shown.display())
            } else {
                "false".to_owned()
            }
        };
        let sshd = Sshd::start_after(&star, &star.hosts()[1..], &folder, own)?;
        let cloud =
            Self { star, sshd, crew: Mutex::new(Crew::new()), diskcast: context.diskcast.clone(), folder };
        cloud.serve()?;
        Ok(cloud)
    }

    fn serve(&self) -> Result<()> {
        let (address, token) = (self.star.host(0).ipv4(), self.folder.join("one.token"));
        let mut serve = self.star.host(0).command(&self.diskcast.to_string_lossy());
        serve.arg("--repo").arg(self.folder.join("repository")).args([
            "serve",
            "--quiet",
            "--interface",
            "eth0",
        ]);
        serve.args(["--listen", &format!("{address}:7717"), "--token-out"]).arg(&token);
        self.crew.lock().expect("no panic").start(serve.arg("--state").arg(self.folder.join("state")))?;
        while !token.exists() {
            std::thread::park_timeout(Duration::from_millis(20));
        }
        let text = format!(
            "ssh = \"{}\"\nprogram = \"{}\"\nkept = \"{datastores}/.diskcast\"\n\
             [repositories.main]\nlocation = \"{}\"\n\
             server = \"https://{address}:7717\"\ntoken_file = \"{}\"\n",
            self.sshd.client(),
            self.diskcast.display(),
            self.folder.join("repository").display(),
            token.display(),
            datastores = self.folder.join("datastores").display(),
        );
        std::fs::write(self.folder.join("one.toml"), text)?;
        // What the front-end says of a machine: none is larger than its image.
        let onevm = self.folder.join("onevm");
        std::fs::write(
            &onevm,
            "#!/bin/sh\necho '<VM><LCM_STATE>1</LCM_STATE><TEMPLATE><DISK><DISK_ID>0</DISK_ID><SIZE>64</SIZE>\
             <DRIVER>qcow2</DRIVER></DISK></TEMPLATE></VM>'\n",
        )?;
        said(Command::new("chmod").arg("+x").arg(&onevm)).map(drop)
    }

    /// The script that gives `machine` its disk on `host`.
    fn clone_disk(&self, host: u32, machine: u32) -> Command {
        let script = self.folder.join("remotes/tm/diskcast/clone");
        let mut command = self.star.host(0).command(&script.to_string_lossy());
        let target = format!(
            "{}:{}/100/{machine}/disk.0",
            self.star.host(host).ipv4(),
            self.folder.join("datastores").display()
        );
        command.args(["main:web@1", &target, &machine.to_string(), "101"]);
        command.env("DISKCAST", &self.diskcast).env("DISKCAST_ONE", self.folder.join("one.toml"));
        command.env("DISKCAST_ONEVM", self.folder.join("onevm")).env("DISKCAST_CONFIG", "/dev/null");
        command.env("DISKCAST_SEEN", "off").stdin(Stdio::null());
        command
    }

    /// Runs a line on a host by ssh.
    fn on(&self, host: u32, line: &str) -> Result<String> {
        let mut ssh = self.star.host(0).command("ssh");
        said(ssh.args(self.sshd.options()).arg(self.star.host(host).ipv4().to_string()).arg(line))
    }

    fn datastores(&self) -> String {
        self.folder.join("datastores").display().to_string()
    }
}

fn one_session(context: &Context) -> Result<Figure> {
    let (mut images, mut rows) = (vec![], vec![]);
    for _ in 0..3 {
        let cloud = Cloud::new(context, HOSTS)?;
        let before = cloud.star.traffic()?[0].sent.bytes;
        let (began, next) = (Instant::now(), Mutex::new(0));
        // As oned does: machines in their order, one more as soon as one is done.
        let start = || -> std::result::Result<Vec<f64>, String> {
            let mut seconds = vec![];
            loop {
                let machine = {
                    let mut next = next.lock().expect("no panic");
                    *next += 1;
                    *next
                };
                if machine > MACHINES {
                    return Ok(seconds);
                }
                let mut script = cloud.clone_disk(1 + machine % HOSTS, machine);
                said(&mut script).map_err(|error| error.to_string())?;
                seconds.push(began.elapsed().as_secs_f64());
            }
        };
        let ended: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(start)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let mut seconds = vec![];
        for some in ended {
            seconds.extend(some?);
        }
        let sent = cloud.star.traffic()?[0].sent.bytes - before;
        #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
        let sent = sent as f64 / (IMAGE_MIB << 20) as f64;
        for host in 1..=HOSTS {
            let disks = cloud.on(host, &format!("ls {}/100/*/disk.0 | wc -l", cloud.datastores()))?;
            if disks.trim() != (MACHINES / HOSTS).to_string() {
                return Err(format!("host {host} has {} disks", disks.trim()).into());
            }
        }
        images.push(sent);
        rows.push(json!({
            "images sent, with all that is said": sent, "last machine s": seconds.iter().copied().fold(0.0, f64::max),
            "first machine s": seconds.iter().copied().fold(f64::INFINITY, f64::min),
        }));
    }
    let words = format!(
        "{IMAGE_MIB} MiB of random data, {MACHINES} machines on {HOSTS} hosts, {AT_ONCE} at a time, 1 Gbit/s"
    );
    Ok(Figure::new("opennebula.one_session", &images, "images", Bar::AtMost(1.2))
        .on(&words, ON)
        .with(json!(rows)))
}

fn one(context: &Context) -> Result<Vec<Figure>> {
    let cloud = Cloud::new(context, 1)?;
    let store = cloud.datastores();
    let timed = |command: &mut Command| -> Result<f64> {
        let began = Instant::now();
        said(command)?;
        Ok(began.elapsed().as_secs_f64())
    };
    let (mut new, mut scps, mut ratios, mut copies) = (vec![], vec![], vec![], vec![]);
    let ours = |machine: u32| timed(&mut cloud.clone_disk(1, machine));
    for round in 0..ROUNDS {
        // The host forgets the image.
        cloud.on(1, &format!("rm -rf {store}/.diskcast {store}/100; mkdir -p {store}/100/scp"))?;
        let target = format!("{}:{store}/100/scp/disk.0", cloud.star.host(1).ipv4());
        let mut scp = cloud.star.host(0).command("scp");
        let scp =
            timed(scp.arg("-q").args(cloud.sshd.options()).arg(cloud.folder.join("disk.img")).arg(target))?;
        new.push(ours(u32::try_from(round)?)? / scp);
        scps.push(scp);
        let mut ssh = cloud.star.host(0).command("ssh");
        let line = format!(
            "mkdir -p {store}/100/copy && cp --reflink=always {store}/100/scp/disk.0 {store}/100/copy/disk.0"
        );
        let copy =
            timed(ssh.args(cloud.sshd.options()).arg(cloud.star.host(1).ipv4().to_string()).arg(line))?;
        ratios.push(ours(100 + u32::try_from(round)?)? / copy);
        copies.push(copy);
    }
    let words = format!(
        "{IMAGE_MIB} MiB of random data, one machine, 1 Gbit/s; our connection by ssh stays for the next script, \
         peers log in"
    );
    Ok(vec![
        Figure::new("opennebula.one", &ratios, "ratio", Bar::AtMost(1.2))
            .peer("cp --reflink", "by ssh, mkdir and cp in one login", median(&copies), "s")
            .on(&words, ON),
        Figure::new("opennebula.one_new", &new, "ratio", Bar::AtMost(1.1))
            .peer("scp", "the raw file, not checked", median(&scps), "s")
            .on(&words, ON),
    ])
}
