//! `make demo-netboot`: two bare machines with empty disks boot from the network, one by BIOS and one by UEFI, and
//! nobody touches them. They get a Debian disk by one `deploy`, start from it, and ask for a login under their own
//! names.
//!
//! The machines are emulated in a lab, and their firmware is real. Takes root.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use lab::bare::{BRIDGE, Bare, BareOptions, Firmware, Room, SERVER, card};

const MACHINES: [(Firmware, &str, &str); 2] =
    [(Firmware::Bios, "lab-1", "BIOS"), (Firmware::Uefi, "lab-2", "UEFI")];
const PORT: u16 = 7717;
const ADDRESSES: &str = "10.9.0.100-10.9.0.120/24";
const DISK_BYTES: u64 = 3 << 30;
/// What each step may take: emulated machines are slow.
const PATIENCE: Duration = Duration::from_secs(600);

/// Boots two bare machines from the network, which install a disk and start from it.
#[derive(Parser)]
struct Arguments {
    /// Folder for the disks, the repository and the boot files, which need about 4 GiB.
    #[arg(long, default_value = "target")]
    folder: PathBuf,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "this is the program's own voice")]
fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(table) => {
            println!("\n{table}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("the demo failed: {}", base::chain(&*error));
            ExitCode::FAILURE
        }
    }
}

/// The server, which ends with the demo.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(arguments: &Arguments) -> Result<String, Failure> {
    lab::available()?;
    // Commands run in a folder of their own.
    let parent = std::path::absolute(&arguments.folder)?;
    let source = parent.join("debian/grub.img");
    step("making a Debian disk that starts on BIOS and UEFI (a minute; it is kept for the next time)");
    said(Command::new("tools/debian-disk.sh").arg("--grub").arg(&source))?;
    let folder = tempfile::Builder::new().prefix("demo-netboot-").tempdir_in(&parent)?;
    let room = Room::build(2)?;
    let here =
        |words: &[&str]| -> Result<Command, Failure> { Ok(room.inside(&diskcast(folder.path(), words)?)) };
    let at_server = |words: &[&str]| -> Result<String, Failure> {
        let server = format!("{SERVER}:{PORT}");
        said(&mut here(&[words, &["--wait", "30s", "--server", &server]].concat())?)
    };

    step(&format!("capturing {}", source.display()));
    said(&mut diskcast(folder.path(), &["capture", &source.to_string_lossy(), "debian"])?)?;
    step("diskcast boot-image: Debian's kernel, a system in memory, and boot loaders");
    said(&mut diskcast(folder.path(), &["boot-image", "boot"])?)?;
    step("diskcast netboot, hosts add, deploy");
    let listen = format!("{SERVER}:{PORT}");
    let mut serve = here(&["netboot", BRIDGE, "--listen", &listen, "--interface", BRIDGE])?;
    serve.args(["--boot-image", "boot", "--dhcp", ADDRESSES, "--kernel-parameters", "console=ttyS0"]);
    let log = std::fs::File::create(folder.path().join("log"))?;
    let _server = Server(serve.stdout(Stdio::null()).stderr(log).spawn()?);
    while !folder.path().join("state/secret").exists() {
        std::thread::park_timeout(Duration::from_millis(50));
    }
    for (plug, (_, name, _)) in (0..).zip(MACHINES) {
        at_server(&["hosts", "add", &card(plug), "--name", name, "--group", "lab"])?;
    }
    at_server(&["deploy", "debian", "lab", "--yes"])?;

    step("switching two machines with empty disks on (emulated, so this takes some minutes)");
    let begin = now();
    let mut machines = switch_on(&room, folder.path())?;
    let mut table = format!(
        "{:<8} {:<9} {:>12} {:>12}   how it arrived\n",
        "machine", "firmware", "on the disk", "prompt"
    );
    for (machine, (_, name, firmware)) in machines.iter_mut().zip(MACHINES) {
        let failed = Some("the job failed");
        machine.wait_for("starting from the disk", failed, PATIENCE)?;
        let on_disk = begin.elapsed();
        machine.wait_for(&format!("{name} login:"), failed, PATIENCE)?;
        let prompt = begin.elapsed();
        let console = machine.console();
        let how = console.lines().find(|line| line.starts_with("fetched ")).unwrap_or_default().trim();
        let how = how.split_once(": ").map_or(how, |(_, how)| how);
        table += &format!(
            "{name:<8} {firmware:<9} {:>10.0} s {:>10.0} s   {how}\n",
            on_disk.as_secs_f64(),
            prompt.as_secs_f64()
        );
    }
    Ok(table + "\nBoth started from their own disks, and ask for a login under their own names.")
}

/// Machines with empty disks below `folder`.
fn switch_on(room: &Room, folder: &Path) -> Result<Vec<Bare>, Failure> {
    let machines = (0..).zip(MACHINES).map(|(plug, (firmware, name, _))| {
        let options = BareOptions::empty(firmware, plug, folder.join(name), &[DISK_BYTES])?;
        Ok(Bare::start(room, &options)?)
    });
    machines.collect()
}

/// The program that was built beside this one, with everything that it keeps in `folder`.
fn diskcast(folder: &Path, words: &[&str]) -> Result<Command, Failure> {
    let mut command = Command::new(std::env::current_exe()?.with_file_name("diskcast"));
    command.current_dir(folder).env("DISKCAST_REPO", "repo").env("DISKCAST_STATE", "state");
    command.env("DISKCAST_CONFIG", "/dev/null").env("XDG_CACHE_HOME", "cache").args(words);
    Ok(command)
}

/// What a command said; an error with its words if it failed.
fn said(command: &mut Command) -> Result<String, Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("start `{name}`: {error}"))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(format!("`{name}`: {}: {words}", output.status).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[expect(clippy::print_stderr, reason = "this is the program's own voice")]
fn step(what: &str) {
    eprintln!("==> {what}");
}

#[expect(clippy::disallowed_methods, reason = "machines take real time")]
fn now() -> Instant {
    Instant::now()
}
