//! Disks in other formats, made and judged by the formats' own tools: qemu-img, gzip, xz, zstd, bzip2.

use std::fs::{self, File};
use std::io::Cursor;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use base::{Chance, ErrorKind};
use disk::{
    Qcow2Stream, ReadAt, VirtualDisk, WriteAt, container_of, open_qcow2_target, open_source,
    open_virtual_disk, unpack,
};

use crate::common::*;

/// A disk with data, zeros, holes and an odd end.
fn some_disk(bench: &Bench, bytes: u64) -> PathBuf {
    let path = bench.random_file("disk", bytes, 7);
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&vec![0; 3 << 20], 1 << 20).unwrap();
    run("fallocate -p -o 5M -l 1M", &[&path]);
    path
}

fn bytes_of(disk: &dyn ReadAt) -> Vec<u8> {
    let mut bytes = vec![1; disk.geometry().size_bytes as usize];
    // Ranges that fit no cluster.
    for (at, piece) in (0..).step_by(300 * 512).zip(bytes.chunks_mut(300 * 512)) {
        disk.read_exact_at(piece, at).unwrap();
    }
    bytes
}

fn open(path: &Path, backing: bool) -> base::Result<VirtualDisk> {
    let source = open_source(path).unwrap();
    open_virtual_disk(&source, source_begins_with(path, b"QFI"), backing)
}

fn source_begins_with(path: &Path, magic: &[u8]) -> bool {
    fs::read(path).unwrap().starts_with(magic)
}

#[test]
fn what_four_tools_compress_comes_back_with_holes_for_zeros() {
    if !have(&["gzip", "xz", "zstd", "bzip2"]) {
        return;
    }
    let bench = Bench::new();
    let disk = some_disk(&bench, (8 << 20) + 100);
    let plain = fs::read(&disk).unwrap();
    for tool in ["cat", "gzip -c", "xz -0 -c", "xz -0 -T2 --block-size=1MiB -c", "zstd -c", "bzip2 -c"] {
        let packed = output(tool, &[&disk]).stdout;
        let spool = unpack(Cursor::new(&packed), "stream", &bench.tree(""), true).unwrap();
        assert_eq!(spool.geometry().size_bytes, (8 << 20) + 512, "{tool}");
        assert_eq!(bytes_of(&spool)[..plain.len()], plain, "{tool}");
        assert_eq!(spool.next_data(1 << 20), 4 << 20, "{tool}");
        if tool == "cat" {
            continue;
        }
        // Two members one after the other are one stream.
        let twice = [packed.clone(), packed.clone()].concat();
        let spool = unpack(Cursor::new(&twice), "stream", &bench.tree(""), true).unwrap();
        assert_eq!(bytes_of(&spool)[..2 * plain.len()], [plain.clone(), plain.clone()].concat(), "{tool}");
        // A part is not taken for the whole, and a changed byte is noticed.
        for len in [packed.len() - 1, packed.len() / 2, 20] {
            let cut = unpack(Cursor::new(&packed[..len]), "stream", &bench.tree(""), true);
            assert_eq!(cut.unwrap_err().kind(), ErrorKind::Corrupt, "{tool} {len}");
        }
        if tool != "zstd -c" {
            let mut changed = packed;
            let middle = changed.len() / 2;
            changed[middle] ^= 0x10;
            let error = unpack(Cursor::new(&changed), "stream", &bench.tree(""), true).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{tool}");
        }
    }
}

#[test]
fn an_empty_stream_is_an_empty_disk() {
    let bench = Bench::new();
    let spool = unpack(Cursor::new(&[]), "stream", &bench.tree(""), true).unwrap();
    assert_eq!(spool.geometry().size_bytes, 0);
    let missing = unpack(Cursor::new(&[]), "stream", &bench.tree("none"), true).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}

