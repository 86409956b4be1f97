//! Manifests: one version of one image. `formats/image.md`, "Manifest".
//!
//! A JSON body in a binary envelope: readable by people, signed over its exact bytes, with a checksum against damage.

use std::collections::BTreeMap;

use base::limits::{
    CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, DISK_SECTORS_MAX, LABELS_MAX, NAME_BYTES_MAX, PARTITIONS_MAX,
};
use base::{Digest, Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::cipher::{CIPHER_NAME, Cipher};
use crate::extents::ChunkSize;
use crate::layout::Layout;
use crate::leaf::Leaf;
use crate::records::{digest_hex, root_record};
use crate::source_record::SourceRecord;
use crate::tree::Root;

/// The format that this program writes.
pub const FORMAT: u32 = 1;

/// One version of one image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the format, 1.
    pub format: u32,
    /// Features that a reader must know to use this version at all; in format 1 always empty.
    #[serde(default)]
    pub features: Vec<String>,
    /// Name of the image, at most `NAME_BYTES_MAX` bytes.
    pub image: String,
    /// Number of the version, from 1 on; 0 in a draft that was not published.
    pub number: u64,
    /// Random digits that the repository draws when it publishes. With them it recognises its own record after a lost
    /// reply, even if another writer published equal content. Empty in a draft.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub nonce: String,
    /// The version that this one is based on.
    #[serde(default)]
    pub parent: Option<Parent>,
    /// The version of another repository that this one is a copy of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied: Option<Copied>,
    /// Random digits that an attached disk drew before it was committed as this version. If it never got the reply, it
    /// recognises its version by them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The tree.
    #[serde(with = "root_record")]
    pub root: Root,
    /// Size of a chunk in bytes: a power of two.
    pub chunk_bytes: u32,
    /// Size of the image in sectors of 512 bytes.
    pub size_sectors: u64,
    /// Logical sector of the disk in bytes: 512 to 65,536, a power of two.
    pub logical_sector_bytes: u32,
    /// Physical sector of the disk in bytes.
    pub physical_sector_bytes: u32,
    /// Position of the image on its disk.
    pub origin: Origin,
    /// The partition table, the partitions and the filesystems, for people and tools. An install searches the
    /// partitions for old signatures, but what it writes does not depend on them.
    pub disk: DiskRecord,
    /// Labels of the user, at most `LABELS_MAX`.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// When it was captured, RFC 3339.
    pub created: String,
    /// The program, its version and the host that captured it.
    #[serde(default)]
    pub creator: String,
    /// Statistics of the capture.
    pub statistics: Statistics,
    /// Parts that were captured whole, and why.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// How objects are encrypted: `none` or [`CIPHER_NAME`].
    #[serde(default = "no_cipher")]
    pub cipher: String,
}

fn no_cipher() -> String {
    Cipher::None.name().to_owned()
}

/// The base of a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// Name of its image.
    pub image: String,
    /// Its number.
    pub number: u64,
    /// Its manifest's digest.
    #[serde(with = "digest_hex")]
    pub digest: Digest,
}

/// The version of another repository that a version was copied from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// The other repository's id.
    pub repository: String,
    /// Name of the image there.
    pub image: String,
    /// Its number there.
    pub number: u64,
    /// Its manifest's digest there.
    #[serde(with = "digest_hex")]
    pub digest: Digest,
}

/// Where an image lay on the disk that it was captured from, in sectors of 512 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Size of the whole disk.
    pub disk_sectors: u64,
    /// First sector of the image on it: 0 for a whole disk, the partition's start for one partition.
    pub start_sector: u64,
}

