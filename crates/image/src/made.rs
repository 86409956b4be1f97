//! How a version was made: what surveyed the disk, with which options, and whether its free sectors are proven to be
//! free. `formats/image.md`, "How a version was made".

use disk::SurveyOptions;
use serde::{Deserialize, Serialize};

/// For fields that are left out of the JSON where they are false.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
pub(crate) fn is_false(flag: &bool) -> bool {
    !flag
}

/// How a version was made. Programs from before this record left it out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// What made it: one of the constants of this type, or what a newer program calls it.
    pub by: String,
    /// How the disk was surveyed; versions that change a part of an image keep the record. `None` if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub survey: Option<SurveyRecord>,
    /// Whether sectors that are free in this version may have been allocated zeros of the disk.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unproven_free: bool,
}

/// The options of a survey; [`SurveyOptions`] has their meaning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct SurveyRecord {
    /// All sectors, without a look at filesystems.
    #[serde(default, skip_serializing_if = "is_false")]
    pub raw: bool,
    /// Only the partition with this number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<u32>,
    /// Not the contents of the partitions with these numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skip: Vec<u32>,
}

impl Made {
    /// A disk was captured.
    pub const CAPTURE: &'static str = "capture";
    /// A disk was captured as the version after another of the same image.
    pub const COMMIT: &'static str = "commit";
    /// An empty image was made.
    pub const CREATE: &'static str = "create";
    /// Ranges of another version were written or freed, or nothing was: a clone.
    pub const CHANGE: &'static str = "change";
    /// It is a copy of what an older program made, which recorded nothing.
    pub const UNKNOWN: &'static str = "unknown";

    /// A version whose free sectors a survey with `options` found.
    #[must_use]
    pub fn surveyed(by: &str, options: &SurveyOptions) -> Self {
        let SurveyOptions { raw, partition, skip, .. } = options.clone();
        Self { by: by.to_owned(), survey: Some(SurveyRecord { raw, partition, skip }), unproven_free: false }
    }

    /// A version that changes a part of one that was made like this.
    #[must_use]
    pub fn changed(&self) -> Self {
        Self { by: Self::CHANGE.to_owned(), ..self.clone() }
    }
}

impl SurveyRecord {
    /// The same options.
    #[must_use]
    pub fn options(&self) -> SurveyOptions {
        let Self { raw, partition, skip } = self.clone();
        SurveyOptions { raw, partition, skip, live: false }
    }
}
