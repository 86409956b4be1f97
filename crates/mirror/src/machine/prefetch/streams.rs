//! Read-ahead along streams: each stream of reads (sequential or strided) is followed separately in an access
//! context, and is read ahead only while that pays. After Nicolae, Cappello, Antoniu: Optimizing multi-deployment on
//! clouds by means of self-adaptive prefetching (Euro-Par 2011), and the read-ahead of file systems.

use crate::machine::types::{Cut, Sectors};

/// Maximum number of streams that are followed at the same time. The one that was quiet longest is replaced.
const CONTEXTS_MAX: usize = 16;
/// A read that begins at most this many sectors after the end of the last one still belongs to its stream: 64 KiB.
const SLACK_SECTORS: u64 = 128;
/// Maximum distance between two reads of a strided stream: 64 MiB.
const STRIDE_MAX: u64 = 1 << 17;
/// Number of equal strides in a row before a strided stream is read ahead.
const STRIDES_MIN: u32 = 2;
/// Upper limit of `doubt`: each replaced stream that wasted more than it used adds one chunk to what a new stream
/// must read before it is read ahead.
const DOUBT_MAX: u64 = 4;

#[derive(Debug, Clone)]
struct Context {
    /// Where the stream began.
    start: u64,
    /// End of its last read.
    end: u64,
    /// Where its last read began.
    last: u64,
    /// Distance from the read before to the last one.
    stride: u64,
    /// How often in a row the distance was the same.
    strides: u32,
    /// Number of chunks that are fetched ahead now.
    window: u64,
    /// The chunk after the last one that was requested ahead.
    ahead: u64,
    /// Chunks that were requested ahead and not read yet, ascending.
    waiting: Vec<u64>,
    used: u64,
    wasted: u64,
    quiet_since: u64,
}

/// See the module.
#[derive(Debug)]
pub(in crate::machine) struct Contexts {
    window_max: u64,
    contexts: Vec<Context>,
    reads: u64,
    doubt: u64,
}

impl Contexts {
    pub(in crate::machine) fn new(window_max: u64) -> Self {
        Self { window_max, contexts: Vec::new(), reads: 0, doubt: 0 }
    }

    /// Notes a read. Returns the chunks that will probably be read next, best first.
    pub(in crate::machine) fn read(&mut self, range: &Sectors, cut: &Cut) -> Vec<u64> {
        if self.window_max == 0 {
            return Vec::new();
        }
        self.reads += 1;
        let at = self.contexts.iter().position(|context| context.continues(range));
        let Some(at) = at else {
            self.begin(range);
            return Vec::new();
        };
        let (window_max, doubt) = (self.window_max, self.doubt);
        let context = &mut self.contexts[at];
        context.quiet_since = self.reads;
        context.follow(range);
        context.next_chunks(range, cut, window_max, doubt)
    }

    /// A chunk that was fetched ahead is read.
    pub(in crate::machine) fn used(&mut self, chunk: u64) {
        for context in &mut self.contexts {
            if let Ok(at) = context.waiting.binary_search(&chunk) {
                // The chunks that the stream skipped are wasted.
                context.wasted += at as u64;
                context.waiting.drain(..=at);
                context.used += 1;
                return;
            }
        }
    }

    fn begin(&mut self, range: &Sectors) {
        if self.contexts.len() == CONTEXTS_MAX {
            let quietest = self.contexts.iter().enumerate().min_by_key(|(_, context)| context.quiet_since);
            let at = quietest.map_or(0, |(at, _)| at);
            let gone = self.contexts.swap_remove(at);
            let wasted = gone.wasted + gone.waiting.len() as u64;
            if wasted > gone.used {
                self.doubt = (self.doubt + 1).min(DOUBT_MAX);
            } else if gone.used > 0 {
                self.doubt = self.doubt.saturating_sub(1);
            }
        }
        self.contexts.push(Context {
            start: range.start,
            end: range.end,
            last: range.start,
            stride: 0,
            strides: 0,
            window: 1,
            ahead: 0,
            waiting: Vec::new(),
            used: 0,
            wasted: 0,
            quiet_since: self.reads,
        });
    }
}

impl Context {
    fn continues(&self, range: &Sectors) -> bool {
        let sequential = range.start >= self.last && range.start <= self.end + SLACK_SECTORS;
        let strided = self.stride > 0 && range.start == self.last + self.stride;
        // A second read of the same length, at some distance, may be the begin of a strided stream.
        let first_stride = self.strides == 0
            && range.start > self.end
            && range.end - range.start == self.end - self.last
            && self.last == self.start
            && range.start - self.last <= STRIDE_MAX;
        sequential || strided || first_stride
    }

