//! A fetch that returns when its disk is done, while its machine goes on serving others.
//!
//! This program starts itself, with the same arguments, terminal and files. The child does everything. The one that
//! was started waits until the child says that the disk is done, or ends, and ends with the same code: whoever waits
//! for it waits for the disk, and not for those that are served. They talk over a socket without a file:
//!
//! ```text
//! → a byte      a signal came: the child counts it as its own, which it may have got, too
//! → the end     the starter is gone: nobody waits for the disk any more, so the child ends
//! ← a byte      the disk is done, and the child has let go of everything that was its caller's
//! ```

use std::io::{Read as _, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{env, fs, io};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open, setsid};

use crate::commands::Context;
use crate::exit::{Exit, Failure, Result};
use crate::interrupt;

/// The starter's process and the name of its socket.
const VARIABLE: &str = "DISKCAST_FETCH_STARTER";
/// How long others are served: as long as the fetch took, in these bounds.
const LEAST: Duration = Duration::from_secs(30);
const MOST: Duration = Duration::from_secs(600);

/// For how long a machine serves others that had its disk after `took`.
pub(super) fn serving_time(took: Duration) -> Duration {
    Duration::from_secs(took.as_secs() + 1).clamp(LEAST, MOST)
}

/// Runs this command in a child, and returns when its disk is done. `None` if no child can be started: then this
/// process does everything itself.
pub(super) fn run() -> Option<Result<()>> {
    // Older kernels have none: nobody could say that the child has ended.
    pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).ok()?;
    let name = format!("diskcast-fetch-{:016x}", net::clock::jitter().u64());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).ok()?).ok()?;
    let mut command = Command::new(env::current_exe().ok()?);
    command.args(env::args_os().skip(1)).env(VARIABLE, format!("{}:{name}", std::process::id()));
    let child = command.spawn().ok()?;
    let voice: Arc<Mutex<Voice>> = Arc::default();
    let heard = Arc::clone(&voice);
    // If one comes before, this process ends, and then the child.
    interrupt::pass_on(move || heard.lock().signal());
    Some(wait(child, &listener, &voice))
}

/// What is said to the child.
#[derive(Default)]
struct Voice {
    child: Option<UnixStream>,
    /// Signals that came before it could be told.
    waiting: usize,
}

impl Voice {
    fn signal(&mut self) {
        // If it fails, the child is gone.
        match &mut self.child {
            Some(child) => drop(child.write_all(&[0])),
            None => self.waiting += 1,
        }
    }
}

/// Waits until the disk of `child` is done, or it has ended.
fn wait(mut child: Child, listener: &UnixListener, voice: &Mutex<Voice>) -> Result<()> {
    let pid = Pid::from_child(&child);
    let ended = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from)?;
    let stream = loop {
        let (at_door, is_over) = either(listener, &ended)?;
        if at_door {
            let (stream, _) = listener.accept()?;
            // Anybody may connect to the name.
            if rustix::net::sockopt::socket_peercred(&stream).is_ok_and(|peer| peer.pid == pid) {
                break stream;
            }
        } else if is_over {
            return end(child.wait()?);
        }
    };
    {
        let mut voice = voice.lock();
        voice.child = Some(stream.try_clone()?);
        (0..voice.waiting).for_each(|_| voice.signal());
    }
    match (&stream).read(&mut [0]) {
        Ok(1) => Ok(()),
        _ => end(child.wait()?),
    }
}

/// Waits until one of both can be read, and says which.
fn either(one: &impl std::os::fd::AsFd, other: &impl std::os::fd::AsFd) -> io::Result<(bool, bool)> {
    let mut both = [PollFd::new(one, PollFlags::IN), PollFd::new(other, PollFlags::IN)];
    loop {
        match poll(&mut both, None) {
            Ok(_) => return Ok((!both[0].revents().is_empty(), !both[1].revents().is_empty())),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Ends as the child did, which has said why.
fn end(status: ExitStatus) -> Result<()> {
    match status.code() {
        Some(0) => Ok(()),
        Some(code) => std::process::exit(code),
        None => {
            let text = format!("the fetch was killed: {status}");
            Err(Failure::new(Exit::Failed, text).hint(interrupt::GO_ON))
        }
    }
}

/// Who started this process, and waits for the disk.
pub(super) struct Starter {
    stream: UnixStream,
    is_free: Arc<AtomicBool>,
    /// Files that were given to this process.
    given: Vec<i32>,
}

impl Starter {
    /// The one that started this process, if one did.
    pub(super) fn of_this_process() -> Option<Result<Self>> {
        let text = env::var(VARIABLE).ok()?;
        let (starter, name) = text.split_once(':')?;
        // What a child starts in turn inherits the variable.
        (getppid()?.as_raw_nonzero().get() == starter.parse::<i32>().ok()?).then(|| Self::connect(name))
    }

    fn connect(name: &str) -> Result<Self> {
        let given = given_files();
        let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
        let is_free = Arc::new(AtomicBool::new(false));
        let (mut heard, free) = (stream.try_clone()?, Arc::clone(&is_free));
        std::thread::Builder::new().name("starter".into()).spawn(move || {
            while heard.read(&mut [0]).is_ok_and(|read| read == 1) {
                interrupt::told();
            }
            if !free.load(Ordering::Acquire) {
                interrupt::end_at_once();
            }
        })?;
        Ok(Self { stream, is_free, given })
    }

    /// Lets go of all that is the caller's: terminal, pipes, files and folder. Then tells the starter, which ends.
    pub(super) fn leave(self, context: &Context, time: Duration) -> Result<()> {
        let pid = std::process::id();
        let record = serde_json::json!({ "type": "serving", "seconds": time.as_secs_f64(), "pid": pid });
        if context.output.is_json() {
            context.output.result(&record, String::new)?;
        }
        context.output.note(&format!(
            "serving other machines for {} in the background (process {pid}); `--serve-for 0` leaves it out",
            base::units::show_duration(time)
        ));
        self.is_free.store(true, Ordering::Release);
        let nothing = fs::File::options().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&nothing).map_err(io::Error::from)?;
        rustix::stdio::dup2_stdout(&nothing).map_err(io::Error::from)?;
        rustix::stdio::dup2_stderr(&nothing).map_err(io::Error::from)?;
        for file in self.given {
            let _ = nix::unistd::close(file);
        }
        env::set_current_dir("/")?;
        // It leads no group: its starter does, or a shell.
        let _ = setsid();
        // If that fails, the starter is gone, and nobody waits.
        let _ = (&self.stream).write_all(&[0]);
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        Ok(())
    }
}

/// The files besides the three of each process that this one got from its caller: all others are closed by an exec.
fn given_files() -> Vec<i32> {
    let Ok(files) = fs::read_dir("/proc/self/fdinfo") else { return Vec::new() };
    let numbers = files.flatten().filter_map(|file| file.file_name().to_str()?.parse::<i32>().ok());
    numbers.filter(|number| *number > 2 && is_given(*number)).collect()
}

/// Whether an exec leaves file `number` open, as its flags in proc(5) say.
fn is_given(number: i32) -> bool {
    let Ok(text) = fs::read_to_string(format!("/proc/self/fdinfo/{number}")) else { return false };
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & rustix::fs::OFlags::CLOEXEC.bits() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_served_as_long_as_the_fetch_took_within_bounds() {
        let times = [(0.2, 30), (29.9, 30), (61.5, 62), (5000.0, 600)];
        for (took, served) in times {
            assert_eq!(serving_time(Duration::from_secs_f64(took)), Duration::from_secs(served));
        }
    }
}
