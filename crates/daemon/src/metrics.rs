//! Counters of the server in Prometheus' text format (version 0.0.4), in base units. Every label has a fixed set of
//! values.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock;
use net::peer::RedirectorCounters;

/// Media type of [`Metrics::text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const CLASSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];

/// Counters that the server keeps itself.
pub struct Metrics {
    started: u64,
    requests: [AtomicU64; CLASSES.len()],
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    expired: AtomicU64,
}

/// Numbers of tokens, from `token_uses` and the join token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TokenTotals {
    /// Tokens used within the last hour.
    pub in_use: u64,
    /// Of these, the ones that expire within a day or have expired, without those of jobs.
    pub ending: u64,
    /// When the server's join token expires, in seconds since 1970.
    pub join_expires: u64,
}

/// Sums over all multicast sessions since the server started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SessionTotals {
    /// Sessions that run now.
    pub running: u64,
    /// Receivers in running sessions.
    pub receivers: u64,
    /// Sessions ever started.
    pub sessions: u64,
    /// Receivers that ever joined.
    pub joined: u64,
    /// Blocks sent, including repair symbols.
    pub blocks: u64,
    /// Repair symbols sent.
    pub symbols: u64,
    /// Blocks sent again by cause: joined late, buffer full, lost.
    pub resent: [u64; 3],
    /// Payload bytes of blocks sent.
    pub payload_bytes: u64,
    /// Bytes of packets sent, without IP and UDP headers.
    pub packet_bytes: u64,
    /// Packets from receivers.
    pub reports: u64,
    /// Rejected packets: malformed, or not from a receiver of the session.
    pub rejected: u64,
}

impl Metrics {
    /// Starts all counters at zero.
    #[expect(clippy::new_without_default, reason = "it reads the clock")]
    pub fn new() -> Self {
        Self {
            started: clock::unix_seconds(),
            requests: Default::default(),
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            expired: AtomicU64::new(0),
        }
    }

