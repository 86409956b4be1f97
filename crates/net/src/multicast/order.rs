//! The order of objects in a session for attached disks: nodes; then the chunks that machines read at boot, in the
//! order in which they read them; then the other chunks in the order of the catalogue. Both ends compute it from the
//! tree and the runs of chunks in the grant.

use std::collections::{BTreeSet, HashMap};

use base::{Error, ErrorKind, Result};
use image::{Catalogue, Leaf};

/// Most nodes of a version that is multicast to attached disks: all nodes are sent before the first chunk.
pub const NODES_MAX: u64 = 1024;

/// The order of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The numbers in the catalogue of all objects, each once, in the order of the session.
    pub ids: Vec<u64>,
    /// The chunks that are sent first, as far as they have an object: index on the disk, and number in the catalogue.
    pub first: Vec<(u64, u64)>,
}

/// The order of a session of `catalogue` in which the chunks of `first` (runs of index on the disk and count) come
/// first.
///
/// # Errors
/// `Refused` if runs reach beyond the disk's end, or name more chunks than it has; and the errors of reading the
/// tree.
pub fn order(catalogue: &Catalogue, first: &[(u64, u32)]) -> Result<Order> {
    let chunks = catalogue.layout().chunk_count();
    let inside =
        |&(first, count): &(u64, u32)| first.checked_add(count.into()).is_some_and(|end| end <= chunks);
    let named = first.iter().fold(0u64, |sum, &(_, count)| sum.saturating_add(count.into()));
    if named > chunks || !first.iter().all(inside) {
        return Err(Error::new(
            ErrorKind::Refused,
            "the order of a session names chunks that the image does not have",
        ));
    }
    let sequence = || first.iter().flat_map(|&(first, count)| first..first + u64::from(count));
    let ids = ids_of(catalogue, &sequence().collect())?;
    let objects = catalogue.objects().len();
    let mut taken = vec![false; objects];
    let first: Vec<_> = sequence().filter_map(|chunk| Some((chunk, *ids.get(&chunk)?))).collect();
    let early = first.iter().map(|&(_, id)| id);
    let mut order = Vec::with_capacity(objects);
    for id in (0..catalogue.heads()).chain(early).chain(0..objects as u64) {
        if !std::mem::replace(&mut taken[usize::try_from(id).expect("an index")], true) {
            order.push(id);
        }
    }
    Ok(Order { ids: order, first })
}

/// The number in the catalogue of each of `chunks` that has an object.
fn ids_of(catalogue: &Catalogue, chunks: &BTreeSet<u64>) -> Result<HashMap<u64, u64>> {
    let mut ids = HashMap::with_capacity(chunks.len());
    for run in catalogue.leaves() {
        let run = run?;
        let Leaf::Data(_, reference) = &run.leaf else { continue };
        let id = catalogue.id_of(&reference.object().digest);
        let of_run = chunks.range(run.first..run.first + run.count);
        ids.extend(of_run.filter_map(|&chunk| Some((chunk, id?))));
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fetch::tests::noise;

    #[test]
    fn what_is_read_first_goes_first_and_everything_goes_once() {
        let (manifest, objects) = noise(5);
        let catalogue = Catalogue::load(&manifest, &*objects, &image::Cipher::None).unwrap();
        let (heads, all) = (catalogue.heads(), catalogue.objects().len() as u64);
        assert!(order(&catalogue, &[]).unwrap().ids.into_iter().eq(0..all));
        let chunks = catalogue.layout().chunk_count();
        // Chunk 12 is free: it has no object. All chunks before it have one.
        let Order { ids: order_of, first } =
            order(&catalogue, &[(chunks - 1, 1), (3, 2), (12, 1), (4, 1)]).unwrap();
        assert_eq!(first, [(chunks - 1, all - 1), (3, heads + 3), (4, heads + 4), (4, heads + 4)]);
        assert_eq!(order_of[usize::try_from(heads).unwrap()..][..4], [all - 1, heads + 3, heads + 4, heads]);
        let mut sorted = order_of.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..all));
        for wrong in
            [vec![(chunks, 1)], vec![(u64::MAX, 2)], vec![(0, u32::try_from(chunks).unwrap()), (0, 1)]]
        {
            assert_eq!(order(&catalogue, &wrong).unwrap_err().kind(), ErrorKind::Refused);
        }
    }
}
