//! Signed versions that are put where they do not belong: into another repository, back after newer ones, or from the
//! time before signatures named their repository. Runs the real binary.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::common::{Bench, assert_same};

/// Copies the folder `from` with all its contents over `to`.
fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()) {
        let there = to.join(entry.file_name().unwrap());
        if entry.is_dir() {
            copy_all(&entry, &there);
        } else {
            fs::copy(&entry, &there).unwrap();
        }
    }
}

fn version(bench: &Bench, repository: &str, number: u64) -> PathBuf {
    bench.path(&format!("{repository}/versions/web/{number:020}"))
}

fn stable(bench: &Bench, repository: &str, number: u64) -> PathBuf {
    bench.path(&format!("{repository}/tags/web/stable/{number:020}"))
}

fn good(seen: &str) {
    assert!(seen.ends_with("exit: 0\n"), "{seen}");
}

/// Refused, with these words.
fn refused(seen: &str, words: &str) {
    assert!(seen.contains(words) && seen.ends_with("exit: 11\n"), "{words}: {seen}");
}

/// Two repositories, `repo` and `other`, in which one key signed a version of `web` each.
fn two() -> Bench {
    let bench = Bench::new();
    bench.key("lab");
    for (repository, seed) in [("repo", 1), ("other", 2)] {
        bench.disk("disk.img", 2, seed);
        let at = format!("--sign-key lab.key -q --repo {repository}");
        good(&bench.see(&format!("init {at}")));
        good(&bench.see(&format!("capture disk.img web --raw {at}")));
        good(&bench.see(&format!("tag web@1 stable {at}")));
    }
    bench
}

const INSTALL: &str = "install web out.img --overwrite -q --trust lab.key.pub";

#[test]
fn a_server_cannot_pass_off_what_was_signed_for_another_repository() {
    let bench = two();
    let fetch = |name: &str, words: &str| {
        let server = bench.serve("--no-multicast --repo other");
        let words = format!("--overwrite --token-file join.token {words}");
        bench.see(&format!("fetch {} {name} out.img {words}", server.url))
    };
    let trust = "--trust lab.key.pub";
    good(&fetch("web:stable", trust));
    for objects in ["chunks", "nodes"] {
        copy_all(&bench.path("repo").join(objects), &bench.path("other").join(objects));
    }
    fs::copy(stable(&bench, "repo", 1), stable(&bench, "other", 1)).unwrap();
    refused(&fetch("web:stable", trust), "`web:stable` is signed for the repository");
    fs::copy(version(&bench, "repo", 1), version(&bench, "other", 1)).unwrap();
    refused(&fetch("web", trust), "`web` is signed for the repository");
    refused(&fetch("web@1", trust), "`web@1` is signed for the repository");
    // Who trusts no key still gets it, and who allows it gets a warning.
    good(&fetch("web", ""));
    let allowed = fetch("web", "--trust lab.key.pub --allow-untrusted");
    assert!(allowed.contains("is signed for the repository") && allowed.ends_with("exit: 0\n"), "{allowed}");
}

#[test]
fn a_repository_that_takes_the_id_of_another_is_noticed() {
    let bench = two();
    let id = |repository: &str| {
        let format = fs::read_to_string(bench.path(repository).join("format")).unwrap();
        format.split("\"id\":\"").nth(1).unwrap()[..32].to_owned()
    };
    let (repo, other) = (id("repo"), id("other"));
    good(&bench.see(&format!("{INSTALL} --repo other")));
    let key = fs::read_to_string(bench.path("lab.key.pub")).unwrap();
    let pinned = key.replacen(" lab", &format!(" repository={other} lab"), 1);
    fs::write(bench.path("pinned.pub"), pinned).unwrap();
    let pinned = INSTALL.replace("lab.key.pub", "pinned.pub");
    good(&bench.see(&format!("{pinned} --repo other")));
    refused(&bench.see(&pinned), "which is trusted in other repositories only");
    fs::remove_dir_all(bench.path("other")).unwrap();
    copy_all(&bench.path("repo"), &bench.path("other"));
    refused(
        &bench.see(&format!("{INSTALL} --repo other")),
        &format!("other` had the repository {other} when"),
    );
    refused(
        &bench.see(&format!("{pinned} --repo other --allow-older")),
        "trusted in other repositories only",
    );
    // It is the other repository, which was moved there.
    good(&bench.see(&format!("{INSTALL} --repo other --allow-older")));
    good(&bench.see(&format!("{INSTALL} --repo other")));
    assert!(fs::read_to_string(bench.path("seen.json")).unwrap().contains(&repo));
}

