//! An installed disk, whose partitions are attached and mounted one by one.

use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result};

use super::root::Root;
use crate::tools::{Attached, Mounted};
use crate::{DiskMap, Partition};

/// What was done, as short texts.
pub(super) type Done = Vec<String>;

/// Filesystems that a Linux system's root can be in, with the options to mount them.
pub(super) const ROOTS: &[(&str, &str)] =
    &[("ext2", ""), ("ext3", ""), ("ext4", ""), ("xfs", "nouuid,"), ("btrfs", "")];
/// Where a root lies in a btrfs whose subvolumes are not mounted by default.
const SUBVOLUMES: &[&str] = &["", "@", "@rootfs", "root"];

/// The folders in which a root may lie in a filesystem of this kind.
pub(super) fn places(kind: &str) -> &'static [&'static str] {
    if kind == "btrfs" { SUBVOLUMES } else { &SUBVOLUMES[..1] }
}

/// A disk whose parts can be attached.
pub(super) struct Disk<'a> {
    pub(super) path: &'a Path,
    pub(super) map: &'a DiskMap,
}

/// A mounted Linux root.
pub(super) struct Rooted {
    pub(super) root: Root,
    /// The subvolume below the mount.
    below: &'static str,
    mounted: Mounted,
    device: Attached,
}

impl Rooted {
    pub(super) fn folder(&self) -> PathBuf {
        self.mounted.path().join(self.below)
    }

    /// Unmounts it, and waits until all is written.
    pub(super) fn end(self) -> Result<()> {
        let Self { root, mounted, device, .. } = self;
        drop(root);
        mounted.end()?;
        device.end()
    }
}

impl Disk<'_> {
    pub(super) fn attach(&self, partition: &Partition) -> Result<Attached> {
        Attached::over(self.path, partition.extent, self.map.geometry.logical_sector_bytes)
    }

    /// The partitions with a filesystem in which Linux keeps its files, and the options to mount it.
    pub(super) fn linux(&self) -> impl Iterator<Item = (&Partition, &'static str, &'static str)> {
        self.map.partitions.iter().filter_map(|partition| {
            let kind = partition.filesystem.as_ref()?.kind;
            ROOTS.iter().find(|(known, _)| *known == kind).map(|(kind, options)| (partition, *kind, *options))
        })
    }

    pub(super) fn mount(
        &self,
        partition: &Partition,
        kind: &str,
        options: &str,
    ) -> Result<(Mounted, Attached)> {
        if kind == "btrfs" {
            crate::grow::refuse_mounted_twin(self.map, partition.number)?;
        }
        let device = self.attach(partition)?;
        Ok((Mounted::at(device.path(), kind, &format!("{options}nosuid,nodev"))?, device))
    }

    /// Mounts the partition that holds a Linux root.
    pub(super) fn root(&self) -> Result<Rooted> {
        for (partition, kind, options) in self.linux() {
            let (mounted, device) = self.mount(partition, kind, options)?;
            let top = Root::at(mounted.path())?;
            let found = places(kind).iter().find_map(|below| {
                let root = top.below(below)?;
                let is_root = root.has("etc/os-release") || (root.has("etc/fstab") && root.has("bin/sh"));
                is_root.then_some((root, *below))
            });
            drop(top);
            if let Some((root, below)) = found {
                return Ok(Rooted { root, below, mounted, device });
            }
            mounted.end()?;
            device.end()?;
        }
        let text = format!("no filesystem of `{}` holds a Linux root", self.path.display());
        Err(Error::new(ErrorKind::NotFound, text))
    }
}
