//! Nodes that talk over sockets.

use tokio::runtime::Runtime;

use super::*;
use crate::hash::hash;
use crate::hash::tests::Memory;
use crate::metainfo::Kind;

fn content(bytes: Vec<u8>) -> Arc<Memory> {
    Arc::new(Memory(Mutex::new(bytes)))
}

fn node(runtime: &Runtime, seed: u64, find: Option<Find>) -> Node {
    let options = NodeOptions {
        listener: super::listen("127.0.0.1:0".parse().unwrap()).unwrap(),
        handle: runtime.handle().clone(),
        place: 0,
        is_origin: find.is_some(),
        cache_bytes: 4 << 20,
        chance: Chance::from_seed(seed),
        find,
    };
    Node::start(options).unwrap()
}

#[test]
fn members_fetch_from_the_server_and_from_each_other() {
    let mut bytes = vec![0; 3_000_000];
    Chance::from_seed(5).fill(&mut bytes);
    let source = content(bytes.clone());
    let torrent = Arc::new(Metainfo::new("a", &hash(&*source, 1 << 16).unwrap(), Kind::Hybrid));
    let runtime = Runtime::new().unwrap();
    let (found, name) = (Arc::clone(&torrent), torrent.info_hash());
    let find: Find = Arc::new(move |asked| {
        (*asked == name).then(|| (Arc::clone(&found), Arc::clone(&source) as Arc<dyn Content>))
    });
    let server = node(&runtime, 1, Some(find));
    let members: Vec<Node> = (2..5).map(|seed| node(&runtime, seed, None)).collect();
    let targets: Vec<_> = members.iter().map(|_| content(vec![0; bytes.len()])).collect();
    let none = Bits::none(torrent.piece_count());
    let torrents: Vec<_> = std::iter::zip(&members, &targets)
        .map(|(member, target)| {
            member.add(Arc::clone(&torrent), Arc::clone(target) as Arc<dyn Content>, none.clone())
        })
        .collect();
    let all: Vec<SocketAddr> = members.iter().map(Node::address).chain([server.address()]).collect();
    // Each calls all: of two connections to the same peer one stays, and the one to oneself does not.
    std::iter::zip(&members, &torrents).for_each(|(member, torrent)| member.connect(torrent, &all));
    for (torrent, target) in std::iter::zip(&torrents, &targets) {
        runtime.block_on(torrent.complete()).unwrap();
        assert!(*target.0.lock() == bytes);
        assert_eq!(torrent.traffic().pieces, torrent.metainfo().piece_count());
    }
    let moved: u64 = torrents.iter().map(|torrent| torrent.traffic().received_bytes).sum();
    assert!(moved >= 3 * bytes.len() as u64);
    assert!(server.traffic().sent_bytes >= bytes.len() as u64);
}

#[test]
fn a_content_that_takes_no_piece_ends_the_fetch() {
    struct Full(Memory);
    impl Content for Full {
        fn len(&self) -> u64 {
            self.0.len()
        }

        fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
            self.0.read_at(offset, into)
        }

        fn keep(&self, _: u64, _: &[u8]) -> Result<()> {
            Err(Error::new(base::ErrorKind::Full, "no room"))
        }
    }
    let source = content(vec![7; 100_000]);
    let torrent = Arc::new(Metainfo::new("a", &hash(&*source, 1 << 16).unwrap(), Kind::V1));
    let runtime = Runtime::new().unwrap();
    let (server, member) = (node(&runtime, 1, None), node(&runtime, 2, None));
    let all = Bits::all(torrent.piece_count());
    let _served = server.add(Arc::clone(&torrent), source, all);
    let full = Arc::new(Full(Memory(Mutex::new(vec![0; 100_000]))));
    let fetched = member.add(Arc::clone(&torrent), full, Bits::none(torrent.piece_count()));
    member.connect(&fetched, &[server.address()]);
    assert_eq!(runtime.block_on(fetched.complete()).unwrap_err().kind(), base::ErrorKind::Full);
}
