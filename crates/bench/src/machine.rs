//! A Debian machine in QEMU's software emulation: its disk, which is built once, and boots of it followed by a small
//! job, with its disk served in various ways.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use mirror::RawDisk;
use mirror::nbd::{Export, ExportTable, Server};

use crate::Result;
use crate::context::{Context, said};
use crate::site::DISK;
use crate::trace::{Recorder, Trace};
use crate::way::Place;

/// Size of its disk in MiB.
const DISK_MEBIBYTES: &str = "4096";
const PACKAGES: &str = "openssh-server nginx rsyslog python3 gcc g++ libc6-dev git vim";
/// The root filesystem, as `tools/debian-disk.sh` names it.
const ROOT: &str = "UUID=6d3a7a6e-0e0c-4c7e-9f61-64697363617a";
/// Compiles a C file, imports Python modules, writes 64 MiB.
const JOB: &str = "printf '#include <stdio.h>\\nint main(void){puts(\"hello\");}' >a.c && gcc -O2 -o a a.c && ./a && \
    python3 -c 'import json, ssl, email, http.server, unittest, asyncio, sqlite3' && \
    dd if=/dev/urandom of=blob bs=1M count=64 status=none && sync; echo done-$((1+1))";
const JOB_DONE: &str = "done-2";
/// Incompressible bytes that the job writes.
pub(crate) const BLOB_BYTES: u64 = 64 << 20;
/// Time limit for a boot, and for the job.
const PATIENCE: Duration = Duration::from_secs(240);
/// Maximum bytes of console output that are kept.
const CONSOLE_BYTES_MAX: usize = 1 << 16;

/// The machine's disk and what starts it.
pub(crate) struct Machine {
    /// A raw file.
    pub disk: PathBuf,
    kernel: PathBuf,
    initrd: PathBuf,
    /// Describes what the disk was built from.
    made_from: String,
}

impl Machine {
    /// The machine; builds its disk if it is missing.
    pub(crate) fn new(context: &Context) -> Result<Self> {
        let disk = context.scratch.join("machine.img");
        said(
            Command::new(context.root.join("tools/debian-disk.sh"))
                .args(["--size", DISK_MEBIBYTES, "--packages", PACKAGES])
                .arg(&disk),
        )?;
        let made_from = std::fs::read_to_string(disk.with_extension("img.made-from"))?;
        let (kernel, initrd) = (context.folder()?.join("vmlinuz"), context.folder()?.join("initrd.img"));
        for (name, into) in [("::/vmlinuz", &kernel), ("::/initrd.img", &initrd)] {
            let partition = format!("{}@@1M", disk.display());
            said(Command::new("mcopy").args(["-n", "-i", &partition, name]).arg(into))?;
        }
        Ok(Self { disk, kernel, initrd, made_from })
    }

    /// The disk requests of a boot and the job; recorded on this machine if that was not done yet.
    pub(crate) fn trace(&self, context: &Context) -> Result<Trace> {
        let path = context.scratch.join("machine.trace");
        let of = format!("{} {JOB}", self.made_from.trim()).replace('\n', " ");
        if let Some(trace) = Trace::load(&path, &of)? {
            return Ok(trace);
        }
        let (copy, socket) = (self.copy(context)?, context.folder()?.join("socket"));
        let recorder = Arc::new(Recorder::new(Arc::new(RawDisk::open(&copy, None)?)));
        let table = Arc::new(ExportTable::default());
        table.insert(DISK, Export { disk: recorder.clone(), description: String::new() })?;
        let server = Server::new(table, 4, Arc::new(|_| {}));
        server.listen_unix(UnixListener::bind(&socket)?)?;
        let mut running = self.start(&Place::Socket(socket))?;
        running.log_in()?;
        running.work()?;
        drop(running);
        let trace = recorder.trace();
        std::fs::remove_file(copy)?;
        trace.save(&path, &of)?;
        Ok(trace)
    }