#[test]
fn a_state_that_goes_back_is_refused_unless_it_is_allowed() {
    let bench = two();
    let disk = bench.disk("disk.img", 2, 3);
    good(&bench.see("capture disk.img web --raw -q --sign-key lab.key"));
    good(&bench.see("tag web@2 stable -q --sign-key lab.key"));
    let install = |name: &str, words: &str| bench.see(&format!("{} {words}", INSTALL.replace("web", name)));
    for name in ["web", "web:stable"] {
        good(&install(name, ""));
        assert_same(&disk, &bench.path("out.img"));
    }
    let mode = fs::metadata(bench.path("seen.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let moved = stable(&bench, "repo", 2);
    let kept = fs::read(&moved).unwrap();
    fs::remove_file(&moved).unwrap();
    refused(&install("web:stable", ""), "the newest move of `web:stable` is 1, onto version 1, but");
    fs::remove_file(version(&bench, "repo", 2)).unwrap();
    let back = install("web", "");
    refused(&back, "the newest version of `web` is 1, but this machine has seen version 2");
    assert!(back.contains("--allow-older accepts it"), "{back}");
    // The same at a server, and for a clone, an attached disk and a copy.
    {
        let server = bench.serve("--no-multicast");
        let words = "--overwrite --token-file join.token -q --trust lab.key.pub";
        refused(&bench.see(&format!("fetch {} web out.img {words}", server.url)), "has seen version 2");
        refused(&bench.see(&format!("fetch {} web:stable out.img {words}", server.url)), "has seen move 2");
        good(&bench.see(&format!("fetch {} web@1 out.img {words}", server.url)));
    }
    refused(&bench.see("clone web new --trust lab.key.pub"), "has seen version 2");
    refused(&bench.see("attach web --prepare --trust lab.key.pub"), "has seen version 2");
    refused(&bench.see("copy web backup --trust lab.key.pub --sign-key lab.key"), "has seen version 2");
    // Who names the version wants it; who trusts no key, or allows it, gets what there is.
    good(&install("web@1", ""));
    refused(&install("web", ""), "has seen version 2");
    good(&bench.see("install web out.img --overwrite -q"));
    good(&install("web", "--allow-older --dry-run"));
    refused(&install("web", ""), "has seen version 2");
    good(&install("web", "--allow-older"));
    good(&install("web", ""));
    refused(&install("web:stable", ""), "has seen move 2");
    // A newer move onto an older version is no step back.
    fs::write(&moved, kept).unwrap();
    good(&bench.see("tag web@1 stable -q --sign-key lab.key"));
    good(&install("web:stable", ""));
}

#[test]
fn what_cannot_be_remembered_is_only_a_warning() {
    let bench = two();
    for (seen, warns) in [("lab.key/seen.json", true), ("off", false)] {
        let done = bench.see(&format!("{INSTALL} --seen {seen}").replace(" -q", ""));
        assert_eq!(done.contains("does not remember what it saw"), warns, "{done}");
        good(&done);
    }
    fs::write(bench.path("seen.json"), "{").unwrap();
    let done = bench.see(&INSTALL.replace(" -q", ""));
    assert!(done.contains("forgets what it saw") && done.ends_with("exit: 0\n"), "{done}");
    let done = bench.see(&INSTALL.replace(" -q", ""));
    assert!(!done.contains("forgets what it saw") && done.ends_with("exit: 0\n"), "{done}");
}

#[test]
fn a_copy_is_signed_anew_or_refused() {
    let bench = two();
    refused(&bench.see("copy web backup"), "hint: --sign-key signs the copies; --without-signature");
    assert!(!bench.path("backup/versions").exists());
    let signed = bench.see("copy web backup --sign-key lab.key");
    assert!(signed.contains("copied web as web@1") && !signed.contains("no signature"), "{signed}");
    good(&bench.see(&format!("{INSTALL} --repo backup")));
    let bare = bench.see("copy web bare --without-signature");
    assert!(bare.contains("it has no signature there") && bare.ends_with("exit: 0\n"), "{bare}");
    refused(&bench.see(&format!("{INSTALL} --repo bare")), "`web@1` is not signed");
    // What was not signed needs no key.
    good(&bench.see("capture disk.img plain --raw -q"));
    good(&bench.see("copy plain bare -q"));
}

#[test]
fn what_an_older_program_signed_counts_after_a_cut_over_here_and_at_a_server() {
    let bench = Bench::new();
    copy_all(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/repository/v1/signed"),
        &bench.path("repo"),
    );
    let key = image::SigningKey::from_bytes(&[1; 32]);
    bench.keep_secret("old.key", image::signature::signing_key_to_text(&key));
    fs::write(bench.path("old.pub"), format!("{}\n", image::PublicKey::from(&key))).unwrap();
    let server = bench.serve("--no-multicast");
    let here = |name: &str| bench.see(&format!("install {name} out.img --overwrite -q --trust old.pub"));
    let there = |name: &str| {
        let words = "--overwrite -q --trust old.pub --token-file join.token";
        bench.see(&format!("fetch {} {name} out.img {words}", server.url))
    };
    for name in ["debian@1", "debian:stable"] {
        for seen in [here(name), there(name)] {
            refused(&seen, "is signed by an older program, for no particular repository");
            assert!(seen.contains("hint: `diskcast key cut-over --sign-key FILE`"), "{seen}");
        }
    }
    good(&bench.see("install debian@1 out.img -q --overwrite"));
    assert!(bench.see("key cut-over").ends_with("exit: 2\n"));
    let done = bench.see("key cut-over --sign-key old.key");
    assert!(done.contains("debian: accepts 1 versions up to 1, and 1 tags"), "{done}");
    for name in ["debian@1", "debian:stable"] {
        good(&here(name));
        good(&there(name));
    }
    let elsewhere = bench.see(&format!("key cut-over --sign-key old.key --repo {}", server.url));
    assert!(
        elsewhere.contains("works on a repository itself") && elsewhere.ends_with("exit: 2\n"),
        "{elsewhere}"
    );
}
