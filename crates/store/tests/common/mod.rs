//! Helpers for the tests of this crate: small images, and repositories in every kind of store.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "only tests use this")]

pub(crate) mod faulty;
pub(crate) mod mounted;
pub(crate) mod proxy;

use std::net::SocketAddr;
use std::sync::Arc;

use base::{Chance, Error, ErrorKind};
use bytes::Bytes;
use futures::TryStreamExt as _;
use futures::executor::block_on;
use image::chunk::PlainHasher;
use image::manifest::{DiskRecord, Origin, Statistics};
use image::{ChunkExtents, ChunkSize, Cipher, Encoder, Leaf, Manifest, ObjectRef, ObjectSink, TreeBuilder};
use lab::{Engine, Gateway};
use mounted::Mounted;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _};
use proxy::{Fate, Proxy};
use store::{ImageName, Keys, Location, Reference, Repository, S3Access, Setting, Stamp};

/// A repository and the store that it is in.
pub(crate) struct Place {
    pub repository: Repository,
    pub location: Location,
    pub setting: Setting,
    pub keeps: Keeps,
}

/// Values that keep the store alive until the place is dropped.
pub(crate) enum Keeps {
    Nothing,
    Folder(tempfile::TempDir),
    /// A filesystem, and the folder with its file.
    Mounted(Mounted, tempfile::TempDir),
    Gateway(Gateway),
    Network(Proxy, Gateway),
    Cluster(Box<lab::ClusterSite>, tempfile::TempDir),
}

impl Place {
    fn new(location: Location, setting: Setting, keeps: Keeps) -> Self {
        Self { repository: Repository::create_with(&location, &setting).unwrap(), location, setting, keeps }
    }

    /// The folder of a repository that is stored in a folder.
    pub(crate) fn folder(&self) -> &std::path::Path {
        let Location::Folder(folder) = &self.location else { panic!("{} is no folder", self.location) };
        folder
    }

    /// The variables with which another process finds the store.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        match &self.keeps {
            Keeps::Nothing | Keeps::Folder(_) | Keeps::Mounted(..) | Keeps::Cluster(..) => Vec::new(),
            Keeps::Gateway(gateway) => Gateway::variables(gateway.address()).into(),
            Keeps::Network(proxy, _) => Gateway::variables(proxy.address()).into(),
        }
    }

    /// Another handle for the same repository, as another process would have; `None` if it is in memory.
    pub(crate) fn another(&self) -> Option<Repository> {
        let mut setting = self.setting.clone();
        if let Keeps::Cluster(site, _) = &self.keeps {
            setting.cluster = Some(Arc::new(repository_client(site)));
        }
        (self.location != Location::Memory).then(|| Repository::open_with(&self.location, &setting).unwrap())
    }
}

/// A new repository in a new folder.
pub(crate) fn in_folder() -> Place {
    let folder = tempfile::tempdir().unwrap();
    let location = Location::Folder(folder.path().join("repository"));
    Place::new(location, setting(), Keeps::Folder(folder))
}

/// A new repository on a new exFAT filesystem, where that can be mounted.
pub(crate) fn in_exfat() -> Option<Place> {
    let files = tempfile::tempdir().unwrap();
    let mounted = Mounted::exfat(256 << 20, &files.path().join("disk"))?;
    let location = Location::Folder(mounted.folder.path().join("repository"));
    Some(Place::new(location, setting(), Keeps::Mounted(mounted, files)))
}

/// A new repository in memory.
pub(crate) fn in_memory() -> Place {
    Place::new(Location::Memory, setting(), Keeps::Nothing)
}

/// A new repository in a new S3 store, if `engine` was built.
pub(crate) fn in_s3(engine: Engine) -> Option<Place> {
    let gateway = Gateway::start_or_skip(engine)?;
    Some(Place::new(bucket(), s3_setting(gateway.address()), Keeps::Gateway(gateway)))
}

