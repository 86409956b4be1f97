//! Other tools that send one file to many machines, each with its best known settings, in the lab.
//!
//! Everything that can be prepared is done before the clock starts: servers listen, receivers wait. A host is done
//! when its tool says so. All processes of a tool are in the lab's namespaces and end with the lab.

mod aria2;
mod chain;
mod http;
mod scp;
mod udpcast;
mod uftp;

use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use lab::{Host, Star, StarOptions};

use crate::Result;
use crate::context::Context;
use crate::crew::{Crew, Member};

/// A tool.
pub(crate) struct Peer {
    pub name: &'static str,
    /// How it is called, and where its bytes go.
    pub flags: &'static str,
    run: fn(&Job<'_>) -> Result<Vec<Option<f64>>>,
}

/// All of them.
pub(crate) const PEERS: &[Peer] =
    &[udpcast::PLAIN, udpcast::FEC, uftp::PEER, http::PEER, scp::PEER, chain::PEER, aria2::PEER];

/// What a tool is to do: bring `file` from host 0 to all others.
struct Job<'a> {
    star: &'a Star,
    file: &'a Path,
    rate_bits_per_second: u64,
    /// Where files of this run may stand, on a local disk.
    folder: &'a Path,
    /// Where what was received may stand, in memory.
    memory: &'a Path,
    /// How long it may take.
    bound: Duration,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum State {
    Done,
    /// So many hosts had not got it when the time was over.
    TimedOut(usize),
    Failed(String),
}

/// One run of one tool.
#[derive(Debug, Clone)]
pub(crate) struct Trial {
    pub state: State,
    /// Seconds until each host that got it had it, ascending.
    pub seconds: Vec<f64>,
    /// Bytes that left the server, with Ethernet headers.
    pub server_bytes: u64,
}

impl Trial {
    /// When the last host had it; the bound for a run that did not end well.
    pub(crate) fn last(&self, bound: Duration) -> f64 {
        match self.state {
            State::Done => self.seconds.last().copied().unwrap_or(f64::NAN),
            _ => bound.as_secs_f64(),
        }
    }
}

impl Peer {
    /// Brings `file` to `hosts` hosts in a new lab.
    pub(crate) fn run(
        &self,
        context: &Context,
        options: &StarOptions,
        file: &Path,
        bound: Duration,
    ) -> Result<Trial> {
        let star = Star::build(options)?;
        let memory = tempfile::tempdir_in("/dev/shm")?;
        let folder = context.folder()?;
        let rate_bits_per_second = options.rate_bits_per_second.ok_or("peers run on shaped links")?;
        let job =
            Job { star: &star, file, rate_bits_per_second, folder: &folder, memory: memory.path(), bound };
        let before = star.sent_on_wire(0)?;
        let done = (self.run)(&job);
        let server_bytes = star.sent_on_wire(0)? - before;
        let (state, mut seconds) = match done {
            Ok(hosts) => {
                let missing = hosts.iter().filter(|host| host.is_none()).count();
                let state = if missing == 0 { State::Done } else { State::TimedOut(missing) };
                (state, hosts.into_iter().flatten().collect())
            }
            Err(error) => (State::Failed(base::chain(&*error)), Vec::new()),
        };
        seconds.sort_by(f64::total_cmp);
        let trial = Trial { state, seconds, server_bytes };
        Ok(if trial.state == State::Done { trial.checked(&star, file)? } else { trial })
    }
}

impl Trial {
    /// A tool that reports success although a host's link has carried less than the file has failed.
    fn checked(mut self, star: &Star, file: &Path) -> Result<Self> {
        let bytes = file.metadata()?.len();
        let traffic = star.traffic()?;
        if traffic[1..].iter().any(|link| link.received.bytes < bytes) {
            self.state =
                State::Failed("a host says it is done but has not received as much as the file".into());
        }
        Ok(self)
    }
}

impl Job<'_> {
    fn server(&self) -> Ipv4Addr {
        self.star.host(0).ipv4()
    }

    fn receivers(&self) -> &[Host] {
        &self.star.hosts()[1..]
    }

    fn bytes(&self) -> Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn file(&self) -> String {
        self.file.to_string_lossy().into_owned()
    }

    fn name(&self) -> String {
        self.file.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Waits until something listens at `port` of `host`, as seen from itself.
    fn await_port(&self, host: u32, port: u16) -> Result<()> {
        let address = (self.star.host(host).ipv4(), port);
        let connects = move || {
            let start = Instant::now();
            while TcpStream::connect(address).is_err() {
                if start.elapsed() > Duration::from_secs(5) {
                    return false;
                }
                std::thread::park_timeout(Duration::from_millis(20));
            }
            true
        };
        let listens = self.star.host(host).run(connects)?.join().expect("connecting does not panic");
        if listens { Ok(()) } else { Err(format!("nothing listens at port {port} of host {host}").into()) }
    }

    /// Gives programs that do not say when they are ready the time to be so.
    fn flush(&self, crew: &mut Crew) {
        crew.restart_clock();
        crew.wait_until(Duration::from_millis(700));
        crew.restart_clock();
    }

    /// When each of `members` ended well; one that failed fails the run.
    fn await_ends(&self, crew: &mut Crew, members: &[Member]) -> Result<Vec<Option<f64>>> {
        let mut seconds = vec![None; members.len()];
        for end in crew.wait(members, self.bound)? {
            end.check()?;
            let host = members.iter().position(|&member| member == end.member).expect("asked for members");
            seconds[host] = Some(end.ended);
        }
        Ok(seconds)
    }

    /// When each host's file in `done` was made, by the clock that started at `start`: the hooks of tools that go on
    /// after a host has all make them. `others` fail the run if they fail.
    fn await_files(&self, crew: &mut Crew, done: &[PathBuf], start: SystemTime) -> Result<Vec<Option<f64>>> {
        while crew.seconds() < self.bound.as_secs_f64() && !done.iter().all(|file| file.exists()) {
            let soon = Duration::from_secs_f64(crew.seconds() + 0.05);
            if let Some(end) = crew.next(soon) {
                end.check()?;
            }
        }
        let made = |file: &PathBuf| file.metadata().and_then(|found| found.modified()).ok();
        let since = |at: SystemTime| at.duration_since(start).unwrap_or_default().as_secs_f64();
        Ok(done.iter().map(|file| made(file).map(since)).collect())
    }

    /// Compares what hosts received, byte for byte by digest.
    fn compare(&self, copies: &[PathBuf]) -> Result<()> {
        let digest = |path: &Path| -> Result<blake3::Hash> {
            let mut hasher = blake3::Hasher::new();
            std::io::copy(&mut std::fs::File::open(path)?, &mut hasher)?;
            Ok(hasher.finalize())
        };
        let wanted = digest(self.file)?;
        for copy in copies {
            if digest(copy).map_err(|error| format!("{}: {error}", copy.display()))? != wanted {
                return Err(format!("{} is not what was sent", copy.display()).into());
            }
        }
        Ok(())
    }
}

/// The wall clock, in which files are dated.
#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}
