//! Bare machines: one network of QEMU machines whose firmware boots from the network, in a namespace of its own.
//! Firmware is real: SeaBIOS with the iPXE of QEMU's network cards, and UEFI of Debian's package `ovmf`.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};

use crate::boot::Kernel;
use crate::tool;

/// The server's address in each room, and the bits of its network.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const PREFIX_BITS: u8 = 24;
/// The network of all.
pub const BRIDGE: &str = "br0";
/// Memory of a machine, unless it is said.
const MEMORY_BYTES: u64 = 1 << 30;
/// The socket for keys.
const KEYS: &str = "keys";
/// How often a console is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// A machine that keeps talking is given up after so many times its time limit.
const LONGEST: u32 = 4;
/// Bytes of console output that an error shows.
const TAIL_BYTES: usize = 3000;

/// A network, in a namespace that ends with it.
pub struct Room {
    name: String,
}

impl Room {
    /// A network with the server's address [`SERVER`] on its bridge, and plugs for so many machines. Takes root.
    ///
    /// # Errors
    /// `Io` with the words of `ip`.
    pub fn build(machines: u32) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let room = Self { name: format!("dcbare-{}-{count}", std::process::id()) };
        ip(&format!("netns add {}", room.name))?;
        room.ip(&format!("link add {BRIDGE} type bridge"))?;
        room.ip(&format!("addr add {SERVER}/{PREFIX_BITS} dev {BRIDGE}"))?;
        room.ip("link set lo up")?;
        room.ip(&format!("link set {BRIDGE} up"))?;
        for machine in 0..machines {
            room.ip(&format!("tuntap add dev tap{machine} mode tap"))?;
            room.ip(&format!("link set tap{machine} master {BRIDGE} up"))?;
        }
        Ok(room)
    }

    /// Loses so many of a thousand packets between the server and its machines, at random, in both directions. Takes
    /// nftables for bridges.
    ///
    /// # Errors
    /// `Io` with the words of `nft`.
    pub fn lose(&self, of_thousand: u32) -> Result<()> {
        let chain = |hook| {
            let rule = format!("numgen random mod 1000 < {of_thousand} drop");
            format!("chain {hook} {{ type filter hook {hook} priority 0; {rule}; }};")
        };
        let rules = format!("add table bridge loss {{ {} {} }}", chain("input"), chain("output"));
        let name = &self.name;
        tool::run("ip", &["netns", "exec", name, "nft", &rules]).map(drop)
    }

    /// Runs `ip` in the namespace.
    ///
    /// # Errors
    /// `Io` with its words.
    pub fn ip(&self, words: &str) -> Result<()> {
        ip(&format!("-n {} {words}", self.name))
    }

    /// `command`, but in the namespace, and without the environment that it does not set itself.
    #[must_use]
    pub fn inside(&self, command: &Command) -> Command {
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", &self.name]).arg(command.get_program()).args(command.get_args());
        inside.env_clear().env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
        for (name, value) in command.get_envs() {
            inside.env(name, value.unwrap_or_default());
        }
        if let Some(folder) = command.get_current_dir() {
            inside.current_dir(folder);
        }
        inside.stdin(Stdio::null());
        inside
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// Another host in a room, in a namespace of its own; its interface is `eth0`.
pub struct Neighbour(Room);

impl Neighbour {
    /// A host with the address 10.9.0.`last`.
    ///
    /// # Errors
    /// As [`Room::build`].
    pub fn join(room: &Room, last: u8) -> Result<Self> {
        let own = Room { name: format!("{}-{last}", room.name) };
        ip(&format!("netns add {}", own.name))?;
        room.ip(&format!("link add n{last} type veth peer name eth0 netns {}", own.name))?;
        room.ip(&format!("link set n{last} master {BRIDGE} up"))?;
        let [a, b, c, _] = SERVER.octets();
        own.ip(&format!("addr add {a}.{b}.{c}.{last}/{PREFIX_BITS} dev eth0"))?;
        own.ip("link set lo up")?;
        own.ip("link set eth0 up")?;
        Ok(Self(own))
    }

    /// `command`, but there, as [`Room::inside`].
    #[must_use]
    pub fn inside(&self, command: &Command) -> Command {
        self.0.inside(command)
    }
}

fn ip(words: &str) -> Result<()> {
    tool::run("ip", &words.split(' ').collect::<Vec<_>>()).map(drop)
}

/// What starts a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Firmware {
    /// SeaBIOS, which boots from the network by iPXE.
    Bios,
    /// UEFI, by PXE.
    Uefi,
    /// UEFI, by HTTP, with Microsoft's keys and Secure Boot on.
    SecureHttp,
    /// The same, by PXE.
    SecurePxe,
}

