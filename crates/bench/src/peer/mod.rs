//! Runs other tools that send one file to many machines, each with its best known settings, in the lab.
//!
//! All preparation is done before the clock starts: servers listen, and receivers wait if the tool has waiting
//! receivers. A host is done when its program says so. All processes of a tool run in the lab's namespaces and end
//! with the lab.

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

/// A tool that diskcast is compared with.
pub(crate) struct Peer {
    pub name: &'static str,
    /// Its main options, and where receivers write the file, for the table.
    pub flags: &'static str,
    /// Sends the file; returns for each receiver the seconds until it had the file, `None` if the time was over.
    run: fn(&Job<'_>) -> Result<Vec<Option<f64>>>,
}

/// All tools, in the order of the table.
pub(crate) const PEERS: &[Peer] =
    &[udpcast::PLAIN, udpcast::FEC, uftp::PEER, http::PEER, scp::PEER, chain::PEER, aria2::PEER];

/// The task of a tool: send `file` from host 0 to all other hosts.
struct Job<'a> {
    star: &'a Star,
    file: &'a Path,
    rate_bits_per_second: u64,
    /// A folder on the local disk for keys, configurations and scripts of this run.
    folder: &'a Path,
    /// A folder in memory (tmpfs) for received files.
    memory: &'a Path,
    /// Time limit.
    bound: Duration,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum State {
    Done,
    /// The number of hosts that did not have the file at the time limit.
    TimedOut(usize),
    /// The tool failed, for this reason.
    Failed(String),
}

/// One run of one tool.
#[derive(Debug, Clone)]
pub(crate) struct Trial {
    pub state: State,
    /// For each host that received the file, the seconds until it had it, ascending.
    pub seconds: Vec<f64>,
    /// Bytes that left the server, with Ethernet headers.
    pub server_bytes: u64,
}

impl Trial {
    /// Seconds until the last host had the file; `bound` if the run failed or reached the time limit.
    pub(crate) fn last(&self, bound: Duration) -> f64 {
        match self.state {
            State::Done => self.seconds.last().copied().unwrap_or(f64::NAN),
            _ => bound.as_secs_f64(),
        }
    }
}

impl Peer {
    /// Sends `file` to all hosts of a new lab with `options`, whose links must be shaped. A failure of the tool is a
    /// [`State`], not an error.
    pub(crate) fn run(
        &self,
        context: &Context,
        options: &StarOptions,
        file: &Path,
        bound: Duration,
    ) -> Result<Trial> {
        let rate = options.rate_bits_per_second.ok_or("peers run on shaped links")?;
        self.run_in(context, &Star::build(options)?, rate, file, bound)
    }

    /// The same in a lab that is there, whose hosts have links of this rate.
    pub(crate) fn run_in(
        &self,
        context: &Context,
        star: &Star,
        rate_bits_per_second: u64,
        file: &Path,
        bound: Duration,
    ) -> Result<Trial> {
        let memory = tempfile::tempdir_in("/dev/shm")?;
        let folder = context.folder()?;
        let job = Job { star, file, rate_bits_per_second, folder: &folder, memory: memory.path(), bound };
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
        Ok(if trial.state == State::Done { trial.checked(star, file)? } else { trial })
    }
}

impl Trial {
    /// Marks the run as failed if a host's link carried fewer bytes than the file has, whatever the tool reports.
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

    /// Waits until a program listens on `port` of `host`, as seen from `host` itself; an error after 5 s.
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

    /// Waits 0.7 s for programs that do not report when they are ready, then restarts the crew's clock.
    fn wait_until_ready(&self, crew: &mut Crew) {
        crew.restart_clock();
        crew.wait_until(Duration::from_millis(700));
        crew.restart_clock();
    }

    /// Seconds until each of `members` ended, `None` if it still runs at the time limit. An error if one fails.
    fn await_ends(&self, crew: &mut Crew, members: &[Member]) -> Result<Vec<Option<f64>>> {
        let mut seconds = vec![None; members.len()];
        for end in crew.wait(members, self.bound)? {
            end.check()?;
            let host = members.iter().position(|&member| member == end.member).expect("asked for members");
            seconds[host] = Some(end.ended);
        }
        Ok(seconds)
    }

    /// Seconds from `start` until each file in `done` was created, `None` if it is missing at the time limit. For tools
    /// that keep running after the transfer, a hook creates such a file for each host. An error if any program of the
    /// crew fails.
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

    /// Compares the received `copies` with the file by their digests; an error if one differs.
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

/// The wall clock, for comparison with modification times of files.
#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}
