//! Versions as files, compared with the raw disk that they are made of, by QEMU and byte by byte. To repeat one test:
//! `cargo test --workspace --test store forms::<name>`.

use std::ops::Range;
use std::path::Path;
use std::process::Command;

use base::{Chance, ErrorKind, Extent};
use image::{ChunkSize, EncryptionKey};
use store::{Changes, Form, FormKind, Keys, Location, Piece, Repository, Shape};

use crate::common::{image, in_folder, in_memory, reference, stamp};

/// Writes a random disk as version 1 to 6 of `name`, and returns the bytes of its newest version.
fn random_disk(repository: &Repository, name: &str, chance: &mut Chance) -> Vec<u8> {
    let size_bytes = 512 * (1 + chance.below(20_000));
    let chunk = ChunkSize::from_log2(16 + chance.below(4) as u8).unwrap();
    let blob = repository.blob(&image(name));
    blob.create(&Shape { size_bytes, chunk, logical_sector_bytes: 512 }, &stamp()).unwrap();
    let mut disk = vec![0; size_bytes as usize];
    for _ in 0..chance.below(6) {
        let some = |chance: &mut Chance| {
            let start = chance.below(size_bytes);
            start..start + chance.below((size_bytes - start).min(3 << 20) + 1)
        };
        let (written, freed) = (some(chance), some(chance));
        let mut bytes = vec![0; (written.end - written.start) as usize];
        if chance.hits(800_000) {
            chance.fill(&mut bytes);
        }
        let content = &Piece { offset: written.start, bytes: &bytes };
        let changes =
            Changes { written: std::slice::from_ref(&written), content, freed: std::slice::from_ref(&freed) };
        blob.commit(&changes, None, &stamp()).unwrap();
        disk[freed.start as usize..freed.end as usize].fill(0);
        disk[written.start as usize..written.end as usize].copy_from_slice(&bytes);
    }
    disk
}

/// All bytes of the form, by reads of `step` bytes.
fn read_all(form: &Form, step: usize) -> Vec<u8> {
    let mut all = vec![0xAA; form.file_bytes() as usize];
    for (offset, into) in (0..).step_by(step).zip(all.chunks_mut(step)) {
        form.read_at(offset, into).unwrap();
    }
    all
}

fn qemu_img(folder: &Path, line: &str) -> String {
    let done = Command::new("qemu-img").args(line.split(' ')).current_dir(folder).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{line}: {said}{}", String::from_utf8_lossy(&done.stderr));
    said
}

#[test]
fn random_versions_are_the_raw_disk_in_both_forms() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..20 {
        let mut chance = Chance::from_seed(seed);
        let place = in_memory();
        let disk = random_disk(&place.repository, "disk", &mut chance);
        let newest = reference("disk");
        let raw = place.repository.form(&newest, FormKind::Raw).unwrap();
        assert!(read_all(&raw, 1 + chance.below(1 << 20) as usize) == disk, "seed {seed}");
        let qcow2 = place.repository.form(&newest, FormKind::Qcow2).unwrap();
        let file = read_all(&qcow2, 1 << 20);
        std::fs::write(folder.path().join("disk.raw"), &disk).unwrap();
        std::fs::write(folder.path().join("disk.qcow2"), &file).unwrap();
        qemu_img(folder.path(), "check -q -f qcow2 disk.qcow2");
        let same = qemu_img(folder.path(), "compare -f raw -F qcow2 disk.raw disk.qcow2");
        assert_eq!(same, "Images are identical.\n", "seed {seed}");
        for form in [&raw, &qcow2] {
            let whole = if form.file_bytes() == disk.len() as u64 { &disk } else { &file };
            for _ in 0..30 {
                let offset = chance.below(whole.len() as u64 + 1);
                let most = (whole.len() as u64 - offset).min(1 << 18);
                let mut read = vec![0xAA; chance.below(most + 1) as usize];
                form.read_at(offset, &mut read).unwrap();
                assert!(read == whole[offset as usize..][..read.len()], "seed {seed}: {offset}");
            }
            check_data(form, whole, seed);
        }
        // The same version is the same file, also for another process.
        let again = place.repository.form(&"disk".parse().unwrap(), FormKind::Qcow2).unwrap();
        assert!(read_all(&again, 70_001) == file, "seed {seed}");
    }
}

/// What is not data is zeros, and data are what the tree says.
fn check_data(form: &Form, whole: &[u8], seed: u64) {
    let mut end = 0;
    for range in form.data() {
        let range = range.unwrap();
        assert!(range.start < range.end && (range.start > end || range.start == 0), "seed {seed}");
        assert!(whole[end as usize..range.start as usize].iter().all(|byte| *byte == 0), "seed {seed}");
        end = range.end;
    }
    assert!(whole[end as usize..].iter().all(|byte| *byte == 0), "seed {seed}");
}

