//! Tells the server how far a fetch is, and how it ended, so that `diskcast status` can show it. Reports are sent by a
//! thread of their own. They never slow the fetch down, and their errors are ignored.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use base::{Error, ErrorKind, chain};
use image::{InstallReport, Progress, Stage};
use parking_lot::{Condvar, Mutex};

use super::{Arrived, FetchReport};
use crate::api::{HostReport, HostStage};
use crate::client::{Client, ClientOptions};
use crate::clock::{self, Clock, Stop};

/// Time until the first report. At the start a report would need a connection of its own, while the fetch uses the
/// first one, and many machines start at the same moment.
const FIRST: Duration = Duration::from_millis(700);
/// Time until the next report if the server did not answer the last one.
const INTERVAL: Duration = Duration::from_secs(2);
/// Longest time that one report may take.
const REPORT_TIME_MAX: Duration = Duration::from_secs(2);
/// How long the end of a fetch waits for its last report.
const LAST_REPORT_TIME_MAX: Duration = Duration::from_secs(1);

/// Reports one fetch. Dropping it without [`HostReporter::end`] reports nothing more.
pub struct HostReporter {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Clock,
    arrived: Arc<Arrived>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    report: HostReport,
    /// Nothing is written: what arrives is only verified.
    only_verifies: bool,
    /// The first report is not to wait.
    soon: bool,
    /// The thread ends: the last report was sent, or nobody wants reports.
    done: bool,
}

impl HostReporter {
    /// Begins to report that the machine `host` fetches `reference`, `image@version`, from the server of `client`.
    #[must_use]
    pub fn start(client: &Client, host: &str, reference: String) -> Self {
        let report = HostReport {
            host: host.to_owned(),
            reference,
            stage: HostStage::Tree,
            ended: false,
            reason: None,
            done_bytes: 0,
            total_bytes: 0,
            multicast_bytes: 0,
            peer_bytes: 0,
            unicast_bytes: 0,
            elapsed_ms: 0,
        };
        let state = Mutex::new(State { report, only_verifies: false, soon: false, done: false });
        let (clock, arrived) = (Clock::start(), Arc::default());
        let shared = Arc::new(Shared { clock, arrived, state, changed: Condvar::new() });
        // A stop of the fetch does not stop the report of its end.
        let options = ClientOptions {
            request_timeout: REPORT_TIME_MAX,
            first_patience: REPORT_TIME_MAX,
            patience: Duration::ZERO,
            stop: Stop::new(),
            tell: Arc::new(|_| {}),
            ..client.options().clone()
        };
        let (client, sent) = (client.with_options(options), Arc::clone(&shared));
        thread::spawn(move || sent.send_all(&client));
        Self { shared }
    }

    /// The same for a fetch that writes nothing: it ends as verified, since each object was.
    #[must_use]
    pub fn only_verifying(self) -> Self {
        self.shared.state.lock().only_verifies = true;
        self
    }

    /// The same for a fetch that joins nothing first, neither a session nor a swarm: it reports at once, since until
    /// then the server does not keep the version from a prune.
    #[must_use]
    pub fn at_once(self) -> Self {
        self.shared.state.lock().soon = true;
        self.shared.changed.notify_all();
        self
    }

    /// Counts what arrives; the reports tell it.
    #[must_use]
    pub fn arrived(&self) -> &Arc<Arrived> {
        &self.shared.arrived
    }

    /// Passes the progress of an install on to `next`, and keeps it for the reports.
    #[must_use]
    pub fn watch(&self, next: Arc<dyn Progress>) -> Arc<dyn Progress> {
        Arc::new(Watched { shared: Arc::clone(&self.shared), next })
    }

    /// Reports how the fetch ended. Waits a moment until the server knows.
    pub fn end(self, done: Result<&FetchReport, &Error>) {
        let ways = done.map(|done| [done.multicast_bytes, done.peer_bytes, done.unicast_bytes]);
        let arrived = self.shared.arrived.ways();
        self.end_with(done.map(|done| &done.install), ways.unwrap_or(arrived));
    }

