//! Repositories in S3, as people use them: variables, errors, and the same commands as on a folder.

#![allow(clippy::unwrap_used, reason = "tests fail by it")]

mod common;

use std::process::{Command, Stdio};

use common::{Bench, assert_same};
use lab::{Engine, Gateway};

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
        none.starts_with("err: error: `s3://images/lab` is no repository: it has no record `format`: read `format`: the store \
                          says NoSuchKey: The specified key does not exist (request "),
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
