//! Tests commands on a local repository: their output, and the content of the target.

use crate::common::{Bench, assert_same};

#[test]
fn from_a_disk_to_a_version_and_back() {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 8, 1);
    assert_eq!(
        bench.see("capture disk.img web"),
        "out: captured web@1: 8.0 MiB in use, image 2.0 MiB, N s, N MB/s\n\
         err: warning: the disk is captured whole: it has no partition table and no known filesystem\n\
         err: disk.img: no partition table; 8.0 MiB of 8.0 MiB to capture\n\
         exit: 0\n"
    );
    assert_eq!(
        bench.see("install web out.img"),
        "out: installed web@1 on out.img: 4.0 MiB written, 4.0 MiB zeroed, 8.0 MiB verified, N s, N MB/s\n\
         exit: 0\n"
    );
    assert_same(&disk, &bench.path("out.img"));
    assert_eq!(
        bench.see("install web out.img --resume"),
        "out: installed web@1 on out.img: 0 B written, 4.0 MiB right already, 8.0 MiB verified, \
         N s, N MB/s\n\
         exit: 0\n"
    );
    let verified = bench.see("verify");
    assert!(
        verified.starts_with("out: verified 1 versions, ") && verified.ends_with("exit: 0\n"),
        "{verified}"
    );
}

#[test]
fn versions_are_listed_tagged_and_removed() {
    let bench = Bench::new();
    bench.disk("disk.img", 2, 1);
    for _ in 0..2 {
        assert!(bench.see("capture disk.img web --label os=none -q").ends_with("exit: 0\n"));
    }
    assert_eq!(bench.see("tag web@1 stable"), "out: web:stable is web@1\nexit: 0\n");
    assert_eq!(bench.see("tag web@2 stable"), "out: web:stable is web@2 (was @1)\nexit: 0\n");
    let images = bench.see("images");
    let lines: Vec<_> = images.lines().collect();
    assert_eq!(lines[0], "out: IMAGE  VERSIONS  NEWEST     DISK  IMAGE SIZE  CREATED           TAGS");
    assert!(
        lines[1].starts_with("out: web           2       2  2.0 MiB") && lines[1].ends_with("stable@2"),
        "{images}"
    );
    assert_eq!(
        bench.see("remove web@1"),
        "err: error: web@1, made TIME will be removed: nobody is there to confirm it\n\
         err: hint: say --yes if you are sure\n\
         exit: 11\n"
    );
    assert_eq!(bench.see("remove web@1 --yes"), "out: removed web@1\nexit: 0\n");
    assert_eq!(bench.see("remove web@1 --yes"), "err: error: `web@1` was removed\nexit: 10\n");
    assert!(bench.see("remove web@2 --yes").ends_with("exit: 11\n"), "a tag holds it");
    assert_eq!(bench.see("remove web:stable"), "out: removed web:stable; the version stays\nexit: 0\n");
    assert_eq!(bench.json("images web").len(), 1);
    assert_eq!(bench.json("inspect web")[0]["manifest"]["labels"]["os"], "none");
}

#[test]
fn errors_say_what_and_what_to_do() {
    let bench = Bench::new();
    bench.disk("disk.img", 2, 1);
    assert_eq!(
        bench.see("images"),
        "err: error: open folder `DIR/repo`: No such file or directory (os error 2)\n\
         err: hint: `diskcast init` makes a repository there\n\
         exit: 10\n"
    );
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    for (name, hint) in [
        ("nope", "err: error: there is no image `nope`\nerr: hint: the images are `web`\nexit: 10\n"),
        ("wbe", "err: error: there is no image `wbe`\nerr: hint: did you mean `web`?\nexit: 10\n"),
        (
            "web@7",
            "err: error: there is no version `web@7`\n\
             err: hint: the newest version is `web@1`; `diskcast log web` lists all\nexit: 10\n",
        ),
    ] {
        assert_eq!(bench.see(&format!("install {name} out.img")), hint);
    }
    assert_eq!(
        bench.see("capture missing.img web"),
        "err: error: look at `missing.img`: No such file or directory (os error 2)\nexit: 10\n"
    );
    assert_eq!(
        bench.see("capture disk.img Web"),
        "err: error: `Web` is not a name of an image: expected 1 to 128 of a-z 0-9 . _ -, the first a letter \
         or digit\nexit: 2\n"
    );
    assert_eq!(
        bench.see("remove web"),
        "err: error: `web` does not say which version to remove\n\
         err: hint: say `web@NUMBER` for a version or `web:TAG` for a tag; `diskcast images web` lists them\n\
         exit: 2\n"
    );
    let error = &bench.json("install nope out.img")[0];
    assert_eq!((&error["type"], &error["exit"]), (&"error".into(), &10.into()));
    assert!(bench.see("capture disk.img web --chunk 3K").ends_with("exit: 2\n"));
}

