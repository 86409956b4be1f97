//! Tests that other users of a machine can read nothing that the real binary makes.

#![allow(clippy::unwrap_used, reason = "helpers of tests unwrap, too")]

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::{Bench, Served};

/// `command` under a umask that takes nothing away.
fn with_open_umask(command: &Command) -> Command {
    let mut open = Command::new("sh");
    open.args(["-c", "umask 000; exec \"$0\" \"$@\""]).arg(command.get_program()).args(command.get_args());
    open.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    open.current_dir(command.get_current_dir().unwrap()).stdin(Stdio::null());
    open
}

#[test]
fn repositories_state_and_secrets_are_private_whatever_the_umask_is() {
    use std::os::unix::fs::PermissionsExt as _;
    let bench = Bench::new();
    bench.disk("disk.img", 4, 1);
    let run = |words: &str| {
        let output = with_open_umask(&bench.command(words)).output().unwrap();
        assert!(output.status.success(), "{}", bench.show(&output));
    };
    run("key new sign.key");
    run("key new --encryption secret.key");
    run("capture disk.img web -q --sign-key sign.key");
    let serve = "serve --listen 127.0.0.1:0 --no-multicast --token-out join.token --json";
    let server = Served::start(with_open_umask(&bench.command(serve)));
    std::fs::write(bench.path("trusted"), std::fs::read(bench.path("sign.key.pub")).unwrap()).unwrap();
    run(&format!("fetch {} web null: --token-file join.token --trust trusted -q", server.url));
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    for folder in ["repo", "state"] {
        assert_eq!(mode(&bench.path(folder)), 0o700, "{folder}");
    }
    for secret in ["sign.key", "secret.key", "join.token", "seen.json"] {
        assert_eq!(mode(&bench.path(secret)), 0o600, "{secret}");
    }
    for entry in std::fs::read_dir(bench.path("state")).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path) & 0o077, 0, "{}", path.display());
    }
}
