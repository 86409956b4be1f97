//! Metainfo: what a torrent of one file says. BEP 3 for version 1, BEP 52 for hybrid torrents, whose one `info`
//! dictionary describes the same pieces in both versions.

use base::{Error, ErrorKind, Result};
use sha1::{Digest as _, Sha1};

use crate::bencode::{Dictionary, Value, dictionary};
use crate::hash::{Hashes, PieceHash, layer_root};

/// Longest metainfo that is read: more than `PIECES_MAX` pieces need.
const METAINFO_BYTES_MAX: usize = 64 << 20;
/// Most pieces of a torrent.
pub(crate) const PIECES_MAX: u32 = 1 << 20;
/// Smallest and largest piece, in bytes.
pub(crate) const PIECE_BYTES_MIN: u32 = 16 << 10;
/// See [`PIECE_BYTES_MIN`].
pub(crate) const PIECE_BYTES_MAX: u32 = 128 << 20;

/// The name of a torrent among peers of version 1: the SHA-1 of its `info` dictionary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InfoHash(pub [u8; 20]);

/// Which versions of BitTorrent a torrent is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Version 1 alone.
    V1,
    /// Version 1 and version 2.
    Hybrid,
}

/// What a torrent of one file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metainfo {
    name: String,
    length: u64,
    piece_bytes: u32,
    /// SHA-1 of each piece.
    pieces: Vec<[u8; 20]>,
    info: Value,
    /// For a hybrid torrent: the root of the file's tree, and the digests at the level of pieces if there are several.
    layers: Option<([u8; 32], Vec<u8>)>,
    info_hash: InfoHash,
}

impl Metainfo {
    /// The torrent of a file with this name and these digests, for trackers alone: clients look for peers in no other
    /// way (BEP 27).
    #[must_use]
    pub fn new(name: &str, hashes: &Hashes, kind: Kind) -> Self {
        let pieces: Vec<[u8; 20]> = hashes.pieces.iter().map(|piece| piece.v1).collect();
        let length = i64::try_from(hashes.length).expect("a disk has fewer bytes");
        let mut info = dictionary([
            ("length", length.into()),
            ("name", name.into()),
            ("piece length", i64::from(hashes.piece_bytes).into()),
            ("pieces", pieces.concat().into()),
            ("private", 1.into()),
        ]);
        let mut layers = None;
        if kind == Kind::Hybrid {
            let digests: Vec<[u8; 32]> = hashes.pieces.iter().map(|piece| piece.v2).collect();
            let root = layer_root(&digests, hashes.piece_bytes);
            let file = dictionary([("length", length.into()), ("pieces root", root.to_vec().into())]);
            let leaf = Dictionary::from([(Vec::new(), Value::from(file))]);
            let tree = Dictionary::from([(name.as_bytes().to_vec(), Value::from(leaf))]);
            info.insert(b"file tree".to_vec(), tree.into());
            info.insert(b"meta version".to_vec(), 2.into());
            layers = Some((root, if digests.len() > 1 { digests.concat() } else { Vec::new() }));
        }
        let info = Value::from(info);
        let info_hash = InfoHash(Sha1::digest(info.encode()).into());
        let (length, piece_bytes) = (hashes.length, hashes.piece_bytes);
        Self { name: name.to_owned(), length, piece_bytes, pieces, info, layers, info_hash }
    }

    /// The file that clients read, which names one tracker.
    #[must_use]
    pub fn encode(&self, announce: Option<&str>) -> Vec<u8> {
        let mut file = dictionary([("created by", "diskcast".into()), ("info", self.info.clone())]);
        if let Some(announce) = announce {
            file.insert(b"announce".to_vec(), announce.into());
        }
        if let Some((root, digests)) = &self.layers {
            let layers = match &digests[..] {
                [] => Dictionary::new(),
                digests => Dictionary::from([(root.to_vec(), digests.to_vec().into())]),
            };
            file.insert(b"piece layers".to_vec(), layers.into());
        }
        Value::from(file).encode()
    }