#[test]
fn dry_runs_change_nothing() {
    let bench = Bench::new();
    bench.disk("disk.img", 2, 1);
    assert_eq!(
        bench.see("capture disk.img web -n"),
        "out: would do: capture 2.0 MiB into web\n\
         err: warning: the disk is captured whole: it has no partition table and no known filesystem\n\
         err: disk.img: no partition table; 2.0 MiB of 2.0 MiB to capture\n\
         exit: 0\n"
    );
    assert!(!bench.path("repo").exists());
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let planned = bench.see("install web out.img -n");
    assert!(
        planned.starts_with("out: would do: write web@1 (") && planned.ends_with(" to out.img\nexit: 0\n"),
        "{planned}"
    );
    assert!(!bench.path("out.img").exists());
    assert!(bench.see("remove web@1 -n").starts_with("out: would do: removed web@1"));
    assert_eq!(bench.json("images web").len(), 1);
}

#[test]
fn damage_is_found_named_and_never_installed() {
    let bench = Bench::new();
    bench.disk("disk.img", 4, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let folders = std::fs::read_dir(bench.path("repo/chunks")).unwrap();
    let chunk = folders
        .map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap().next().unwrap().unwrap().path());
    let chunk = chunk.max_by_key(|path| std::fs::metadata(path).unwrap().len()).unwrap();
    let mut bytes = std::fs::read(&chunk).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::remove_file(&chunk).unwrap();
    std::fs::write(&chunk, bytes).unwrap();
    let verified = bench.see("verify");
    assert!(verified.contains("(needed by web@1)") && verified.ends_with("exit: 12\n"), "{verified}");
    let installed = bench.see("install web out.img");
    assert!(installed.contains("err: error: ") && installed.ends_with("exit: 12\n"), "{installed}");
}

#[test]
fn a_prune_frees_what_no_version_needs_and_says_for_whom_it_waits() {
    let bench = Bench::new();
    for (name, seed) in [("old.img", 1), ("disk.img", 2)] {
        bench.disk(name, 4, seed);
        assert!(bench.see(&format!("capture {name} web -q")).ends_with("exit: 0\n"));
    }
    assert!(bench.see("remove web@1 --yes").ends_with("exit: 0\n"));
    let before = bench.json("usage").last().unwrap()["objects"].as_u64().unwrap();
    let plan = &bench.json("prune --dry-run")[0];
    assert_eq!(
        (&plan["type"], &plan["dry_run"], &plan["versions"]),
        (&"pruned".into(), &true.into(), &1.into())
    );
    let planned = bench.see("prune -n");
    assert!(
        planned.starts_with("out: would do: freed 1.0 MiB of 2.0 MiB: ")
            && planned.ends_with(" versions need the others, N s\nexit: 0\n"),
        "{planned}"
    );
    // A writer whose process seems to be dead.
    let location = store::Location::Folder(bench.path("repo"));
    let stamp = store::Stamp { created: "2026-11-21T12:00:00Z".into(), creator: "ann@lab".into() };
    let repository = store::Repository::open(&location).unwrap();
    std::mem::forget(store::Writer::begin_without_heartbeat(&repository, &stamp).unwrap());
    assert_eq!(
        bench.see("prune --patience 1s").replace(&plan["freed_objects"].to_string(), "SOME"),
        format!(
            "out: freed 1.0 MiB of 2.0 MiB: SOME of {} objects, 1 versions need the others, N s\n\
             err: waiting for a writer, of ann@lab since TIME\n\
             err: warning: gave up waiting: a writer, of ann@lab since TIME starts again if it lives\n\
             exit: 0\n",
            before + plan["freed_objects"].as_u64().unwrap()
        )
    );
    let again = &bench.json("prune")[0];
    assert_eq!((&again["freed_objects"], &again["revoked"]), (&0.into(), &0.into()));
    assert!(bench.see("verify").contains(&format!("out: verified 1 versions, {before} objects of ")));
    assert!(bench.see("install web out.img -q").ends_with("exit: 0\n"));
    assert_same(&bench.path("disk.img"), &bench.path("out.img"));
    // The objects that a damaged or lost version needs are unknown.
    bench.see("capture disk.img web -q");
    let manifest = bench.path("repo/versions/web/00000000000000000002");
    std::fs::write(&manifest, "no manifest").unwrap();
    for exit in [12, 10] {
        let refused = bench.see("prune");
        let end = format!("exit: {exit}\n");
        assert!(refused.contains("err: hint: nothing was deleted") && refused.ends_with(&end), "{refused}");
        if exit == 12 {
            std::fs::remove_file(&manifest).unwrap();
        }
    }
    assert_eq!(bench.see("remove web@2 --yes"), "out: removed web@2\nexit: 0\n");
    let missing = bench.see("remove web@9 --yes");
    assert!(missing.contains("there is no version `web@9`") && missing.ends_with("exit: 10\n"), "{missing}");
    assert!(bench.see("prune -q").ends_with("exit: 0\n"));
}

