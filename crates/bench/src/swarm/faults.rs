//! Hosts that serve each other while a third of them die, one lies and one stalls.
//!
//! The liar is a real member whose spool holds wrong bytes under the right numbers. The staller is another one, whose
//! network drops whatever is longer than a handshake: it accepts connections, and then sends nothing.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use base::Chance;
use bytes::Bytes;
use net::peer::Node;
use serde_json::{Value, json};

use super::member::Version;
use super::{RUNS, most};
use crate::context::{Context, said};
use crate::crew::Crew;
use crate::figure::{Bar, Figure, median};
use crate::room::{Fetched, Room, collect, star};
use crate::transfer::{Load, library};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[
        (
            "peers.faults",
            "time of the last of 12 hosts while 4 others of them are killed, one member lies and one stalls, over \
             without; at most 1.5",
        ),
        (
            "peers.faults_asked_again",
            "most connections of a host to the liar after the one that brought wrong bytes; none",
        ),
    ],
    measure,
};

const HOSTS: u32 = 12;
const KILLED: usize = 4;
const LIAR: u32 = HOSTS + 1;
const STALLER: u32 = HOSTS + 2;
const RATE: u64 = 50_000_000;
const MEBIBYTES: u64 = 64;
const SINK: &str = "files, verified";

/// Counts connections to a member, by who begins them.
const COUNT: &str = "add table inet askers; \
     add set inet askers who { type ipv4_addr; flags dynamic; size 64; }; \
     add chain inet askers input { type filter hook input priority 0; }; \
     add rule inet askers input tcp dport 7700-7715 tcp flags & (syn | ack) == syn update @who { ip saddr counter }";
/// Drops what is longer than the handshake of a transfer.
const STALL: &str = "add table inet stall; \
     add chain inet stall output { type filter hook output priority 0; }; \
     add rule inet stall output tcp sport 7700-7715 meta length > 300 drop";

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let (repo, mut loads) = library(context, &[MEBIBYTES], false)?;
    let load = loads.remove(0);
    let calm = (0..RUNS).map(|_| calm(context, &repo, &load)).collect::<Result<Vec<_>>>()?;
    let (calm, failures): (Vec<f64>, Vec<u64>) = calm.into_iter().unzip();
    let (calm, mut ratios, mut again, mut rows) = (median(&calm), vec![], vec![], vec![]);
    for seed in 1..=RUNS {
        let run = faulty(context, &repo, &load, (u64::try_from(seed)?, calm))?;
        ratios.push(most(&run.received) / calm);
        again.push(run.asked_again);
        let mut row = run.row;
        row["without faults s"] = calm.into();
        row["failures without faults"] = json!(failures);
        rows.push(row);
    }
    let workload = format!("{}, 50 Mbit/s, no multicast; each disk is compared with the image", load.words);
    Ok(vec![
        Figure::new("peers.faults", &ratios, "ratio", Bar::AtMost(1.5)).on(&workload, SINK).with(json!(rows)),
        Figure::new("peers.faults_asked_again", &[most(&again)], "connections", Bar::AtMost(0.0))
            .on(&workload, SINK),
    ])
}

fn open(context: &Context, repo: &Path) -> Result<Room> {
    Room::open_serving(context, &[repo], &star(STALLER, RATE, 0), &["--no-multicast"])
}

/// When the last host had received all, in seconds, without faults, and the members that failed as the hosts saw it.
fn calm(context: &Context, repo: &Path, load: &Load) -> Result<(f64, u64)> {
    let (room, disks, mut crew) = (open(context, repo)?, context.folder()?, Crew::new());
    let target = |host: u32| disks.join(format!("disk-{host}")).to_string_lossy().into_owned();
    let start = |host| crew.start(&mut room.fetch_with_peers(host, &load.name, &target(host)));
    let hosts = (1..=HOSTS).map(start).collect::<Result<Vec<_>>>()?;
    let fetched = collect(&mut crew, &hosts)?;
    (1..=HOSTS).try_for_each(|host| compare(context, target(host).as_ref()))?;
    let failures = fetched.iter().filter_map(|host| host.report["peers"]["failures"].as_u64()).sum();
    Ok((most(&received(&fetched)), failures))
}

/// A run with faults.
struct Run {
    /// When each host that lived had received all, in seconds.
    received: Vec<f64>,
    /// Most connections of a host to the liar after the first.
    asked_again: f64,
    row: Value,
}

/// The hosts that are killed, and when, in the order of time.
fn kills(seed: u64, within: f64) -> Result<Vec<(Duration, u32)>> {
    let mut chance = Chance::from_seed(seed);
    let mut kills: Vec<(Duration, u32)> = Vec::new();
    while kills.len() < KILLED {
        let host = 1 + u32::try_from(chance.below(HOSTS.into()))?;
        let at = Duration::from_secs_f64(within * f64::from(u32::try_from(chance.below(900))?) / 1000.0);
        if kills.iter().all(|(_, other)| *other != host) {
            kills.push((at, host));
        }
    }
    kills.sort_unstable();
    Ok(kills)
}

