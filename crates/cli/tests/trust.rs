//! Tests the repair of damaged objects with the real binary: a capture of the same disk repairs them, and a published
//! version can be installed.

use std::fs;

use crate::common::{Bench, assert_same};

/// Flips a byte of every object of `kind`; the lengths stay the same.
fn rot(bench: &Bench, kind: &str) {
    for shelf in fs::read_dir(bench.path("repo").join(kind)).unwrap() {
        for object in fs::read_dir(shelf.unwrap().path()).unwrap() {
            let path = object.unwrap().path();
            let mut bytes = fs::read(&path).unwrap();
            let at = bytes.len() / 2;
            bytes[at] ^= 1;
            fs::write(&path, bytes).unwrap();
        }
    }
}

#[test]
fn who_captures_or_commits_the_same_disk_puts_right_what_rotted() {
    let bench = Bench::new();
    let (disk, copy) = (bench.disk("disk.img", 16, 3), bench.path("copy.img"));
    assert!(bench.see("capture disk.img web --raw -q").ends_with("exit: 0\n"));
    let server = bench.serve("--no-multicast");
    let token = bench.command("token --write").output().unwrap();
    bench.keep_secret("write.token", &token.stdout);
    let upload = format!("capture disk.img sent --raw -q --to {} --token-file write.token", server.url);
    for words in ["capture disk.img other --raw -q", "capture disk.img web --raw -q", &upload] {
        rot(&bench, "chunks");
        rot(&bench, "nodes");
        let found = bench.see("verify -q");
        assert!(found.contains("capturing the same disks again") && found.ends_with("exit: 12\n"), "{found}");
        let done = bench.see(words);
        assert!(done.ends_with("exit: 0\n"), "{words}: {done}");
        assert!(bench.see("verify -q").ends_with("exit: 0\n"), "{words}");
        for image in ["web@1", words.split(' ').nth(2).unwrap()] {
            let _ = fs::remove_file(&copy);
            assert!(bench.see(&format!("install {image} copy.img -q")).ends_with("exit: 0\n"), "{words}");
            assert_same(&disk, &copy);
        }
    }
    // A commit reads the nodes of the version before and fails without them.
    rot(&bench, "chunks");
    let mut changed = fs::read(&disk).unwrap();
    changed[5 << 20..][..8].copy_from_slice(b"a change");
    fs::write(&disk, changed).unwrap();
    let done = bench.see("commit web disk.img -q");
    assert!(done.ends_with("exit: 0\n"), "{done}");
    assert!(bench.see("verify -q").ends_with("exit: 0\n"));
    fs::remove_file(&copy).unwrap();
    assert!(bench.see("install web copy.img -q").ends_with("exit: 0\n"));
    assert_same(&disk, &copy);
    rot(&bench, "nodes");
    assert!(bench.see("commit web disk.img -q").ends_with("exit: 12\n"));
}
