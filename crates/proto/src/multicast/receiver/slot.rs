//! Tells the driver where to put the payload of a packet.

/// A place for one object in the driver's memory: an index into a table of buffers. Freed numbers are used again, so
/// they stay small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// What to do with the payload of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// Copy it into the buffer of `slot` at `offset`, where its full length fits.
    Place {
        /// Which buffer.
        slot: Slot,
        /// Offset in bytes inside the object.
        offset: u32,
        /// If this is the object's first block: first make a buffer of this many bytes. The number is a multiple of
        /// the block size, so it may be larger than the object.
        begins: Option<u32>,
    },
    /// A control packet: nothing to place.
    Control,
    /// The block has arrived already.
    Duplicate,
    /// The object is not wanted, or the packet cannot be used.
    Unwanted,
    /// There is no room in the buffer. The receiver will request the object again.
    BufferFull,
}
