//! Reads a range of a run's content from its components: those that hold it, or, where these fail or are slow, any
//! others that suffice to compute it. formats/cluster.md, section 2.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt as _};
use parking_lot::Mutex;
use proto::cluster::{ALIGN_BYTES, DeviceId, ObjectId, Run, Width};
use proto::code::recover_stripe;
use reqwest::{Method, header};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::index::wants_renewal;
use super::session::Session;
use crate::buffers::Buffers;
use crate::clock::monotonic;
use crate::http::{Failure, Reply, send_for_buffer};
use crate::problem::Word;

/// Longest wait for a component that nothing can replace.
const COMPONENT_MAX: Duration = Duration::from_secs(20);
/// Shortest and longest wait before others are asked in the place of slow components.
const HEDGE_MIN: Duration = Duration::from_millis(60);
const HEDGE_MAX: Duration = Duration::from_secs(3);
/// Fetches whose durations are remembered.
const REMEMBERED: usize = 128;
/// Components that answer at the same time. All answers come through one switch port, whose buffer many of them
/// overflow (seed 002, section 4).
const FAN_IN_MAX: usize = 16;

/// Memory for answers that is kept for later ones.
const SPARE_BYTES_MAX: usize = 64 << 20;

/// Where the components of a segment are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) segment: u64,
    pub(super) width: Width,
    pub(super) devices: Vec<DeviceId>,
}

/// How many components are asked at the same time, how long fetches took lately, and where they go.
#[derive(Debug)]
pub(super) struct Turns {
    answers: Semaphore,
    took: Mutex<VecDeque<Duration>>,
    buffers: Buffers,
}

impl Default for Turns {
    fn default() -> Self {
        let buffers = Buffers::new(SPARE_BYTES_MAX);
        Self { answers: Semaphore::new(FAN_IN_MAX), took: Mutex::default(), buffers }
    }
}

impl Turns {
    /// Waits until so many more components may be asked.
    async fn admit(&self, components: usize) -> SemaphorePermit<'_> {
        let wanted = u32::try_from(components.min(FAN_IN_MAX)).expect("they are few");
        self.answers.acquire_many(wanted).await.expect("nobody closes it")
    }

    fn add(&self, took: Duration) {
        let mut recent = self.took.lock();
        if recent.len() == REMEMBERED {
            recent.pop_front();
        }
        recent.push_back(took);
    }

    /// When a fetch counts as slow: after twice the time that 19 of 20 took.
    fn patience(&self) -> Duration {
        let mut sorted: Vec<_> = self.took.lock().iter().copied().collect();
        sorted.sort_unstable();
        let slow = sorted.get(sorted.len() * 19 / 20).copied().unwrap_or(HEDGE_MAX / 2);
        (slow * 2).clamp(HEDGE_MIN, HEDGE_MAX)
    }
}

/// What one fetch knows of a component.
#[derive(Debug, Clone, Default)]
struct Known {
    /// A part of its part of the run, and where that begins.
    have: Option<(u32, Bytes)>,
    /// It failed, or should not be asked now.
    lost: Option<Lost>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lost {
    /// It refused, or holds damaged bytes.
    Surely,
    /// It is slow, or failed lately: better than nothing.
    Perhaps,
}

impl Known {
    fn covers(&self, range: &Range<u32>) -> bool {
        self.have.as_ref().is_some_and(|(from, bytes)| {
            *from <= range.start && range.end <= from + u32::try_from(bytes.len()).unwrap_or(u32::MAX)
        })
    }

    fn get(&self, range: Range<u32>) -> &[u8] {
        let (from, bytes) = self.have.as_ref().expect("it was fetched");
        &bytes[(range.start - from) as usize..(range.end - from) as usize]
    }
}

/// One fetch.
struct Fetch<'a> {
    session: &'a Session,
    buffers: &'a Buffers,
    layout: &'a Layout,
    run: Run,
    /// What is needed of each data component.
    needed: Vec<Option<Range<u32>>>,
    known: Vec<Known>,
    last: Option<Failure>,
    /// A device has no such component: it lies elsewhere by now.
    stale: bool,
    /// How long it took, without the time for which other fetches had their turn.
    took: Duration,
}