#[test]
fn a_virtual_disk_has_the_content_that_qemu_sees() {
    if !have(&["qemu-img"]) {
        return;
    }
    let bench = Bench::new();
    let disk = some_disk(&bench, 24 << 20);
    let plain = fs::read(&disk).unwrap();
    let forms = [
        "qcow2",
        "qcow2 -o compat=0.10",
        "qcow2 -o cluster_size=512",
        "qcow2 -o cluster_size=2M",
        "qcow2 -o lazy_refcounts=on,preallocation=full",
        "qcow2 -c",
        "qcow2 -c -o compat=0.10,cluster_size=4k",
        "vmdk -o subformat=monolithicFlat",
        "vmdk -o subformat=twoGbMaxExtentFlat",
    ];
    for (index, form) in forms.into_iter().enumerate() {
        let path = bench.path(&format!("form{index}"));
        run(&format!("qemu-img convert -f raw -O {form}"), &[&disk, &path]);
        let opened = open(&path, false).unwrap();
        assert!(bytes_of(&opened) == plain, "{form}");
        if form.starts_with("qcow2") && !form.contains("preallocation") && !form.contains("2M") {
            assert_eq!(opened.next_data(1 << 20), 4 << 20, "{form}");
            assert_eq!(opened.next_data((4 << 20) + 512), (4 << 20) + 512, "{form}");
        }
    }
}

#[test]
fn clusters_that_read_as_zeros_are_not_read() {
    if !have(&["qemu-img", "qemu-io"]) {
        return;
    }
    let bench = Bench::new();
    let path = bench.path("zeros");
    run("qemu-img create -q -f qcow2", &[&path, &"1G"]);
    let io = |command: &str| run("qemu-io -f qcow2 -c", &[&command, &path]);
    io("write -P 7 0 1M");
    io("write -z 512k 64k");
    io("discard 64k 64k");
    io("write -P 9 1023M 1M");
    let opened = open(&path, false).unwrap();
    let raw = bench.path("raw");
    run("qemu-img convert -O raw", &[&path, &raw]);
    assert!(bytes_of(&opened) == fs::read(&raw).unwrap());
    assert_eq!(opened.next_data(1 << 20), 1023 << 20);
    assert_eq!(opened.next_data(512 << 10), 576 << 10);
    assert!(opened.is_hole(1 << 20, 1022 << 20));
}

