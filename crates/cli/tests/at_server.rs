//! `--repo https://SERVER`: every command does what docs/commands.md says of it.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{Bench, assert_same};

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
    assert!(there("install web:stable out.img -q").ends_with("exit: 0\n"));
    assert_same(&disk, &bench.path("out.img"));
    let null = there("install web null:");
    assert!(null.contains("decoded and verified, nothing written"), "{null}");

    assert!(there("capture disk.img copied -q").ends_with("exit: 0\n"));
    assert!(there("clone web twin -q").ends_with("exit: 0\n"));
    assert!(there("create empty 1M -q").ends_with("exit: 0\n"));
    let names = there("images");
    assert!(["copied", "twin", "empty"].iter().all(|name| names.contains(name)), "{names}");
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
    std::fs::write(&config, "tokenfile = \"x\"").unwrap();
    let wrong = bench.show(&images().output().unwrap());
    assert!(
        wrong.contains("config.toml`: there is no setting `tokenfile`") && wrong.ends_with("exit: 2\n"),
        "{wrong}"
    );
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
    for row in rows.iter().filter(|row| row[3].starts_with("refused")) {
        let words = match row[1].trim_matches('`') {
            "diff" => "diff a b",
            "tag" => "tag web@1 stable",
            "remove" => "remove web@1",
            "profile" => "profile show web",
            "copy" => "copy web elsewhere",
            other => other,
        };
        let said = bench.see(&format!("{words} --repo https://127.0.0.1:1"));
        assert!(
            said.contains("works on a repository itself") && said.ends_with("exit: 2\n"),
            "{words}: {said}"
        );
    }
}
