//! Manifests: the record that describes one version of one image. `formats/image.md`, "Manifest".
//!
//! A manifest is a JSON body in a binary envelope. People can read the body; signatures cover its exact bytes; a
//! checksum detects damage.

use std::collections::BTreeMap;

use base::limits::{
    CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, DISK_SECTORS_MAX, LABELS_MAX, NAME_BYTES_MAX, PARTITIONS_MAX,
};
use base::{Digest, Error, ErrorKind, Extent, Result};
use disk::grow::Slot;
use serde::{Deserialize, Serialize};

use crate::cipher::{CIPHER_NAME, Cipher};
use crate::extents::ChunkSize;
use crate::layout::Layout;
use crate::leaf::Leaf;
use crate::made::{Made, is_false};
use crate::records::{digest_hex, root_record};
use crate::source_record::SourceRecord;
use crate::tree::Root;
use crate::unreadable::{RANGES_MAX, UnreadableRange};

/// The format that this program writes.
pub const FORMAT: u32 = 1;

/// One version of one image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the format, 1.
    pub format: u32,
    /// Names of the features that a reader must know to use this version. Always empty in format 1.
    #[serde(default)]
    pub features: Vec<String>,
    /// Name of the image, at most `NAME_BYTES_MAX` bytes.
    pub image: String,
    /// Number of the version, from 1 on; 0 in a draft.
    pub number: u64,
    /// Random digits that the publisher draws. After a lost reply they tell it whether a record is its own, or
    /// another writer's with equal content. Empty in a draft.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub nonce: String,
    /// The id of the repository that it was published in, so that a signature counts nowhere else. `None` in a draft,
    /// and in what older programs published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// The version that this one was made from.
    #[serde(default)]
    pub parent: Option<Parent>,
    /// The version of another repository that this one is a copy of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied: Option<Copied>,
    /// Random digits that a disk drew before it was committed as this version. If the reply to the commit is lost,
    /// the disk recognises the version by them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// How it was made; `None` in what older programs published. The publisher fills it in for a version with a
    /// parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<Made>,
    /// The versions that show disks at one moment, if this is a set of them. Its own disk is empty then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Member>,
    /// Root of the tree.
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
    /// Where the image lay on its disk.
    pub origin: Origin,
    /// The partition table, partitions and filesystems of the disk. They are for people and tools. An install also
    /// looks for old signatures in these partitions, but what it writes of the image does not depend on them.
    pub disk: DiskRecord,
    /// Notes of the user, at most `LABELS_MAX`.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// When it was captured, RFC 3339.
    pub created: String,
    /// What captured it: program, version, host.
    #[serde(default)]
    pub creator: String,
    /// What the capture counted.
    pub statistics: Statistics,
    /// Which parts were not understood and therefore captured in full, and why.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// How objects are encrypted: `none` or [`CIPHER_NAME`].
    #[serde(default = "no_cipher")]
    pub cipher: String,
}

fn no_cipher() -> String {
    Cipher::None.name().to_owned()
}

/// The version that another was made from.
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

/// A version in a set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// What the set calls it: the host that the disk was on.
    pub name: String,
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

/// What the capture found on the disk. Corresponds to `disk::DiskMap`.
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
    /// Whether sectors outside all partitions were written, or the image grew, since the disk was examined. The table
    /// and the list of partitions may be out of date then.
    #[serde(default, skip_serializing_if = "is_false")]
    pub changed: bool,
    /// Which disk or file it was; `None` if nothing identifies it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceRecord>,
    /// How other programs used or changed the disk during the capture, in words. If there are any, the content is not
    /// that of a single point in time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub live: Vec<String>,
    /// The sectors that could not be read, ascending; they are zeros in the image. They count from the start of the
    /// whole disk.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<UnreadableRange>,
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
    /// Its filesystem, if one was recognised.
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
    /// Whether the capture used its allocation map. If not, all of the partition was captured.
    pub understood: bool,
    /// Whether sectors of its partition were written since the disk was examined. This record may be out of date
    /// then.
    #[serde(default, skip_serializing_if = "is_false")]
    pub changed: bool,
}

