//! Figures of bare machines that boot from the network: what they load, and how long it takes, beside Debian's
//! installer and beside machines that just start from their own disks.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::bare::{BRIDGE, Bare, BareOptions, Firmware, Room, SERVER, card};
use serde_json::{Value, json};

use crate::context::{Context, json_line, said};
use crate::figure::{Bar, Figure, median};
use crate::programs::Program;
use crate::{Group, Result};

pub(crate) const GROUP: Group = Group {
    figures: &[
        ("netboot.image_bytes", "kernel and system in memory that each machine loads, MB; at most 60"),
        (
            "netboot.boot",
            "power on to registered, over Debian's installer to its first DHCP request; at most 1",
        ),
    ],
    measure: boot,
};

pub(crate) const THREE: Group = Group {
    figures: &[(
        "netboot.three",
        "BIOS, UEFI and HTTP with Secure Boot: install and start, over just a start; at most 3",
    )],
    measure: three_from_one_deploy,
};

const ROUNDS: usize = 3;
/// A round of three machines takes some minutes.
const ROUNDS_OF_THREE: usize = 1;
const PORT: u16 = 7717;
/// Addresses that machines get.
const ADDRESSES: &str = "10.9.0.100-10.9.0.120/24";
/// Bytes of an empty disk.
const DISK_BYTES: u64 = 3 << 30;
const PATIENCE: Duration = Duration::from_secs(600);
/// Debian's installer, where its package puts it.
const INSTALLER: &str = "/usr/lib/debian-installer/images/12/amd64/text/debian-installer/amd64";
const INSTALLER_PACKAGE: &str = "debian-installer-12-netboot-amd64";
/// What lets it ask for an address before it asks a person.
const UNATTENDED: &str = "auto=true priority=critical locale=C.UTF-8 keymap=us netcfg/choose_interface=auto";
const CONSOLE: &str = "console=ttyS0";
const IMAGE: &str = "debian";
/// What a machine's console shows, one after the other, and the stage that has ended then.
const STAGES: [(&str, &str); 4] = [
    ("this machine is ", "system from the network"),
    ("fetched ", "disk"),
    ("starting from the disk", "its own name"),
    ("login:", "start from the disk"),
];
const KINDS: [Firmware; 3] = [Firmware::Bios, Firmware::Uefi, Firmware::SecureHttp];

/// A server in a room of machines.
struct Site<'a> {
    context: &'a Context,
    room: Room,
    repository: PathBuf,
    state: PathBuf,
    server: Option<Program>,
}

impl<'a> Site<'a> {
    fn new(context: &'a Context, repository: &Path) -> Result<Self> {
        let room = Room::build(3)?;
        let state = context.folder()?.join("state");
        Ok(Self { context, room, repository: repository.to_owned(), state, server: None })
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.context.diskcast(&self.repository);
        command.args(words).arg("--state").arg(&self.state);
        self.room.inside(&command)
    }

    /// Serves the boot files of a folder.
    fn serve(&mut self, boot: &Path, parameters: &str) -> Result<()> {
        self.server = None;
        let listen = format!("{SERVER}:{PORT}");
        let words = ["serve", "--listen", &listen, "--interface", BRIDGE, "--netboot", BRIDGE];
        let mut command = self.command(&words);
        command.args(["--dhcp", ADDRESSES, "--boot-image"]).arg(boot);
        command.arg("--kernel-parameters").arg(parameters).stderr(Stdio::null());
        self.server = Some(Program::start(&mut command)?);
        until(Instant::now(), "the server has a secret", || Ok(self.state.join("secret").exists()))?;
        Ok(())
    }

    /// Tells the server something; its answer in JSON.
    fn tell(&self, words: &[&str]) -> Result<String> {
        let server = format!("{SERVER}:{PORT}");
        let mut command = self.command(words);
        said(command.args(["--wait", "30s", "--server", &server]))
    }

    fn host(&self, mac: &str) -> Result<Value> {
        let hosts = self.tell(&["hosts"])?;
        let records = hosts.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        Ok(records.into_iter().find(|record| record["mac"] == mac).unwrap_or_default())
    }
}

