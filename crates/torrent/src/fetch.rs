//! Fetches one torrent from the swarm that its tracker names, and goes on serving it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::{Chance, Error, ErrorKind, Result, chain};
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::bits::Bits;
use crate::content::Content;
use crate::metainfo::Metainfo;
use crate::node::{Node, NodeOptions, Torrent, Traffic, listen};
use crate::tracker::Answer;

/// Threads for sockets, and for the disk.
const THREADS: usize = 2;
const DISK_THREADS: usize = 8;
/// Memory for what is sent to several peers.
const CACHE_BYTES: u64 = 64 << 20;
/// How often progress is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// A swarm that brings nothing for this time is left.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time for an announce.
const ANNOUNCE_TIME_MAX: Duration = Duration::from_secs(10);
/// Longest answer to one.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Pause after one that failed, and before the second one, which hears of those that began at the same time.
const SOON: Duration = Duration::from_secs(2);

/// What to fetch, and how.
pub struct Job<'a> {
    /// The torrent.
    pub torrent: Arc<Metainfo>,
    /// The URL of its tracker.
    pub tracker: String,
    /// Where its bytes go.
    pub content: Arc<dyn Content>,
    /// The pieces that are there.
    pub have: Bits,
    /// Where peers connect; with the port taken, a free one is used.
    pub listen: SocketAddr,
    /// The number of this machine's place; 0 if only the tracker may know it.
    pub place: u32,
    /// Seed of its choices.
    pub chance: Chance,
    /// Whether the user wants it to end.
    pub is_stopped: &'a dyn Fn() -> bool,
}

/// A torrent that was fetched, and is served until this is dropped.
pub struct Fetched {
    /// The torrent.
    pub torrent: Arc<Torrent>,
    /// Why not all of it came, if so: the swarm brought nothing for some time, or the tracker can't be reached.
    pub gave_up: Option<String>,
    announces: JoinHandle<()>,
    _node: Arc<Node>,
    /// Last, since it ends all tasks.
    _runtime: Runtime,
}

impl Drop for Fetched {
    fn drop(&mut self) {
        self.announces.abort();
    }
}

/// Fetches a torrent.
///
/// # Errors
/// `Stopped`; those of the content; `Io`. A swarm that brings nothing is none: see [`Fetched::gave_up`].
pub fn fetch(job: Job<'_>) -> Result<Fetched> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(DISK_THREADS)
        .thread_name("torrent")
        .enable_all()
        .build()
        .map_err(|error| Error::from_source(ErrorKind::Io, "start threads", error))?;
    let tracker = Announcer { url: job.tracker, torrent: Arc::clone(&job.torrent) };
    let left = job.torrent.length();
    // The place is a part of this side's name, so the tracker is asked for it first.
    let listener = match listen(job.listen) {
        Err(_) if job.listen.port() != 0 => listen(SocketAddr::new(job.listen.ip(), 0))?,
        bound => bound?,
    };
    let bound =
        listener.local_addr().map_err(|error| Error::from_source(ErrorKind::Io, "find the port", error))?;
    let port = bound.port();
    let first = runtime.block_on(tracker.announce(port, left, job.place));
    let place =
        first.as_ref().map_or(job.place, |(answer, _)| if job.place == 0 { answer.place } else { job.place });
    let node = Arc::new(Node::start(NodeOptions {
        listener,
        handle: runtime.handle().clone(),
        place,
        is_origin: false,
        cache_bytes: CACHE_BYTES,
        chance: job.chance.clone(),
        find: None,
    })?);
    let torrent = node.add(job.torrent, job.content, job.have);
    let announces = runtime.spawn(announce_all(
        tracker,
        Arc::clone(&node),
        Arc::clone(&torrent),
        first.map_err(|error| chain(&error)),
    ));
    let gave_up = runtime.block_on(await_all(&torrent, job.is_stopped))?;
    Ok(Fetched { torrent, gave_up, announces, _node: node, _runtime: runtime })
}

/// Waits until everything is there, or nothing comes any more: why then.
async fn await_all(torrent: &Torrent, is_stopped: &dyn Fn() -> bool) -> Result<Option<String>> {
    let mut progress = Progress::new(torrent.metainfo().length(), Instant::now());
    loop {
        match timeout(LOOK, torrent.complete()).await {
            Ok(done) => return done.map(|()| None),
            Err(_) if is_stopped() => return Err(Error::new(ErrorKind::Stopped, "stopped")),
            Err(_) => {}
        }
        let traffic = torrent.traffic();
        if progress.idle(&traffic, Instant::now()) > PATIENCE {
            return Ok(Some(format!("the swarm brings nothing ({} peers)", traffic.peers)));
        }
    }
}