    /// Reports how an install ended whose objects came by unicast. Waits a moment until the server knows.
    pub fn end_install(self, done: Result<&InstallReport, &Error>) {
        let arrived = [0, 0, self.shared.arrived.unicast_bytes()];
        self.end_with(done, arrived);
    }

    fn end_with(self, done: Result<&InstallReport, &Error>, [multicast, peers, unicast]: [u64; 3]) {
        match done {
            Ok(done) => {
                let verified = done.verified_bytes > 0 || self.shared.state.lock().only_verifies;
                self.last(|report| {
                    report.stage = if verified { HostStage::Verified } else { HostStage::Written };
                    report.done_bytes = report.total_bytes;
                    (report.multicast_bytes, report.peer_bytes) = (multicast, peers);
                    report.unicast_bytes = unicast;
                });
            }
            Err(error) if error.kind() == ErrorKind::Stopped => self.refused("interrupted"),
            Err(error) => self.refused(&chain(error)),
        }
    }

    /// Reports that the fetch failed, or did not even begin, and why. Waits a moment until the server knows.
    pub fn refused(self, reason: &str) {
        self.last(|report| (report.stage, report.reason) = (HostStage::Failed, Some(reason.to_owned())));
    }

    fn last(self, fill: impl FnOnce(&mut HostReport)) {
        let mut state = self.shared.state.lock();
        self.shared.measure(&mut state.report);
        state.report.ended = true;
        fill(&mut state.report);
        self.shared.changed.notify_all();
        self.shared.changed.wait_while_for(&mut state, |state| !state.done, LAST_REPORT_TIME_MAX);
    }
}

impl Drop for HostReporter {
    fn drop(&mut self) {
        self.shared.state.lock().done = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    /// How long the fetch has run, and what has arrived.
    fn measure(&self, report: &mut HostReport) {
        report.elapsed_ms = u64::try_from(self.clock.elapsed().as_millis()).unwrap_or(u64::MAX);
        [report.multicast_bytes, report.peer_bytes, report.unicast_bytes] = self.arrived.ways();
    }

    /// Sends reports until the last one, or until the server is found to be too old for them.
    fn send_all(&self, client: &Client) {
        let mut chance = clock::jitter();
        let id = format!("{:016x}{:016x}", chance.u64(), chance.u64());
        let waits = |state: &mut State| !state.report.ended && !state.done;
        let waits_first = |state: &mut State| waits(state) && !state.soon;
        self.changed.wait_while_for(&mut self.state.lock(), waits_first, FIRST);
        loop {
            let mut state = self.state.lock();
            if state.done {
                return;
            }
            if !state.report.ended {
                self.measure(&mut state.report);
            }
            let report = state.report.clone();
            drop(state);
            let answer = client.report_host(&id, &report);
            let unwanted = answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound);
            let next = answer.map_or(INTERVAL, |answer| Duration::from_millis(answer.next_ms));
            let mut state = self.state.lock();
            if report.ended || unwanted {
                state.done = true;
                self.changed.notify_all();
                return;
            }
            self.changed.wait_while_for(&mut state, waits, next);
        }
    }
}

/// The progress of an install, on its way to the user.
struct Watched {
    shared: Arc<Shared>,
    next: Arc<dyn Progress>,
}

impl Progress for Watched {
    fn begin(&self, stage: Stage, bytes: u64) {
        {
            let mut state = self.shared.state.lock();
            let report = &mut state.report;
            report.stage = match stage {
                Stage::Unpack | Stage::Capture | Stage::Install => HostStage::Receiving,
                Stage::Resume => HostStage::Comparing,
                Stage::Verify => HostStage::Written,
            };
            (report.done_bytes, report.total_bytes) = (0, bytes);
        }
        self.next.begin(stage, bytes);
    }

    fn advance(&self, stage: Stage, bytes: u64) {
        self.shared.state.lock().report.done_bytes += bytes;
        self.next.advance(stage, bytes);
    }
}
