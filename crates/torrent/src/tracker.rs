//! Who takes part in a torrent. Sources: BEP 3 ("trackers"), BEP 23 (compact lists), BEP 7 (IPv6), BEP 48 (scrape).
//!
//! An answer names near peers first: those at the same place, then those of the same network. Most of the peers that a
//! client connects to are then near. Some others are always among them, so that islands stay connected.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use base::{Chance, Error, ErrorKind, Instant, Result};
use percent_encoding::percent_decode_str;

use crate::bencode::{Dictionary, Value, dictionary};
use crate::metainfo::InfoHash;

/// How often clients announce themselves.
const INTERVAL: Duration = Duration::from_secs(30);
/// One that did not for this time is gone.
const SILENCE_MAX: Duration = Duration::from_secs(100);
/// Most peers of a torrent that are remembered.
const PEERS_MAX: usize = 8192;
/// Most of them at one address.
const PEERS_PER_ADDRESS_MAX: usize = 32;
/// How many peers an answer names if the client does not say; and at most.
const NAMED: usize = 50;
/// See [`NAMED`].
const NAMED_MAX: usize = 200;
/// Of so many named peers one is not near, if there are such.
const FAR_EACH: usize = 4;

/// Most torrents that one request may ask the counts of.
const SCRAPED_MAX: usize = 64;

/// Whether two addresses are in the same network: the same /24, or with IPv6 the same /64.
#[must_use]
pub(crate) fn is_same_network(one: IpAddr, other: IpAddr) -> bool {
    match (one.to_canonical(), other.to_canonical()) {
        (IpAddr::V4(one), IpAddr::V4(other)) => one.octets()[..3] == other.octets()[..3],
        (IpAddr::V6(one), IpAddr::V6(other)) => one.octets()[..8] == other.octets()[..8],
        _ => false,
    }
}

/// What a client says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announce {
    /// The torrent.
    pub info_hash: InfoHash,
    /// Where it listens; 0 if it does not, so that nobody is told of it.
    pub port: u16,
    /// Bytes that it lacks.
    pub left: u64,
    /// Whether it leaves.
    pub stops: bool,
    /// Whether it has just got all of it.
    pub completes: bool,
    /// How many peers it wants to be told.
    pub wanted: usize,
    /// Whether it takes the short form of lists; else names are told, too.
    pub compact: bool,
    /// The number of its place, which only clients of ours say; 0 if not.
    pub place: u32,
}

impl Announce {
    /// Reads the query of a request.
    ///
    /// # Errors
    /// `Invalid` if something that must be there is missing or wrong.
    pub fn parse(query: &str) -> Result<Self> {
        let mut values: HashMap<&str, &str> = HashMap::new();
        for pair in query.split('&') {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            values.entry(key).or_insert(value);
        }
        let number = |key: &str| values.get(key).and_then(|text| text.parse::<u64>().ok());
        let port = number("port").and_then(|port| u16::try_from(port).ok());
        let wanted = number("numwant").map_or(NAMED, |count| usize::try_from(count).unwrap_or(NAMED_MAX));
        Ok(Self {
            info_hash: info_hash(values.get("info_hash").unwrap_or(&""))?,
            // Transmission without a port says -1.
            port: port.unwrap_or(0),
            left: number("left").unwrap_or(u64::MAX),
            stops: values.get("event") == Some(&"stopped"),
            completes: values.get("event") == Some(&"completed"),
            wanted: wanted.min(NAMED_MAX),
            compact: values.get("compact") != Some(&"0"),
            place: number("place").and_then(|place| u32::try_from(place).ok()).unwrap_or(0),
        })
    }
}

fn info_hash(text: &str) -> Result<InfoHash> {
    let hash: Vec<u8> = percent_decode_str(text).collect();
    let hash = hash.try_into().map_err(|_| Error::new(ErrorKind::Invalid, "it names no torrent"))?;
    Ok(InfoHash(hash))
}