/// Reads `range` of the content of `run`; also says whether a component is not where `layout` says.
pub(super) async fn fetch(
    session: &Session,
    turns: &Turns,
    layout: &Layout,
    run: Run,
    range: Range<u64>,
) -> Reply<(Bytes, bool)> {
    let width = layout.width;
    let mut needed: Vec<Option<Range<u32>>> = vec![None; width.data.into()];
    for span in run.spans(width, range.clone()) {
        let (from, to) = (span.in_part, span.in_part + span.bytes);
        let part = &mut needed[usize::from(span.component)];
        *part = Some(part.as_ref().map_or(from..to, |part| part.start.min(from)..part.end.max(to)));
    }
    let map = session.map();
    let perhaps = |&device: &DeviceId| (!session.is_trusted(&map, device)).then_some(Lost::Perhaps);
    let known = layout.devices.iter().map(|device| Known { have: None, lost: perhaps(device) }).collect();
    let took = Duration::ZERO;
    let buffers = &turns.buffers;
    let mut fetch = Fetch { session, buffers, layout, run, needed, known, last: None, stale: false, took };
    fetch.all(turns).await?;
    turns.add(fetch.took);
    Ok((fetch.assemble(range), fetch.stale))
}

impl Fetch<'_> {
    /// Fetches until what is needed is there, or can be computed.
    async fn all(&mut self, turns: &Turns) -> Reply<()> {
        let mut patience = turns.patience();
        loop {
            let Some(wanted) = self.wanted() else {
                // Too many are lost: the slow ones must do.
                let perhaps = self.known.iter_mut().filter(|known| known.lost == Some(Lost::Perhaps));
                let revived = perhaps.map(|known| known.lost = None).count();
                if revived == 0 || patience == COMPONENT_MAX {
                    let none = || Failure::Unreachable("too few components of the segment answer".to_owned());
                    return Err(self.last.take().unwrap_or_else(none));
                }
                patience = COMPONENT_MAX;
                continue;
            };
            if wanted.is_empty() {
                return Ok(());
            }
            let turn = turns.admit(wanted.len()).await;
            let began = monotonic();
            self.round(wanted, turn, patience).await;
            self.took += monotonic().since(began);
        }
    }

    /// What is to be fetched of which component; `None` if that can't suffice.
    fn wanted(&self) -> Option<Vec<(usize, Range<u32>)>> {
        let data = self.needed.len();
        let window = self.window();
        let mut wanted = Vec::new();
        for (number, known) in self.known.iter().enumerate() {
            let own = self.needed.get(number).cloned().flatten();
            let range = match (&window, own) {
                (None, own) => own,
                (Some(window), None) => Some(window.clone()),
                (Some(window), Some(own)) => Some(own.start.min(window.start)..own.end.max(window.end)),
            };
            if number < data && known.lost.is_none() {
                wanted.extend(range.filter(|range| !known.covers(range)).map(|range| (number, range)));
            }
        }
        let Some(window) = window else { return Some(wanted) };
        let lost = self.known[..data].iter().filter(|known| known.lost.is_some()).count();
        let parity: Vec<usize> =
            (data..self.known.len()).filter(|&number| self.known[number].lost.is_none()).take(lost).collect();
        if parity.len() < lost {
            return None;
        }
        let missing = parity.into_iter().filter(|&number| !self.known[number].covers(&window));
        wanted.extend(missing.map(|number| (number, window.clone())));
        Some(wanted)
    }

    /// The range of all parts that is needed to compute what is needed of lost components.
    fn window(&self) -> Option<Range<u32>> {
        let lost = self.needed.iter().zip(&self.known).filter(|(_, known)| known.lost.is_some());
        let ranges: Vec<_> = lost.filter_map(|(needed, _)| needed.clone()).collect();
        let from = ranges.iter().map(|range| range.start).min()?;
        let to = ranges.iter().map(|range| range.end).max()?;
        Some(from - from % ALIGN_BYTES..to.next_multiple_of(ALIGN_BYTES))
    }

    /// Asks components; those that do not answer within `patience` are lost, perhaps.
    async fn round(
        &mut self,
        wanted: Vec<(usize, Range<u32>)>,
        mut turns: SemaphorePermit<'_>,
        patience: Duration,
    ) {
        let mut open: BTreeSet<usize> = wanted.iter().map(|(number, _)| *number).collect();
        let (session, buffers, layout, run) = (self.session, self.buffers, self.layout, self.run);
        let mut answers: FuturesUnordered<_> = wanted
            .into_iter()
            .map(|(number, range)| {
                let turn = turns.split(1);
                async move {
                    let answer = component(session, buffers, layout, run, number, &range).await;
                    // Others need not wait for the slowest of these.
                    drop(turn);
                    (number, range, answer)
                }
            })
            .collect();
        let deadline = tokio::time::sleep(patience);
        tokio::pin!(deadline);
        loop {
            tokio::select! {
                answer = answers.next() => {
                    let Some((number, range, answer)) = answer else { return };
                    open.remove(&number);
                    self.answered(number, range, answer);
                }
                () = &mut deadline => break,
            }
        }
        for number in open {
            self.known[number].lost = Some(Lost::Perhaps);
            self.session.suspect(self.layout.devices[number]);
        }
    }

    fn answered(&mut self, number: usize, range: Range<u32>, answer: Reply<Bytes>) {
        match answer {
            Ok(bytes) => self.known[number].have = Some((range.start, bytes)),
            Err(failure) => {
                self.stale |= failure.word() == Some(Word::Missing);
                let surely = matches!(failure, Failure::Refused(_));
                if !surely {
                    self.session.suspect(self.layout.devices[number]);
                }
                self.known[number].lost = Some(if surely { Lost::Surely } else { Lost::Perhaps });
                self.last = Some(failure);
            }
        }
    }

    /// The content, with what was lost computed.
    fn assemble(&self, range: Range<u64>) -> Bytes {
        let computed = self.window().map(|window| (window.clone(), self.recover(&window)));
        let bytes = usize::try_from(range.end - range.start).expect("a run is bounded");
        let mut content = self.buffers.fill(bytes);
        for span in self.run.spans(self.layout.width, range) {
            let number = usize::from(span.component);
            let part = span.in_part..span.in_part + span.bytes;
            let bytes = match (&computed, self.known[number].lost) {
                (Some((window, units)), Some(_)) => {
                    let unit = units[number].as_ref().expect("it was lost");
                    &unit[(part.start - window.start) as usize..(part.end - window.start) as usize]
                }
                _ => self.known[number].get(part),
            };
            content.push(bytes).expect("spans are as long as their range together");
        }
        content.freeze()
    }

    /// The window of the parts of lost data components.
    fn recover(&self, window: &Range<u32>) -> Vec<Option<Vec<u8>>> {
        let data = self.needed.len();
        let unit = |known: &'_ Known| known.lost.is_none();
        let known: Vec<Option<&[u8]>> =
            self.known[..data].iter().map(|known| unit(known).then(|| known.get(window.clone()))).collect();
        let parity: Vec<(u16, &[u8])> = (0u16..)
            .zip(&self.known[data..])
            .filter(|(_, known)| unit(known) && known.covers(window))
            .map(|(row, known)| (row, known.get(window.clone())))
            .collect();
        let mut units: Vec<Option<Vec<u8>>> = known
            .iter()
            .map(|part| part.is_none().then(|| vec![0; (window.end - window.start) as usize]))
            .collect();
        let mut missing: Vec<&mut [u8]> = units.iter_mut().flatten().map(Vec::as_mut_slice).collect();
        let lost = missing.len();
        recover_stripe(&known, &parity[..lost], &mut missing);
        units
    }
}