/// Partition table, partitions and filesystems of the disk. Mirrors `disk::DiskMap`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct DiskRecord {
    /// `none`, `mbr` or `gpt`.
    pub table: String,
    /// The disk's identifier: GPT GUID or MBR signature.
    #[serde(default)]
    pub id: Option<String>,
    /// Partitions, at most `PARTITIONS_MAX`.
    #[serde(default)]
    pub partitions: Vec<PartitionRecord>,
    /// Sectors outside all partitions were written, or the image grew, since the disk was looked at: the table and the
    /// list of partitions are those of then.
    #[serde(default, skip_serializing_if = "is_false")]
    pub changed: bool,
    /// Identifies the disk or file, as far as possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceRecord>,
    /// How others used or changed it while it was captured, in words: what was captured is of no single moment then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub live: Vec<String>,
}

/// One partition, or the filesystem of a disk without a table (number 0).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionRecord {
    /// Its number.
    pub number: u32,
    /// First sector on the disk, in units of 512 bytes.
    pub start_sector: u64,
    /// Number of sectors.
    pub sectors: u64,
    /// GPT type GUID or MBR type in hexadecimal.
    pub type_id: String,
    /// GPT name.
    #[serde(default)]
    pub name: Option<String>,
    /// GPT unique GUID.
    #[serde(default)]
    pub uuid: Option<String>,
    /// Its contents, if recognised.
    #[serde(default)]
    pub filesystem: Option<FilesystemRecord>,
}

/// One filesystem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesystemRecord {
    /// `ext4`, `vfat`, `swap` and so on.
    pub kind: String,
    /// Its identifier.
    #[serde(default)]
    pub uuid: Option<String>,
    /// Its label.
    #[serde(default)]
    pub label: Option<String>,
    /// Whether its allocation map was used; if not, all of the partition was captured.
    pub understood: bool,
    /// Sectors of its partition were written since the disk was looked at: what is said here is of then.
    #[serde(default, skip_serializing_if = "is_false")]
    pub changed: bool,
}

/// For fields that are omitted if they have their default value.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// Statistics of a capture, in bytes of the disk unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Statistics {
    /// Allocated: zeros and data.
    pub allocated_bytes: u64,
    /// Allocated, in chunks that hold only zeros.
    pub zero_bytes: u64,
    /// Allocated, in chunks that hold anything else.
    pub data_bytes: u64,
    /// Bytes of the objects of all data chunks; a chunk that occurs twice counts twice.
    pub encoded_bytes: u64,
    /// Number of chunks without allocated sectors.
    pub free_chunks: u64,
    /// Number of chunks whose allocated sectors hold only zeros.
    pub zero_chunks: u64,
    /// Number of chunks with data.
    pub data_chunks: u64,
}

impl Statistics {
    /// Adds `count` chunks with this `leaf`.
    pub fn add(&mut self, leaf: &Leaf, count: u64) {
        let each = Self::of(leaf);
        let more = |total: &mut u64, each: u64| *total = total.saturating_add(each.saturating_mul(count));
        self.fields().into_iter().zip(each.values()).for_each(|(total, each)| more(total, each));
    }

    /// Subtracts `count` chunks with this `leaf`.
    pub fn remove(&mut self, leaf: &Leaf, count: u64) {
        let each = Self::of(leaf);
        let less = |total: &mut u64, each: u64| *total = total.saturating_sub(each.saturating_mul(count));
        self.fields().into_iter().zip(each.values()).for_each(|(total, each)| less(total, each));
    }

    /// The statistics of one chunk.
    fn of(leaf: &Leaf) -> Self {
        let bytes = leaf.extents().map_or(0, |extents| u64::from(extents.len_bytes()));
        let mut one = Self { allocated_bytes: bytes, ..Self::default() };
        match leaf {
            Leaf::Free => one.free_chunks = 1,
            Leaf::Zero(_) => (one.zero_chunks, one.zero_bytes) = (1, bytes),
            Leaf::Data(_, chunk) => {
                (one.data_chunks, one.data_bytes) = (1, bytes);
                one.encoded_bytes = u64::from(chunk.encoded_len);
            }
        }
        one
    }

