//! What a grant says of a session, checked.

use base::{Error, ErrorKind, Result, limits};
use proto::multicast::{Shape, VERSION};

use super::bundle::{BUNDLE_BLOCKS_MAX, Packing};
use crate::api::SessionGrant;

/// The parameters of the session of `grant`; `Unsupported` for another version of multicast, `Invalid` if they break
/// their bounds.
pub(super) fn shape_of(grant: &SessionGrant) -> Result<Shape> {
    if grant.multicast != VERSION {
        let theirs = grant.multicast;
        let context = format!("the server speaks version {theirs} of multicast, this program {VERSION}");
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    let blocks = limits::BLOCK_BYTES_MIN..=limits::BLOCK_BYTES_MAX;
    let objects = 1..=limits::SESSION_OBJECTS_MAX;
    if !blocks.contains(&grant.block_bytes)
        || !grant.block_bytes.is_multiple_of(2)
        || !objects.contains(&grant.objects)
        || !(grant.objects..=limits::SESSION_OBJECTS_MAX).contains(&grant.stored_objects)
        || !(1..=BUNDLE_BLOCKS_MAX).contains(&grant.bundle_blocks)
        || grant.heads > grant.objects
    {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("the server's grant breaks its bounds: {grant:?}"),
        ));
    }
    Ok(Shape {
        session: u64::try_from(grant.session.0 & u128::from(u64::MAX)).expect("64 bits"),
        epoch: grant.epoch,
        objects: grant.objects,
        heads: grant.heads,
        block_bytes: grant.block_bytes,
    })
}

pub(super) fn bundle_bytes_max(grant: &SessionGrant) -> u64 {
    u64::from(grant.block_bytes) * u64::from(grant.bundle_blocks)
}

/// Mean length of an object of the session: as many stored objects as fit into a bundle.
pub(super) fn bundle_bytes_mean(grant: &SessionGrant, stored_bytes_mean: u32) -> u32 {
    let mean = u64::from(stored_bytes_mean.max(1));
    let bytes = (bundle_bytes_max(grant) / mean).max(1) * mean;
    u32::try_from(bytes).unwrap_or(limits::OBJECT_BYTES_MAX)
}

/// How a session is packed, as in its grant.
pub(super) struct Terms {
    objects: u64,
    stored_objects: u64,
    heads: u64,
    block_bytes: u16,
    bundle_blocks: u16,
    pub(super) receivers: u32,
}

impl From<&SessionGrant> for Terms {
    fn from(grant: &SessionGrant) -> Self {
        let &SessionGrant { objects, stored_objects, heads, block_bytes, bundle_blocks, receivers, .. } =
            grant;
        Self { objects, stored_objects, heads, block_bytes, bundle_blocks, receivers }
    }
}

impl Terms {
    /// The packing of stored objects of these lengths (from the verified tree), if it agrees with the grant.
    pub(super) fn packing(&self, lengths: Vec<u32>) -> Result<Packing> {
        let stored_objects = lengths.len() as u64;
        let packing = (stored_objects == self.stored_objects)
            .then(|| Packing::new(lengths, self.heads, self.block_bytes, self.bundle_blocks))
            .filter(|packing| packing.objects() == self.objects);
        packing.ok_or_else(|| {
            let context = format!(
                "the session's {} objects are packed in another way than the version's {stored_objects}",
                self.stored_objects
            );
            Error::new(ErrorKind::Invalid, context)
        })
    }
}