    /// The torrent in a file that clients read, and its tracker.
    ///
    /// # Errors
    /// `Malformed` if it is none, or contradicts itself; `Unsupported` for one of several files, or of version 2 alone.
    pub fn parse(bytes: &[u8]) -> Result<(Self, Option<String>)> {
        let wrong = |what: &str| Error::new(ErrorKind::Malformed, format!("a torrent has a wrong {what}"));
        if bytes.len() > METAINFO_BYTES_MAX {
            return Err(wrong("size"));
        }
        let file = Value::decode(bytes)?;
        let info = file.get("info").filter(|info| info.entries().is_some()).ok_or_else(|| wrong("`info`"))?;
        if info.get("files").is_some() || info.get("pieces").is_none() {
            let text = "a torrent is of several files, or of version 2 alone";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let number = |key: &str| info.get(key).and_then(Value::number);
        let length = number("length").and_then(|length| u64::try_from(length).ok());
        let length = length.filter(|&length| length > 0).ok_or_else(|| wrong("`length`"))?;
        let piece_bytes = number("piece length").and_then(|bytes| u32::try_from(bytes).ok());
        let is_size =
            |bytes: &u32| bytes.is_power_of_two() && (PIECE_BYTES_MIN..=PIECE_BYTES_MAX).contains(bytes);
        let piece_bytes = piece_bytes.filter(is_size).ok_or_else(|| wrong("`piece length`"))?;
        let pieces = info.get("pieces").and_then(Value::bytes).unwrap_or_default();
        let count = length.div_ceil(piece_bytes.into());
        let (pieces, rest) = pieces.as_chunks::<20>();
        if pieces.len() as u64 != count || !rest.is_empty() || count > u64::from(PIECES_MAX) {
            return Err(wrong("number of `pieces`"));
        }
        let name = info.get("name").and_then(Value::bytes).and_then(|name| std::str::from_utf8(name).ok());
        let name = name.ok_or_else(|| wrong("`name`"))?;
        let layers = match info.get("file tree") {
            None => None,
            Some(tree) => {
                let leaf = tree.get(name).and_then(|leaf| leaf.get(""));
                let root = leaf.and_then(|leaf| leaf.get("pieces root")).and_then(Value::bytes);
                let root =
                    root.and_then(|root| root.try_into().ok()).ok_or_else(|| wrong("`pieces root`"))?;
                Some((
                    root,
                    read_layer(&file, &root, count, piece_bytes).ok_or_else(|| wrong("`piece layers`"))?,
                ))
            }
        };
        let announce = file.get("announce").and_then(Value::bytes);
        let announce = announce.map(|url| String::from_utf8_lossy(url).into_owned());
        let info_hash = InfoHash(Sha1::digest(info.encode()).into());
        let (name, pieces, info) = (name.to_owned(), pieces.to_vec(), info.clone());
        Ok((Self { name, length, piece_bytes, pieces, info, layers, info_hash }, announce))
    }

    /// The same torrent for version 1 alone. Its name among peers is another one.
    #[must_use]
    pub fn v1(&self) -> Self {
        let pieces = self.pieces.iter().map(|&v1| PieceHash { v1, v2: [0; 32] }).collect();
        let hashes = Hashes { length: self.length, piece_bytes: self.piece_bytes, pieces };
        Self::new(&self.name, &hashes, Kind::V1)
    }

    /// The name of the file that clients write.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The torrent's name among peers.
    #[must_use]
    pub fn info_hash(&self) -> InfoHash {
        self.info_hash
    }

    /// Length of the file in bytes, at least 1.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Length of each piece but the last one, in bytes: a power of two.
    #[must_use]
    pub fn piece_bytes(&self) -> u32 {
        self.piece_bytes
    }

    /// How many pieces the file has, at least 1.
    #[must_use]
    pub fn piece_count(&self) -> u32 {
        u32::try_from(self.pieces.len()).expect("at most PIECES_MAX")
    }

    /// Length of `piece` in bytes. It must be one of the file.
    #[must_use]
    pub(crate) fn piece_len(&self, piece: u32) -> u32 {
        let rest = self.length - self.piece_offset(piece);
        u32::try_from(rest.min(self.piece_bytes.into())).expect("not more than a piece")
    }

    /// Where `piece` begins in the file.
    #[must_use]
    pub(crate) fn piece_offset(&self, piece: u32) -> u64 {
        u64::from(piece) * u64::from(self.piece_bytes)
    }

    /// Whether `bytes` are `piece`.
    #[must_use]
    pub(crate) fn is_piece(&self, piece: u32, bytes: &[u8]) -> bool {
        self.pieces.get(piece as usize).is_some_and(|digest| Sha1::digest(bytes)[..] == digest[..])
    }
}

/// The digests at the level of pieces, if they fit the root; none for a file of one piece.
fn read_layer(file: &Value, root: &[u8; 32], pieces: u64, piece_bytes: u32) -> Option<Vec<u8>> {
    if pieces == 1 {
        return Some(Vec::new());
    }
    let layers = file.get("piece layers")?.entries()?;
    let bytes = layers.get(&root[..])?.bytes()?;
    let (digests, rest) = bytes.as_chunks::<32>();
    let fits = digests.len() as u64 == pieces && rest.is_empty() && layer_root(digests, piece_bytes) == *root;
    fits.then(|| bytes.to_vec())
}

impl std::fmt::Display for InfoHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(pieces: u8) -> Hashes {
        let piece = |number| PieceHash { v1: [number; 20], v2: [number; 32] };
        let length = (u64::from(pieces) - 1) * u64::from(PIECE_BYTES_MIN) + 5;
        Hashes { length, piece_bytes: PIECE_BYTES_MIN, pieces: (0..pieces).map(piece).collect() }
    }