#[test]
fn what_nobody_trusted_signed_is_refused_unless_that_is_allowed() {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 2, 1);
    let (lab, other) = (bench.key("lab"), bench.key("other"));
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    assert!(bench.see("capture disk.img web -q --sign-key lab.key").ends_with("exit: 0\n"));
    assert!(bench.see("tag web@2 stable -q --sign-key lab.key").ends_with("exit: 0\n"));
    assert_eq!(
        bench.see("install web@1 out.img --trust lab.key.pub"),
        "err: error: use `web@1`: `web@1` is not signed\n\
         err: hint: --trust names the keys that are trusted; --allow-untrusted takes it with a warning\n\
         exit: 11\n"
    );
    assert!(!bench.path("out.img").exists());
    std::fs::create_dir(bench.path("keys")).unwrap();
    std::fs::copy(bench.path("lab.key.pub"), bench.path("keys/lab.pub")).unwrap();
    assert!(bench.see("install web:stable out.img -q --trust keys").ends_with("exit: 0\n"));
    assert_same(&disk, &bench.path("out.img"));
    let allowed = bench.see("install web@1 out.img --trust keys --allow-untrusted --overwrite");
    assert!(allowed.contains("err: warning: `web@1` is not signed: used all the same"), "{allowed}");
    assert!(allowed.ends_with("exit: 0\n"), "{allowed}");
    let stranger = bench.see("install web:stable out.img --trust other.key.pub --overwrite");
    assert!(stranger.contains(", which is not trusted") && stranger.ends_with("exit: 11\n"), "{stranger}");

    let inspected = bench.see("inspect web --trust keys");
    assert!(inspected.contains(&format!("out: signed by   {lab}\n")), "{inspected}");
    let verified = bench.see("verify");
    assert!(verified.contains("out: signed: 1 by key ") && verified.contains(", 1 not\n"), "{verified}");
    let verified = bench.see("verify web:stable --trust keys --trust other.key.pub");
    assert!(verified.contains(&format!("out: signed: 1 by {lab}\n")), "{verified}");
    assert!(!verified.contains(&other), "{verified}");
    let verified = bench.see("verify --trust keys");
    assert!(verified.contains("out: damaged: ") && verified.ends_with("exit: 12\n"), "{verified}");
}