/// The torrents whose counts a request asks for, by its query.
///
/// # Errors
/// `Invalid` if it names none, or too many: who may know of a torrent has its name.
pub fn scraped(query: &str) -> Result<Vec<InfoHash>> {
    let names = query.split('&').filter_map(|pair| pair.strip_prefix("info_hash="));
    let names = names.map(info_hash).collect::<Result<Vec<_>>>()?;
    if (1..=SCRAPED_MAX).contains(&names.len()) {
        return Ok(names);
    }
    Err(Error::new(ErrorKind::Invalid, format!("1 to {SCRAPED_MAX} torrents must be named by info_hash")))
}

/// A peer, as the tracker knows it.
#[derive(Debug, Clone, Copy)]
struct Peer {
    place: u32,
    is_seed: bool,
    at: Instant,
}

/// The peers of a server's torrents.
#[derive(Debug)]
pub struct Tracker {
    torrents: HashMap<InfoHash, HashMap<SocketAddr, Peer>>,
    /// How many clients got all of a torrent.
    completed: HashMap<InfoHash, u64>,
    chance: Chance,
}

/// What a client is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The peers, near ones first.
    pub peers: Vec<SocketAddr>,
    /// How many have everything, and how many do not.
    pub seeds: usize,
    /// See `seeds`.
    pub others: usize,
    /// The number of the client's place, as the server knows it; 0 if it does not.
    pub place: u32,
    compact: bool,
}

impl Tracker {
    /// A tracker that knows no peers.
    #[must_use]
    pub fn new(chance: Chance) -> Self {
        Self { torrents: HashMap::new(), completed: HashMap::new(), chance }
    }

    /// Takes an announce from a client at `address`, which is at `place` (0 if it is not known), and answers it. The
    /// caller has checked that the torrent is one of its own; `origin` is where the server itself has all of it.
    pub fn announce(
        &mut self,
        announce: &Announce,
        (address, place): (IpAddr, u32),
        origin: SocketAddr,
        now: Instant,
    ) -> Answer {
        let own = SocketAddr::new(address.to_canonical(), announce.port);
        if announce.completes {
            *self.completed.entry(announce.info_hash).or_default() += 1;
        }
        let place = if announce.place == 0 { place } else { announce.place };
        let peers = self.torrents.entry(announce.info_hash).or_default();
        peers.retain(|_, peer| now.since(peer.at) <= SILENCE_MAX);
        let is_seed = announce.left == 0;
        if announce.stops {
            peers.remove(&own);
        } else if own.port() != 0 && (peers.contains_key(&own) || has_room(peers, own.ip())) {
            peers.insert(own, Peer { place, is_seed, at: now });
        }
        let seeds = peers.values().filter(|peer| peer.is_seed).count();
        let others = peers.len() - seeds;
        let wanted = if announce.stops { 0 } else { announce.wanted };
        // Two that have everything are of no use to each other.
        let useful = peers.iter().filter(|(at, peer)| **at != own && !(is_seed && peer.is_seed));
        let useful = useful.map(|(at, peer)| (rank((own.ip(), place), (at.ip(), peer.place)), *at)).collect();
        let mut named = choose(useful, wanted, &mut self.chance);
        if !is_seed && wanted > 0 {
            named.push(origin);
        }
        if peers.is_empty() {
            self.torrents.remove(&announce.info_hash);
        }
        Answer { peers: named, seeds: seeds + 1, others, place, compact: announce.compact }
    }

    /// The answer about how many take part in each of `torrents`, which are the caller's own.
    #[must_use]
    pub fn scrape(&self, torrents: &[InfoHash], now: Instant) -> Vec<u8> {
        let mut files = Dictionary::new();
        for torrent in torrents {
            let known = self.torrents.get(torrent).into_iter().flat_map(HashMap::values);
            let (seeds, others): (Vec<&Peer>, _) =
                known.filter(|peer| now.since(peer.at) <= SILENCE_MAX).partition(|peer| peer.is_seed);
            let completed = self.completed.get(torrent).copied().unwrap_or(0);
            let counts = dictionary([
                ("complete", count(seeds.len() + 1)),
                ("downloaded", i64::try_from(completed).unwrap_or(i64::MAX).into()),
                ("incomplete", count(others.len())),
            ]);
            files.insert(torrent.0.to_vec(), counts.into());
        }
        Value::from(dictionary([("files", files.into())])).encode()
    }
}