impl Firmware {
    fn is_secure(self) -> bool {
        matches!(self, Self::SecureHttp | Self::SecurePxe)
    }
}

/// Where the owner's certificate is known.
#[derive(Debug, Clone)]
pub enum OwnCertificate {
    /// To shim (a MOK), beside Microsoft's, by which firmware accepts shim.
    Beside(PathBuf),
    /// To firmware, which knows no other.
    Alone(PathBuf),
}

/// A machine.
#[derive(Debug, Clone)]
pub struct BareOptions {
    /// What starts it.
    pub firmware: Firmware,
    /// The kernel that it starts at once, without firmware that boots from the network. When that restarts the machine,
    /// it starts from its disks, as if the server had told it to.
    pub kernel: Option<Kernel>,
    /// Its plug in the room, from 0; `None` for a machine without a network, which starts from its disk.
    pub plug: Option<u32>,
    /// A USB stick, as a raw file, from which it starts before anything else.
    pub stick: Option<PathBuf>,
    /// Its disks, as raw files. The serial number of each is `S1`, `S2`, and so on.
    pub disks: Vec<PathBuf>,
    /// Certificate of the machine's owner (PEM). Counts when the machine starts for the first time.
    pub own_certificate: Option<OwnCertificate>,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Folder for its console and the settings of its firmware, which stay.
    pub folder: PathBuf,
}

impl BareOptions {
    /// A machine with 1 GiB of memory, and with new empty disks of so many bytes in `folder`.
    ///
    /// # Errors
    /// `Io` if these can't be made.
    pub fn empty(firmware: Firmware, plug: u32, folder: PathBuf, disks: &[u64]) -> Result<Self> {
        let make = |(index, bytes): (usize, &u64)| {
            let path = folder.join(format!("disk-{index}"));
            File::create(&path).and_then(|file| file.set_len(*bytes)).map(|()| path)
        };
        let made = fs::create_dir_all(&folder).and_then(|()| disks.iter().enumerate().map(make).collect());
        let disks = made.map_err(|error| Error::from_io("make the disks of a machine", error))?;
        Ok(Self {
            firmware,
            kernel: None,
            plug: Some(plug),
            stick: None,
            disks,
            own_certificate: None,
            memory_bytes: MEMORY_BYTES,
            folder,
        })
    }
}

/// Address of the network card of the machine at a plug.
#[must_use]
pub fn card(plug: u32) -> String {
    format!("52:54:00:00:00:{plug:02x}")
}

/// A running machine. Dropping it is like pulling its plug.
pub struct Bare {
    process: Child,
    console: PathBuf,
    /// Folder of the socket by which keys are pressed; its path is short.
    keys: tempfile::TempDir,
    /// It stays open: a machine takes keys one by one, and what waits is lost with it.
    typing: Option<UnixStream>,
    /// What starts it again from its disks, once the kernel that it was given has restarted it.
    from_disks: Option<Command>,
}

impl Bare {
    /// Switches the machine on. Its settings are those of its folder, if it ran before.
    ///
    /// # Errors
    /// `Unsupported` if the emulator or the firmware is not installed; `Io`.
    pub fn start(room: &Room, options: &BareOptions) -> Result<Self> {
        let failed = |error| Error::from_io("prepare a machine", error);
        fs::create_dir_all(&options.folder).map_err(failed)?;
        let console = options.folder.join("console");
        File::create(&console).map_err(failed)?;
        let keys = tempfile::tempdir().map_err(failed)?;
        let command = emulator(options, &console, keys.path())?;
        let process = run(&mut room.inside(&command))?;
        let from_disks = options.kernel.is_some().then(|| {
            let options = BareOptions { kernel: None, plug: None, ..options.clone() };
            emulator(&options, &console, keys.path()).map(|command| room.inside(&command))
        });
        Ok(Self { process, console, keys, typing: None, from_disks: from_disks.transpose()? })
    }