/// Since when a swarm brings nothing. Bytes count, not pieces alone: a large piece takes long over a slow link. But two
/// files' worth of bytes bring the file, so whoever sends more sends rubbish.
struct Progress {
    bytes_max: u64,
    came: (u32, u64),
    since: Instant,
}

impl Progress {
    fn new(length: u64, now: Instant) -> Self {
        Self { bytes_max: length.saturating_mul(2), came: (0, 0), since: now }
    }

    /// How long nothing has come.
    fn idle(&mut self, traffic: &Traffic, now: Instant) -> Duration {
        let came = (traffic.pieces, traffic.received_bytes.min(self.bytes_max));
        if came != self.came {
            (self.came, self.since) = (came, now);
        }
        now - self.since
    }
}

/// Announces this side for ever, and connects to those that it hears of. Says at once when everything is there.
async fn announce_all(
    tracker: Announcer,
    node: Arc<Node>,
    torrent: Arc<Torrent>,
    first: std::result::Result<(Answer, Duration), String>,
) {
    let mut known = first.ok();
    let mut is_second = true;
    let mut said_complete = false;
    loop {
        let mut pause = SOON;
        if let Some((answer, asked)) = known.take() {
            node.connect(&torrent, &answer.peers);
            pause = if std::mem::take(&mut is_second) { SOON } else { asked };
        }
        let mut wait = interval(pause);
        wait.set_missed_tick_behavior(MissedTickBehavior::Delay);
        wait.tick().await;
        tokio::select! {
            _ = wait.tick() => {}
            _ = torrent.complete(), if !said_complete => said_complete = true,
        }
        let metainfo = torrent.metainfo();
        let missing = metainfo.piece_count() - torrent.traffic().pieces;
        let left = u64::from(missing) * u64::from(metainfo.piece_bytes());
        known = tracker.announce(node.address().port(), left.min(metainfo.length()), 0).await.ok();
    }
}

/// Announces to one tracker.
struct Announcer {
    url: String,
    torrent: Arc<Metainfo>,
}

impl Announcer {
    /// Says that this side listens on `port` and lacks `left` bytes. Returns who else takes part, and when to announce
    /// again.
    async fn announce(&self, port: u16, left: u64, place: u32) -> Result<(Answer, Duration)> {
        let name = self.torrent.info_hash();
        let hash = percent_encode(&name.0, NON_ALPHANUMERIC);
        let query = format!(
            "info_hash={hash}&peer_id=-DC0100-000000000000&port={port}&uploaded=0&downloaded=0&left={left}&compact=1\
             &numwant=100&place={place}"
        );
        let context = || format!("announce to the tracker {}", self.url);
        let answer = timeout(ANNOUNCE_TIME_MAX, get(&self.url, &query)).await;
        let answer = answer.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
        let answer = answer.map_err(|error| Error::from_source(ErrorKind::Unreachable, context(), error))?;
        Answer::parse(&answer)
    }
}

/// What a tracker answers. It is a server of diskcast, so HTTP/1.0 does: one request, and an answer up to the end.
async fn get(url: &str, query: &str) -> std::io::Result<Vec<u8>> {
    let invalid = |why: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, why.to_owned());
    let rest = url.strip_prefix("http://").ok_or_else(|| invalid("its URL does not begin with `http://`"))?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let mut stream = TcpStream::connect(host).await?;
    let request = format!("GET /{path}?{query} HTTP/1.0\r\nHost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
    let is_good = answer.split(|&byte| byte == b' ').nth(1) == Some(b"200");
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n");
    match end {
        Some(end) if is_good => Ok(answer.split_off(end + 4)),
        _ => Err(invalid("it does not answer as a tracker")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_piece_over_a_slow_link_is_progress_and_rubbish_is_not() {
        let begin = Instant::now();
        let mut progress = Progress::new(100, begin);
        let mut idle = |pieces, received_bytes, seconds| {
            let traffic = Traffic { sent_bytes: 0, received_bytes, pieces, peers: 1 };
            progress.idle(&traffic, begin + Duration::from_secs(seconds)).as_secs()
        };
        assert_eq!(idle(0, 0, 5), 5);
        assert_eq!(idle(0, 90, 40), 0, "a part of a piece has come");
        assert_eq!(idle(0, 90, 50), 10);
        assert_eq!(idle(1, 90, 60), 0);
        assert_eq!(idle(1, 200, 70), 0);
        assert_eq!(idle(1, 900, 100), 30, "more than the file twice, and no piece of it");
    }
}
