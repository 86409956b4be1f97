//! Where the driver puts the payload of a packet.

/// A place for one object in the driver's memory. Small numbers, used again: an index into a table of buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// What to do with the payload of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// Copy it into the buffer of `slot` at `offset` (its length fits).
    Place {
        /// Where.
        slot: Slot,
        /// Offset in bytes inside the object.
        offset: u32,
        /// If this is the first block of the object: make a buffer of so many bytes first. It holds whole blocks, so it
        /// may be longer than the object.
        begins: Option<u32>,
    },
    /// A control packet: nothing to place.
    Control,
    /// Already there.
    Duplicate,
    /// Of an object that is not wanted, or not wanted in this way.
    Unwanted,
    /// No room: it will be asked for again.
    BufferFull,
}
