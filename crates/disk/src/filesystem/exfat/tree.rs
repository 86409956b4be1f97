//! Reads the bitmap of clusters, and all folders, and checks that what belongs to a file is marked. Of what is marked
//! and belongs to none, it takes out what the table lists as bad.

use std::collections::HashSet;

use super::super::bitmap::{self, find};
use super::super::{Why, require};
use super::chains::{BAD, Chains, Run};
use super::folder::{self, Clusters};
use super::{Boot, FIRST_CLUSTER};
use crate::volume::Volume;

/// The bitmap without bad clusters; bit 0 is the first cluster.
pub(super) fn checked_bitmap(boot: &Boot, volume: &Volume) -> Result<Vec<u8>, Why> {
    let mut chains = Chains::new(boot, volume);
    let root_runs = chains.follow(boot.root, None)?;
    let root = folder::parse_root(&chains.contents(&root_runs)?)?;
    let bitmap = root.bitmap.ok_or_else(|| Why::Whole("it has no bitmap of its clusters".to_owned()))?;
    let upcase = root.upcase.ok_or_else(|| Why::Whole("it has no table of letters".to_owned()))?;
    let runs = runs_of(&mut chains, bitmap)?;
    let map = read_bitmap(boot, volume, &runs, bitmap.bytes)?;
    let rest = map.clone();
    let mut walk = Walk { chains, map, rest, folders: HashSet::new(), read_clusters: 0 };
    walk.check_marked(&runs)?;
    walk.check_marked(&root_runs)?;
    let runs = runs_of(&mut walk.chains, upcase)?;
    walk.check_marked(&runs)?;
    walk.run(root.clusters)?;
    walk.without_bad()
}

fn read_bitmap(boot: &Boot, volume: &Volume, runs: &[Run], bytes: u64) -> Result<Vec<u8>, Why> {
    let needed = boot.clusters.div_ceil(8);
    require(bytes == needed, || "its bitmap has not one bit for each cluster".to_owned())?;
    let mut map = vec![0; usize::try_from(needed).expect("at most 512 MiB")];
    let mut rest = map.as_mut_slice();
    for &(first, count) in runs {
        let len = usize::try_from(count * boot.cluster_bytes()).unwrap_or(usize::MAX).min(rest.len());
        let (part, behind) = rest.split_at_mut(len);
        volume.read(part, boot.offset(first))?;
        rest = behind;
    }
    Ok(map)
}

/// The clusters of an entry.
fn runs_of(chains: &mut Chains, entry: Clusters) -> Result<Vec<Run>, Why> {
    let count = entry.bytes.div_ceil(chains.boot.cluster_bytes());
    if entry.contiguous {
        chains.check(entry.first, count)?;
        return Ok(vec![(entry.first, count)]);
    }
    chains.follow(entry.first, Some(count))
}

struct Walk<'a, 'v> {
    chains: Chains<'a, 'v>,
    map: Vec<u8>,
    /// What is marked, without what was found to belong to something.
    rest: Vec<u8>,
    /// The first clusters of the folders that were found.
    folders: HashSet<u64>,
    read_clusters: u64,
}

impl Walk<'_, '_> {
    fn run(&mut self, mut found: Vec<Clusters>) -> Result<(), Why> {
        while let Some(entry) = found.pop() {
            let runs = runs_of(&mut self.chains, entry)?;
            self.check_marked(&runs)?;
            if entry.is_folder {
                // A volume that is damaged on purpose has folders in each other.
                self.read_clusters += runs.iter().map(|(_, count)| count).sum::<u64>();
                let is_new = self.folders.insert(entry.first);
                require(is_new && self.read_clusters <= self.chains.boot.clusters, || {
                    "folders share clusters".to_owned()
                })?;
                found.extend(folder::parse(&self.chains.contents(&runs)?)?);
            }
        }
        Ok(())
    }

    /// Checks that clusters are marked, and takes them out of the rest.
    fn check_marked(&mut self, runs: &[Run]) -> Result<(), Why> {
        for &(first, count) in runs {
            let (bit, behind) = (first - FIRST_CLUSTER, first - FIRST_CLUSTER + count);
            let gap = find(&self.map, bit, behind, false);
            require(gap == behind, || {
                format!("cluster {} is in use, and free by the bitmap", gap + FIRST_CLUSTER)
            })?;
            (bit..behind).for_each(|bit| bitmap::clear(&mut self.rest, bit));
        }
        Ok(())
    }

    /// The bitmap without the clusters of the rest that the table lists as bad.
    fn without_bad(mut self) -> Result<Vec<u8>, Why> {
        for (first, behind) in bitmap::runs(&self.rest, self.chains.boot.clusters) {
            for bit in first..behind {
                if self.chains.entry(bit + FIRST_CLUSTER)? == BAD {
                    bitmap::clear(&mut self.map, bit);
                }
            }
        }
        Ok(self.map)
    }
}
