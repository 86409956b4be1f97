//! `--repo https://SERVER`: every command does what docs/commands.md says of it.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::common::between::between;
use crate::common::targets::soil;
use crate::common::{Bench, assert_same};

/// How many requests a server has answered well.
fn answers(url: &str) -> u64 {
    let output = Command::new("curl").args(["--silent", "--insecure", &format!("{url}/metrics")]).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let count =
        text.lines().find_map(|line| line.strip_prefix("diskcast_http_requests_total{status=\"2xx\"} "));
    count.unwrap().parse().unwrap()
}

#[test]
fn images_of_a_server_are_used_like_those_of_a_folder() {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 4, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    assert!(bench.see("tag web@1 stable -q").ends_with("exit: 0\n"));
    let [here, log, version] = ["images", "log web", "inspect web:stable"].map(|words| bench.see(words));
    let server = bench.serve("--no-multicast");
    let token = bench.command("token --write").output().unwrap();
    bench.keep_secret("write.token", token.stdout);
    let there = |words: &str| bench.see(&format!("{words} --repo {} --token-file write.token", server.url));
    assert_eq!(there("images"), here);
    assert_eq!(there("log web"), log);
    assert_eq!(there("inspect web:stable"), version);
    assert!(there("images web").contains("stable"));
    soil(&bench.path("out.img"), disk.metadata().unwrap().len());
    assert!(there("install web:stable out.img -q --overwrite").ends_with("exit: 0\n"));
    assert_same(&disk, &bench.path("out.img"));
    let null = there("install web null:");
    assert!(null.contains("decoded and verified, nothing written"), "{null}");

    assert!(there("capture disk.img copied -q").ends_with("exit: 0\n"));
    assert!(there("clone web twin -q").ends_with("exit: 0\n"));
    assert!(there("create empty 1M -q").ends_with("exit: 0\n"));
    let before = answers(&server.url);
    let names = there("images");
    assert!(["copied", "twin", "empty"].iter().all(|name| names.contains(name)), "{names}");
    // The repository's key, the images, and this question: not one request or two for each image.
    assert_eq!(answers(&server.url) - before, 3);
    assert!(there("commit web disk.img --at 0 -q").ends_with("exit: 0\n"));
    assert_eq!(bench.json("log web --limit 1")[0]["number"], 2);
    let compared = there("commit web disk.img");
    assert!(
        compared.contains("only where the repository is") && compared.ends_with("exit: 2\n"),
        "{compared}"
    );
    let prepared = there("attach web --name vm1 --prepare");
    assert!(prepared.contains("the disk vm1 of web@2 is ready"), "{prepared}");
    std::fs::create_dir(bench.path("here")).unwrap();
    let mounted = there("mount here --dry-run");
    assert!(mounted.contains("would do: mount 4 images of ") && mounted.ends_with("exit: 0\n"), "{mounted}");
    // With and without the server in its place.
    assert!(there("fetch web fetched.img -q").ends_with("exit: 0\n"));
    assert_same(&disk, &bench.path("fetched.img"));
    let placed = bench.see(&format!("fetch {} web null: -q --token-file join.token", server.url));
    assert!(placed.ends_with("exit: 0\n"), "{placed}");
    let doctor = there("doctor --for 20m --interface nosuch");
    assert!(doctor.contains("`nosuch`") && doctor.ends_with("exit: 10\n"), "{doctor}");
    for words in ["fetch web out.img", "doctor"] {
        let nowhere = bench.see(words);
        assert!(nowhere.contains("--repo https://SERVER") && nowhere.ends_with("exit: 2\n"), "{nowhere}");
    }
    let missing = there("inspect wbe");
    assert!(missing.contains("did you mean `web`?") && missing.ends_with("exit: 10\n"), "{missing}");
    let stdout = there("install web -");
    assert!(stdout.contains("not through a server") && stdout.ends_with("exit: 2\n"), "{stdout}");
    let without = bench.see(&format!("images --repo {}", server.url));
    assert!(without.contains("a token of the server is needed"), "{without}");
}

