//! The rules that hold back REQUESTs at the ports: a table of nftables which cannot outlive the agent.
//!
//! The table belongs to a process (`flags owner` of nft(8)): a child `nft -i`, which ends when its standard input
//! closes, however the agent ended; then the kernel removes the table. Its rules count only for ports in a set whose
//! entries end after [`ALIVE`] unless the agent renews them, so an agent that hangs holds nothing back either.

use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use base::{Error, ErrorKind, Result};

use super::filter;
use super::ports::Port;
use net::clock::{Clock, Stop};

/// After this time without [`Rules::renew`] nothing is held back.
pub(super) const ALIVE: Duration = Duration::from_secs(2);
/// Longest wait for the table, and for the end of one of an agent that was killed.
const READY_AFTER_MAX: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Before other rules at the port, which might drop or change what the agent has already taken.
const PRIORITY: i32 = -500;

/// Rules that hold, until this is dropped.
#[derive(Debug)]
pub(super) struct Rules {
    child: Child,
    input: Option<ChildStdin>,
    renewal: String,
}

impl Rules {
    /// Holds back, at `ports`, the REQUESTs to `server` for which the agent answers. `Unsupported` without the tool
    /// `nft`; `Refused` if the kernel does not take the rules, for example because another agent's hold.
    pub(super) fn install(ports: &[Port], server: SocketAddr) -> Result<Self> {
        let table = table_of(server);
        // That of an agent which was killed is about to be removed.
        if !comes_true(|chains| !chains.contains(&table)) {
            let why = format!("another agent redirects requests to {server} here (table `{table}` of nft)");
            return Err(Error::new(ErrorKind::Refused, why));
        }
        let mut command = Command::new("nft");
        command.arg("-i").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let start =
            |error| Error::from_source(ErrorKind::Unsupported, "start `nft` (package nftables)", error);
        let mut child = command.spawn().map_err(start)?;
        let input = child.stdin.take();
        let mark = format!("of_process_{}", child.id());
        let mut rules = Self { child, input, renewal: renewal(&table, ports) };
        // A write fails if the tool has ended; what it said tells why.
        let _ = rules.say(&definition(&table, &mark, ports, server));
        if comes_true(|chains| chains.contains(&mark)) && rules.is_alive() {
            return Ok(rules);
        }
        drop(rules.input.take());
        let mut said = String::new();
        if let Some(errors) = &mut rules.child.stderr {
            let _ = errors.read_to_string(&mut said);
        }
        let said = said.lines().next().unwrap_or("no reason");
        let why = format!("nft did not take the rules that hold requests back: {said}");
        Err(Error::new(ErrorKind::Refused, why))
    }

    /// Says that the agent works.
    pub(super) fn renew(&mut self) -> io::Result<()> {
        let renewal = std::mem::take(&mut self.renewal);
        let said = self.say(&renewal);
        self.renewal = renewal;
        said
    }

    fn say(&mut self, lines: &str) -> io::Result<()> {
        self.input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?.write_all(lines.as_bytes())
    }

    /// Whether the tool, and with it the table, still exists.
    pub(super) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Rules {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// Waits until the chains of all tables, as nft lists them, satisfy a condition. False if they never do.
fn comes_true(condition: impl Fn(&str) -> bool) -> bool {
    let clock = Clock::start();
    while clock.elapsed() < READY_AFTER_MAX {
        let mut look = Command::new("nft");
        look.args(["list", "chains", "netdev"]).stdin(Stdio::null()).stderr(Stdio::null());
        // Without the tool there are no tables; to start it again tells why.
        let listed = look.output().map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        if condition(&listed.unwrap_or_default()) {
            return true;
        }
        Stop::new().pause(LOOK_EVERY);
    }
    false
}

fn table_of(server: SocketAddr) -> String {
    let name: String =
        server.to_string().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    format!("diskcast_{name}")
}

/// One line, since `nft -i` reads lines. The chain `mark`, which nothing calls, says whose table it is.
fn definition(table: &str, mark: &str, ports: &[Port], server: SocketAddr) -> String {
    let (condition, alive) = (filter::held_back(server), ALIVE.as_secs());
    let mut line = format!(
        "table netdev {table} {{ flags owner; set alive {{ type iface_index; flags timeout; elements = {{"
    );
    for port in ports {
        let _ = write!(line, " {} timeout {alive}s,", port.index);
    }
    let _ = write!(line, " }}; }}; chain {mark} {{ }};");
    for (number, Port { name, .. }) in ports.iter().enumerate() {
        let _ = write!(
            line,
            " chain port{number} {{ type filter hook ingress device \"{name}\" priority {PRIORITY}; \
             {condition} iif @alive counter drop; }};"
        );
    }
    line.push_str(" }\n");
    line
}

fn renewal(table: &str, ports: &[Port]) -> String {
    let alive = ALIVE.as_secs();
    let elements: String = ports.iter().map(|port| format!(" {} timeout {alive}s,", port.index)).collect();
    // What exists is not renewed by being added (before Linux 6.12), and only what exists can be deleted.
    let change = |verb: &str| format!("{verb} element netdev {table} alive {{{elements} }}");
    format!("{}; {}; {}\n", change("add"), change("delete"), change("add"))
}