    #[test]
    fn what_is_encoded_is_parsed() {
        for (pieces, kind) in [(1, Kind::V1), (1, Kind::Hybrid), (5, Kind::V1), (5, Kind::Hybrid)] {
            let torrent = Metainfo::new("web@3.img", &hashes(pieces), kind);
            let parsed = Metainfo::parse(&torrent.encode(Some("http://a/announce"))).unwrap();
            assert_eq!(parsed, (torrent.clone(), Some("http://a/announce".to_owned())));
            assert_eq!((torrent.piece_count(), torrent.piece_len(u32::from(pieces) - 1)), (pieces.into(), 5));
            let v1 = torrent.v1();
            assert_eq!(v1 == torrent, kind == Kind::V1);
            assert_eq!(v1, Metainfo::new("web@3.img", &hashes(pieces), Kind::V1));
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let good = Metainfo::new("a", &hashes(5), Kind::Hybrid).encode(None);
        let change = |from: &[u8], to: &[u8]| {
            let at = good.windows(from.len()).position(|window| window == from).unwrap();
            let mut bytes = good.clone();
            bytes.splice(at..at + from.len(), to.iter().copied());
            Metainfo::parse(&bytes)
        };
        assert!(change(b"private", b"private").is_ok());
        let length = format!("6:lengthi{}e12:meta", hashes(5).length);
        assert!(change(length.as_bytes(), b"6:lengthi0e12:meta").is_err());
        assert!(change(length.as_bytes(), b"6:lengthi1e12:meta").is_err(), "five pieces are of more bytes");
        assert!(change(b"piece lengthi16384e", b"piece lengthi16383e").is_err());
        assert!(change(&[1; 32], &[9; 32]).is_err(), "a digest of version 2 is wrong");
        assert_eq!(change(b"6:pieces", b"6:piecet").unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
