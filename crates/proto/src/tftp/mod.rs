//! TFTP for firmware that knows nothing better: the server's side of a transfer, which only reads.
//!
//! Sources: RFC 1350 (TFTP), RFC 2347 (options), RFC 2348 (`blksize`), RFC 2349 (`timeout`, `tsize`), RFC 7440
//! (`windowsize`).

mod packet;
mod transfer;

pub use packet::{ErrorCode, Request, error_packet};
pub use transfer::{Outcome, Output, Transfer};