#[test]
fn other_files_are_read_only_when_allowed() {
    if !have(&["qemu-img", "qemu-io"]) {
        return;
    }
    let bench = Bench::new();
    let disk = some_disk(&bench, 8 << 20);
    let (base, top) = (bench.path("base.qcow2"), bench.path("top.qcow2"));
    run("qemu-img convert -f raw -O qcow2", &[&disk, &base]);
    run("qemu-img create -q -f qcow2 -F qcow2 -b", &[&base, &top]);
    run("qemu-io -f qcow2 -c", &[&"write -P 5 2M 1M", &top]);
    let error = open(&top, false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("base.qcow2"), "{error}");
    let opened = open(&top, true).unwrap();
    let mut expected = fs::read(&disk).unwrap();
    expected[2 << 20..3 << 20].fill(5);
    assert!(bytes_of(&opened) == expected);
    assert_eq!(opened.linked(), std::slice::from_ref(&base));
    // A raw backing file, which ends before the disk does.
    let long = bench.path("long.qcow2");
    run("qemu-img create -q -f qcow2 -F raw -b", &[&disk, &long, &"9M"]);
    let mut expected = fs::read(&disk).unwrap();
    expected.resize(9 << 20, 0);
    assert!(bytes_of(&open(&long, true).unwrap()) == expected);
    // A circle ends.
    run("qemu-img rebase -u -f qcow2 -F qcow2 -b", &[&top, &base]);
    assert_eq!(open(&top, true).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn extents_and_data_files_lie_in_the_same_folder_unless_allowed() {
    if !have(&["qemu-img"]) {
        return;
    }
    let bench = Bench::new();
    let disk = some_disk(&bench, 4 << 20);
    let plain = fs::read(&disk).unwrap();
    let (flat, moved) = (bench.path("flat.vmdk"), bench.tree("moved.vmdk"));
    run("qemu-img convert -f raw -O vmdk -o subformat=monolithicFlat", &[&disk, &flat]);
    let text = fs::read_to_string(&flat).unwrap();
    let elsewhere = bench.path("flat-flat.vmdk").display().to_string();
    fs::write(&moved, text.replace("flat-flat.vmdk", &elsewhere)).unwrap();
    assert_eq!(open(&moved, false).unwrap_err().kind(), ErrorKind::Refused);
    let opened = open(&moved, true).unwrap();
    assert!(bytes_of(&opened) == plain);
    assert_eq!(opened.linked().len(), 1);
    // What is no file is not opened: a named pipe would wait for ever.
    let pipe = bench.path("pipe");
    run("mkfifo", &[&pipe]);
    let flat_with_pipe = bench.path("pipe.vmdk");
    fs::write(&flat_with_pipe, text.replace("flat-flat.vmdk", "pipe")).unwrap();
    assert!(open(&flat_with_pipe, false).is_err());
    // Data of a QCOW2 in a file of their own.
    let with_data = bench.path("with_data");
    let options = format!(
        "qemu-img convert -f raw -O qcow2 -o data_file={},data_file_raw=on",
        bench.path("data").display()
    );
    run(&options, &[&disk, &with_data]);
    assert!(bytes_of(&open(&with_data, false).unwrap()) == plain);
}

#[test]
fn what_can_not_be_read_rightly_is_refused() {
    if !have(&["qemu-img"]) {
        return;
    }
    let bench = Bench::new();
    let disk = some_disk(&bench, 4 << 20);
    let make = |name: &str, form: &str| {
        let path = bench.path(name);
        run(&format!("qemu-img convert -f raw -O {form}"), &[&disk, &path]);
        path
    };
    let kind = |path: &Path| open(path, false).unwrap_err().kind();
    assert_eq!(kind(&make("zstd", "qcow2 -c -o compression_type=zstd")), ErrorKind::Unsupported);
    assert_eq!(kind(&make("extended", "qcow2 -o extended_l2=on,cluster_size=128k")), ErrorKind::Unsupported);
    assert_eq!(kind(&make("sparse", "vmdk -o subformat=monolithicSparse")), ErrorKind::Unsupported);
    assert_eq!(kind(&make("stream", "vmdk -o subformat=streamOptimized")), ErrorKind::Unsupported);
    // AES, since QEMU often can't measure how long the derivation of a key for LUKS takes.
    let locked = bench.path("locked");
    run(
        "qemu-img create -q -f qcow2 --object secret,id=s,data=word \
         -o encrypt.format=aes,encrypt.key-secret=s",
        &[&locked, &"4M"],
    );
    assert_eq!(kind(&locked), ErrorKind::Refused);
    let corrupt = make("corrupt", "qcow2");
    write_at(&corrupt, 79, &[2]);
    assert_eq!(kind(&corrupt), ErrorKind::Refused);
    let dirty = make("dirty", "qcow2");
    write_at(&dirty, 79, &[1]);
    assert_eq!(kind(&dirty), ErrorKind::Unsupported);
    let short = make("short", "qcow2");
    File::options().write(true).open(&short).unwrap().set_len(100).unwrap();
    assert!(open(&short, false).is_err());
}

#[test]
fn a_file_that_was_not_copied_in_full_is_no_disk_of_zeros() {
    if !have(&["qemu-img"]) {
        return;
    }
    let bench = Bench::new();
    let disk = some_disk(&bench, 24 << 20);
    for form in ["qcow2", "qcow2 -c", "qcow2 -o cluster_size=4k", "vmdk -o subformat=monolithicFlat"] {
        let path = bench.path(if form.starts_with("vmdk") { "whole.vmdk" } else { "whole" });
        run(&format!("qemu-img convert -f raw -O {form}"), &[&disk, &path]);
        let data = if form.starts_with("vmdk") { bench.path("whole-flat.vmdk") } else { path.clone() };
        let len = fs::metadata(&data).unwrap().len();
        for part in [len - (3 << 20), len / 2, len / 10] {
            run(&format!("truncate -s {part}"), &[&data]);
            let read = open(&path, false).and_then(|opened| {
                (0..24).try_for_each(|at| {
                    let at = at << 20;
                    if opened.next_data(at) < at + (1 << 20) {
                        opened.read_exact_at(&mut vec![0; 1 << 20], at)?;
                    }
                    Ok(())
                })
            });
            assert!(read.is_err(), "{form} with {part} of {len} bytes");
        }
        fs::remove_file(&path).unwrap();
    }
    // A cluster at the end may be cut: qemu-img makes such files.
    let path = bench.path("cut");
    run("qemu-img convert -f raw -O qcow2", &[&disk, &path]);
    let whole = bytes_of(&open(&path, false).unwrap());
    run("truncate -s -512", &[&path]);
    assert_eq!(bytes_of(&open(&path, false).unwrap())[..20 << 20], whole[..20 << 20]);
}

#[test]
fn an_install_does_not_go_on_in_a_disk_that_leans_on_another() {
    if !have(&["qemu-img"]) {
        return;
    }
    let bench = Bench::new();
    let disk = some_disk(&bench, 8 << 20);
    let overlay = bench.path("overlay");
    run("qemu-img create -q -f qcow2 -F raw -b", &[&disk, &overlay]);
    let before = fs::read(&overlay).unwrap();
    let geometry = open_source(&disk).unwrap().geometry();
    assert_eq!(open_qcow2_target(&overlay, geometry, true).unwrap_err().kind(), ErrorKind::Refused);
    assert!(fs::read(&overlay).unwrap() == before);
}

/// Damaged metadata: no panic, no endless loop, and no more memory than the file suggests.
#[test]
fn random_damage_to_a_virtual_disk_ends_in_an_error_or_in_bytes() {
    if !have(&["qemu-img"]) {
        return;
    }
    let bench = Bench::new();
    let disk = some_disk(&bench, 1 << 20);
    for (index, form) in
        ["qcow2", "qcow2 -c -o cluster_size=4k", "vmdk -o subformat=monolithicFlat"].iter().enumerate()
    {
        let whole = bench.path(&format!("whole{index}"));
        run(&format!("qemu-img convert -f raw -O {form}"), &[&disk, &whole]);
        let bytes = fs::read(&whole).unwrap();
        let broken = bench.path(&format!("broken{index}"));
        for seed in 0..600 {
            let mut chance = Chance::from_seed(seed);
            let mut bytes = bytes.clone();
            let reach = [104, 512, 1 << 18, u64::MAX][chance.below(4) as usize].min(bytes.len() as u64);
            for _ in 0..=chance.below(4) {
                let at = chance.below(reach) as usize;
                bytes[at] = [0, 1, 0x7F, 0xFF, chance.below(256) as u8][chance.below(5) as usize];
            }
            if chance.below(4) == 0 {
                bytes.truncate(chance.below(bytes.len() as u64) as usize);
            }
            fs::write(&broken, &bytes).unwrap();
            let source = open_source(&broken).unwrap();
            let Ok(opened) = open_virtual_disk(&source, index < 2, false) else { continue };
            let size = opened.geometry().size_bytes;
            let mut piece = vec![0; 1 << 16];
            for _ in 0..40 {
                let at = chance.below(size.clamp(1, 2 << 20)) / 512 * 512;
                let _ = opened.read_exact_at(&mut piece, at);
                let _ = opened.next_data(at);
            }
        }
    }
    assert!(fs::metadata(&disk).unwrap().size() > 0);
}

#[test]
fn a_qcow2_that_is_written_is_what_qemu_reads() {
    if !have(&["qemu-img"]) {
        return;
    }
    let bench = Bench::new();
    let disk = some_disk(&bench, 24 << 20);
    let plain = fs::read(&disk).unwrap();
    let path = bench.path("out.qcow2");
    let geometry = open_source(&disk).unwrap().geometry();
    for resume in [false, true] {
        let target = open_qcow2_target(&path, geometry, resume).unwrap();
        let write = |range: std::ops::Range<usize>| {
            for (at, piece) in range.clone().step_by(70_000).zip(plain[range].chunks(70_000)) {
                if base::is_zero(piece) {
                    target.write_zeroes(at as u64, piece.len() as u64).unwrap();
                } else {
                    target.write_all_at(piece, at as u64).unwrap();
                }
            }
        };
        let write = &write;
        // Several writers at once, as an install has them; the first pass leaves the end out.
        let end = if resume { 24 << 20 } else { 20 << 20 };
        std::thread::scope(|scope| {
            for start in (0..end).step_by(4 << 20) {
                scope.spawn(move || write(start..start + (4 << 20)));
            }
        });
        target.sync().unwrap();
        let mut back = vec![1; end];
        target.read_back_at(&mut back, 0).unwrap();
        assert!(back == plain[..end]);
    }
    run("qemu-img check -q", &[&path]);
    run("qemu-img compare -q -f raw -F qcow2", &[&disk, &path]);
    assert!(fs::metadata(&path).unwrap().len() < 21 << 20, "zeros take no clusters");
    let other = disk::Geometry { size_bytes: 25 << 20, ..geometry };
    assert_eq!(open_qcow2_target(&path, other, true).unwrap_err().kind(), ErrorKind::Refused);
    fs::write(&path, "no QCOW2").unwrap();
    assert!(open_qcow2_target(&path, geometry, true).is_err());
}

#[test]
fn a_compressed_qcow2_is_what_qemu_reads() {
    if !have(&["qemu-img"]) {
        return;
    }
    let bench = Bench::new();
    // One table of the second level covers 512 MiB; and the last cluster may be a part of one.
    for (bytes, threads) in [(24u64 << 20, 2), ((24 << 20) + 4096, 3), (1300 << 20, 2)] {
        let disk = some_disk(&bench, 24 << 20);
        let file = File::options().write(true).open(&disk).unwrap();
        file.set_len(bytes).unwrap();
        // Text of all lengths between repetitions, and beyond the window that QEMU reads with.
        let text: Vec<u8> =
            (0u64..).flat_map(|n| (n * n / 77).to_string().into_bytes()).take(9 << 20).collect();
        file.write_all_at(&text, 10 << 20).unwrap();
        if bytes > 1 << 30 {
            file.write_all_at(&[7; 70_000], bytes - 80_000).unwrap();
        }
        let path = bench.path("out.qcow2");
        let mut stream = Qcow2Stream::create(&path, bytes, threads).unwrap();
        let mut plain = File::open(&disk).unwrap();
        std::io::copy(&mut plain, &mut stream).unwrap();
        // Before its end it is nothing that could be taken for a disk.
        assert!(container_of(&open_source(&path).unwrap()).is_none());
        let written = stream.finish().unwrap();
        written.verify().unwrap();
        run("qemu-img check -q", &[&path]);
        run("qemu-img compare -q -f raw -F qcow2", &[&disk, &path]);
        let theirs = bench.path("theirs.qcow2");
        run("qemu-img convert -c -f raw -O qcow2", &[&disk, &theirs]);
        let [ours, theirs] = [&path, &theirs].map(|path| path.metadata().unwrap().len());
        assert!(ours < theirs / 100 * 103, "{ours} bytes, and by qemu-img {theirs}");
        // A changed byte is found.
        let file = File::options().write(true).read(true).open(&path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, 66_000).unwrap();
        file.write_all_at(&[byte[0] ^ 1], 66_000).unwrap();
        assert!(written.verify().is_err());
    }
    let mut short = Qcow2Stream::create(&bench.path("short.qcow2"), 1 << 20, 1).unwrap();
    std::io::Write::write_all(&mut short, &[1; 1000]).unwrap();
    assert!(short.finish().is_err());
}