    fn follow(&mut self, range: &Sectors) {
        let stride = range.start - self.last.min(range.start);
        let jumps = range.start > self.end + SLACK_SECTORS;
        self.strides = if jumps && stride == self.stride { self.strides + 1 } else { u32::from(jumps) };
        self.stride = if jumps { stride } else { 0 };
        self.last = range.start;
        self.end = if jumps { range.end } else { self.end.max(range.end) };
        if jumps {
            self.start = range.start;
        }
    }

    fn next_chunks(&mut self, range: &Sectors, cut: &Cut, window_max: u64, doubt: u64) -> Vec<u64> {
        let wasteful = self.wasted > self.used + 1;
        if self.strides >= STRIDES_MIN && !wasteful {
            let steps = (1..=self.window.min(window_max)).map(|step| range.start + step * self.stride);
            let chunks = steps.filter(|&at| at < cut.size_sectors).map(|at| at / cut.chunk_sectors);
            let chunks: Vec<u64> = chunks.filter(|&chunk| chunk >= self.ahead).collect();
            return self.ask(chunks, window_max);
        }
        // A sequential stream is read ahead after it has read through a whole chunk (and `doubt` more).
        let streamed = self.end - self.start;
        if self.stride > 0 || wasteful || streamed < (1 + doubt) * cut.chunk_sectors {
            return Vec::new();
        }
        let here = (self.end - 1) / cut.chunk_sectors;
        let first = self.ahead.max(here + 1);
        // Ask for more only when half of the window is used.
        if self.ahead > here && self.ahead - here > self.window / 2 + 1 {
            return Vec::new();
        }
        let behind = (here + 1 + self.window).min(cut.chunks());
        self.ask((first..behind).collect(), window_max)
    }

    fn ask(&mut self, mut chunks: Vec<u64>, window_max: u64) -> Vec<u64> {
        chunks.dedup();
        if let Some(&last) = chunks.last() {
            self.ahead = last + 1;
            self.waiting.extend(&chunks);
            self.window = (self.window * 2).min(window_max);
        }
        chunks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUT: Cut = Cut { size_sectors: 1 << 23, chunk_sectors: 512, height: 2 };

    fn asked(contexts: &mut Contexts, reads: impl IntoIterator<Item = Sectors>) -> Vec<u64> {
        reads.into_iter().flat_map(|range| contexts.read(&range, &CUT)).collect()
    }

    #[test]
    fn a_sequential_stream_is_read_ahead_of_ever_further_and_nothing_twice() {
        let mut contexts = Contexts::new(16);
        let asked = asked(&mut contexts, (0..80).map(|at| at * 256..(at + 1) * 256));
        assert!(asked.is_sorted() && asked.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{asked:?}");
        assert!(asked[0] >= 1 && *asked.last().unwrap() >= 40, "{asked:?}");
        assert!(*asked.last().unwrap() <= 40 + 16, "{asked:?}");
    }

    #[test]
    fn random_reads_fetch_nothing_ahead() {
        let mut contexts = Contexts::new(16);
        let mut chance = base::Chance::from_seed(3);
        let reads: Vec<Sectors> = (0..500)
            .map(|_| {
                let at = chance.below(1 << 23) / 8 * 8;
                at..at + 8
            })
            .collect();
        let asked = asked(&mut contexts, reads);
        assert!(asked.len() < 5, "{asked:?}");
    }

    #[test]
    fn a_strided_stream_is_followed() {
        let mut contexts = Contexts::new(16);
        let asked = asked(&mut contexts, (0..20).map(|at| at * 4096..at * 4096 + 8));
        assert!(asked.len() >= 10 && asked.iter().all(|chunk| chunk % 8 == 0), "{asked:?}");
    }

    #[test]
    fn two_streams_do_not_disturb_each_other() {
        let mut contexts = Contexts::new(16);
        let reads = (0..40).flat_map(|at| {
            let far = 1 << 22;
            [at * 256..(at + 1) * 256, far + at * 256..far + (at + 1) * 256]
        });
        let asked = asked(&mut contexts, reads);
        let (near, far): (Vec<u64>, Vec<u64>) = asked.into_iter().partition(|&chunk| chunk < 1 << 12);
        assert!(near.len() > 15 && far.len() > 15, "{near:?} {far:?}");
    }

    #[test]
    fn a_stream_that_wastes_is_not_read_ahead_of() {
        let mut contexts = Contexts::new(16);
        // One and a half chunks each time, then a jump: the chunks after them are never read.
        for run in 0..200u64 {
            let at = run * 40_000 % (1 << 22);
            for part in 0..3 {
                contexts.read(&(at + part * 256..at + (part + 1) * 256), &CUT);
            }
        }
        assert_eq!(contexts.doubt, DOUBT_MAX);
    }
}
