//! Boots a disk in QEMU with its own boot loader until the login prompt. The disk is a file or an NBD export; the UEFI
//! firmware is from Debian's package `ovmf`.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};

/// The firmware and its empty settings, where Debian's package `ovmf` installs them.
const FIRMWARE: &str = "/usr/share/OVMF/OVMF_CODE_4M.fd";
const FIRMWARE_SETTINGS: &str = "/usr/share/OVMF/OVMF_VARS_4M.fd";
/// Most bytes of console output that are kept; older output is dropped.
const CONSOLE_BYTES_MAX: usize = 1 << 20;
/// How long a machine waits for an NBD server to come back before its requests fail.
const RECONNECT_SECONDS: u32 = 300;
/// A machine that keeps talking, but never gets to its prompt, is given up after so many times its time limit. How fast
/// a machine is in emulation depends on what else this one does.
const LONGEST: u32 = 10;
/// Bytes of console output that an error shows.
const TAIL_BYTES: usize = 2000;

/// The disk that a machine boots from.
#[derive(Debug, Clone, Copy)]
pub enum Medium<'a> {
    /// A raw image file or block device. QEMU discards what the machine writes.
    File(&'a Path),
    /// An NBD export. The machine's writes go to it.
    Nbd {
        /// Unix socket of the server. The server may be gone for up to 5 minutes (`RECONNECT_SECONDS`).
        socket: &'a Path,
        /// Name of the export.
        export: &'a str,
    },
}

/// A kernel, its system in memory, and its words.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// File of the kernel.
    pub kernel: PathBuf,
    /// File of the system in memory.
    pub system: PathBuf,
    /// The kernel's command line.
    pub words: String,
}

impl Kernel {
    /// Has the emulator start it.
    pub(crate) fn add_to(&self, emulator: &mut Command) {
        emulator
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(&self.system)
            .args(["-append", &self.words]);
    }
}

/// How to boot.
#[derive(Debug, Clone)]
pub struct BootOptions {
    /// Text on the serial console that shows that the machine has started.
    pub prompt: String,
    /// How long the console may be silent before the prompt; it may take [`LONGEST`] times as long in all.
    pub timeout: Duration,
    /// Memory of the machine, in bytes.
    pub memory_bytes: u64,
    /// Number of processors of the machine. To emulate two takes half as much time again of this machine's.
    pub processors: u32,
    /// The kernel that the machine starts at once, without firmware and boot loader.
    pub kernel: Option<Kernel>,
    /// More disks: `/dev/vdb` and so on. What the machine writes to them stays.
    pub more_disks: Vec<Disk>,
}

/// A disk in a file.
#[derive(Debug, Clone)]
pub struct Disk {
    /// The file.
    pub path: PathBuf,
    /// Its format, as QEMU calls it.
    pub format: &'static str,
    /// Whether QEMU reads and writes it past this machine's page cache.
    pub direct: bool,
}

impl Default for BootOptions {
    fn default() -> Self {
        Self {
            prompt: "login:".to_owned(),
            timeout: Duration::from_secs(180),
            memory_bytes: 1 << 30,
            processors: 1,
            kernel: None,
            more_disks: Vec::new(),
        }
    }
}

/// A boot that reached its prompt.
#[derive(Debug, Clone)]
pub struct Boot {
    /// Time from the start of the emulator to the prompt, including firmware and boot loader.
    pub until_prompt: Duration,
    /// Output of the serial console until then, about the last 1 MiB of it.
    pub console: String,
}

/// Boots from `medium` until the prompt, then switches the machine off.
///
/// # Errors
/// `Unsupported` if the emulator or the firmware is not installed; `Unreachable` if no prompt appears in time; `Io` if
/// the emulator ends before the prompt. The last two include the end of the console output.
pub fn until_login(medium: Medium<'_>, options: &BootOptions) -> Result<Boot> {
    let firmware = Path::new(FIRMWARE);
    if !firmware.exists() {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("firmware `{FIRMWARE}` (package ovmf) is missing"),
        ));
    }
    let started = now();
    let mut machine = Machine::start(medium, options)?;
    let console = machine.console();
    let text = wait_for(&console, options, started);
    machine.stop();
    let until_prompt = now() - started;
    text.map(|console| Boot { until_prompt, console }).map_err(|error| add_name(error, medium))
}

#[expect(clippy::disallowed_methods, reason = "a boot takes real time")]
fn now() -> Instant {
    Instant::now()
}

/// A running emulator. Dropping it kills the process.
struct Machine(Child);

