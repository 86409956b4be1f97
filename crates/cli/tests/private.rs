//! Tests that other users of a machine can read nothing that the real binary makes.

use std::path::Path;
use std::process::{Command, Stdio};

use base::Digest;

use crate::common::{Bench, Served};

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

/// Any user can make names in `/run/lock` and `/tmp`: here they are links to a file of the user who then runs a job,
/// under the names that jobs had there.
#[test]
fn a_job_follows_no_link_that_another_user_made_for_it() {
    let bench = Bench::new();
    let (victim, target) = (bench.path("victim"), bench.path("target.img"));
    std::fs::write(&victim, "only mine\n").unwrap();
    std::fs::write(&target, "").unwrap();
    let root = Digest::of(victim.as_os_str().as_encoded_bytes()).to_hex();
    let of_target = Digest::of(target.canonicalize().unwrap().as_os_str().as_encoded_bytes()).to_hex();
    let lock = Path::new("/run/lock");
    let folder = if lock.is_dir() { lock.to_owned() } else { std::env::temp_dir() };
    let links = [format!("diskcast-serve-{}", &root[..32]), format!("diskcast-{}", &of_target[..32])];
    let links = links.map(|name| folder.join(name));
    links.iter().for_each(|link| std::os::unix::fs::symlink(&victim, link).unwrap());
    let job = serde_json::json!({
        "format": 1, "server": "https://127.0.0.1:9", "token": "x", "target": target, "reference": "web@1",
        "root": root, "serve_seconds": 60,
    });
    let mut work = bench.command("work");
    let mut work = work.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(work.stdin.as_mut().unwrap(), format!("{job}\n").as_bytes()).unwrap();
    // Its standard input stays open: the end of that would call the job off.
    let mut said = String::new();
    std::io::Read::read_to_string(work.stdout.as_mut().unwrap(), &mut said).unwrap();
    work.wait().unwrap();
    links.iter().for_each(|link| std::fs::remove_file(link).unwrap());
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "only mine\n");
    // It came past its locks, to the server's token.
    assert!(said.contains("asks the server") && said.contains("token"), "{said}");
    if rustix::process::geteuid().is_root() {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = Path::new("/run/diskcast/locks").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}

/// One user's job and another's do not write to one file at the same time: the file itself is locked.
#[test]
fn a_file_that_another_user_locked_is_not_overwritten() {
    let bench = Bench::new();
    bench.disk("disk.img", 1, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    std::fs::write(bench.path("out.img"), "old").unwrap();
    let locked = std::fs::File::open(bench.path("out.img")).unwrap();
    locked.lock().unwrap();
    for words in ["install web out.img --overwrite", "install web out.img --overwrite --as qcow2"] {
        let refused = bench.see(words);
        assert!(refused.contains("by another program") && refused.ends_with("exit: 11\n"), "{refused}");
        assert_eq!(std::fs::read(bench.path("out.img")).unwrap(), b"old");
    }
    drop(locked);
    assert!(bench.see("install web out.img --overwrite -q").ends_with("exit: 0\n"));
}
