//! Keeps segments from being compacted while entries of what is in them are on their way. formats/cluster.md,
//! section 9.

use proto::cluster::Piece;
use tokio::sync::mpsc;

/// A piece that is stored durably, and whose entry may still be on its way.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) piece: Piece,
    pub(super) hold: Hold,
}

/// While one of its clones is there, the metadata service does not hear that the segment is finished.
#[derive(Debug, Clone)]
pub(super) struct Hold {
    client: u64,
    doubts: mpsc::Sender<()>,
}

/// Tells when all clones of a hold are gone.
#[derive(Debug)]
pub(super) struct Released(mpsc::Receiver<()>);

impl Hold {
    /// A hold on a segment that was opened as `client`.
    pub(super) fn new(client: u64) -> (Self, Released) {
        let (doubts, told) = mpsc::channel(1);
        (Self { client, doubts }, Released(told))
    }

    /// The number under which the segment was opened. If the lease ended since then, entries must not name it.
    pub(super) fn client(&self) -> u64 {
        self.client
    }

    /// It is not known whether an entry was inserted, or still will be: this client never says that the segment is
    /// finished.
    pub(super) fn doubt(&self) {
        // One doubt is enough.
        let _ = self.doubts.try_send(());
    }
}

impl Released {
    /// Waits until nothing holds the segment. Returns whether all entries are known to be inserted, or given up.
    pub(super) async fn wait(mut self) -> bool {
        self.0.recv().await.is_none()
    }
}