    /// Counts a request that was answered with `status`.
    pub fn request(&self, status: u16) {
        let class = usize::from(status / 100).clamp(2, 5) - 2;
        self.requests[class].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts bytes of objects sent by unicast.
    pub fn sent(&self, bytes: u64) {
        self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes of objects received.
    pub fn received(&self, bytes: u64) {
        self.received_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a request with an expired token.
    pub fn expired(&self) {
        self.expired.fetch_add(1, Ordering::Relaxed);
    }

    /// All counters as the text of one scrape.
    pub(crate) fn text(
        &self,
        totals: &SessionTotals,
        tokens: &TokenTotals,
        peers: (RedirectorCounters, usize),
    ) -> String {
        let mut page = Page::default();
        page.family("info", "gauge", "Version of this server");
        page.sample("info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
        page.single(
            "start_time_seconds",
            "gauge",
            "When the server started, in seconds since 1970",
            self.started,
        );
        page.family("http_requests_total", "counter", "Requests answered, by class of status");
        for (class, count) in CLASSES.iter().zip(&self.requests) {
            page.sample("http_requests_total", &[("status", class)], count.load(Ordering::Relaxed));
        }
        page.family("sent_bytes_total", "counter", "Bytes of objects sent, by transport");
        page.sample("sent_bytes_total", &[("transport", "unicast")], self.sent_bytes.load(Ordering::Relaxed));
        page.sample("sent_bytes_total", &[("transport", "multicast")], totals.payload_bytes);
        let received = self.received_bytes.load(Ordering::Relaxed);
        page.single("received_bytes_total", "counter", "Bytes of objects received from clients", received);
        page.single("sessions", "gauge", "Multicast sessions that run", totals.running);
        page.single("session_receivers", "gauge", "Receivers in sessions that run", totals.receivers);
        page.single("sessions_started_total", "counter", "Multicast sessions started", totals.sessions);
        page.single("receivers_joined_total", "counter", "Receivers that joined a session", totals.joined);
        page.single("blocks_sent_total", "counter", "Blocks sent by multicast", totals.blocks);
        page.single("symbols_sent_total", "counter", "Repair symbols among the blocks sent", totals.symbols);
        page.family("blocks_resent_total", "counter", "Blocks sent again by multicast, by cause");
        for (cause, count) in ["late", "buffer_full", "lost"].iter().zip(totals.resent) {
            page.sample("blocks_resent_total", &[("cause", cause)], count);
        }
        page.single(
            "packet_sent_bytes_total",
            "counter",
            "Bytes of multicast packets sent",
            totals.packet_bytes,
        );
        page.single("reports_received_total", "counter", "Packets received from receivers", totals.reports);
        page.single(
            "packets_rejected_total",
            "counter",
            "Packets received that were rejected",
            totals.rejected,
        );
        of_peers(&mut page, peers);
        self.tokens(&mut page, tokens);
        page.0
    }

    fn tokens(&self, page: &mut Page, tokens: &TokenTotals) {
        page.single("tokens", "gauge", "Tokens shown within the last hour", tokens.in_use);
        page.single(
            "tokens_ending",
            "gauge",
            "Tokens shown within the last hour that end within a day and belong to no job",
            tokens.ending,
        );
        page.single(
            "join_token_expires_seconds",
            "gauge",
            "When the join token that this server gives out ends, in seconds since 1970",
            tokens.join_expires,
        );
        let expired = self.expired.load(Ordering::Relaxed);
        page.single(
            "token_expired_requests_total",
            "counter",
            "Requests refused because their token had ended",
            expired,
        );
    }
}

/// What the redirector did for machines that serve each other.
fn of_peers(page: &mut Page, (counters, members): (RedirectorCounters, usize)) {
    page.single("peers", "gauge", "Machines that serve each other", members as u64);
    page.single("peer_requests_total", "counter", "Requests that ask who holds objects", counters.requests);
    page.family("peer_objects_total", "counter", "Objects in these requests, by the answer");
    let answers = [
        ("near", counters.near),
        ("far", counters.far),
        ("server", counters.nobody),
        ("wait", counters.waits),
    ];
    for (answer, count) in answers {
        page.sample("peer_objects_total", &[("answer", answer)], count);
    }
    page.single(
        "peers_banned_total",
        "counter",
        "Machines that others got wrong bytes from",
        counters.banned,
    );
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        write!(self.0, "# HELP diskcast_{name} {help}\n# TYPE diskcast_{name} {kind}\n")
            .expect("a string takes everything");
    }

    /// Label values must not need escaping.
    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        let labels: Vec<_> = labels.iter().map(|(key, value)| format!("{key}=\"{value}\"")).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        writeln!(self.0, "diskcast_{name}{labels} {value}").expect("a string takes everything");
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: u64) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_what_prometheus_reads() {
        let metrics = Metrics::new();
        metrics.request(204);
        metrics.request(404);
        metrics.request(101);
        metrics.sent(10);
        metrics.expired();
        let sessions = SessionTotals { resent: [1, 2, 3], ..SessionTotals::default() };
        let text = metrics.text(
            &sessions,
            &TokenTotals { in_use: 7, ending: 2, join_expires: 1000 },
            (RedirectorCounters { near: 9, ..RedirectorCounters::default() }, 4),
        );
        for line in [
            "diskcast_http_requests_total{status=\"2xx\"} 2\n",
            "diskcast_http_requests_total{status=\"4xx\"} 1\n",
            "diskcast_sent_bytes_total{transport=\"unicast\"} 10\n",
            "diskcast_blocks_resent_total{cause=\"lost\"} 3\n",
            "diskcast_peers 4\n",
            "diskcast_peer_objects_total{answer=\"near\"} 9\n",
            "diskcast_tokens_ending 2\n",
            "diskcast_join_token_expires_seconds 1000\n",
            "diskcast_token_expired_requests_total 1\n",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        for sample in samples {
            let name = sample.split(['{', ' ']).next().unwrap();
            assert!(text.contains(&format!("# TYPE {name} ")), "{sample} has no type");
        }
    }
}
