//! Packets: their fields, their tags, and how a datagram is opened. Source: `formats/multicast.md`, sections 2 to 6.

mod cipher;
pub(in crate::multicast) mod header;
mod key;
pub(in crate::multicast) mod open;
pub(in crate::multicast) mod report;
mod signature;
pub(in crate::multicast) mod status;
mod tag;
#[cfg(target_arch = "x86_64")]
mod tag_simd;

pub use cipher::PayloadCipher;
pub use key::{Key, TAG_BYTES};
pub use signature::{SIGNATURE_BYTES, control_signature, sign_control};
pub use tag::{seal, seal_train, tag};