fn count(count: usize) -> Value {
    Value::from(i64::try_from(count).unwrap_or(i64::MAX))
}

fn has_room(peers: &HashMap<SocketAddr, Peer>, address: IpAddr) -> bool {
    peers.len() < PEERS_MAX
        && peers.keys().filter(|peer| peer.ip() == address).count() < PEERS_PER_ADDRESS_MAX
}

/// How far a peer is: 0 at the same place, or in the same network if a place is not known; 1 in the same network
/// elsewhere; 2 beyond.
fn rank((own, own_place): (IpAddr, u32), (other, place): (IpAddr, u32)) -> u8 {
    let same_network = is_same_network(own, other);
    let places_known = own_place != 0 && place != 0;
    match (places_known && own_place == place, same_network) {
        (true, _) => 0,
        (false, true) => u8::from(places_known),
        (false, false) => 2,
    }
}

/// The `wanted` nearest of `peers`, by chance among equally near ones; but some of the others, too.
fn choose(mut peers: Vec<(u8, SocketAddr)>, wanted: usize, chance: &mut Chance) -> Vec<SocketAddr> {
    for at in (1..peers.len()).rev() {
        let other = usize::try_from(chance.below(at as u64 + 1)).expect("an index");
        peers.swap(at, other);
    }
    peers.sort_by_key(|(rank, _)| *rank);
    let near = peers.iter().filter(|(rank, _)| *rank == 0).count();
    let far = (peers.len() - near).min(wanted.div_ceil(FAR_EACH));
    let near = near.min(wanted.saturating_sub(far));
    let named = peers.iter().filter(|(rank, _)| *rank == 0).take(near);
    let others = peers.iter().filter(|(rank, _)| *rank > 0).take(wanted - near);
    named.chain(others).map(|(_, at)| *at).collect()
}

impl Answer {
    /// The bytes of the answer.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let interval = i64::try_from(INTERVAL.as_secs()).unwrap_or(i64::MAX);
        let mut answer = dictionary([
            ("complete", count(self.seeds)),
            ("incomplete", count(self.others)),
            ("interval", interval.into()),
            ("min interval", 5.into()),
            ("place", i64::from(self.place).into()),
        ]);
        let (mut short, mut short_v6, mut long) = (Vec::new(), Vec::new(), Vec::new());
        for peer in &self.peers {
            match peer.ip().to_canonical() {
                IpAddr::V4(address) => short.extend(address.octets()),
                IpAddr::V6(address) => short_v6.extend(address.octets()),
            }
            let list = if peer.ip().to_canonical().is_ipv4() { &mut short } else { &mut short_v6 };
            list.extend(peer.port().to_be_bytes());
            let (ip, port) = (peer.ip().to_canonical().to_string(), i64::from(peer.port()));
            long.push(Value::from(dictionary([("ip", ip.as_str().into()), ("port", port.into())])));
        }
        if self.compact {
            answer.insert(b"peers".to_vec(), short.into());
            answer.insert(b"peers6".to_vec(), short_v6.into());
        } else {
            answer.insert(b"peers".to_vec(), Value::List(long));
        }
        Value::from(answer).encode()
    }

    /// Reads an answer in its short form.
    ///
    /// # Errors
    /// `Refused`, with the tracker's words, if it refuses; `Malformed`.
    pub fn parse(bytes: &[u8]) -> Result<(Self, Duration)> {
        let answer = Value::decode(bytes)?;
        if let Some(reason) = answer.get("failure reason").and_then(Value::bytes) {
            let text = format!("the tracker says: {}", String::from_utf8_lossy(reason));
            return Err(Error::new(ErrorKind::Refused, text));
        }
        let list = |key: &str| answer.get(key).and_then(Value::bytes).unwrap_or_default();
        let mut peers: Vec<SocketAddr> = Vec::new();
        for entry in list("peers").as_chunks::<6>().0 {
            let [a, b, c, d, port @ ..] = *entry;
            peers.push(SocketAddr::from(([a, b, c, d], u16::from_be_bytes(port))));
        }
        for entry in list("peers6").as_chunks::<18>().0 {
            let (address, port) = entry.split_at(16);
            let address: [u8; 16] = address.try_into().expect("16 bytes");
            peers.push(SocketAddr::from((address, u16::from_be_bytes([port[0], port[1]]))));
        }
        let number = |key: &str| answer.get(key).and_then(Value::number).and_then(|n| u64::try_from(n).ok());
        let interval = Duration::from_secs(number("interval").unwrap_or(INTERVAL.as_secs()).clamp(1, 3600));
        let count = |key: &str| usize::try_from(number(key).unwrap_or(0)).unwrap_or(usize::MAX);
        let place = number("place").and_then(|place| u32::try_from(place).ok()).unwrap_or(0);
        let (seeds, others) = (count("complete"), count("incomplete"));
        Ok((Self { peers, seeds, others, place, compact: true }, interval))
    }
}

