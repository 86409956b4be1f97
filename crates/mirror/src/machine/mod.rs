//! The core of an on-demand disk. It decides which sectors are fetched, when and from which source, and in which
//! order data, journal records and syncs reach the local medium. It does no I/O itself: it holds sets of sectors but
//! no bytes, and time is an argument.
//!
//! All work is done in *operations*: a request of a front end, or a fetch that the core starts itself. A driver (a
//! front end's thread, a worker thread, the simulator) asks [`Core::step`] for the next step of an operation,
//! executes it, and reports the result to [`Core::done`]. When an operation that had to wait can continue,
//! [`Core::poll_wake`] returns it. The frozen sectors of one commit are a *generation*.
//!
//! ```text
//! sector   dirty    written since the base version; is in the local file
//!          frozen   dirty when a commit began; copied before it is overwritten
//!          kept     committed since, in a chunk that is not completely local
//!          other    has the state of its chunk
//! chunk    clean    its sectors, except the dirty ones, equal the base version; free space reads as zeros
//!          suspect  was clean before a power cut; is compared with its digest before it is used
//!          absent   fetched as a whole at the first access; its dirty and kept sectors stay
//! ```
//!
//! **Order.** `formats/mirror.md` explains why it is correct. If a sector was not local when it becomes dirty, it is
//! recorded *after* its data was written: bytes without a record are not valid and are cleared after a crash. If it
//! was local, it is recorded *before*: a record without its data only makes equal bytes dirty. A flush first syncs
//! the data, then writes a barrier that covers the records which existed before that sync, and syncs the journal. A
//! chunk is recorded as clean after all of it was written.

mod fetch;
mod fetch_queue;
mod flush;
mod held;
mod multicast;
mod multicast_wishes;
mod operations;
mod prefetch;
mod run;
mod schedule;
mod state;
mod types;
mod write;

pub use held::Held;
pub use multicast_wishes::{ChunkWish, Expectation};
pub use state::Core;
pub use types::{
    Config, Counters, Cut, Done, Ending, Failure, Io, Item, NodePlace, OpId, Record, Request, Sectors, Step,
    Zeros,
};
