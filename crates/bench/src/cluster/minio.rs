//! Cached gets beside MinIO with erasure coding: ten folders on the same disk, of which any two may be lost, as of our
//! ten devices.

use bytes::Bytes;
use lab::Engine;

use super::peer::Peer;
use super::{IN_FLIGHT, OBJECTS, RUNS, Trial, get, megabytes, put, random};
use crate::context::Context;
use crate::figure::{Bar, Figure, median};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[(
        "cluster.get_minio",
        "cached gets of 16 MiB over MinIO with EC:2 on ten folders, read by curl, both with TLS; at least 1.5",
    )],
    measure,
};

fn measure(context: &Context) -> Result<Vec<Figure>> {
    context.calm()?;
    let peer = Peer::start(context, Engine::MinIoEc2)?;
    let contents: Vec<Bytes> = (0..OBJECTS as u64).map(random).collect();
    peer.put(&contents[0], OBJECTS)?;
    let trial = Trial::start(context, 17600, &[])?;
    let client = trial.client()?;
    put(&client, 0, &contents)?;
    let (mut ratios, mut ours, mut theirs) = (vec![], vec![], vec![]);
    for _ in 0..RUNS {
        theirs.push(megabytes(OBJECTS) / peer.get(OBJECTS, IN_FLIGHT)?);
        ours.push(get(&client, 0, &contents)?);
        ratios.push(ours[ours.len() - 1] / theirs[theirs.len() - 1]);
    }
    let workload =
        "40 objects of 16 MiB, 8 at a time, of two stores that lose no object with two of ten parts";
    let sink =
        "ten device processes, and ten folders of one process, on one disk; TLS on loopback on both sides";
    Ok(vec![
        Figure::new("cluster.get_minio", &ratios, "ratio", Bar::AtLeast(1.5))
            .peer("MinIO", "EC:2, read by 8 processes of curl", median(&theirs), "MB/s")
            .peer("diskcast", "8 + 2, verified", median(&ours), "MB/s")
            .on(workload, sink),
    ])
}