/// [`in_s3`], through a network that loses, cuts, delays and refuses many requests, as `seed` determines.
pub(crate) fn in_s3_far_away(engine: Engine, seed: u64) -> Option<Place> {
    let gateway = Gateway::start_or_skip(engine)?;
    let proxy = Proxy::before(gateway.address());
    let mut chance = Chance::from_seed(seed);
    let fates = [Fate::Throttled, Fate::Dropped, Fate::ReplyLost, Fate::CutShort, Fate::Slow];
    proxy.set(Box::new(move |_, _| {
        chance.hits(80_000).then(|| fates[usize::try_from(chance.below(fates.len() as u64)).unwrap()])
    }));
    let setting = s3_setting(proxy.address());
    Some(Place::new(bucket(), setting, Keeps::Network(proxy, gateway)))
}

fn repository_client(site: &lab::ClusterSite) -> cluster::client::Cluster {
    cluster::client::Cluster::open(&site.access(1).of_repository()).unwrap()
}

/// A new repository on a new cluster of five devices, of which one may fail.
pub(crate) fn in_cluster() -> Place {
    let folder = tempfile::tempdir().unwrap();
    let site = lab::ClusterSite::start(folder.path(), (4, 1), 5);
    let location = "cluster://127.0.0.1:1/1".parse().unwrap();
    let setting = Setting { cluster: Some(Arc::new(repository_client(&site))), ..setting() };
    Place::new(location, setting, Keeps::Cluster(Box::new(site), folder))
}

pub(crate) fn bucket() -> Location {
    "s3://images/lab/first".parse().unwrap()
}

pub(crate) fn setting() -> Setting {
    Setting { stamp: Some(stamp()), ..Setting::default() }
}

/// Endpoint and credentials of a store that listens at `address`.
pub(crate) fn s3_setting(address: SocketAddr) -> Setting {
    s3_setting_with(address, &[])
}

/// [`s3_setting`] with more variables.
pub(crate) fn s3_setting_with(address: SocketAddr, more: &[(&'static str, String)]) -> Setting {
    let variables = [&Gateway::variables(address)[..], more].concat();
    setting_from(&|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone()))
}

/// Endpoint and credentials of the store that variables name, if they do.
pub(crate) fn setting_from(find: &dyn Fn(&str) -> Option<String>) -> Setting {
    let s3 = find("AWS_ENDPOINT_URL").map(|_| S3Access::from_variables(find).unwrap());
    Setting { s3, ..setting() }
}

/// All records of a repository in memory, which a test can read and change.
#[derive(Clone, Default)]
pub(crate) struct Records(pub Arc<InMemory>);

impl Records {
    /// A repository made of these records, opened with `keys`.
    pub(crate) fn open(&self, keys: Keys) -> Repository {
        Repository::over(self.0.clone(), "memory").unwrap().with_keys(keys).unwrap()
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        let records: Vec<_> = block_on(self.0.list(None).try_collect()).unwrap();
        records.into_iter().map(|record| record.location.to_string()).collect()
    }

    pub(crate) fn read(&self, path: &str) -> Bytes {
        block_on(async { self.0.get(&Path::from(path)).await.unwrap().bytes().await.unwrap() })
    }

    pub(crate) fn write(&self, path: &str, bytes: Bytes) {
        block_on(self.0.put(&Path::from(path), bytes.into())).unwrap();
    }
}

/// Copies the folder `from` with all its contents.
pub(crate) fn copy_all(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    each_file(from, &mut |path, bytes| {
        let there = to.join(path);
        std::fs::create_dir_all(there.parent().unwrap()).unwrap();
        std::fs::write(there, bytes).unwrap();
    });
}

/// Calls `each` with the relative path and the content of every file below `folder`.
pub(crate) fn each_file(folder: &std::path::Path, each: &mut dyn FnMut(&str, Bytes)) {
    let mut waiting = vec![folder.to_owned()];
    while let Some(next) = waiting.pop() {
        for path in std::fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
            match path.is_dir() {
                true => waiting.push(path),
                false => each(
                    path.strip_prefix(folder).unwrap().to_str().unwrap(),
                    std::fs::read(&path).unwrap().into(),
                ),
            }
        }
    }
}

/// Path of the manifest of a version.
pub(crate) fn version(image: &str, number: u64) -> String {
    format!("versions/{image}/{number:020}")
}

/// The kind of the error; `None` if there was no error.
pub(crate) fn kind<T>(result: Result<T, Error>) -> Result<(), ErrorKind> {
    result.map(drop).map_err(|error| error.kind())
}