/// The answer that refuses an announce.
#[must_use]
pub fn refusal(reason: &str) -> Vec<u8> {
    let answer: Dictionary = dictionary([("failure reason", reason.into())]);
    Value::from(answer).encode()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: &str = "10.9.9.9:6881";

    fn announce(port: u16, left: u64) -> Announce {
        let text = format!(
            "info_hash={}&peer_id=x&port={port}&uploaded=0&downloaded=0&left={left}&compact=1",
            "%01".repeat(20)
        );
        Announce::parse(&text).unwrap()
    }

    fn told(tracker: &mut Tracker, announce: &Announce, from: &str, place: u32, seconds: u64) -> Answer {
        let now = Instant::ZERO + Duration::from_secs(seconds);
        tracker.announce(announce, (from.parse().unwrap(), place), ORIGIN.parse().unwrap(), now)
    }

    fn tracker() -> Tracker {
        Tracker::new(Chance::from_seed(1))
    }

    #[test]
    fn announces_are_read_as_clients_write_them() {
        let query =
            "info_hash=%00%ff-_.~%7Eabcdefghijklm&port=51413&left=0&event=stopped&numwant=999999&compact=0";
        let read = Announce::parse(query).unwrap();
        assert_eq!(read.info_hash.0, *b"\x00\xff-_.~~abcdefghijklm");
        assert_eq!((read.port, read.left, read.stops, read.compact), (51413, 0, true, false));
        assert_eq!(read.wanted, NAMED_MAX);
        assert_eq!(Announce::parse("info_hash=12345678901234567890&port=-1").unwrap().port, 0);
        for wrong in ["", "info_hash=abc&port=1", "port=1"] {
            assert!(Announce::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn near_peers_are_named_first_and_some_far_ones() {
        let mut tracker = tracker();
        for number in 1..=9_u8 {
            told(&mut tracker, &announce(1, 5), &format!("10.0.0.{number}"), 0, 0);
            told(&mut tracker, &announce(1, 5), &format!("10.0.1.{number}"), 0, 0);
        }
        let wanted = Announce { wanted: 8, ..announce(1, 5) };
        let answer = told(&mut tracker, &wanted, "10.0.1.77", 0, 0);
        let nets: Vec<String> = answer.peers.iter().map(|peer| peer.to_string()).collect();
        assert!(nets[..6].iter().all(|peer| peer.starts_with("10.0.1.")), "{nets:?}");
        assert!(nets[6..8].iter().all(|peer| peer.starts_with("10.0.0.")), "{nets:?}");
        assert_eq!(nets[8..], [ORIGIN], "the server is always among them");
        assert_eq!((answer.seeds, answer.others), (1, 19));
    }

    #[test]
    fn places_weigh_more_than_networks() {
        let mut tracker = tracker();
        told(&mut tracker, &announce(1, 5), "10.0.0.1", 7, 0);
        told(&mut tracker, &announce(1, 5), "10.0.2.1", 8, 0);
        // What the client itself says of its place counts.
        let here = Announce { place: 8, wanted: 1, ..announce(1, 5) };
        let answer = told(&mut tracker, &here, "10.0.0.2", 7, 0);
        assert_eq!(answer.place, 8);
        let both = Announce { wanted: 2, ..here };
        let answer = told(&mut tracker, &both, "10.0.0.2", 7, 0);
        assert_eq!(answer.peers[0], "10.0.2.1:1".parse().unwrap());
    }

    #[test]
    fn who_leaves_or_is_silent_is_not_named() {
        let mut tracker = tracker();
        told(&mut tracker, &announce(1, 5), "10.0.0.1", 0, 0);
        told(&mut tracker, &announce(2, 5), "10.0.0.2", 0, 0);
        told(&mut tracker, &Announce { stops: true, ..announce(1, 5) }, "10.0.0.1", 0, 1);
        let named = told(&mut tracker, &announce(3, 5), "10.0.0.3", 0, 50).peers;
        assert_eq!(named, ["10.0.0.2:2".parse().unwrap(), ORIGIN.parse().unwrap()]);
        let named = told(&mut tracker, &announce(4, 5), "10.0.0.4", 0, 120).peers;
        assert_eq!(named, ["10.0.0.3:3".parse().unwrap(), ORIGIN.parse().unwrap()]);
        // Who does not listen is told of others all the same.
        assert_eq!(told(&mut tracker, &announce(0, 5), "10.0.0.9", 0, 120).peers.len(), 3);
        // Those that have everything need nobody that has, too.
        told(&mut tracker, &announce(3, 0), "10.0.0.3", 0, 121);
        let named = told(&mut tracker, &announce(5, 0), "10.0.0.5", 0, 122).peers;
        assert_eq!(named, ["10.0.0.4:4".parse().unwrap()]);
    }

    #[test]
    fn counts_are_told_of_what_is_named() {
        let mut tracker = tracker();
        told(&mut tracker, &announce(1, 5), "10.0.0.1", 0, 0);
        told(&mut tracker, &announce(2, 5), "10.0.0.2", 0, 60);
        told(&mut tracker, &Announce { completes: true, ..announce(3, 0) }, "10.0.0.3", 0, 60);
        let query = format!("info_hash={}&info_hash={}", "%01".repeat(20), "%02".repeat(20));
        let torrents = scraped(&query).unwrap();
        let answer = tracker.scrape(&torrents, Instant::ZERO + Duration::from_secs(120));
        let counts = |seeds, completed, others| {
            format!("d8:completei{seeds}e10:downloadedi{completed}e10:incompletei{others}ee")
        };
        let [one, two] = [1, 2].map(|byte| String::from_utf8(vec![byte; 20]).unwrap());
        let wanted = format!("d5:filesd20:{one}{}20:{two}{}ee", counts(2, 1, 1), counts(1, 0, 0));
        assert_eq!(String::from_utf8(answer).unwrap(), wanted);
        for wrong in ["", "info_hash=abc", &format!("{query}&").repeat(33)] {
            assert!(scraped(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn one_address_has_few_places() {
        let mut tracker = tracker();
        for port in 1..=100 {
            told(&mut tracker, &announce(port, 5), "10.0.0.1", 0, 0);
        }
        let answer = told(&mut tracker, &announce(1, 5), "10.0.0.2", 0, 0);
        assert_eq!(answer.others, PEERS_PER_ADDRESS_MAX + 1);
    }

    #[test]
    fn answers_come_as_they_went() {
        let peers = vec!["10.0.0.1:6881".parse().unwrap(), "[fd00::1]:6882".parse().unwrap()];
        let answer = Answer { peers, seeds: 1, others: 2, place: 3, compact: true };
        let (read, interval) = Answer::parse(&answer.encode()).unwrap();
        assert_eq!((read, interval), (answer.clone(), INTERVAL));
        let long = Value::decode(&Answer { compact: false, ..answer }.encode()).unwrap();
        assert!(matches!(long.get("peers"), Some(Value::List(peers)) if peers.len() == 2));
        let refused = Answer::parse(&refusal("not here")).unwrap_err();
        assert!(refused.to_string().contains("not here"));
    }
}