/// Reads a range of the part of a run on one component.
async fn component(
    session: &Session,
    buffers: &Buffers,
    layout: &Layout,
    run: Run,
    number: usize,
    range: &Range<u32>,
) -> Reply<Bytes> {
    let id = ObjectId { group: session.group(), number: layout.segment };
    let (from, to) = (run.at + u64::from(range.start), run.at + u64::from(range.end));
    let mut tries = 0;
    loop {
        let map = session.map();
        let path = format!("objects/{id}?component={number}");
        let request = session.to_device(&map, layout.devices[number], Method::GET, &path, None);
        let request =
            request.header(header::RANGE, format!("bytes={from}-{}", to - 1)).timeout(COMPONENT_MAX);
        match send_for_buffer(request, buffers, (range.end - range.start) as usize).await {
            Err(failure) if wants_renewal(&failure) && tries < 3 => {
                tries += 1;
                session.renew(map.epoch).await?;
            }
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn so_many_components_are_asked_and_no_more() {
        let turns = Turns::default();
        let asked: Vec<_> = (0..FAN_IN_MAX / 8).map(|_| turns.admit(8).now_or_never().unwrap()).collect();
        assert!(turns.admit(1).now_or_never().is_none());
        drop(asked);
        assert!(
            turns.admit(2 * FAN_IN_MAX).now_or_never().is_some(),
            "a wide segment waits for all turns, not for ever"
        );
    }
}