#[test]
fn a_file_of_settings_names_the_server_and_its_token() {
    let bench = Bench::new();
    bench.disk("disk.img", 1, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let server = bench.serve("--no-multicast");
    let config = bench.path("config.toml");
    let token = bench.path("join.token");
    let text = format!("repo = \"{}\"\ntoken-file = \"{}\"\n", server.url, token.display());
    std::fs::write(&config, text).unwrap();
    let images = || {
        let mut command = bench.command("images");
        command.env_remove("DISKCAST_REPO").env("DISKCAST_CONFIG", &config);
        command
    };
    let listed = bench.show(&images().output().unwrap());
    assert!(listed.contains("web") && listed.ends_with("exit: 0\n"), "{listed}");
    // Variables come before the file.
    let elsewhere =
        bench.show(&images().env("DISKCAST_REPO", bench.path("repo")).args(["--json"]).output().unwrap());
    assert!(elsewhere.contains("web"), "{elsewhere}");
    // So does a token in a variable, before the file that the file names.
    let token = std::fs::read_to_string(&token).unwrap();
    std::fs::write(&config, format!("repo = \"{}\"\ntoken-file = \"missing.token\"\n", server.url)).unwrap();
    let given = bench.show(&images().env("DISKCAST_TOKEN", &token).output().unwrap());
    assert_eq!(given, listed);
    assert!(bench.show(&images().output().unwrap()).contains("missing.token"));
    std::fs::write(&config, "tokenfile = \"x\"").unwrap();
    let wrong = bench.show(&images().output().unwrap());
    assert!(
        wrong.contains("config.toml`: there is no setting `tokenfile`") && wrong.ends_with("exit: 2\n"),
        "{wrong}"
    );
}

#[test]
fn a_user_has_settings_in_the_folder_of_settings_or_in_the_home_folder() {
    let bench = Bench::new();
    bench.disk("disk.img", 1, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let settings = |folder: &str, text: &str| {
        std::fs::create_dir_all(bench.path(folder)).unwrap();
        std::fs::write(bench.path(folder).join("config.toml"), text).unwrap();
    };
    settings("home/.config/diskcast", &format!("repo = \"{}\"\n", bench.path("repo").display()));
    settings("xdg/diskcast", "repo = \"nowhere\"\n");
    let images = |xdg: &str| {
        let mut command = bench.command("images");
        command.env_remove("DISKCAST_REPO").env_remove("DISKCAST_CONFIG").env("HOME", bench.path("home"));
        bench.show(&command.env("XDG_CONFIG_HOME", xdg).output().unwrap())
    };
    // A relative path does not count (XDG Base Directory Specification).
    for home in ["", "xdg"] {
        let listed = images(home);
        assert!(listed.contains("web") && listed.ends_with("exit: 0\n"), "{listed}");
    }
    let other = images(&bench.path("xdg").display().to_string());
    assert!(other.contains("nowhere") && other.ends_with("exit: 10\n"), "{other}");
}

#[test]
fn each_command_is_in_the_table_and_the_refused_ones_say_so() {
    let table =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/commands.md")).unwrap();
    let cells = |row: &str| row.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let rows: Vec<_> = table.lines().filter(|line| line.starts_with("| `")).map(cells).collect();
    let bench = Bench::new();
    let help = bench.see("--help");
    let listed = help
        .lines()
        .filter_map(|line| line.strip_prefix("out:   "))
        .filter(|line| !line.starts_with(['-', ' ']));
    let listed: Vec<_> = listed.filter_map(|line| line.split_whitespace().next()).take(rows.len()).collect();
    let named: Vec<_> = rows.iter().map(|row| row[1].trim_matches('`')).collect();
    assert_eq!(named, listed, "the order of the help text");
    let refused = rows.iter().filter(|row| row[3].starts_with("refused"));
    let refused = refused.map(|row| (row[1].trim_matches('`'), row[4].as_str()));
    let parts =
        ["key", "verify"].map(|name| (name, rows.iter().find(|row| row[1] == format!("`{name}`")).unwrap()));
    for (name, instead) in refused.chain(parts.map(|(name, row)| (name, row[4].as_str()))) {
        let words = match name {
            "diff" => "diff a b",
            "tag" => "tag web@1 stable",
            "remove" => "remove web@1",
            "shrink" => "shrink web 1G small",
            "profile" => "profile show web",
            "copy" => "copy web elsewhere",
            "netboot" => "netboot eth1",
            "key" => "key cut-over",
            "verify" => "verify --repair",
            other => other,
        };
        for token in ["", "--token-file join.token"] {
            let said = bench.see(&format!("{words} --repo https://127.0.0.1:1 {token}"));
            assert!(
                said.contains("works on a repository itself") && said.ends_with("exit: 2\n"),
                "{words}: {said}"
            );
            let hint = said.split_once("hint: ").unwrap().1;
            let named = instead.split('`').skip(1).step_by(2);
            assert!(
                named.clone().count() > 0 && named.into_iter().all(|name| hint.contains(name)),
                "{words}: {said}"
            );
        }
    }
    let local = bench.see("prune --token-file join.token");
    assert!(local.contains("--token-file is for a server") && local.ends_with("exit: 2\n"), "{local}");
}

/// What is between holds each answer back until the token that was given has expired. So all that comes after needs a
/// renewed one: of the commands, and of a job that runs another command first.
#[test]
fn what_takes_longer_than_its_token_lasts_renews_it() {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 4, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let server = bench.serve("--no-tls --no-multicast");
    let made = bench.command("token --write --no-tls --expires 6s").output().unwrap().stdout;
    let short = String::from_utf8(made).unwrap().trim().to_owned();
    bench.keep_secret("short.token", &short);
    let (url, token) = (server.url.clone(), short.parse().unwrap());
    let expired = std::sync::OnceLock::new();
    let way = between(&server.url, move |request, _| {
        if request.contains("/api/v1/token") || request.contains("/api/v1/repository") {
            return;
        }
        expired.get_or_init(|| {
            let client =
                net::client::Client::connect(&url, &token, net::client::ClientOptions::default()).unwrap();
            while client.images().map_err(|error| error.kind()).err() != Some(base::ErrorKind::Denied) {
                std::thread::yield_now();
            }
        });
    });
    let root = bench.json("inspect web")[0]["manifest"]["root"]["digest"].as_str().unwrap().to_owned();
    let job = serde_json::json!({
        "format": 1, "server": way, "token": short, "target": bench.path("worked.img"), "reference": "web@1",
        "root": root, "before": "cat expired", "options": ["--transport", "unicast"],
    });
    bench.tool("mkfifo expired");
    let access = "--token-file short.token";
    let commands = [
        format!("fetch {way} web fetched.img --transport unicast {access}"),
        format!("install web installed.img --repo {way} {access}"),
        format!("verify web --repo {way} {access}"),
        format!("capture disk.img copied --to {way} {access}"),
        "work".to_owned(),
    ];
    let start = |words: &String| {
        let mut command = bench.command(words);
        command.env("PATH", "/usr/bin:/bin").stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut children = commands.each_ref().map(start);
    let mut input = children[4].stdin.take().unwrap();
    writeln!(input, "{job}").unwrap();
    let client =
        net::client::Client::connect(&server.url, &short.parse().unwrap(), Default::default()).unwrap();
    while client.images().is_ok() {
        std::thread::yield_now();
    }
    std::fs::write(bench.path("expired"), "").unwrap();
    for (words, child) in commands.iter().zip(children) {
        let said = bench.show(&child.wait_with_output().unwrap());
        assert!(said.ends_with("exit: 0\n"), "{words}: {said}");
    }
    drop(input);
    for name in ["fetched.img", "installed.img", "worked.img"] {
        assert_same(&disk, &bench.path(name));
    }
    assert!(bench.see("images").contains("copied"));
    let late = bench.see(&format!("images --repo {} {access}", server.url));
    assert!(late.contains("expired") && late.ends_with("exit: 13\n"), "{late}");
}

/// The largest chunk of the repository.
fn a_chunk(bench: &Bench) -> PathBuf {
    let folders = std::fs::read_dir(bench.path("repo/chunks")).unwrap();
    let files = folders.flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap());
    files.map(|file| file.unwrap().path()).max_by_key(|file| file.metadata().unwrap().len()).unwrap()
}

fn flip(path: &std::path::Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(path, bytes).unwrap();
}

/// What is seen, with a rate also where it took too short a time for one.
fn with_rate(seen: &str) -> String {
    seen.replace("N s, -", "N s, N MB/s")
}

/// A report without the time that it took, which differs.
fn timeless(mut lines: Vec<serde_json::Value>) -> Vec<serde_json::Value> {
    lines.iter_mut().for_each(|line| drop(line.as_object_mut().unwrap().remove("seconds")));
    lines
}

#[test]
fn verify_through_a_server_finds_what_verify_in_the_repository_finds() {
    let bench = Bench::new();
    let name = bench.key("ops");
    bench.disk("disk.img", 4, 1);
    bench.disk("other.img", 4, 2);
    assert!(bench.see("capture disk.img web -q --sign-key ops.key").ends_with("exit: 0\n"));
    assert!(bench.see("capture other.img web -q").ends_with("exit: 0\n"));
    assert!(bench.see("tag web@1 stable -q --sign-key ops.key").ends_with("exit: 0\n"));
    let server = bench.serve("--no-multicast");
    let at = format!("--repo {} --token-file join.token", server.url);
    let there = |words: &str| bench.see(&format!("{words} {at}"));
    for words in ["verify", "verify web@1", "verify web:stable", "verify web:stable --trust ops.key.pub"] {
        let here = bench.see(words);
        assert!(here.ends_with("exit: 0\n") && here.contains(" by "), "{words}: {here}");
        assert_eq!(with_rate(&there(words)), with_rate(&here), "{words}");
    }
    let here = timeless(bench.json("verify"));
    assert_eq!(timeless(bench.json(&format!("verify {at}"))), here);
    assert_eq!(here[0]["signers"][0]["versions"], 1, "{here:?}");
    let untrusted = there("verify --trust ops.key.pub");
    assert!(untrusted.contains("damaged: use `web@2`: `web@2` is not signed"), "{untrusted}");
    assert!(untrusted.contains(&format!("1 by {name}")) && untrusted.ends_with("exit: 12\n"), "{untrusted}");
    assert!(there("verify wbe").contains("did you mean `web`?"));

    let chunk = a_chunk(&bench);
    let digest = chunk.file_name().unwrap().to_str().unwrap().to_owned();
    flip(&chunk);
    let damage = |lines: &[serde_json::Value]| {
        let found = lines.iter().find(|line| line["type"] == "damage").unwrap();
        [&found["path"], &found["why"], &found["versions"]].map(Clone::clone)
    };
    let (local, remote) = (bench.json("verify"), bench.json(&format!("verify {at}")));
    assert_eq!(damage(&remote), damage(&local));
    let told = there("verify");
    assert!(told.contains(&format!("damaged: verify chunk {}: ", &digest[..12])), "{told}");
    assert!(told.contains("(needed by web@") && told.contains("1 records are damaged"), "{told}");
    assert!(told.contains("hint: `diskcast verify --repair` mends it where the repository is"), "{told}");
    assert!(told.ends_with("exit: 12\n"), "{told}");

    // A manifest of which much is damaged hides the versions of its image, and of no other.
    assert!(bench.see("capture other.img lab -q").ends_with("exit: 0\n"));
    std::fs::write(bench.path("repo/versions/web/00000000000000000002"), "nothing").unwrap();
    let hidden = there("verify");
    assert!(hidden.contains("damaged: list the versions of `web`, which were not checked: "), "{hidden}");
    assert!(hidden.contains("verified 1 versions") && hidden.ends_with("exit: 12\n"), "{hidden}");
    assert!(there("verify web@2").ends_with("exit: 12\n"));

    let repair = there("verify --repair");
    assert!(repair.contains("works on a repository itself, not through a server"), "{repair}");
    assert!(repair.contains("run `diskcast verify --repair` where the repository is"), "{repair}");
    assert!(repair.ends_with("exit: 2\n"), "{repair}");

    // That the server cannot be reached says nothing of its images.
    server.kill();
    let away = there("verify --wait 1s");
    assert!(away.ends_with("exit: 1\n") && !away.contains("damaged"), "{away}");
}

#[test]
fn verify_through_a_server_reads_an_encrypted_repository_with_its_key() {
    let bench = Bench::new();
    bench.disk("disk.img", 1, 1);
    assert!(bench.see("key new --encryption box.key -q").ends_with("exit: 0\n"));
    assert!(bench.see("init -q --encryption-key box.key").ends_with("exit: 0\n"));
    assert!(bench.see("capture disk.img web -q --encryption-key box.key").ends_with("exit: 0\n"));
    let server = bench.serve("--no-multicast --encryption-key box.key");
    let there =
        |words: &str| bench.see(&format!("verify --repo {} --token-file join.token{words}", server.url));
    let here = bench.see("verify --encryption-key box.key");
    assert_eq!(with_rate(&there(" --encryption-key box.key")), with_rate(&here));
    assert!(here.ends_with("exit: 0\n"), "{here}");
    let locked = there("");
    assert!(locked.contains("the server's repository is encrypted") && locked.ends_with("exit: 11\n"));
    flip(&a_chunk(&bench));
    assert!(there(" --encryption-key box.key").ends_with("exit: 12\n"));
}

#[test]
fn bytes_that_are_damaged_on_their_way_or_by_the_server_are_found() {
    let bench = Bench::new();
    bench.disk("disk.img", 4, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let chunks = bench.json("inspect web")[0]["manifest"]["statistics"]["data_chunks"].as_u64().unwrap();
    let server = bench.serve("--no-tls --no-multicast");
    let url = between(&server.url, |request, body| {
        if request.contains("/objects/chunks/") {
            let middle = body.len() / 2;
            body[middle] ^= 4;
        }
    });
    let verify = |url: &str| bench.see(&format!("verify web --repo {url} --token-file join.token"));
    let told = verify(&url);
    assert_eq!(told.matches("damaged: verify chunk ").count() as u64, chunks, "{told}");
    assert!(told.contains("(needed by web@1)") && told.ends_with("exit: 12\n"), "{told}");
    assert!(verify(&server.url).ends_with("exit: 0\n"));
}