/// The hosts `1..=HOSTS` fetch; some are killed within the time that a run without faults takes.
fn faulty(context: &Context, repo: &Path, load: &Load, (seed, calm): (u64, f64)) -> Result<Run> {
    let (room, disks, version) =
        (open(context, repo)?, context.folder()?, Version::newest(repo, &load.name)?);
    let target = |host: u32| disks.join(format!("disk-{host}")).to_string_lossy().into_owned();
    let liar = hostile(&room, LIAR, &version, COUNT)?;
    let staller = hostile(&room, STALLER, &version, STALL)?;
    let (mut steady, mut dying) = (Crew::new(), Crew::new());
    let kills = kills(seed, calm)?;
    let (mut survivors, mut victims, mut hosts) = (vec![], vec![], vec![]);
    for host in 1..=HOSTS {
        let mut command = room.fetch_with_peers(host, &load.name, &target(host));
        if let Some((at, _)) = kills.iter().find(|(_, victim)| *victim == host) {
            victims.push((*at, dying.start(&mut command)?));
        } else {
            survivors.push(steady.start(&mut command)?);
            hosts.push(host);
        }
    }
    victims.sort_unstable();
    for (at, victim) in victims {
        steady.wait_until(at);
        dying.kill(victim);
    }
    let fetched = collect(&mut steady, &survivors)?;
    hosts.iter().try_for_each(|&host| compare(context, target(host).as_ref()))?;
    let counter = |name: &str| -> Vec<u64> {
        fetched.iter().map(|host| host.report["peers"][name].as_u64().unwrap_or(0)).collect()
    };
    let connections = connections(&room)?;
    let asked_again = connections.iter().map(|&count| count - 1.0).fold(0.0, f64::max);
    let row = json!({
        "last host s": most(&received(&fetched)), "killed after s": kills.iter().map(|(at, _)| at.as_secs_f64())
            .collect::<Vec<_>>(),
        "wrong objects at hosts": counter("liars"), "failures at hosts": counter("failures"),
        "connections to the liar": connections, "bytes that the liar sent": liar.traffic().sent_bytes,
        "bytes from the server": fetched.iter().map(Fetched::unicast_bytes).sum::<u64>(),
    });
    drop((liar, staller));
    Ok(Run { received: received(&fetched), asked_again, row })
}

fn received(fetched: &[Fetched]) -> Vec<f64> {
    fetched.iter().map(|host| host.received).collect()
}

/// A member on `host` that says that it has everything, with wrong bytes, behind a rule of nft.
fn hostile(room: &Room, host: u32, version: &Version, rule: &str) -> Result<Node> {
    said(room.star.host(host).command("nft").arg(rule))?;
    let (_, node) = version.join(room, host, true)?;
    let objects = version.catalogue.objects();
    let longest = objects.iter().map(|object| object.len).max().unwrap_or(0);
    let wrong = Bytes::from(vec![0x5a; usize::try_from(longest)?]);
    // Not the nodes of the tree: else it would be found out before the chunks.
    for (number, object) in (0..).zip(objects).skip(usize::try_from(version.catalogue.heads())?) {
        node.spool().put(number, &wrong.slice(..usize::try_from(object.len)?));
    }
    Ok(node)
}

/// How often each host connected to the liar.
fn connections(room: &Room) -> Result<Vec<f64>> {
    let mut command: Command = room.star.host(LIAR).command("nft");
    let listed: Value =
        serde_json::from_str(&said(command.args(["-j", "list", "set", "inet", "askers", "who"]))?)?;
    let sets = listed["nftables"].as_array().into_iter().flatten();
    let elements = sets.filter_map(|entry| entry["set"]["elem"].as_array()).flatten();
    Ok(elements.filter_map(|element| element["elem"]["counter"]["packets"].as_f64()).collect())
}

/// Compares a disk with the image by their digests, and removes it; an error if they differ.
fn compare(context: &Context, disk: &Path) -> Result<()> {
    let digest = |path: &Path| -> Result<blake3::Hash> {
        let mut hasher = blake3::Hasher::new();
        std::io::copy(&mut std::fs::File::open(path)?, &mut hasher)?;
        Ok(hasher.finalize())
    };
    if digest(disk)? != digest(&crate::load::random_disk(context, MEBIBYTES << 20)?)? {
        return Err(format!("{} is not the image", disk.display()).into());
    }
    Ok(std::fs::remove_file(disk)?)
}
