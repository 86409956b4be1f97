//! A room of machines in the lab: servers, hosts on links of a given rate, and fetches that start at the same time or
//! one after the other.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use lab::{Star, StarOptions};
use serde_json::Value;

use crate::Result;
use crate::context::{Context, json_line, said};
use crate::crew::{Crew, Ended, Member};

const PORT: u16 = 7717;
/// Time limit for a fetch.
const PATIENCE: Duration = Duration::from_secs(300);

/// A lab with running servers on its first hosts.
pub(crate) struct Room {
    pub star: Star,
    servers: Vec<Server>,
    binary: PathBuf,
}

struct Server {
    child: Child,
    log: BufReader<ChildStdout>,
    token: PathBuf,
    /// CPU seconds and bytes read so far, noted just before the server is asked to end.
    taken: Option<(f64, u64)>,
}

/// One host's fetch.
pub(crate) struct Fetched {
    /// Seconds from the first host's start until this host was started.
    pub began: f64,
    /// Seconds from the first host's start until this host had received all.
    pub received: f64,
    /// Seconds from the first host's start until this host's fetch had ended, target durable and read back.
    pub ended: f64,
    /// Its own report.
    pub report: Value,
    output: String,
}

impl Fetched {
    /// Reads the report of a fetch that has ended; an error if it failed.
    pub(crate) fn of(ended: &Ended) -> Result<Self> {
        ended.check().map_err(|error| format!("fetch: {error}"))?;
        let report = json_line(&ended.output, "fetched")?;
        let received = report["received_seconds"].as_f64().ok_or("no received_seconds in the report")?;
        Ok(Self {
            began: ended.began,
            received: ended.began + received,
            ended: ended.ended,
            report,
            output: ended.output.clone(),
        })
    }

    /// What it told its user meanwhile.
    pub(crate) fn notes(&self) -> Vec<String> {
        let lines = self.output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let notes = lines.filter(|line| line["type"] == "note");
        notes.filter_map(|note| Some(note["message"].as_str()?.to_owned())).collect()
    }

    /// The process that serves others in the background, if one does.
    pub(crate) fn serves_on(&self) -> Option<u64> {
        json_line(&self.output, "serving").ok()?["pid"].as_u64()
    }

    /// Payload bytes that did not come by multicast.
    pub(crate) fn unicast_bytes(&self) -> u64 {
        self.report["unicast_bytes"].as_u64().unwrap_or(0)
    }
}

/// When the last host had received all.
pub(crate) fn last(fetched: &[Fetched]) -> f64 {
    fetched.iter().map(|host| host.received).fold(0.0, f64::max)
}

/// What the server took over a session.
pub(crate) struct Served {
    /// The session's statistics.
    pub statistics: Value,
    /// CPU seconds of the server's process from its start until it was asked to end.
    pub cpu_seconds: f64,
    /// Frames that were lost because the buffer of a shaped link was full, on all links.
    pub overflowed: u64,
    /// Bytes that the server's process read from files, cached or not.
    pub read_bytes: u64,
}

impl Served {
    /// The number `name` of the session's statistics; an error if it is missing.
    pub(crate) fn number(&self, name: &str) -> Result<u64> {
        let number = self.statistics[name].as_u64();
        number.ok_or_else(|| format!("no {name} in the session's statistics").into())
    }
}

/// A server and `hosts` hosts on links of `rate` bits per second.
pub(crate) fn star(hosts: u32, rate: u64, loss_per_million: u32) -> StarOptions {
    StarOptions {
        hosts: hosts + 1,
        rate_bits_per_second: Some(rate),
        loss_per_million,
        ..StarOptions::default()
    }
}

impl Room {
    /// A room of `hosts` machines whose links run at `rate` bits per second, served from `repo`.
    pub(crate) fn open(context: &Context, repo: &Path, hosts: u32, rate: u64) -> Result<Self> {
        Self::open_with(context, &[repo], &star(hosts, rate, 0))
    }

    /// A room in a lab of `options`, whose first hosts serve `repos`, one each.
    pub(crate) fn open_with(context: &Context, repos: &[&Path], options: &StarOptions) -> Result<Self> {
        Self::open_serving(context, repos, options, &[])
    }