    /// Types a line at its console.
    ///
    /// # Errors
    /// `Io`.
    pub fn type_line(&mut self, line: &str) -> Result<()> {
        let failed = |error| Error::from_io("type at the console of a machine", error);
        let socket = match &mut self.typing {
            Some(socket) => socket,
            none => none.insert(UnixStream::connect(self.keys.path().join(KEYS)).map_err(failed)?),
        };
        socket.write_all(format!("{line}\n").as_bytes()).map_err(failed)
    }

    /// What its console showed.
    #[must_use]
    pub fn console(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.console).unwrap_or_default()).into_owned()
    }

    /// Waits until its console has `text`, for `patience` from the last that it shows, and [`LONGEST`] times as long in
    /// all.
    ///
    /// # Errors
    /// `Unreachable` if it does not come in that time, or `never` comes; `Io` if the emulator has ended. Both with
    /// the end of the console output.
    pub fn wait_for(&mut self, text: &str, never: Option<&str>, patience: Duration) -> Result<()> {
        let begin = now();
        let (mut last, mut shown) = (begin, 0);
        loop {
            let ended = self.process.try_wait().is_ok_and(|status| status.is_some());
            let seen = self.console();
            if seen.contains(text) {
                return Ok(());
            }
            let tail = &seen[seen.ceil_char_boundary(seen.len().saturating_sub(TAIL_BYTES))..];
            let failed = |kind, why: &str| Err(Error::new(kind, format!("no `{text}` {why}:\n{tail}")));
            if ended && let Some(mut again) = self.from_disks.take() {
                self.typing = None;
                self.process = run(&mut again)?;
                continue;
            }
            if ended {
                return failed(ErrorKind::Io, "before the emulator ended");
            }
            if never.is_some_and(|never| seen.contains(never)) {
                return failed(ErrorKind::Unreachable, "but what may not come");
            }
            if seen.len() != shown {
                (last, shown) = (now(), seen.len());
            }
            if last.elapsed() > patience || begin.elapsed() > patience * LONGEST {
                return failed(ErrorKind::Unreachable, "in time");
            }
            pause();
        }
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The emulator of a machine.
fn emulator(options: &BareOptions, console: &Path, keys: &Path) -> Result<Command> {
    let mut command = Command::new("qemu-system-x86_64");
    // QEMU 7.2 emulates VAES wrongly: what is multicast, which is encrypted, would come damaged.
    command.args(["-accel", "tcg,thread=multi", "-cpu", "max,vaes=off", "-smp", "1"]);
    command.arg("-m").arg(format!("{}M", options.memory_bytes >> 20));
    let socket = keys.join(KEYS);
    command.args(["-nodefaults", "-display", "none", "-serial", "chardev:keys", "-chardev"]);
    let (socket, log) = (socket.display(), console.display());
    command.arg(format!("socket,id=keys,path={socket},server=on,wait=off,logfile={log},logappend=on"));
    add_firmware(&mut command, options)?;
    if let Some(kernel) = &options.kernel {
        kernel.add_to(&mut command);
        command.arg("-no-reboot");
    }
    if let Some(plug) = options.plug {
        command.arg("-netdev").arg(format!("tap,id=n0,ifname=tap{plug},script=no,downscript=no"));
        // The card's own iPXE does not start shim; UEFI has a driver for it.
        let rom = if options.firmware == Firmware::Bios { "" } else { "romfile=," };
        let card = format!("virtio-net-pci,netdev=n0,{rom}mac={},bootindex=1", card(plug));
        command.arg("-device").arg(card);
    }
    if let Some(stick) = &options.stick {
        command.args(["-device", "qemu-xhci", "-drive"]);
        command.arg(format!("if=none,id=stick,format=raw,file={}", stick.display()));
        command.args(["-device", "usb-storage,drive=stick,bootindex=0"]);
    }
    for (index, disk) in options.disks.iter().enumerate() {
        // Without that, a machine stands still for good when this one's disk is full.
        let errors = "werror=report,rerror=report";
        command.arg("-drive").arg(format!("if=none,id=d{index},format=raw,{errors},file={}", disk.display()));
        let (serial, order) = (index + 1, index + 2);
        command
            .arg("-device")
            .arg(format!("virtio-blk-pci,drive=d{index},serial=S{serial},bootindex={order}"));
    }
    Ok(command)
}

fn run(command: &mut Command) -> Result<Child> {
    let started = command.stdout(Stdio::null()).spawn();
    started.map_err(|error| Error::from_io("start `qemu-system-x86_64`", error))
}

/// Adds what starts the machine. UEFI keeps its settings in the machine's folder.
fn add_firmware(command: &mut Command, options: &BareOptions) -> Result<()> {
    let (code, settings, machine) = match options.firmware {
        Firmware::Bios => {
            command.args(["-machine", "q35"]);
            return Ok(());
        }
        Firmware::Uefi => ("OVMF_CODE_4M.fd", "OVMF_VARS_4M.fd", "q35"),
        Firmware::SecureHttp | Firmware::SecurePxe => {
            ("OVMF_CODE_4M.ms.fd", "OVMF_VARS_4M.ms.fd", "q35,smm=on")
        }
    };
    let folder = Path::new("/usr/share/OVMF");
    let own = options.folder.join("settings.fd");
    if !own.exists() {
        // These know no keys at all.
        let is_alone = matches!(options.own_certificate, Some(OwnCertificate::Alone(_)));
        let settings = if is_alone { "OVMF_VARS_4M.fd" } else { settings };
        fs::copy(folder.join(settings), &own).map_err(|error| {
            Error::from_source(ErrorKind::Unsupported, format!("copy `{settings}` (package ovmf)"), error)
        })?;
        if let Some(certificate) = &options.own_certificate {
            enroll(&own, certificate)?;
        }
    }
    command.args(["-machine", machine]);
    if options.firmware.is_secure() {
        command.args(["-global", "driver=cfi.pflash01,property=secure,value=on"]);
        command.args(["-global", "ICH9-LPC.disable_s3=1"]);
    }
    if options.firmware == Firmware::SecureHttp {
        command.args(["-fw_cfg", "name=opt/org.tianocore/IPv4PXESupport,string=n"]);
    }
    command.args(["-fw_cfg", "name=opt/org.tianocore/IPv6PXESupport,string=n"]);
    command.arg("-drive");
    command.arg(format!("if=pflash,format=raw,readonly=on,file={}", folder.join(code).display()));
    command.arg("-drive").arg(format!("if=pflash,format=raw,file={}", own.display()));
    Ok(())
}

/// Enrolls a certificate in the settings of UEFI, as a machine's owner does at its keyboard.
fn enroll(settings: &Path, certificate: &OwnCertificate) -> Result<()> {
    let program = tool::built("virt-firmware-26.10/bin/virt-fw-vars");
    if !program.exists() {
        let text = format!("there is no `{}`: tools/virt-firmware.sh installs it", program.display());
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    let (program, settings) = (program.to_string_lossy(), settings.to_string_lossy());
    let (certificate, lists): (_, &[&str]) = match certificate {
        OwnCertificate::Beside(certificate) => (certificate, &["--add-mok"]),
        OwnCertificate::Alone(certificate) => (certificate, &["--set-pk", "--add-kek", "--add-db"]),
    };
    let certificate = certificate.to_string_lossy();
    // Whose key it is; any number does.
    let owner = "d15cca57-0000-4000-8000-000000000001";
    let mut words = vec!["--inplace", &*settings, "--secure-boot"];
    lists.iter().for_each(|list| words.extend([*list, owner, &*certificate]));
    tool::run(&program, &words).map(drop)
}

#[expect(clippy::disallowed_methods, reason = "a machine takes real time")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "a machine takes real time")]
fn pause() {
    std::thread::sleep(LOOK);
}
