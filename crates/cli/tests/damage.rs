//! Tests damage in a repository with the binary: records with a changed bit, and other things than files in the place
//! of objects.

use crate::common::Bench;

fn flip(bench: &Bench, path: &str) {
    let mut bytes = std::fs::read(bench.path(path)).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(bench.path(path), bytes).unwrap();
}

#[test]
fn records_of_which_a_bit_changed_stop_nobody_and_are_mended() {
    let bench = Bench::new();
    bench.disk("disk.img", 4, 3);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    assert!(bench.see("tag web@1 stable").ends_with("exit: 0\n"));
    assert!(bench.see("prune").ends_with("exit: 0\n"));
    let records = [
        "repo/format",
        "repo/prunes/00000000000000000001/begin",
        "repo/prunes/00000000000000000001/end",
        "repo/tags/web/stable/00000000000000000001",
        "repo/versions/web/00000000000000000001",
    ];
    records.iter().for_each(|record| flip(&bench, record));
    for words in ["capture disk.img web -q", "prune", "install web:stable out.img -q --yes"] {
        let seen = bench.see(words);
        assert!(seen.ends_with("exit: 0\n"), "{words}: {seen}");
    }
    assert_eq!(std::fs::read(bench.path("out.img")).unwrap(), std::fs::read(bench.path("disk.img")).unwrap());
    let told = bench.see("verify");
    assert!(told.ends_with("exit: 12\n") && told.contains("`diskcast verify --repair` mends"), "{told}");
    for record in records {
        let line = format!("`{}` is damaged: one bit of it changed", record.trim_start_matches("repo/"));
        assert!(told.contains(&line), "{line} is not in {told}");
    }
    let healed = bench.see("verify --repair");
    assert!(healed.contains("healed: `format`") && healed.ends_with("exit: 0\n"), "{healed}");
    assert!(bench.see("verify").ends_with("exit: 0\n"));
}

#[test]
fn a_fifo_in_place_of_an_object_holds_nobody_up() {
    let bench = Bench::new();
    bench.disk("disk.img", 4, 3);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let folder = std::fs::read_dir(bench.path("repo/chunks")).unwrap().next().unwrap().unwrap().path();
    let chunk = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_file(&chunk).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&chunk).status().unwrap().success());
    assert!(bench.see("verify").ends_with("exit: 12\n"));
    let installed = bench.see("install web out.img -q --yes");
    assert!(!installed.ends_with("exit: 0\n"), "{installed}");
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    assert!(bench.see("verify").ends_with("exit: 0\n"));
    assert!(bench.see("install web again.img -q --yes").ends_with("exit: 0\n"));
}
