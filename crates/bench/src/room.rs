//! A room of machines in the lab: one server, N hosts on links of a given rate, fetches at once or one after the other.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use lab::{Star, StarOptions};
use serde_json::Value;

use crate::Result;
use crate::context::{Context, json_line, said};

const PORT: u16 = 7717;

/// A lab with a running server.
pub struct Room {
    star: Star,
    server: Child,
    log: BufReader<ChildStdout>,
    token: PathBuf,
    binary: PathBuf,
}

/// One host's fetch.
pub struct Fetched {
    /// Seconds from the first host's start until this host had received all.
    pub received: f64,
    /// Seconds from the first host's start until this host's fetch had ended, target durable and read back.
    pub ended: f64,
    /// Its own report.
    pub report: Value,
}

/// What the server took over a session.
pub struct Served {
    /// The session's statistics.
    pub statistics: Value,
    /// Seconds of CPU of the server's process since it started.
    pub cpu_seconds: f64,
    /// Frames that a shaped link's buffer had no room for.
    pub overflowed: u64,
    /// Bytes that the server's process read from files, cached or not.
    pub read_bytes: u64,
}

impl Room {
    /// A room of `hosts` machines whose links run at `rate` bits per second, served from `repo`.
    pub fn open(context: &Context, repo: &Path, hosts: u32, rate: u64) -> Result<Self> {
        let options =
            StarOptions { hosts: hosts + 1, rate_bits_per_second: Some(rate), ..StarOptions::default() };
        let star = Star::build(&options)?;
        let token = repo.join("join.token");
        let listen = format!("{}:{PORT}", star.host(0).ipv4());
        let mut command = star.host(0).command(&context.diskcast.to_string_lossy());
        command.arg("--repo").arg(repo).args(["--json", "serve", "--interface", "eth0", "--rate", "100G"]);
        command.args(["--listen", &listen, "--state"]).arg(repo.join("state")).arg("--token-out").arg(&token);
        let mut server =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn()?;
        let mut log = BufReader::new(server.stdout.take().expect("piped"));
        line_of(&mut log, "serving")?;
        Ok(Self { star, server, log, token, binary: context.diskcast.clone() })
    }

    /// All hosts fetch `name`, host `i` into `target(i)`, started `after(i)` the first.
    pub fn fetch(
        &self,
        name: &str,
        target: impl Fn(u32) -> String,
        after: impl Fn(u32) -> Duration,
    ) -> Result<Vec<Fetched>> {
        let url = format!("https://{}:{PORT}", self.star.host(0).ipv4());
        let start = Instant::now();
        let mut running = Vec::new();
        for host in &self.star.hosts()[1..] {
            std::thread::park_timeout(after(host.index()).saturating_sub(start.elapsed()));
            let mut command = host.command(&self.binary.to_string_lossy());
            command
                .args(["--json", "--yes", "fetch", &url, name, &target(host.index()), "--token-file"])
                .arg(&self.token);
            let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
            let began = start.elapsed();
            running.push(std::thread::spawn(move || (child.wait_with_output(), began, start.elapsed())));
        }
        running
            .into_iter()
            .map(|thread| {
                let (output, began, ended) = thread.join().expect("waits for a child");
                let output = output?;
                if !output.status.success() {
                    return Err(format!(
                        "fetch: {}: {}",
                        output.status,
                        String::from_utf8_lossy(&output.stderr).trim()
                    )
                    .into());
                }
                let report = json_line(&String::from_utf8_lossy(&output.stdout), "fetched")?;
                let received =
                    report["received_seconds"].as_f64().ok_or("no received_seconds in the report")?;
                Ok(Fetched { received: began.as_secs_f64() + received, ended: ended.as_secs_f64(), report })
            })
            .collect()
    }

    /// Waits for the end of the session, then ends the server.
    pub fn close(mut self) -> Result<Served> {
        let ended = line_of(&mut self.log, "session_ended")?;
        let overflowed = self.star.traffic()?.iter().map(|link| link.overflowed).sum();
        let proc = PathBuf::from(format!("/proc/{}", self.server.id()));
        let read_bytes = number_after(&std::fs::read_to_string(proc.join("io"))?, "rchar:");
        let ticks: f64 = std::fs::read_to_string(proc.join("stat"))?
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|ticks| ticks.parse::<f64>().ok())
            .sum();
        said(Command::new("kill").args(["-TERM", &self.server.id().to_string()]))?;
        self.server.wait()?;
        Ok(Served {
            statistics: ended["statistics"].clone(),
            cpu_seconds: ticks / 100.0,
            overflowed,
            read_bytes,
        })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // The lab kills what runs in it; this collects the server.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn number_after(text: &str, word: &str) -> u64 {
    let mut words = text.split_whitespace().skip_while(|found| *found != word).skip(1);
    words.next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The next line of type `kind`.
fn line_of(log: &mut impl BufRead, kind: &str) -> Result<Value> {
    let mut line = String::new();
    while log.read_line(&mut line)? > 0 {
        if let Ok(value) = serde_json::from_str::<Value>(&line)
            && value["type"] == kind
        {
            return Ok(value);
        }
        line.clear();
    }
    Err(format!("the server ended before it said `{kind}`").into())
}