    fn fields(&mut self) -> [&mut u64; 7] {
        let Self {
            allocated_bytes,
            zero_bytes,
            data_bytes,
            encoded_bytes,
            free_chunks,
            zero_chunks,
            data_chunks,
        } = self;
        [allocated_bytes, zero_bytes, data_bytes, encoded_bytes, free_chunks, zero_chunks, data_chunks]
    }

    fn values(mut self) -> [u64; 7] {
        self.fields().map(|value| *value)
    }
}

impl Manifest {
    /// Reads the body of a manifest. `Corrupt` if it is none or contradicts itself; `Unsupported` if it is of a newer
    /// format or needs a feature unknown here.
    pub(crate) fn from_body(body: &[u8]) -> Result<Self> {
        /// Read first, so that a newer format is called newer, not malformed.
        #[derive(Deserialize)]
        struct Preface {
            format: u32,
            #[serde(default)]
            features: Vec<String>,
        }
        let malformed = |e| Error::from_source(ErrorKind::Corrupt, "read the body of a manifest", e);
        let preface: Preface = serde_json::from_slice(body).map_err(malformed)?;
        check_format(preface.format, &preface.features)?;
        let manifest: Self = serde_json::from_slice(body).map_err(malformed)?;
        manifest.check()?;
        Ok(manifest)
    }

    /// Sizes of the image and its chunks. `Corrupt` if the sizes are out of bounds or the root does not fit them.
    pub fn layout(&self) -> Result<Layout> {
        let chunk = ChunkSize::from_bytes(self.chunk_bytes).ok_or_else(|| {
            let bounds = format!("a power of two from {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX}");
            Error::corrupt(format!("chunks of {} bytes, expected {bounds}", self.chunk_bytes))
        })?;
        let unit = self.logical_sector_bytes;
        if !unit.is_power_of_two() || !(512..=CHUNK_BYTES_MIN).contains(&unit) {
            return Err(Error::corrupt(format!("logical sectors of {unit} bytes")));
        }
        let layout = Layout { chunk, size_sectors: self.size_sectors, logical_sector_bytes: unit };
        let whole = self.size_sectors.is_multiple_of(u64::from(unit / 512));
        if !(1..=DISK_SECTORS_MAX).contains(&self.size_sectors) || !whole {
            return Err(Error::corrupt(format!("an image of {} sectors of 512 bytes", self.size_sectors)));
        }
        layout.check_root(&self.root)?;
        Ok(layout)
    }

    /// Whether the image, written to `place`, would go over what it was captured from.
    #[must_use]
    pub fn came_from(&self, place: &disk::Place) -> bool {
        self.disk.source.as_ref().is_some_and(|source| source.meets(place, self.size_sectors))
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_format(self.format, &self.features)?;
        if self.cipher != Cipher::None.name() && self.cipher != CIPHER_NAME {
            return Err(Error::new(ErrorKind::Unsupported, format!("cipher `{}`", self.cipher)));
        }
        let layout = self.layout()?;
        if self.image.is_empty() || self.image.len() > NAME_BYTES_MAX {
            return Err(Error::corrupt(format!("an image name of {} bytes", self.image.len())));
        }
        let end = self.origin.start_sector.checked_add(layout.size_sectors);
        if end.is_none_or(|end| end > self.origin.disk_sectors) || self.origin.disk_sectors > DISK_SECTORS_MAX
        {
            return Err(Error::corrupt(format!(
                "an image that reaches behind the end of its disk, {:?}",
                self.origin
            )));
        }
        let (partitions, labels) = (self.disk.partitions.len(), self.labels.len());
        if partitions > PARTITIONS_MAX || labels > LABELS_MAX {
            return Err(Error::corrupt(format!("{partitions} partitions and {labels} labels in a manifest")));
        }
        Ok(())
    }
}

fn check_format(format: u32, features: &[String]) -> Result<()> {
    if format != FORMAT {
        let text = format!("image format {format}; this program knows {FORMAT}");
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    if !features.is_empty() {
        let text = format!("image with features unknown here: {}", features.join(", "));
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    Ok(())
}
