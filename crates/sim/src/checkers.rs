//! The rules that must always hold. The checkers see everything that happens in the simulated world, and use no state
//! of the machines that they check.

use base::Instant;
use proto::multicast::{BlockHeader, Disposition, SessionStatistics};

use crate::holding::Holding;
use crate::receiver_host::ReceiverHost;
use crate::scenario::{Event, Fault, Scenario};
use crate::truth::Truth;

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: &'static str,
    /// When, where and how it was broken.
    pub what: String,
}

/// Rules that bound time and traffic.
const OF_COST: [&str; 3] =
    ["hosts that ail slow nobody", "nothing is sent that nobody lacks", "control traffic is bounded"];

impl Violation {
    /// Whether the rule bounds time or traffic. What these are is chance in part: losses and what each host draws
    /// decide whether a host meets a stream or misses it. So of a thousand seeds one may break such a rule. No seed
    /// may break another one.
    #[must_use]
    pub fn is_of_cost(&self) -> bool {
        OF_COST.contains(&self.rule)
    }
}

/// The checkers of one run, with what they have found.
#[derive(Debug)]
pub(crate) struct Checkers {
    violations: Vec<Violation>,
    holdings: Vec<Holding>,
    /// One bit per block: sent at least once since the server started.
    sent_once: Vec<u64>,
    sent_first: u64,
    /// For each object, the first row whose symbol was not sent yet since the server started.
    next_row: Vec<u16>,
    /// Blocks sent over all epochs, and in `useless` those that no receiver lacked.
    pub sent: u64,
    /// See `sent`.
    pub useless: u64,
    /// Those of `useless` that are symbols.
    pub useless_symbols: u64,
    /// Symbols sent, as the servers count them.
    symbols: u64,
    lies: bool,
}

impl Checkers {
    pub(crate) fn new(truth: &Truth, hosts: usize) -> Self {
        Self {
            violations: Vec::new(),
            holdings: vec![Holding::new(truth); hosts],
            sent_once: vec![0; truth.blocks().div_ceil(64)],
            sent_first: 0,
            next_row: vec![0; truth.objects.len()],
            sent: 0,
            useless: 0,
            useless_symbols: 0,
            symbols: 0,
            lies: false,
        }
    }

    /// Returns the violations.
    pub(crate) fn into_violations(self) -> Vec<Violation> {
        self.violations
    }

    /// Records a violation of `rule`; at most three for each rule.
    pub(crate) fn breach(&mut self, rule: &'static str, what: String) {
        if self.violations.iter().filter(|violation| violation.rule == rule).count() < 3 {
            self.violations.push(Violation { rule, what });
        }
    }

    pub(crate) fn fault(&mut self, fault: Fault) {
        self.lies |= matches!(fault, Fault::Lie { .. });
    }

    /// The server sends a block or symbol; `reaches` says which hosts will receive it.
    pub(crate) fn block_sent(
        &mut self,
        now: Instant,
        truth: &Truth,
        header: &BlockHeader,
        hosts: &[ReceiverHost],
        reaches: &[bool],
    ) {
        let symbol = header.symbol(&truth.shape);
        self.sent += 1;
        if let Some(row) = symbol {
            let next = &mut self.next_row[header.object as usize];
            if std::mem::replace(next, row + 1) > row {
                let what = format!("{now:?}: object {}, row {row}", header.object);
                self.breach("each symbol is sent once", what);
            }
        } else {
            let block = truth.block(header.object, header.block);
            let (word, bit) = (block / 64, 1 << (block % 64));
            self.sent_first += u64::from(self.sent_once[word] & bit == 0);
            self.sent_once[word] |= bit;
        }
        // The server does not know yet that a receiver that asked has crashed or left; and it sends what it has
        // planned even if all have.
        let all_left =
            hosts.iter().all(|host| !host.listens()) && hosts.iter().any(|host| host.left_at.is_some());
        let mut useful = all_left || hosts.iter().any(|host| host.is_missed(now, header.object));
        for ((holding, host), &reached) in self.holdings.iter_mut().zip(hosts).zip(reaches) {
            if host.machine.is_some() && !host.installed[header.object as usize] {
                useful |= holding.sent(truth, header, reached);
            }
        }
        self.useless += u64::from(!useful);
        self.useless_symbols += u64::from(!useful && symbol.is_some());
    }

    /// A block or symbol arrived at a host, which treated it as `did` says (`None`: it could not be opened).
    pub(crate) fn block_came(
        &mut self,
        truth: &Truth,
        host: usize,
        header: &BlockHeader,
        did: Option<Disposition>,
    ) {
        self.holdings[host].came(truth, header, did);
    }

    /// A host lost everything that is not on its disk.
    pub(crate) fn host_forgot(&mut self, host: usize) {
        self.holdings[host].forget();
    }

    /// The server restarts; `last` is its final statistics.
    pub(crate) fn server_gone(&mut self, now: Instant, last: Option<&SessionStatistics>) {
        if let Some(last) = last {
            if last.blocks_sent != self.sent_first + last.resent.total() + last.symbols_ahead {
                let what =
                    format!("{now:?}: {last:?}, but {} blocks went out for the first time", self.sent_first);
                self.breach("every resend is booked with its cause", what);
            }
            self.symbols += last.symbols_sent;
        }
        self.sent_once.fill(0);
        self.sent_first = 0;
        self.next_row.fill(0);
    }