fn boot(context: &Context) -> Result<Vec<Figure>> {
    let (repository, boot, made) = prepare(context)?;
    Ok(vec![bytes(&made)?, registered(context, &repository, &boot)?])
}

fn three_from_one_deploy(context: &Context) -> Result<Vec<Figure>> {
    let (repository, boot, _) = prepare(context)?;
    Ok(vec![three(context, &repository, &boot)?])
}

/// A new repository, a boot image, and what `boot-image` said of it.
fn prepare(context: &Context) -> Result<(PathBuf, PathBuf, Value)> {
    let boot = context.folder()?.join("boot");
    let repository = context.folder()?.join("repository");
    said(context.diskcast(&repository).arg("init"))?;
    let made = json_line(&said(context.diskcast(&repository).arg("boot-image").arg(&boot))?, "boot_image")?;
    Ok((repository, boot, made))
}

fn bytes(made: &Value) -> Result<Figure> {
    let all = |names: &[&str]| -> Result<f64> {
        let bytes = names.iter().map(|name| Ok(std::fs::metadata(Path::new(INSTALLER).join(name))?.len()));
        let sum: u64 = bytes.collect::<std::io::Result<Vec<u64>>>()?.iter().sum();
        Ok(megabytes(sum))
    };
    let ours = made["kernel_bytes"].as_u64().unwrap_or(0) + made["system_bytes"].as_u64().unwrap_or(0);
    let words =
        format!("Linux {} and the system in memory, as `diskcast boot-image` makes them", made["kernel"]);
    Ok(Figure::new("netboot.image_bytes", &[megabytes(ours)], "MB", Bar::AtMost(60.0))
        .peer(INSTALLER_PACKAGE, "kernel and initrd", all(&["linux", "initrd.gz"])?, "MB")
        .on(&words, "-"))
}

#[expect(clippy::cast_precision_loss, reason = "some megabytes")]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// Polls until `is_so`; returns the seconds since `begin`.
fn until(begin: Instant, what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<f64> {
    while !is_so()? {
        if begin.elapsed() > PATIENCE {
            return Err(format!("{what}: not in time").into());
        }
        std::thread::park_timeout(Duration::from_millis(50));
    }
    Ok(begin.elapsed().as_secs_f64())
}

/// Power on to registered, beside Debian's installer behind the same firmware and loader.
fn registered(context: &Context, repository: &Path, boot: &Path) -> Result<Figure> {
    let installer = context.folder()?.join("installer");
    said(Command::new("cp").arg("-r").arg(boot).arg(&installer))?;
    for (from, to) in [("linux", "vmlinuz"), ("initrd.gz", "initrd.img")] {
        std::fs::copy(Path::new(INSTALLER).join(from), installer.join(to))?;
    }
    let mut site = Site::new(context, repository)?;
    let mac = card(0);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let run = |site: &Site<'_>, name: &str, is_there: &dyn Fn(&Value) -> bool| -> Result<f64> {
            // The server knows nothing of it: what it sees is of this boot.
            let _ = site.tell(&["hosts", "remove", &mac]);
            let folder = context.folder()?.join(format!("{name}-{round}"));
            let options = BareOptions::empty(Firmware::Uefi, 0, folder, &[DISK_BYTES])?;
            let begin = Instant::now();
            let machine = Bare::start(&site.room, &options)?;
            let seconds = until(begin, name, || Ok(is_there(&site.host(&mac)?)))
                .map_err(|error| format!("{error}: {}", machine.console()))?;
            Ok(seconds)
        };
        site.serve(boot, CONSOLE)?;
        ours.push(run(&site, "diskcast", &|host| host["facts"].is_object())?);
        site.serve(&installer, &format!("{UNATTENDED} {CONSOLE}"))?;
        theirs.push(run(&site, "installer", &|host| host["seen_in"] == "system")?);
    }
    let ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
    let words = "a machine of 1 vCPU in software emulation, UEFI by PXE, shim, GRUB and kernel by TFTP";
    Ok(Figure::new("netboot.boot", &ratios, "ratio", Bar::AtMost(1.0))
        .peer("diskcast", "power on to registered", median(&ours), "s")
        .peer(INSTALLER_PACKAGE, UNATTENDED, median(&theirs), "s")
        .on(words, "-")
        .with(json!({ "diskcast": ours, "installer": theirs })))
}

