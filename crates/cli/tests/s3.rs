//! Tests repositories in S3 with the binary: variables, errors, and the same commands as for a folder.

use std::process::{Command, Stdio};

use lab::{Engine, Gateway};

use crate::common::targets::soil;
use crate::common::{Bench, assert_same};

const BUCKET: &str = "s3://images/lab";

fn command(bench: &Bench, gateway: &Gateway, words: &str) -> Command {
    let mut command = bench.command(words);
    command.env("DISKCAST_REPO", BUCKET).env("DISKCAST_CACHE", bench.path("cache"));
    command.envs(Gateway::variables(gateway.address())).stdin(Stdio::null());
    command
}

fn see(bench: &Bench, gateway: &Gateway, words: &str) -> String {
    bench.show(&command(bench, gateway, words).output().unwrap())
}

#[test]
fn a_disk_goes_through_a_bucket_and_comes_back() {
    let Some(gateway) = Gateway::start_or_skip(Engine::VersityGw) else { return };
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 8, 1);
    let none = see(&bench, &gateway, "images");
    assert!(
        none.starts_with(
            "err: error: `s3://images/lab` is not a repository: it has no record `format`: \
             read `format`: the store says NoSuchKey: The specified key does not exist (request "
        ),
        "{none}"
    );
    assert!(none.ends_with("err: hint: `diskcast init` makes a repository there\nexit: 10\n"), "{none}");
    assert!(see(&bench, &gateway, "capture disk.img web -q").ends_with("exit: 0\n"));
    assert!(see(&bench, &gateway, "install web out.img -q").ends_with("exit: 0\n"));
    assert_same(&disk, &bench.path("out.img"));
    assert_eq!(see(&bench, &gateway, "tag web@1 stable"), "out: web:stable is web@1\nexit: 0\n");
    assert!(see(&bench, &gateway, "images").contains("stable@1"));
    assert!(see(&bench, &gateway, "verify").starts_with("out: verified 1 versions"));
    assert!(see(&bench, &gateway, "copy web s3://images/backup").ends_with("exit: 0\n"));
    assert!(see(&bench, &gateway, "copy web folder").ends_with("exit: 0\n"));
    assert!(
        see(&bench, &gateway, "verify --repo s3://images/backup").starts_with("out: verified 1 versions")
    );
    assert!(see(&bench, &gateway, "verify --repo folder").starts_with("out: verified 1 versions"));
    let shown = see(&bench, &gateway, "repository");
    assert!(
        shown.contains("out: verdict     8 writers raced for each of 4 records and one won each"),
        "{shown}"
    );
    assert!(
        shown.contains("out: cache       DIR/cache, ") && shown.contains(" of at most 4.0 GiB"),
        "{shown}"
    );
    assert!(shown.contains("it can replace a record on a condition"), "{shown}");
    let output = command(&bench, &gateway, "repository --probe --json").output().unwrap();
    let record: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(record["cache"]["bytes"].as_u64().unwrap() > 0, "the install has filled it: {record}");
    assert_eq!((&record["images"], &record["probe"]["replaces_on_condition"]), (&1.into(), &true.into()));
}

#[test]
fn what_is_flipped_or_missing_in_a_bucket_is_named_never_served_and_healed() {
    let Some(gateway) = Gateway::start_or_skip(Engine::VersityGw) else { return };
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 8, 1);
    let see = |words: &str| see(&bench, &gateway, words);
    assert!(see("capture disk.img web -q").ends_with("exit: 0\n"));
    assert!(see("copy web s3://images/other -q").ends_with("exit: 0\n"));
    // Damages the store's own files: of three objects one is changed, one is shortened, and one is deleted.
    let chunks = gateway.folder().join("images/lab/chunks");
    let folders = std::fs::read_dir(chunks).unwrap().map(|folder| folder.unwrap().path());
    let mut files: Vec<_> = folders
        .flat_map(|folder| std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()))
        .collect();
    files.sort();
    let [flipped, cut, gone] = &files[..3] else { unreachable!() };
    let bytes = std::fs::read(flipped).unwrap();
    let middle = bytes.len() / 2;
    let harmed = [&bytes[..middle], &[!bytes[middle]], &bytes[middle + 1..]].concat();
    std::fs::write(flipped, harmed).unwrap();
    std::fs::File::options().write(true).open(cut).unwrap().set_len(100).unwrap();
    std::fs::remove_file(gone).unwrap();
    let name = |file: &std::path::Path| file.file_name().unwrap().to_str().unwrap().to_owned();

    let found = see("verify");
    assert!(found.ends_with("exit: 12\n"), "{found}");
    let named: Vec<_> = found.lines().filter(|line| line.starts_with("out: damaged: ")).collect();
    assert_eq!(named.len(), 3, "{found}");
    for file in [flipped, cut, gone] {
        let line = named.iter().find(|line| line.contains(&name(file)[..12]));
        assert!(line.is_some_and(|line| line.contains("(needed by web@1)")), "{file:?} in {found}");
    }
    // The cache has the undamaged objects, since the copy has read them.
    for words in ["install web out.img -q --yes --cache off", "install web null: -q --cache off"] {
        let refused = see(words);
        assert!(files[..3].iter().any(|file| refused.contains(&name(file)[..8])), "{refused}");
        assert!(!refused.ends_with("exit: 0\n"), "{refused}");
    }
    let healed = see("verify --repair s3://images/other");
    assert_eq!(healed.matches("out: healed: ").count(), 3, "{healed}");
    assert!(healed.ends_with("exit: 0\n") && see("verify").ends_with("exit: 0\n"));
    // What the refused install has left is a used target.
    soil(&bench.path("out.img.part"), disk.metadata().unwrap().len());
    assert!(see("install web out.img -q --yes").ends_with("exit: 0\n"));
    assert_same(&disk, &bench.path("out.img"));
}

#[test]
fn variables_that_are_missing_are_named() {
    let bench = Bench::new();
    let see = |variables: &[(&str, &str)]| {
        let mut command = bench.command("images --repo s3://images/lab");
        bench.show(&command.envs(variables.iter().copied()).output().unwrap())
    };
    let none = see(&[]);
    assert!(none.contains("AWS_ACCESS_KEY_ID") && none.ends_with("exit: 2\n"), "{none}");
    let half = see(&[("AWS_ACCESS_KEY_ID", "a")]);
    assert!(half.contains("AWS_SECRET_ACCESS_KEY is not"), "{half}");
    let keys = [("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "hidden-secret")];
    assert!(see(&keys).contains("AWS_REGION"));
    let open = see(&[&keys[..], &[("AWS_ENDPOINT_URL", "http://192.0.2.1:9000")]].concat());
    assert!(open.contains("DISKCAST_S3_ALLOW_HTTP") && open.ends_with("exit: 11\n"), "{open}");
    assert!(!open.contains("hidden-secret"));
}