#[test]
fn an_encrypted_repository_needs_its_key_for_everything_but_a_check() {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 4, 1);
    for key in ["repo.key", "other.key"] {
        assert!(bench.see(&format!("key new --encryption {key} -q")).ends_with("exit: 0\n"));
    }
    // A user who gives a key expects encryption.
    let missing = bench.see("capture disk.img web -q --encryption-key repo.key");
    assert!(missing.contains("hint: `diskcast init` makes a repository there"), "{missing}");
    assert_eq!(
        bench.see("init --encryption-key repo.key"),
        "out: made the repository DIR/repo, encrypted\nexit: 0\n"
    );
    assert!(bench.see("init").ends_with("is a repository already\nexit: 11\n"));
    let locked = "err: error: `DIR/repo` is encrypted\n\
                  err: hint: --encryption-key or DISKCAST_ENCRYPTION_KEY name the file of its key\n\
                  exit: 11\n";
    for words in ["capture disk.img web -q", "images", "inspect web", "install web out.img"] {
        assert!(bench.see(words).ends_with(locked), "{words}");
    }
    let with = |words: &str| bench.see(&format!("{words} --encryption-key repo.key"));
    assert!(with("capture disk.img web -q").ends_with("exit: 0\n"));
    assert!(with("tag web@1 stable -q").ends_with("exit: 0\n"));
    assert!(with("install web:stable out.img -q").ends_with("exit: 0\n"));
    assert_same(&disk, &bench.path("out.img"));
    assert!(with("inspect web").contains("out: version     web@1"));
    assert!(with("verify").contains("out: verified 1 versions"));
    let checked = bench.see("verify");
    assert!(checked.contains("err: without the key: ") && checked.ends_with("exit: 0\n"), "{checked}");
    assert_eq!(
        bench.see("images --encryption-key other.key"),
        "err: error: `DIR/repo` is encrypted by another key than this\nexit: 11\n"
    );
    // Copies stay encrypted without --decrypt.
    assert!(bench.see("init --repo two -q --encryption-key other.key").ends_with("exit: 0\n"));
    assert!(with("copy web two -q --to-key other.key").ends_with("exit: 0\n"));
    assert!(bench.see("install web two.img -q --repo two --encryption-key other.key").ends_with("exit: 0\n"));
    assert_same(&disk, &bench.path("two.img"));
    assert!(bench.see("init --repo clear -q").ends_with("exit: 0\n"));
    let clear = with("copy web clear");
    assert!(clear.contains("is encrypted, and `clear` is not") && clear.ends_with("exit: 11\n"), "{clear}");
    assert!(with("copy web clear -q --decrypt").ends_with("exit: 0\n"));
    assert!(bench.see("install web clear.img -q --repo clear").ends_with("exit: 0\n"));
    assert_same(&disk, &bench.path("clear.img"));
    let plain = bench.see("init --repo plain --encryption-key disk.img");
    assert!(plain.contains("can be read by others") && !bench.path("plain").exists(), "{plain}");
    assert!(bench.see("init --repo plain -q").ends_with("exit: 0\n"));
    assert!(
        bench
            .see("capture disk.img web -q --repo plain --encryption-key repo.key")
            .ends_with("err: error: `plain` is not encrypted, though a key for it was given\nexit: 11\n")
    );
}

#[test]
fn keys_are_private_and_never_overwritten() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new();
    bench.key("lab");
    let path = bench.path("lab.key");
    let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o600);
    assert_eq!(bench.see("key new lab.key"), "err: error: `lab.key` exists already\nexit: 11\n");
    let shown = bench.see("key show lab.key");
    assert!(shown.starts_with("out: ed25519 ") && shown.ends_with("exit: 0\n"), "{shown}");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(
        bench.see("key show lab.key"),
        "err: error: `lab.key` can be read by others: its mode must be 0600\nexit: 11\n"
    );
    // A public key cannot sign, and a private key cannot be trusted.
    let swapped = bench.see("capture disk.img web --sign-key lab.key.pub");
    assert!(!swapped.ends_with("exit: 0\n"), "{swapped}");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    bench.disk("disk.img", 1, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let swapped = bench.see("install web out.img --trust lab.key");
    assert!(swapped.contains("line 1: expected `ed25519") && swapped.ends_with("exit: 12\n"), "{swapped}");
    assert!(!swapped.contains("PRIVATE"), "no part of a key is printed: {swapped}");
}

#[test]
fn the_help_names_every_command_and_all_exit_codes() {
    let bench = Bench::new();
    let help = bench.see("--help");
    assert!(help.contains("12 verification failed"), "{help}");
    let groups = help.lines().skip_while(|line| !line.starts_with("out: Usage")).skip(1);
    let groups =
        groups.take_while(|line| *line != "out: Options:").filter_map(|line| line.strip_prefix("out:   "));
    let listed: Vec<&str> = groups.filter_map(|line| line.split_whitespace().next()).collect();
    let commands = [
        "capture",
        "install",
        "commit",
        "grow",
        "shrink",
        "personalize",
        "serve",
        "fetch",
        "deploy",
        "agent",
        "switch",
        "status",
        "doctor",
        "token",
        "opennebula",
        "netboot",
        "boot-image",
        "hosts",
        "attach",
        "detach",
        "disks",
        "mount",
        "images",
        "inspect",
        "log",
        "diff",
        "tag",
        "create",
        "clone",
        "remove",
        "profile",
        "init",
        "repository",
        "usage",
        "copy",
        "verify",
        "prune",
        "key",
        "cluster",
    ];
    assert_eq!(listed, commands);
    let hidden = ["work", "boot-agent", "cluster metadata", "cluster device", "metadata", "device"];
    for command in commands.into_iter().chain(hidden) {
        let help = bench.see(&format!("{command} --help"));
        assert!(help.contains(&format!("diskcast {command}")) && help.contains("Examples:"), "{help}");
    }
}