/// What a capture counted. Bytes are those of the disk, unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Statistics {
    /// Allocated bytes: zeros and data.
    pub allocated_bytes: u64,
    /// Allocated bytes in chunks that contain only zeros.
    pub zero_bytes: u64,
    /// Allocated bytes in chunks that contain other bytes than zeros.
    pub data_bytes: u64,
    /// Bytes of the objects of all data chunks; a chunk that occurs twice counts twice.
    pub encoded_bytes: u64,
    /// Chunks without allocated sectors.
    pub free_chunks: u64,
    /// Chunks whose allocated sectors contain only zeros.
    pub zero_chunks: u64,
    /// Chunks whose allocated sectors contain other bytes than zeros.
    pub data_chunks: u64,
}

impl Statistics {
    /// Adds `count` chunks that are `leaf`.
    pub fn add(&mut self, leaf: &Leaf, count: u64) {
        let each = Self::of(leaf);
        let more = |total: &mut u64, each: u64| *total = total.saturating_add(each.saturating_mul(count));
        self.fields().into_iter().zip(each.values()).for_each(|(total, each)| more(total, each));
    }

    /// Subtracts `count` chunks that are `leaf`.
    pub fn remove(&mut self, leaf: &Leaf, count: u64) {
        let each = Self::of(leaf);
        let less = |total: &mut u64, each: u64| *total = total.saturating_sub(each.saturating_mul(count));
        self.fields().into_iter().zip(each.values()).for_each(|(total, each)| less(total, each));
    }

    /// The counts of one chunk.
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
    /// The partitions of its disk, as those see them that grow a disk or make it a machine of its own.
    #[must_use]
    pub fn slots(&self) -> Vec<Slot> {
        let slot = |partition: &PartitionRecord| Slot {
            number: partition.number,
            extent: Extent::new(partition.start_sector, partition.sectors),
            type_id: partition.type_id.clone(),
            kind: partition.filesystem.as_ref().map(|found| found.kind.clone()),
        };
        self.disk.partitions.iter().map(slot).collect()
    }

    /// Reads the body of a manifest. `Corrupt` if it is not one or contradicts itself; `Unsupported` if it has a
    /// newer format or needs a feature that this program does not know.
    pub(crate) fn from_body(body: &[u8]) -> Result<Self> {
        /// Read first, so that a newer format is reported as newer, not as malformed.
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

    /// How the image is divided into chunks. `Corrupt` if the sizes are out of bounds or the root does not fit them.
    pub fn layout(&self) -> Result<Layout> {
        let chunk = ChunkSize::from_bytes(self.chunk_bytes).ok_or_else(|| {
            let bounds = format!("a power of two from {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX}");
            Error::corrupt(format!("chunks of {} bytes, expected {bounds}", self.chunk_bytes))
        })?;
        let unit = self.logical_sector_bytes;
        // A logical sector of at most `CHUNK_BYTES_MIN` divides every chunk size, so no sector spans two chunks.
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

    /// Whether the image, written to `place`, would overwrite sectors that it was captured from.
    #[must_use]
    pub fn came_from(&self, place: &disk::Place) -> bool {
        self.disk.source.as_ref().is_some_and(|source| source.meets(place, self.size_sectors))
    }

    /// Checks format, cipher, sizes, name and counts. `Corrupt` if a field is out of bounds or contradicts another;
    /// `Unsupported` if the format, a feature or the cipher is unknown.
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
        let ends = |range: &UnreadableRange| {
            let end = range.start_sector.checked_add(range.sectors);
            end.is_some_and(|end| end <= self.origin.disk_sectors)
        };
        if self.disk.unreadable.len() > RANGES_MAX || !self.disk.unreadable.iter().all(ends) {
            return Err(Error::corrupt("ranges of unreadable sectors that no disk has"));
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
        let text =
            format!("the image needs features that this program does not know: {}", features.join(", "));
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    Ok(())
}
