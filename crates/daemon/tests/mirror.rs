//! Tests a disk that runs from an image of a server, over HTTPS on loopback, also while the server cannot be reached.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::ErrorKind;
use daemon::auth::authority::{Claims, Right};
use daemon::{ServeOptions, Server, serve};
use image::{Cipher, Manifest};
use mirror::{CommitOptions, Durability, Mirror, MirrorOptions, Onto, Served, Source};
use net::client::{Client, ClientOptions};
use net::clock::Stop;
use net::token::JoinToken;
use store::{Location, Repository, Shape, Stamp};

const WORDS: u32 = 5 << 20;
const SIZE: usize = 4 * WORDS as usize;

fn start(repository: &Arc<Repository>, state: &Path, listen: SocketAddr) -> Server {
    let options = ServeOptions {
        repository: Arc::clone(repository),
        state: state.to_owned(),
        listen,
        tls: true,
        multicast: None,
        token_lifetime: Duration::from_secs(600),
        token_out: None,
        places: Default::default(),
        netboot: None,
        agents: false,
        strict: false,
        public: Default::default(),
        torrent: None,
        log: Arc::new(|_| {}),
    };
    serve(options).unwrap()
}

/// A repository with the image `web` of `SIZE` bytes, and a server for it.
struct Site {
    folder: tempfile::TempDir,
    repository: Arc<Repository>,
    content: Vec<u8>,
    stamp: Stamp,
}

impl Site {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let repository = Arc::new(Repository::create(&Location::Memory).unwrap());
        let stamp = Stamp { created: "2026-11-21T21:00:00Z".into(), creator: "test".into() };
        let blob = repository.blob(&"web".parse().unwrap());
        blob.create(&Shape { size_bytes: SIZE as u64, ..Shape::default() }, &stamp).unwrap();
        let content: Vec<u8> =
            (0..WORDS).map(|number| number.wrapping_mul(2_654_435_761)).flat_map(u32::to_le_bytes).collect();
        blob.write(0, &content, &stamp).unwrap();
        Self { folder, repository, content, stamp }
    }

    fn start(&self, listen: &str) -> Server {
        start(&self.repository, &self.folder.path().join("state"), listen.parse().unwrap())
    }

    fn disk(&self, name: &str, client: &Arc<Client>) -> Mirror {
        let manifest = Manifest::decode(&client.manifest("web@2").unwrap()).unwrap();
        let sources = vec![Source::server("here", Arc::clone(client))];
        Mirror::create(&self.folder.path().join(name), &manifest, sources, &MirrorOptions::default()).unwrap()
    }

    fn read(&self, reference: &str) -> Vec<u8> {
        let mut bytes = vec![0; SIZE];
        self.repository.snapshot(&reference.parse().unwrap()).unwrap().read(0, &mut bytes).unwrap();
        bytes
    }
}

#[test]
fn a_disk_runs_from_a_server_that_goes_away_and_comes_back() {
    let site = Site::new();
    let content = &site.content;
    let server = site.start("127.0.0.1:0");
    let (address, token) = (server.address(), server.join_token().clone());
    let options = Source::client_options(Cipher::None, Stop::new());
    let client = Arc::new(Client::connect(&address.to_string(), &token, options).unwrap());
    let mirror = site.disk("disk", &client);
    let mut half = vec![0; SIZE / 2];
    mirror.read(0, &mut half).unwrap();
    assert!(half == content[..SIZE / 2]);

    server.shutdown();
    mirror.write(SIZE as u64 - 512, &[7; 512], Durability::Durable).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut rest = vec![0; SIZE / 2];
            mirror.read(SIZE as u64 / 2, &mut rest).unwrap();
            rest
        });
        let server = site.start(&address.to_string());
        let rest = reader.join().unwrap();
        assert!(rest[..rest.len() - 512] == content[SIZE / 2..SIZE - 512]);
        assert_eq!(rest[rest.len() - 512..], [7; 512]);
        server.shutdown();
    });
    let (counters, manifest) = (mirror.counters(), mirror.base());
    assert_eq!(counters.demanded_bytes + counters.prefetched_bytes, manifest.statistics.encoded_bytes);
}

#[test]
fn a_commit_through_a_server_is_one_version_whatever_its_size() {
    let site = Site::new();
    let server = site.start("127.0.0.1:0");
    let state = daemon::state::StateFolder::open(&site.folder.path().join("state")).unwrap();
    let claims = Claims::plain(vec!["*".to_owned()], Right::Write, u64::MAX);
    let secret = state.authority().unwrap().mint(&claims).unwrap();
    let token = JoinToken { secret, ..server.join_token().clone() };
    let address = server.address().to_string();
    let client = Arc::new(Client::connect(&address, &token, ClientOptions::default()).unwrap());
    let (one, two) = (site.disk("one", &client), site.disk("two", &client));
    let (options, image) = (CommitOptions::new(&site.stamp), "web".parse().unwrap());
    // More than one request can carry, and a partly written chunk.
    let mut expected = site.content.clone();
    let at = (3 << 18) + 512;
    expected[at..].iter_mut().for_each(|byte| *byte = byte.wrapping_mul(77));
    one.write(at as u64, &expected[at..], Durability::Cached).unwrap();
    two.write(512, &[9; 512], Durability::Cached).unwrap();
    let commit = one.commit(&*client, &image, &options).unwrap().unwrap();
    assert_eq!((commit.manifest.number, commit.dirty_bytes), (3, (SIZE - at) as u64));
    assert!(site.read("web@3") == expected);
    assert_eq!(site.repository.versions(&image).unwrap(), [1, 2, 3]);
    assert_eq!((one.base().number, one.dirty_bytes()), (3, 0));
    assert_eq!(one.counters().demanded_chunks, 0);
    let error = two.commit(&*client, &image, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    let commit =
        two.commit(&*client, &image, &CommitOptions { onto: Onto::Newest, ..options }).unwrap().unwrap();
    expected[512..1024].fill(9);
    assert!(commit.manifest.number == 4 && site.read("web@4") == expected);
    // Commit as an image of its own.
    let commit = two.commit(&*client, &"two".parse().unwrap(), &options).unwrap().unwrap();
    assert_eq!((commit.manifest.number, two.base().image.as_str()), (1, "two"));
    server.shutdown();
}
