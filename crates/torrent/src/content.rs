//! The seam between torrents and bytes: where pieces are read, and where verified ones go.

use base::Result;

/// The file of a torrent. Many threads call it at the same time; all calls may wait for a disk.
pub trait Content: Send + Sync {
    /// Length of the file in bytes.
    fn len(&self) -> u64;

    /// Whether the file has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `into` with the bytes from `offset` on. Those of a piece that was not yet kept are undefined.
    ///
    /// # Errors
    /// Those of the disk or repository; `Corrupt` or `Verification` if what is there is not what the file holds.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()>;

    /// Keeps a piece that begins at `offset`, whose digest was found right.
    ///
    /// # Errors
    /// `Refused` if this content only serves; `Corrupt` if the piece is not what the version holds; those of the disk.
    fn keep(&self, offset: u64, piece: &[u8]) -> Result<()>;
}