impl Machine {
    fn start(medium: Medium<'_>, options: &BootOptions) -> Result<Self> {
        let mut command = Command::new("qemu-system-x86_64");
        // Emulation in software (TCG) works everywhere. Inside a virtual machine, KVM may seem to work and then stop at
        // the firmware's first unusual instruction.
        command.args(["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max"]);
        command.arg("-m").arg(format!("{}M", options.memory_bytes >> 20));
        command.arg("-smp").arg(options.processors.to_string());
        command.args(["-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot", "-nic", "none"]);
        if let Some(kernel) = &options.kernel {
            kernel.add_to(&mut command);
        } else {
            command.arg("-drive").arg(drive("if=pflash,format=raw,readonly=on", Path::new(FIRMWARE)));
            command
                .arg("-drive")
                .arg(drive("if=pflash,format=raw,snapshot=on", Path::new(FIRMWARE_SETTINGS)));
        }
        match medium {
            Medium::File(disk) => command.arg("-drive").arg(drive("if=virtio,format=raw,snapshot=on", disk)),
            Medium::Nbd { socket, export } => command
                .arg("-blockdev")
                .arg(nbd_device(socket, export))
                .args(["-device", "virtio-blk-pci,drive=disk0"]),
        };
        for disk in &options.more_disks {
            let cache = if disk.direct { "none" } else { "writeback" };
            let options = format!("if=virtio,format={},cache={cache},werror=report", disk.format);
            command.arg("-drive").arg(drive(&options, &disk.path));
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let started = command.spawn();
        started
            .map(Self)
            .map_err(|e| Error::from_source(ErrorKind::Unsupported, "start `qemu-system-x86_64`", e))
    }

    /// The output of the machine's serial console, piece by piece, until the machine ends.
    fn console(&mut self) -> Receiver<Vec<u8>> {
        let stdout = self.0.stdout.take().expect("stdout is piped");
        let (sender, receiver) = sync_channel(16);
        std::thread::spawn(move || pump(stdout, &sender));
        receiver
    }

    fn stop(&mut self) {
        // An error means that the machine has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stop();
    }
}

/// `options,file=PATH`. QEMU needs commas in the path doubled (`man 1 qemu-system`).
fn drive(options: &str, path: &Path) -> String {
    format!("{options},file={}", absolute(path))
}

/// The argument of QEMU's `-blockdev` for an NBD disk named `disk0`. If the connection breaks, QEMU connects again and
/// repeats its open requests.
#[must_use]
pub fn nbd_device(socket: &Path, export: &str) -> String {
    let (socket, export) = (absolute(socket), export.replace(',', ",,"));
    format!(
        "driver=nbd,node-name=disk0,server.type=unix,server.path={socket},export={export},\
         reconnect-delay={RECONNECT_SECONDS},discard=unmap"
    )
}

fn absolute(path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path));
    path.to_string_lossy().replace(',', ",,")
}

/// Sends the output of the console to `sender`, until the emulator ends or nothing receives it any more.
fn pump(mut stdout: ChildStdout, sender: &SyncSender<Vec<u8>>) {
    let mut piece = [0; 4096];
    while let Ok(count @ 1..) = stdout.read(&mut piece) {
        if sender.send(piece[..count].to_vec()).is_err() {
            return;
        }
    }
}

fn wait_for(console: &Receiver<Vec<u8>>, options: &BootOptions, started: Instant) -> Result<String> {
    let (mut text, prompt) = (Vec::new(), options.prompt.as_bytes());
    loop {
        let left = (options.timeout * LONGEST).saturating_sub(now() - started);
        match console.recv_timeout(left.min(options.timeout)) {
            Ok(piece) => text.extend_from_slice(&piece),
            Err(RecvTimeoutError::Timeout) => {
                return Err(no_prompt(ErrorKind::Unreachable, "in time", &text));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(no_prompt(ErrorKind::Io, "before the emulator ended", &text));
            }
        }
        if text.windows(prompt.len()).any(|window| window == prompt) {
            return Ok(String::from_utf8_lossy(&text).into_owned());
        }
        text.drain(..text.len().saturating_sub(CONSOLE_BYTES_MAX));
    }
}

fn no_prompt(kind: ErrorKind, when: &str, text: &[u8]) -> Error {
    let tail = String::from_utf8_lossy(&text[text.len().saturating_sub(TAIL_BYTES)..]).into_owned();
    Error::new(kind, format!("no login prompt {when}; the console ended with:\n{tail}"))
}

fn add_name(error: Error, medium: Medium<'_>) -> Error {
    let (Medium::File(path) | Medium::Nbd { socket: path, .. }) = medium;
    Error::from_source(error.kind(), format!("boot `{}`", path.display()), error)
}