    /// The same, with further options of `serve`.
    pub(crate) fn open_serving(
        context: &Context,
        repos: &[&Path],
        options: &StarOptions,
        serve: &[&str],
    ) -> Result<Self> {
        let mut room =
            Self { star: Star::build(options)?, servers: Vec::new(), binary: context.diskcast.clone() };
        for repo in repos {
            let server = room.serve(u32::try_from(room.servers.len())?, repo, serve)?;
            room.servers.push(server);
        }
        Ok(room)
    }

    /// Starts `diskcast serve` on a host and waits until it is ready.
    fn serve(&self, host: u32, repo: &Path, options: &[&str]) -> Result<Server> {
        let state = repo.join(format!("state-{host}"));
        let token = repo.join(format!("join-{host}.token"));
        let listen = format!("{}:{PORT}", self.star.host(host).ipv4());
        let mut command = self.star.host(host).command(&self.binary.to_string_lossy());
        command.arg("--repo").arg(repo).args(["--json", "--quiet", "serve", "--interface", "eth0"]);
        command
            .args(["--listen", &listen, "--state"])
            .arg(state)
            .arg("--token-out")
            .arg(&token)
            .args(options);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn()?;
        let mut log = BufReader::new(child.stdout.take().expect("piped"));
        line_of(&mut log, "serving")?;
        Ok(Server { child, log, token, taken: None })
    }

    /// Kills a server, and starts it again from `repo`, with its old state.
    pub(crate) fn kill_and_restart(&mut self, server: usize, repo: &Path) -> Result<()> {
        let old = &mut self.servers[server].child;
        old.kill()?;
        old.wait()?;
        self.servers[server] = self.serve(u32::try_from(server)?, repo, &[])?;
        Ok(())
    }

    /// The hosts that do not serve.
    pub(crate) fn clients(&self) -> std::ops::Range<u32> {
        u32::try_from(self.servers.len()).expect("few")..u32::try_from(self.star.hosts().len()).expect("few")
    }

    /// The command by which `host` fetches `name` from `server` into `target`.
    pub(crate) fn fetch_command(&self, host: u32, server: u32, name: &str, target: &str) -> Command {
        let mut command = self.star.host(host).command(&self.binary.to_string_lossy());
        self.fetch_arguments(&mut command, server, name, target);
        command
    }

    /// The same, with machines that serve each other.
    pub(crate) fn fetch_with_peers(&self, host: u32, name: &str, target: &str) -> Command {
        let mut command = self.star.host(host).command(&self.binary.to_string_lossy());
        self.arguments(&mut command, 0, name, target);
        command
    }

    /// Adds the arguments of [`Self::fetch_command`] to a command that runs diskcast by itself or by a script. What
    /// multicast does is measured without machines that serve each other.
    pub(crate) fn fetch_arguments(&self, command: &mut Command, server: u32, name: &str, target: &str) {
        self.arguments(command, server, name, target);
        command.arg("--no-peers");
    }

    fn arguments(&self, command: &mut Command, server: u32, name: &str, target: &str) {
        command.args(["--json", "--yes", "fetch", &self.url(server), name, target, "--token-file"]);
        command.arg(&self.servers[server as usize].token);
    }

    /// The command by which `host` lists the images of `server`.
    pub(crate) fn images_command(&self, host: u32, server: u32) -> Command {
        let mut command = self.star.host(host).command(&self.binary.to_string_lossy());
        command.args(["--json", "images", "--repo", &self.url(server), "--token-file"]);
        command.arg(&self.servers[server as usize].token);
        command
    }

    fn url(&self, server: u32) -> String {
        format!("https://{}:{PORT}", self.star.host(server).ipv4())
    }

    /// The group of the first server's next session, once it has started.
    pub(crate) fn group_of_session(&mut self) -> Result<SocketAddr> {
        let server = self.servers.first_mut().ok_or("a room has a server")?;
        let started = line_of(&mut server.log, "session_started")?;
        Ok(started["group"].as_str().ok_or("a session has a group")?.parse()?)
    }

