//! BitTorrent: a version as a torrent that any client fetches, and fetches that write pieces straight to a disk.
//!
//! Sources: BEP 3 (metainfo, trackers, peers), BEP 7 and 23 (compact lists of peers), BEP 27 (private torrents), BEP 52
//! (version 2, of which hybrid torrents carry the digests).
//!
//! ```text
//! bencode   the encoding of metainfo and of answers to announces
//! metainfo  what a torrent says: the digests of its pieces, in versions 1 and 2
//! hash      makes them, once for each version
//! kept      keeps them in a folder
//! content   where bytes come from, and where verified pieces go
//! target    a disk that an install writes: pieces go to it, and are read from it
//! wire      messages between peers
//! swarm     one torrent's peers, as a machine without I/O: who is asked for which block, who is served
//! node      sockets around it
//! fetch     one torrent, from the swarm that a tracker names
//! tracker   who takes part in a torrent, near ones first, without I/O
//! ```
//!
//! Peers of version 1 alone are spoken with. A client that knows version 2 fetches a hybrid torrent as well, from the
//! same swarm.

pub mod bencode;
mod bits;
pub mod content;
pub mod fetch;
pub mod hash;
pub mod metainfo;
mod node;
pub mod swarm;
mod target;
pub mod torrent_folder;
pub mod tracker;
pub mod wire;

pub use bits::Bits;
pub use content::Content;
pub use hash::{Hashes, hash, piece_bytes_for};
pub use metainfo::{InfoHash, Kind, Metainfo};
pub use node::{Find, Found, Node, NodeOptions, Torrent, Traffic, listen};
pub use target::TargetContent;
