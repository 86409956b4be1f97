//! Makes what machines boot from the network: Debian's kernel, a system in memory that runs diskcast, and the boot
//! loaders.
//!
//! Everything but diskcast comes from packages of Debian, unpacked by `mmdebstrap` and never installed here. Of these
//! the system in memory gets the programs that diskcast calls, the libraries that they need, and the kernel's modules
//! for disks and network cards.

mod archive;
mod files;
mod iso;
mod loaders;
mod make;
mod modules;
mod programs;
mod tree;
mod unified;

pub(crate) use make::{made_by, make};
pub(crate) use tree::{Unified, Wanted};
