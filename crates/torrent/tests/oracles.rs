//! Metainfo, as other programs read and make it.

use std::fs::write;
use std::process::Command;

use torrent::{Content as _, Kind, Metainfo, hash};

use crate::common::{ARIA2, LIBTORRENT, Memory, TRANSMISSION, are_here, said};

/// Makes a torrent of the file by libtorrent and compares with ours all that the content decides.
const COMPARE: &str = r#"
import sys, libtorrent as lt
file, ours, name = sys.argv[1:]
info = lt.torrent_info(ours)
mine = lt.bdecode(open(ours, "rb").read())
storage = lt.file_storage()
lt.add_files(storage, file)
flags = lt.create_torrent.v1_only if b"meta version" not in mine[b"info"] else 0
made = lt.create_torrent(storage, mine[b"info"][b"piece length"], flags=flags)
lt.set_piece_hashes(made, file.rsplit("/", 1)[0])
made = made.generate()
for key in (b"pieces", b"length", b"piece length", b"file tree", b"meta version", b"name"):
    assert made[b"info"].get(key) == mine[b"info"].get(key), key
assert made.get(b"piece layers") == mine.get(b"piece layers")
assert info.priv() and info.num_files() == 1
hashes = info.info_hashes()
print(hashes.v1, hashes.has_v2())
"#;

#[test]
fn others_read_and_make_the_same() {
    if !are_here(&[ARIA2, TRANSMISSION, LIBTORRENT]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // A file of one block, of less than a piece, of whole pieces, and with a rest.
    for (len, piece_bytes) in [(1000, 1 << 18), (100_000, 1 << 18), (1 << 20, 1 << 18), (5_000_003, 1 << 16)]
    {
        let content = Memory::random(len, len as u64);
        let file = folder.path().join("web@3.img");
        write(&file, &*content.0.lock()).unwrap();
        for kind in [Kind::V1, Kind::Hybrid] {
            let torrent = Metainfo::new("web@3.img", &hash(&*content, piece_bytes).unwrap(), kind);
            let path = folder.path().join("web.torrent");
            write(&path, torrent.encode(Some("http://127.0.0.1:1/announce"))).unwrap();
            let name = torrent.info_hash().to_string();
            // Transmission reads no hybrid torrent before its version 4, and aria2 gives each a wrong name, since it
            // drops the empty key in them; those that libtorrent makes, too.
            if kind == Kind::V1 {
                let shown = said(Command::new("transmission-show").arg(&path));
                assert!(shown.contains(&name) && shown.contains("Private torrent"), "{shown}");
                let shown = said(Command::new("aria2c").arg("-S").arg(&path));
                assert!(shown.contains(&name) && shown.contains("web@3.img"), "{shown}");
            }
            let mut compare = Command::new("/usr/bin/python3");
            let shown = said(compare.args(["-c", COMPARE]).arg(&file).arg(&path).arg("web@3.img"));
            let is_hybrid = if kind == Kind::Hybrid { "True" } else { "False" };
            assert_eq!(shown.trim(), format!("{name} {is_hybrid}"), "{len} bytes");
            assert_eq!(content.len(), torrent.length());
        }
    }
}