    /// The most memory that a server's process has used so far, in bytes.
    pub(crate) fn server_peak_bytes(&self, server: usize) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.servers[server].child.id()))?;
        Ok(number_after(&status, "VmHWM:") << 10)
    }

    /// The file with the join token of a server.
    pub(crate) fn token(&self, server: usize) -> &Path {
        &self.servers[server].token
    }

    /// The binary under test.
    pub(crate) fn binary(&self) -> &Path {
        &self.binary
    }

    /// All hosts fetch `name` from the first server, host `i` into `target(i)`. Host `i` starts `after(i)` after the
    /// call; these times must ascend.
    pub(crate) fn fetch(
        &self,
        name: &str,
        target: impl Fn(u32) -> String,
        after: impl Fn(u32) -> Duration,
    ) -> Result<Vec<Fetched>> {
        let mut crew = Crew::new();
        let mut members = Vec::new();
        for host in self.clients() {
            crew.wait_until(after(host));
            members.push(crew.start(&mut self.fetch_command(host, 0, name, &target(host)))?);
        }
        collect(&mut crew, &members)
    }

    /// All hosts fetch `name` from the first server at the same time, and drop the data.
    pub(crate) fn fetch_at_once(&self, name: &str) -> Result<Vec<Fetched>> {
        self.fetch(name, |_| "null:".to_owned(), |_| Duration::ZERO)
    }

    /// Ends the server, and with it its only session, and returns the cost of the session.
    pub(crate) fn close(mut self) -> Result<Served> {
        self.ended_session(0)
    }

    /// The statistics of all sessions of server `index`, which is ended by this.
    pub(crate) fn ended_sessions(&mut self, index: usize) -> Result<Vec<Value>> {
        let server = &mut self.servers[index];
        said(Command::new("kill").args(["-TERM", &server.child.id().to_string()]))?;
        let mut sessions = Vec::new();
        while let Ok(ended) = line_of(&mut server.log, "session_ended") {
            sessions.push(ended["statistics"].clone());
        }
        Ok(sessions)
    }

    /// The cost of a session of server `index`. The first call ends the server and with it its sessions, which would
    /// otherwise wait for more receivers; each call returns the next session.
    pub(crate) fn ended_session(&mut self, index: usize) -> Result<Served> {
        let overflowed = self.star.traffic()?.iter().map(|link| link.overflowed).sum();
        let server = &mut self.servers[index];
        if server.taken.is_none() {
            let proc = PathBuf::from(format!("/proc/{}", server.child.id()));
            let read_bytes = number_after(&std::fs::read_to_string(proc.join("io"))?, "rchar:");
            // Fields 14 and 15, utime and stime, in ticks of 10 ms. Field 2, a name in parentheses, can have spaces.
            let ticks: f64 = std::fs::read_to_string(proc.join("stat"))?
                .rsplit(')')
                .next()
                .unwrap_or_default()
                .split_whitespace()
                .skip(11)
                .take(2)
                .filter_map(|ticks| ticks.parse::<f64>().ok())
                .sum();
            server.taken = Some((ticks / 100.0, read_bytes));
            said(Command::new("kill").args(["-TERM", &server.child.id().to_string()]))?;
        }
        let (cpu_seconds, read_bytes) = server.taken.unwrap_or_default();
        let ended = line_of(&mut server.log, "session_ended")?;
        Ok(Served { statistics: ended["statistics"].clone(), cpu_seconds, overflowed, read_bytes })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        for server in &mut self.servers {
            // A server has no state that a kill could damage.
            let _ = server.child.kill();
            let _ = server.child.wait();
        }
    }
}

/// Waits for the fetches `members` and returns their reports in this order; an error if one fails or does not end
/// within [`PATIENCE`].
pub(crate) fn collect(crew: &mut Crew, members: &[Member]) -> Result<Vec<Fetched>> {
    let mut ended = crew.wait(members, PATIENCE)?;
    if ended.len() < members.len() {
        return Err(format!("{} of {} fetches timed out", members.len() - ended.len(), members.len()).into());
    }
    ended.sort_by_key(|end| members.iter().position(|&member| member == end.member));
    ended.iter().map(Fetched::of).collect()
}

/// The number after `word` in a text of words; 0 if there is none.
fn number_after(text: &str, word: &str) -> u64 {
    let mut words = text.split_whitespace().skip_while(|found| *found != word).skip(1);
    words.next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Reads a program's output until a JSON line of type `kind`, and returns it; an error if the output ends before.
pub(crate) fn line_of(log: &mut impl BufRead, kind: &str) -> Result<Value> {
    let mut line = String::new();
    while log.read_line(&mut line)? > 0 {
        if let Ok(value) = serde_json::from_str::<Value>(&line)
            && value["type"] == kind
        {
            return Ok(value);
        }
        line.clear();
    }
    Err(format!("a program ended before it printed a line of type `{kind}`").into())
}