/// The target has old content: signatures in free space are listed and erased, or kept; a longer file is shortened.
#[test]
fn old_signatures_are_listed_and_erased_and_longer_files_cut() {
    use std::os::unix::fs::FileExt;
    let bench = Bench::new();
    let disk = bench.path("disk.img");
    std::fs::File::create(&disk).unwrap().set_len(8 << 20).unwrap();
    let made = std::process::Command::new("/usr/sbin/mkswap").arg(&disk).output();
    if !made.is_ok_and(|made| made.status.success()) {
        assert!(std::env::var_os("CI").is_none(), "mkswap is missing in CI");
        return;
    }
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let former = |at: u64| {
        let file = std::fs::File::create(bench.path("out.img")).unwrap();
        file.set_len(10 << 20).unwrap();
        file.write_all_at(&[0x19, 0x01, 0x54, 0x19], at).unwrap();
    };
    let len = || std::fs::metadata(bench.path("out.img")).unwrap().len();
    let magic = |at: u64| {
        let mut bytes = [0; 4];
        std::fs::File::open(bench.path("out.img")).unwrap().read_exact_at(&mut bytes, at).unwrap();
        bytes
    };
    let at = (256 << 10) + 0x55C;
    former(at);
    let planned = bench.see("install web out.img -n --yes");
    assert!(planned.contains("err: old signature of ufs on the disk, at byte 263516: is to be erased\n"));
    let record = &bench.json("install web out.img -n --yes")[0];
    assert_eq!(
        [&record["type"], &record["kind"], &record["offset"], &record["len"], &record["keep"]],
        [&"old_signature".into(), &"ufs".into(), &263_516.into(), &4.into(), &serde_json::json!(false)]
    );
    assert_eq!((len(), magic(at)), (10 << 20, [0x19, 0x01, 0x54, 0x19]), "a plan changes nothing");
    let kept = bench.see("install web out.img --yes --keep-signatures --keep-size");
    assert!(kept.contains("at byte 263516: stays\n") && !kept.contains("erased"), "{kept}");
    assert_eq!((len(), magic(at)), (10 << 20, [0x19, 0x01, 0x54, 0x19]));
    let done = bench.see("install web out.img --yes");
    assert!(done.contains(", 1 old signature erased, ") && done.ends_with("exit: 0\n"), "{done}");
    assert_eq!((len(), magic(at)), (8 << 20, [0; 4]));
    // Signatures in the part that is cut off are not listed, those that stay after the image are.
    former((10 << 20) - 512);
    std::fs::File::options()
        .write(true)
        .open(bench.path("out.img"))
        .unwrap()
        .write_all_at(b"EFI PART", (10 << 20) - 512)
        .unwrap();
    assert!(!bench.see("install web out.img -n --yes").contains("old signature"));
    let kept = bench.see("install web out.img --yes --keep-size");
    assert!(kept.contains("gpt on the disk, at byte 10485248: is to be erased"), "{kept}");
    assert_eq!((len(), magic((10 << 20) - 512)), (10 << 20, [0; 4]));
}

#[test]
fn a_disk_goes_to_standard_output_from_first_to_last_and_null_says_what_it_did() {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 40, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let written = bench.command("install web - -q").output().unwrap();
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    assert!(written.stdout == std::fs::read(&disk).unwrap(), "the bytes of the disk");
    let mixed = bench.see("install web - --json");
    assert!(mixed.contains("standard output is for the disk") && mixed.ends_with("exit: 2\n"), "{mixed}");
    // Who reads too little ends it.
    let mut child = bench.command("install web - -q").stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(!child.wait().unwrap().success());
    let fetched = bench.see("fetch https://127.0.0.1:1 web -");
    assert!(fetched.contains("arrives in any order") && fetched.ends_with("exit: 2\n"), "{fetched}");
    let null = bench.see("install web null:");
    assert!(null.contains("read web@1:") && null.contains("decoded and verified, nothing written"), "{null}");
}

#[test]
fn what_is_not_there_is_answered_with_what_is() {
    let bench = Bench::new();
    bench.disk("disk.img", 1, 1);
    assert!(bench.see("capture disk.img classroom -q").ends_with("exit: 0\n"));
    for words in ["inspect classrom", "log classrom", "install classrom out.img", "tag classrom@1 stable"] {
        let said = bench.see(words);
        assert!(
            said.contains("did you mean `classroom`?") && said.ends_with("exit: 10\n"),
            "{words}: {said}"
        );
    }
    for words in ["inspect classroom@7", "install classroom@7 out.img"] {
        let said = bench.see(words);
        assert!(said.contains("the newest version is `classroom@1`"), "{words}: {said}");
    }
}
