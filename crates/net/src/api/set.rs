//! What `diskcast deploy --commit` and `diskcast work` on a host say to each other about the disk of a set: lines of
//! JSON on the standard streams of a program that runs there. Specified in `formats/deploy.md`.

use serde::{Deserialize, Serialize};

/// The disk of a host that becomes a member of a set: the first line of standard input. Each further line is a
/// [`SetOrder`]; the end of that input calls it off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberJob {
    /// [`super::WORK_FORMAT`].
    pub format: u32,
    /// The attached disk.
    pub disk: String,
    /// The image that gets its version.
    pub image: String,
    /// What to freeze, as `diskcast commit --quiesce` takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiesce: Option<String>,
    /// Longest time that the disk is frozen, in seconds.
    pub limit_seconds: u64,
    /// Whether the machine ends with the moment.
    #[serde(default)]
    pub suspend: bool,
}

/// What the host, and its disk, is to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum SetOrder {
    /// Nothing: who gives orders is alive. Said several times in [`ORDER_SILENCE_SECONDS`].
    Alive,
    /// Freeze the disk, and say so.
    Freeze,
    /// All are frozen: store the disk as it is now.
    GoOn,
    /// The set is there: end.
    Finish,
}

/// A machine that stays frozen runs on when no order came for so long.
pub const ORDER_SILENCE_SECONDS: u64 = 30;

/// What such a host says: a line of its standard output. [`Self::Ended`] and [`Self::Failed`] are the last ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum MemberWord {
    /// It is there.
    Alive {
        /// What it does.
        doing: String,
    },
    /// All is done that has to be done before the freeze.
    Prepared,
    /// The disk stands still.
    Frozen,
    /// It goes on, or is about to be stored while it stays frozen.
    Moment {
        /// How long the disk has been frozen so far.
        seconds: f64,
    },
    /// The version is in the repository.
    Stored {
        /// Its image.
        image: String,
        /// Its number.
        number: u64,
        /// Bytes that were sent.
        stored_bytes: u64,
    },
    /// It has ended as it was told.
    Ended,
    /// It has ended otherwise.
    Failed {
        /// Exit code of the command that failed.
        exit: u8,
        /// Why.
        message: String,
        /// What helps.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hint: Option<String>,
    },
}