    /// A writable copy of its disk.
    pub(crate) fn copy(&self, context: &Context) -> Result<PathBuf> {
        let copy = context.folder()?.join("machine.img");
        said(Command::new("cp").args(["--sparse=always", "--reflink=auto"]).args([&self.disk, &copy]))?;
        Ok(copy)
    }

    /// Starts it with the disk at `place`, which it may write.
    pub(crate) fn start(&self, place: &Place) -> Result<Running> {
        let began = Instant::now();
        let mut command = Command::new("qemu-system-x86_64");
        // Software emulation of one processor, so that runs are comparable.
        command.args(["-machine", "q35", "-accel", "tcg", "-cpu", "max", "-m", "1G", "-smp", "1"]);
        command.args(["-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot", "-nic", "none"]);
        command.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(&self.initrd);
        command.args(["-append", &format!("root={ROOT} rw console=ttyS0 quiet")]);
        let node = match place {
            Place::File(path) => format!("driver=raw,file.driver=file,file.filename={}", path.display()),
            Place::Socket(path) => {
                format!("driver=nbd,server.type=unix,server.path={},export={DISK}", path.display())
            }
        };
        let node = format!("{node},node-name=disk,discard=unmap");
        command.args(["-blockdev", &node, "-device", "virtio-blk-pci,drive=disk"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| format!("start qemu-system-x86_64: {error}"))?;
        let (mut output, input) = (child.stdout.take().expect("piped"), child.stdin.take().expect("piped"));
        let (sender, said) = sync_channel(64);
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut piece) {
                if sender.send(piece[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Ok(Running { console: Console { child, input, said, text: Vec::new() }, began })
    }
}

/// A running machine, switched off when this is dropped. Times are in seconds since its start.
pub(crate) struct Running {
    console: Console,
    began: Instant,
}

impl Running {
    /// Waits for the login prompt and logs in; returns the time of the prompt.
    pub(crate) fn log_in(&mut self) -> Result<f64> {
        self.console.until("login:")?;
        let seconds = self.began.elapsed().as_secs_f64();
        self.console.say("root\n")?;
        self.console.until("~# ")?;
        Ok(seconds)
    }

    /// Runs the job; returns the time when it was done and everything was on the disk.
    pub(crate) fn work(&mut self) -> Result<f64> {
        self.console.say(&format!("{JOB}\n"))?;
        self.console.until(JOB_DONE)?;
        Ok(self.began.elapsed().as_secs_f64())
    }

    /// The checksum of the job's output, as the machine reads it.
    pub(crate) fn sum(&mut self) -> Result<String> {
        self.console.say("cksum <blob; echo done-$((1+1))\n")?;
        self.console.until(JOB_DONE)?;
        let said = String::from_utf8_lossy(&self.console.text);
        let sum = said.lines().map(str::trim).find(|line| line.ends_with(&format!(" {BLOB_BYTES}")));
        Ok(sum.ok_or_else(|| format!("the machine has no blob: {said}"))?.to_owned())
    }
}

/// The emulator and its serial console.
struct Console {
    child: Child,
    input: ChildStdin,
    said: Receiver<Vec<u8>>,
    text: Vec<u8>,
}

impl Console {
    fn say(&mut self, words: &str) -> Result<()> {
        self.text.clear();
        Ok(self.input.write_all(words.as_bytes())?)
    }

    /// Reads the console until `words` appear.
    fn until(&mut self, words: &str) -> Result<()> {
        let begin = Instant::now();
        while !self.text.windows(words.len()).any(|window| window == words.as_bytes()) {
            let left = PATIENCE.saturating_sub(begin.elapsed());
            let Ok(piece) = self.said.recv_timeout(left) else {
                let tail = String::from_utf8_lossy(&self.text[self.text.len().saturating_sub(1000)..]);
                return Err(format!("the machine did not say `{words}`; at last it said:\n{tail}").into());
            };
            self.text.extend(piece);
            self.text.drain(..self.text.len().saturating_sub(CONSOLE_BYTES_MAX));
        }
        Ok(())
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
