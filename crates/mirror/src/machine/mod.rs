//! The heart of the mirror: which sectors are here, what is fetched when and from whom, and in which order data,
//! records and syncs reach the local medium. Sans-IO: it holds sets of sectors and no bytes; time is an argument.
//!
//! Whatever happens is an *operation*: a request of a front end, or a fetch that the core starts itself. Whoever drives
//! one (a thread of a front end, a worker, the simulator) asks [`Core::step`] what is to be done next, does it, and
//! tells [`Core::done`]. Operations that wait for others are named by [`Core::poll_wake`] when they may go on.
//!
//! ```text
//! sector   dirty    written since the base version; lies in the local file
//!          frozen   dirty when a commit began; copied before it is overwritten
//!          kept     committed since, in a chunk that is not here as a whole
//!          other    as its chunk is
//! chunk    clean    all of it that is not dirty equals the base version, zeros where that is free
//!          suspect  was clean before a power cut; held against its digest before it is used
//!          absent   fetched as a whole on first touch; what is dirty or kept of it stays
//! ```
//!
//! **Order.** `formats/mirror.md` has the argument. A sector that becomes dirty is recorded *after* its data was
//! written where it was not here before (what lies there without a record is void and is cleared after a crash), and
//! *before* where it was (a record too many says that equal data is dirty). A flush syncs the data first, then writes a
//! barrier that covers the records that were there before, and syncs that. A chunk is recorded as clean after all of it
//! was written.

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
