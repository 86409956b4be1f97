//! An image as a versioned blob with the interface of BlobSeer: create, append, write, read, get_recent, clone,
//! commit. formats/repository.md, "Writing".
//!
//! Every write makes a new version. Any number of threads, processes and machines may write to one image at the same
//! time. Their data is uploaded in parallel. A writer takes the next number and publishes its version with a single
//! create. A writer that loses the race merges its few changed tree nodes into the version of the winner and retries.
//! It sends no data again, except for chunks that both wrote, which are merged byte by byte. So version `n` contains
//! the writes 1 to `n`, each over the one before. Readers never wait. A clone costs one record, whatever its size.
//!
//! ```
//! use store::{Location, Repository, Shape, Stamp};
//!
//! let repository = Repository::create(&Location::Memory)?;
//! let stamp = Stamp { created: "2026-11-20T14:00:00Z".into(), creator: "ann@example".into() };
//! let disk = repository.blob(&"disk".parse()?);
//! disk.create(&Shape { size_bytes: 64 << 40, ..Shape::default() }, &stamp)?;   // version 1: all of it is free
//! disk.write(1 << 40, b"hello", &stamp)?;                                      // version 2
//! let copy = repository.blob(&"copy".parse()?);
//! copy.clone_from(&"disk@2".parse()?, &stamp)?;                                // copy@1 shares all of it
//! copy.write((1 << 40) + 5, b" world", &stamp)?;                               // copy@2; disk stays as it is
//!
//! let mut bytes = [0; 11];
//! repository.snapshot(&"copy".parse()?)?.read(1 << 40, &mut bytes)?;
//! assert_eq!(&bytes, b"hello world");
//! repository.snapshot(&"disk".parse()?)?.read(1 << 40, &mut bytes)?;
//! assert_eq!(&bytes, b"hello\0\0\0\0\0\0");
//! assert_eq!(disk.recent()?.number, 2);
//! # Ok::<(), base::Error>(())
//! ```

mod append;
mod apply;
mod blob;
mod commit;
mod commit_queue;
mod compose;
mod describe;
mod dirty_ranges;
mod draft;
mod memory;
mod ranges;
mod read;
mod staging;
mod upload;

pub use blob::{Blob, Changes, Recent, Shape};
pub use commit::Committed;
pub use compose::{Content, Piece};
pub use draft::{Draft, Drafter};
pub use read::Snapshot;
