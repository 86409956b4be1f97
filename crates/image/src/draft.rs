//! Makes the draft of a manifest from the map of a disk and the result of its capture.

use base::limits::CHUNK_BYTES_DEFAULT;
use disk::{DiskMap, Filesystem, Partition};

use crate::capture::Captured;
use crate::leaf::Leaf;
use crate::manifest::{
    DiskRecord, FORMAT, FilesystemRecord, Manifest, Member, Origin, PartitionRecord, Statistics,
};
use crate::node::Child;
use crate::tree::Root;

impl Manifest {
    /// The draft of a set of `members`, which has an empty disk of one sector. `created` is a time as in RFC 3339.
    #[must_use]
    pub fn of_set(members: Vec<Member>, created: &str, creator: &str) -> Self {
        let mut statistics = Statistics::default();
        statistics.add(&Leaf::Free, 1);
        Self {
            format: FORMAT,
            features: Vec::new(),
            image: String::new(),
            number: 0,
            nonce: String::new(),
            repository: None,
            parent: None,
            copied: None,
            commit: None,
            made: None,
            members,
            root: Root { child: Child::Free, height: Root::height_of(1), chunk_count: 1 },
            chunk_bytes: CHUNK_BYTES_DEFAULT,
            size_sectors: 1,
            logical_sector_bytes: 512,
            physical_sector_bytes: 512,
            origin: Origin { disk_sectors: 1, start_sector: 0 },
            disk: DiskRecord { table: "none".to_owned(), ..DiskRecord::default() },
            labels: std::collections::BTreeMap::new(),
            created: created.to_owned(),
            creator: creator.to_owned(),
            statistics,
            warnings: Vec::new(),
            cipher: "none".to_owned(),
        }
    }

    /// The draft of a version of `image`, without parent and labels. Its number is 0; the publisher sets the real
    /// one. `created` is a time as in RFC 3339.
    #[must_use]
    pub fn draft(image: &str, map: &DiskMap, captured: &Captured, created: &str) -> Self {
        Self {
            format: FORMAT,
            features: Vec::new(),
            image: image.to_owned(),
            number: 0,
            nonce: String::new(),
            repository: None,
            parent: None,
            copied: None,
            commit: None,
            made: None,
            members: Vec::new(),
            root: captured.root,
            chunk_bytes: captured.layout.chunk.bytes(),
            size_sectors: captured.layout.size_sectors,
            logical_sector_bytes: captured.layout.logical_sector_bytes,
            physical_sector_bytes: map.geometry.physical_sector_bytes,
            origin: Origin { disk_sectors: map.geometry.size_bytes / 512, start_sector: map.window.start },
            disk: DiskRecord {
                table: map.table.as_str().to_owned(),
                id: map.disk_id.clone(),
                partitions: map.partitions.iter().map(partition).collect(),
                changed: false,
                source: None,
                live: Vec::new(),
                unreadable: Vec::new(),
            },
            labels: std::collections::BTreeMap::new(),
            created: created.to_owned(),
            creator: String::new(),
            statistics: captured.statistics,
            warnings: map.warnings.clone(),
            cipher: "none".to_owned(),
        }
    }
}

fn partition(found: &Partition) -> PartitionRecord {
    PartitionRecord {
        number: found.number,
        start_sector: found.extent.start,
        sectors: found.extent.count,
        type_id: found.type_id.clone(),
        name: found.name.clone(),
        uuid: found.uuid.clone(),
        filesystem: found.filesystem.as_ref().map(filesystem),
    }
}

fn filesystem(found: &Filesystem) -> FilesystemRecord {
    FilesystemRecord {
        kind: found.kind.to_owned(),
        uuid: found.uuid.clone(),
        label: found.label.clone(),
        understood: found.understood,
        changed: false,
    }
}