pub(crate) fn image(name: &str) -> ImageName {
    name.parse().unwrap()
}

pub(crate) fn reference(text: &str) -> Reference {
    text.parse().unwrap()
}

pub(crate) fn stamp() -> Stamp {
    Stamp { created: "2026-11-20T14:00:00Z".to_owned(), creator: "test".to_owned() }
}

/// The smallest chunk size.
pub(crate) fn chunk_size() -> ChunkSize {
    ChunkSize::from_log2(16).unwrap()
}

/// Puts an image of `chunks` chunks into `sink`: one third free, one third zeros, one third data that depends on
/// `seed`. Equal seeds give equal images. Returns the draft of its manifest, and its chunks.
pub(crate) fn put_image(sink: &dyn ObjectSink, seed: u64, chunks: u64) -> (Manifest, Vec<ObjectRef>) {
    put_encrypted(sink, &Cipher::None, seed, chunks)
}

/// [`put_image`] into a sink that is encrypted with `cipher`.
pub(crate) fn put_encrypted(
    sink: &dyn ObjectSink,
    cipher: &Cipher,
    seed: u64,
    chunks: u64,
) -> (Manifest, Vec<ObjectRef>) {
    put(sink, cipher, seed, chunks, 4096, |_| true)
}

/// [`put_image`] with less data, for files that are kept for ever: same tree height, few and small chunks.
pub(crate) fn put_little(
    sink: &dyn ObjectSink,
    cipher: &Cipher,
    seed: u64,
    chunks: u64,
) -> (Manifest, Vec<ObjectRef>) {
    put(sink, cipher, seed, chunks, 64, |index| index < 6 || index % 99 == 0)
}

fn put(
    sink: &dyn ObjectSink,
    cipher: &Cipher,
    seed: u64,
    chunks: u64,
    random_bytes: usize,
    has_data: impl Fn(u64) -> bool,
) -> (Manifest, Vec<ObjectRef>) {
    let size = chunk_size();
    let (mut chance, mut encoder, mut hasher) = (
        Chance::from_seed(seed),
        Encoder::new(1).unwrap().encrypting(cipher.clone()),
        PlainHasher::default(),
    );
    let mut tree = TreeBuilder::new(size, chunks, sink, cipher);
    let mut objects = Vec::new();
    for index in 0..chunks {
        let extents = ChunkExtents::full(size);
        let leaf = match index % 3 {
            0 if has_data(index) => {
                let mut plain = vec![0; size.bytes() as usize];
                chance.fill(&mut plain[..random_bytes]);
                let digest = hasher.digest(&extents, &plain);
                let (chunk, bytes) = encoder.encode(&extents, &plain, digest).unwrap();
                sink.put(&chunk.object(), bytes).unwrap();
                objects.push(chunk.object());
                Leaf::Data(extents, chunk)
            }
            1 => Leaf::Free,
            _ => Leaf::Zero(extents),
        };
        tree.push(index, &leaf).unwrap();
    }
    let root = tree.finish().unwrap();
    let size_sectors = chunks * u64::from(size.sectors());
    let manifest = Manifest {
        format: 1,
        features: Vec::new(),
        image: "draft".to_owned(),
        number: 0,
        nonce: String::new(),
        repository: None,
        parent: None,
        copied: None,
        commit: None,
        made: None,
        members: Vec::new(),
        root,
        chunk_bytes: size.bytes(),
        size_sectors,
        logical_sector_bytes: 512,
        physical_sector_bytes: 4096,
        origin: Origin { disk_sectors: size_sectors, start_sector: 0 },
        disk: DiskRecord { table: "none".to_owned(), ..DiskRecord::default() },
        labels: [("seed".to_owned(), seed.to_string())].into(),
        created: "2026-11-20T14:00:00Z".to_owned(),
        creator: "test".to_owned(),
        statistics: Statistics::default(),
        warnings: Vec::new(),
        cipher: "none".to_owned(),
    };
    (manifest, objects)
}

/// Puts an image and publishes it as a version of the image `name`.
pub(crate) fn publish(repository: &Repository, name: &str, seed: u64) -> Manifest {
    let (draft, _) = put_encrypted(repository, repository.cipher(), seed, 7);
    repository.publish(&image(name), draft).unwrap()
}