/// One deploy of three kinds of machines, beside starts of the disks that they got.
fn three(context: &Context, repository: &Path, boot: &Path) -> Result<Figure> {
    let disk = context.scratch.join("grub.img");
    said(Command::new(context.root.join("tools/debian-disk.sh")).arg("--grub").arg(&disk))?;
    let captured = said(context.diskcast(repository).arg("capture").arg(&disk).arg(IMAGE))?;
    let stored =
        json_line(&captured, "captured").map(|line| line["encoded_bytes"].clone()).unwrap_or_default();
    let mut site = Site::new(context, repository)?;
    site.serve(boot, CONSOLE)?;
    for plug in 0..3 {
        site.tell(&["hosts", "add", &card(plug), "--name", &format!("lab-{plug}"), "--group", "lab"])?;
    }
    let (mut installs, mut starts, mut ways, mut stages) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS_OF_THREE {
        let folder = context.folder()?;
        let options = KINDS
            .iter()
            .zip(0..)
            .map(|(kind, plug)| {
                BareOptions::empty(*kind, plug, folder.join(format!("machine-{plug}")), &[DISK_BYTES])
            })
            .collect::<base::Result<Vec<_>>>()?;
        site.tell(&["deploy", IMAGE, "lab", "--yes"])?;
        let mut all = |options: &[BareOptions], passed: &[(&str, &str)]| -> Result<f64> {
            let begin = Instant::now();
            let machines = options.iter().map(|options| Bare::start(&site.room, options));
            let mut machines = machines.collect::<base::Result<Vec<_>>>()?;
            let passed = pass(begin, &mut machines, passed)?;
            let seconds = begin.elapsed().as_secs_f64();
            stages.extend(passed);
            for machine in &machines {
                let console = machine.console();
                let way = |line: &&str| line.starts_with("fetched ") || line.starts_with("unicast because");
                ways.extend(console.lines().filter(way).map(|line| line.trim().to_owned()));
            }
            Ok(seconds)
        };
        installs.push(all(&options, &STAGES)?);
        for plug in 0..3 {
            let host = site.host(&card(plug))?;
            if !["done", "back"].map(Value::from).contains(&host["job"]["stage"]) {
                return Err(
                    format!("round {round}: a machine has a disk, and its job is not done: {host}").into()
                );
            }
        }
        // The same disks and firmware, without a network.
        let alone: Vec<_> =
            options.into_iter().map(|options| BareOptions { plug: None, ..options }).collect();
        starts.push(all(&alone, &STAGES[3..])?);
    }
    let ratios: Vec<f64> = installs.iter().zip(&starts).map(|(install, start)| install / start).collect();
    let words = "three machines of 1 vCPU in software emulation, switched on together after one deploy, to their own \
                 names at their prompts: BIOS by iPXE, UEFI by PXE, UEFI by HTTP with Secure Boot";
    Ok(Figure::new("netboot.three", &ratios, "ratio", Bar::AtMost(3.0))
        .peer("diskcast", "from the network", median(&installs), "s")
        .peer("the same disks", "just started, together", median(&starts), "s")
        .on(words, "raw files")
        .with(json!({
            "installs": installs, "starts": starts, "image_bytes": stored, "ways": ways, "stages": stages,
        })))
}

/// Waits until all machines show the end of each stage, the last one with their names; the seconds of each since
/// `begin`.
fn pass(begin: Instant, machines: &mut [Bare], stages: &[(&str, &str)]) -> base::Result<Vec<Value>> {
    let pass_one = |plug: usize, machine: &mut Bare| -> base::Result<Value> {
        let mut seconds = serde_json::Map::new();
        for &(sign, stage) in stages {
            let sign = if sign == "login:" { format!("lab-{plug} login:") } else { sign.to_owned() };
            machine.wait_for(&sign, Some("the job failed"), PATIENCE)?;
            seconds.insert(stage.to_owned(), json!(begin.elapsed().as_secs_f64()));
        }
        Ok(seconds.into())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = machines
            .iter_mut()
            .enumerate()
            .map(|(plug, machine)| scope.spawn(move || pass_one(plug, machine)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    })
}