/// The one range of data of a form.
fn only_data(form: &Form) -> Range<u64> {
    let mut data = form.data();
    let first = data.next().unwrap().unwrap();
    assert!(data.next().is_none());
    first
}

#[test]
fn free_space_and_zeros_are_no_data() {
    let place = in_memory();
    let blob = place.repository.blob(&image("disk"));
    blob.create(&Shape { size_bytes: 1 << 40, ..Shape::default() }, &stamp()).unwrap();
    blob.write(0, &[0; 1 << 20], &stamp()).unwrap();
    blob.write((1 << 39) + 512, &[7; 1024], &stamp()).unwrap();
    blob.write((1 << 39) + 1536, &[7; 512], &stamp()).unwrap();
    let newest = reference("disk");
    let raw = place.repository.form(&newest, FormKind::Raw).unwrap();
    assert_eq!(only_data(&raw), (1 << 39) + 512..(1 << 39) + 2048);
    let qcow2 = place.repository.form(&newest, FormKind::Qcow2).unwrap();
    // Header, table of the first level, counts and their table, one table of the second level, one cluster.
    assert_eq!(qcow2.file_bytes(), 6 << 16);
    assert_eq!(only_data(&qcow2), 0..6 << 16);
    let allocated = place.repository.snapshot(&newest).unwrap().allocated(Extent::new(0, 4096)).unwrap();
    assert!(
        allocated.contains(Extent::new(0, 2048)),
        "zeros that are allocated are not free: only a form treats both alike"
    );
}

#[test]
fn a_form_ends_where_it_ends_and_a_locked_repository_has_none() {
    let key = EncryptionKey::from_bytes([7; 32]);
    let folder = tempfile::tempdir().unwrap();
    let location = Location::Folder(folder.path().join("repository"));
    let sealed = Repository::create_sealed(&location, &key).unwrap();
    let disk = random_disk(&sealed, "disk", &mut Chance::from_seed(3));
    let newest = reference("disk");
    for kind in [FormKind::Raw, FormKind::Qcow2] {
        let form = sealed.form(&newest, kind).unwrap();
        let error = form.read_at(form.file_bytes() - 1, &mut [0; 2]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        let error = form.read_at(u64::MAX, &mut [0; 2]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert_eq!(kind.to_string().parse::<FormKind>().unwrap(), kind);
    }
    assert!(read_all(&sealed.form(&newest, FormKind::Raw).unwrap(), 1 << 20) == disk);
    let locked = Repository::open(&location).unwrap();
    assert_eq!(locked.form(&newest, FormKind::Raw).unwrap_err().kind(), ErrorKind::Refused);
    let unlocked = locked.with_keys(Keys { encryption: Some(key), ..Keys::default() }).unwrap();
    assert!(unlocked.form(&newest, FormKind::Qcow2).is_ok());
}

#[test]
fn a_damaged_chunk_fails_the_read_of_it_alone() {
    let place = in_folder();
    let blob = place.repository.blob(&image("disk"));
    blob.create(&Shape { size_bytes: 8 << 20, ..Shape::default() }, &stamp()).unwrap();
    blob.write(0, &[1; 1000], &stamp()).unwrap();
    blob.write(4 << 20, &[2; 1000], &stamp()).unwrap();
    let form = place.repository.form(&reference("disk"), FormKind::Raw).unwrap();
    let chunks = place.folder().join("chunks");
    let mut second = vec![0; 512];
    form.read_at(4 << 20, &mut second).unwrap();
    for file in walk(&chunks) {
        let bytes = std::fs::read(&file).unwrap();
        let mut mode = std::fs::metadata(&file).unwrap().permissions();
        #[allow(clippy::permissions_set_readonly_false, reason = "a file of this test alone")]
        mode.set_readonly(false);
        std::fs::set_permissions(&file, mode).unwrap();
        std::fs::write(&file, vec![0xEE; bytes.len()]).unwrap();
    }
    form.read_at((4 << 20) + 512, &mut second).unwrap();
    assert_eq!(second[..488], [2; 488], "the rest of a chunk of which a part was read is in memory");
    let form = place.another().unwrap().form(&reference("disk"), FormKind::Raw).unwrap();
    let error = form.read_at(4 << 20, &mut second).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    form.read_at(6 << 20, &mut second).unwrap();
}

fn walk(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}