    pub(crate) fn memory(&mut self, now: Instant, index: usize, host: &ReceiverHost) {
        if host.buffered_bytes > host.buffer_bytes {
            let what =
                format!("{now:?}: host {index} holds {} of {} bytes", host.buffered_bytes, host.buffer_bytes);
            self.breach("receiver memory is bounded", what);
        }
    }

    pub(crate) fn server_memory(&mut self, now: Instant, bytes: u64, most: u64) {
        if bytes > most {
            self.breach("server memory is bounded", format!("{now:?}: {bytes} of {most} bytes"));
        }
    }

    pub(crate) fn judged(&mut self, now: Instant, host: usize, object: u64, ok: bool) {
        if !ok && !self.lies {
            let what = format!("{now:?}: host {host}, object {object}, and nobody lied");
            self.breach("what came is what was sent", what);
        }
    }

    pub(crate) fn written(&mut self, now: Instant, truth: &Truth, host: usize, object: u64, content: &[u8]) {
        if truth.objects[object as usize] != content {
            self.breach("only what is right is written", format!("{now:?}: host {host}, object {object}"));
        }
    }

    pub(crate) fn done(&mut self, now: Instant, index: usize, host: &ReceiverHost) {
        if let Some(object) = host.installed.iter().position(|installed| !installed) {
            let what = format!("{now:?}: host {index} is done without object {object}");
            self.breach("who is done has the image", what);
        }
    }

    /// Checks at the end of the run, when every receiver had time to finish, and the server had time to notice those
    /// that left.
    pub(crate) fn end(&mut self, now: Instant, scenario: &Scenario, hosts: &[ReceiverHost], deserted: bool) {
        for (index, host) in hosts.iter().enumerate() {
            if host.done_at.is_none() && !host.never_ends() {
                let lacks = host.installed.iter().filter(|installed| !**installed).count();
                self.breach("everybody ends", format!("{now:?}: host {index} lacks {lacks} objects"));
            }
        }
        self.reports(now, scenario, hosts);
        if !deserted {
            self.breach("a session without receivers can end", format!("{now:?}"));
        }
        self.waste(scenario);
    }

    /// Bounds what was sent although no receiver lacked it.
    fn waste(&mut self, scenario: &Scenario) {
        let (symbols, blocks) = (self.useless_symbols, self.useless - self.useless_symbols);
        let most = useless_blocks_max(scenario) + self.sent * scenario.waste_percent / 100;
        if blocks > most {
            let what = format!("{blocks} of {} blocks, at most {most}", self.sent);
            self.breach("nothing is sent that nobody lacks", what);
        }
        // Half of the symbols may be useless: the number sent in advance suits most objects, not each; requested
        // symbols are sent with a margin for losses; and receivers that lose different blocks ask at different times.
        let most = most + self.symbols / 2;
        if symbols > most {
            let what = format!("{symbols} symbols, at most {most}");
            self.breach("nothing is sent that nobody lacks", what);
        }
    }

    /// Bounds control traffic. Each receiver may send some reports at the start and for each fault, some for each
    /// filling of its buffer, one for each missed block, and at most 100 a second. All receivers together may use a
    /// hundredth of the rate; on slow links 400 kbit/s, but no more than a fiftieth (`formats/multicast.md`, section 6,
    /// rule 9).
    fn reports(&mut self, now: Instant, scenario: &Scenario, hosts: &[ReceiverHost]) {
        let image_bytes: u64 = scenario.object_bytes.iter().map(|&bytes| u64::from(bytes)).sum();
        let faults = 8 * scenario.events.len() as u64;
        let rate = scenario.bits_per_second;
        let bits_each_second = (rate / 100).max(REPORTS_SLOW_BITS.min(rate / 50));
        let each_second = (bits_each_second / (8 * REPORT_BYTES)).max(1);
        let (mut sum, mut sum_most) = (0, now.since(Instant::ZERO).as_millis() as u64 * each_second / 1000);
        for (index, host) in hosts.iter().enumerate() {
            let done_at = host.done_at.unwrap_or(now);
            let milliseconds = done_at.since(scenario.hosts[index].starts).as_millis() as u64;
            let for_time = milliseconds * each_second.min(100) / 1000;
            let for_needs = 32 + faults + 4 * image_bytes / host.buffer_bytes + self.holdings[index].missed;
            if host.reports > for_needs + for_time {
                let what =
                    format!("host {index} sent {} reports, at most {for_needs} + {for_time}", host.reports);
                self.breach("control traffic is bounded", what);
            }
            sum += host.reports;
            sum_most += for_needs;
        }
        if sum > sum_most {
            let what = format!("all hosts sent {sum} reports, at most {sum_most}");
            self.breach("control traffic is bounded", what);
        }
    }
}

/// Bits of reports per second that all receivers together may send on a slow link.
const REPORTS_SLOW_BITS: u64 = 400_000;

/// Minimum size of a report on the wire, in bytes.
const REPORT_BYTES: u64 = 140;

/// Number of blocks that may be sent although no receiver lacks them: a few for each fault; more if packets arrive
/// later than a receiver waits before it reports a loss, or if forged blocks make receivers ask too early.
fn useless_blocks_max(scenario: &Scenario) -> u64 {
    let early = |event: &&Event| matches!(event.fault, Fault::Disorder { .. } | Fault::Lie { .. });
    let early = scenario.events.iter().filter(early).count();
    5 * scenario.events.len() as u64 + 150 * early as u64
}
