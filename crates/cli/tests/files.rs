//! Versions as files, read by programs that know nothing of diskcast: curl, sha256sum and QEMU.

use std::path::Path;
use std::process::Command;

use crate::common::{Bench, Served, assert_same};

/// A server with the images `web` (for everybody) and `own` (not), of 16 MiB each, and where anybody reads.
fn serve_both(bench: &Bench) -> (Served, String) {
    bench.disk("web.img", 16, 1);
    bench.disk("own.img", 16, 2);
    for name in ["web", "own"] {
        let seen = bench.see(&format!("capture {name}.img {name} -q"));
        assert!(seen.ends_with("exit: 0\n"), "{seen}");
    }
    let server = bench.serve("--no-multicast --public we* --public-http 127.0.0.1:0");
    let url = server.said["public_url"].as_str().unwrap().to_owned();
    (server, url)
}

/// Runs curl, and returns the status and the headers of the answer, whose body goes to `out`.
fn curl(bench: &Bench, words: &str) -> (u16, Vec<(String, String)>) {
    let text = bench.tool(&format!("curl -sk -D - -o out {words}"));
    let mut lines = text.trim_end().lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines.filter_map(|line| line.split_once(": "));
    (status, headers.map(|(name, value)| (name.to_lowercase(), value.trim().to_owned())).collect())
}

fn header<'a>(headers: &'a [(String, String)], name: &str) -> &'a str {
    headers.iter().find(|(found, _)| found == name).map_or("", |(_, value)| value)
}

#[test]
fn curl_fetches_whole_files_ranges_and_what_is_left() {
    let bench = Bench::new();
    let (_server, url) = serve_both(&bench);
    let disk = std::fs::read(bench.path("web.img")).unwrap();
    let (status, headers) = curl(&bench, &format!("{url}web@1.raw"));
    assert_eq!((status, header(&headers, "content-length")), (200, "16777216"));
    assert_same(&bench.path("web.img"), &bench.path("out"));
    assert!(header(&headers, "cache-control").contains("immutable"), "{headers:?}");
    let etag = header(&headers, "etag").to_owned();
    assert!(etag.len() > 64 && etag.starts_with('"'), "{etag}");
    assert!(header(&headers, "last-modified").ends_with(" GMT"), "{headers:?}");

    let (status, headers) = curl(&bench, &format!("-I {url}web.raw"));
    assert_eq!((status, header(&headers, "content-length")), (200, "16777216"));
    assert_eq!(header(&headers, "content-location"), "/images/web@1.raw");
    assert_eq!((header(&headers, "etag"), header(&headers, "accept-ranges")), (&etag[..], "bytes"));

    for (range, from, to) in
        [("1000-2000", 1000, 2001), ("16777000-", 16_777_000, 16 << 20), ("-5", (16 << 20) - 5, 16 << 20)]
    {
        let (status, headers) = curl(&bench, &format!("-r {range} {url}web@1.raw"));
        assert_eq!(status, 206);
        assert_eq!(header(&headers, "content-range"), format!("bytes {from}-{}/16777216", to - 1));
        assert!(std::fs::read(bench.path("out")).unwrap() == disk[from..to], "{range}");
    }
    let (status, headers) = curl(&bench, &format!("-r 16777216- {url}web@1.raw"));
    assert_eq!((status, header(&headers, "content-range")), (416, "bytes */16777216"));

    // What broke off goes on where it ended.
    std::fs::write(bench.path("part"), &disk[..5_000_001]).unwrap();
    bench.tool(&format!("curl -sf -C - -o part {url}web@1.raw"));
    assert_same(&bench.path("web.img"), &bench.path("part"));

    let (status, _) = curl(&bench, &format!("-H If-None-Match:{etag} {url}web@1.raw"));
    assert_eq!(status, 304);
    let (status, _) = curl(&bench, &format!("-r 0-9 -H If-Range:{etag} {url}web@1.raw"));
    assert_eq!(status, 206);
    let (status, _) = curl(&bench, &format!("-r 0-9 -H If-Range:\"other\" {url}web@1.raw"));
    assert_eq!(status, 200);
    for name in ["web@2.raw", "web:none.raw", "web@1.vmdk", "web@1", "nothing.raw"] {
        assert_eq!(curl(&bench, &format!("{url}{name}")).0, 404, "{name}");
    }
}

/// Runs `qemu-img` in the folder, which must succeed. QEMU 7.2 may wait for ever for what it has: on a busy machine its
/// driver for HTTP misses the end of an answer (seen with all its connections closed by the server). Then it is run
/// again.
fn qemu_img(bench: &Bench, line: &str) -> String {
    for _ in 0..3 {
        let mut command = Command::new("timeout");
        command.args(["60", "qemu-img"]).args(line.split_whitespace()).current_dir(bench.path("."));
        let done = command.output().unwrap();
        if done.status.code() != Some(124) {
            assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
            return String::from_utf8_lossy(&done.stdout).into_owned();
        }
    }
    panic!("`qemu-img {line}` does not end");
}

#[test]
fn digests_are_those_of_the_tools_and_are_kept() {
    let bench = Bench::new();
    let (server, url) = serve_both(&bench);
    for kind in ["raw", "qcow2"] {
        bench.tool(&format!("curl -sf -o web@1.{kind} {url}web@1.{kind}"));
        for sum in ["md5", "sha256", "sha512"] {
            bench.tool(&format!("curl -sf -o check {url}web@1.{kind}.{sum}"));
            assert_eq!(bench.tool(&format!("{sum}sum -c check")), format!("web@1.{kind}: OK\n"));
        }
    }
    assert!(bench.tool(&format!("curl -sf {url}web.raw.sha256")).ends_with("  web.raw\n"));
    // All of them are read from the list, too, and what is not for everybody is not in it.
    bench.tool(&format!("curl -sf -o check {url}SHA256SUMS"));
    assert_eq!(bench.tool("sha256sum -c check"), "web@1.raw: OK\nweb@1.qcow2: OK\n");
    let list: serde_json::Value = serde_json::from_str(&bench.tool(&format!("curl -sf {url}"))).unwrap();
    assert_eq!(list["images"].as_array().unwrap().len(), 1);
    let version = &list["images"][0]["versions"][0];
    assert_eq!((&version["number"], &version["disk_bytes"]), (&1.into(), &(16 << 20).into()));
    let sums = std::fs::read_to_string(bench.path("check")).unwrap();
    for file in version["files"].as_array().unwrap() {
        let line = format!("{}  {}\n", file["sha256"].as_str().unwrap(), file["path"].as_str().unwrap());
        assert!(sums.contains(&line), "{line}");
        let bytes = std::fs::metadata(bench.path(file["path"].as_str().unwrap())).unwrap().len();
        assert_eq!(file["bytes"], bytes);
    }
    // Another server knows them, although it could not compute them any more.
    let before = bench.tool(&format!("curl -sf {url}web@1.raw.sha512"));
    server.stop();
    for file in files_below(&bench.path("repo/chunks")) {
        std::fs::remove_file(file).unwrap();
    }
    let server = bench.serve("--no-multicast --public * --public-http 127.0.0.1:0");
    let url = server.said["public_url"].as_str().unwrap();
    assert_eq!(bench.tool(&format!("curl -sf {url}web@1.raw.sha512")), before);
    assert_eq!(curl(&bench, &format!("{url}own@1.raw.sha256")).0, 500);
    // A chunk that is missing ends the answer: nobody takes it for the whole.
    let done =
        Command::new("curl").args(["-s", "-o", "/dev/null", &format!("{url}own@1.raw")]).status().unwrap();
    assert_eq!(done.code(), Some(18), "curl: the transfer closed with bytes remaining");
}

fn files_below(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

#[test]
fn only_what_is_for_everybody_needs_no_token_and_no_token_counts_in_plain() {
    let bench = Bench::new();
    let (server, plain) = serve_both(&bench);
    let token = std::fs::read_to_string(bench.path("join.token")).unwrap().trim().to_owned();
    let secret = token.rsplitn(3, '.').take(2).collect::<Vec<_>>();
    let secret = format!("{}.{}", secret[1], secret[0]);
    let secure = format!("{}/images/", server.url);
    let status = |words: &str| curl(&bench, words).0;
    assert_eq!(status(&format!("{plain}own@1.raw")), 404);
    assert_eq!(status(&format!("-u any:{token} {plain}own@1.raw")), 404, "a token in plain is none");
    assert_eq!(status(&format!("{}/api/v1/images", plain.trim_end_matches("/images/"))), 404);
    assert_eq!(status(&format!("{secure}web@1.raw")), 200);
    let (refused, headers) = curl(&bench, &format!("{secure}own@1.raw"));
    assert!(refused == 401 && header(&headers, "www-authenticate").starts_with("Basic "), "{headers:?}");
    assert_eq!(status(&format!("{secure}missing@1.raw")), 401, "it does not tell whether it exists");
    assert_eq!(status(&format!("-u any:{token} {secure}own@1.raw")), 200);
    assert_same(&bench.path("own.img"), &bench.path("out"));
    assert_eq!(status(&format!("-u any:{secret} {secure}own@1.raw")), 200);
    assert_eq!(status(&format!("--oauth2-bearer {secret} {secure}own@1.raw")), 200);
    assert_eq!(status(&format!("-u any:{secret}x {secure}own@1.raw")), 401);
    // A token for other images.
    let other = bench.command("token --image other").output().unwrap();
    let other = String::from_utf8(other.stdout).unwrap();
    assert_eq!(status(&format!("-u any:{} {secure}own@1.raw", other.trim())), 403);
    assert_eq!(status(&format!("-u any:{} {secure}web@1.raw", other.trim())), 200);
    let names = |words: &str| -> Vec<String> {
        let list: serde_json::Value =
            serde_json::from_str(&bench.tool(&format!("curl -skf {words}"))).unwrap();
        list["images"]
            .as_array()
            .unwrap()
            .iter()
            .map(|image| image["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&secure), ["web"]);
    assert_eq!(names(&format!("-u any:{token} {secure}")), ["own", "web"]);
    assert_eq!(names(&format!("-u any:{token} {plain}")), ["web"]);
}

#[test]
fn nothing_of_an_encrypted_repository_leaves_it_as_a_file() {
    let bench = Bench::new();
    bench.disk("web.img", 4, 1);
    bench.see("key new --encryption repo.key");
    bench.see("init --encryption-key repo.key");
    let seen = bench.see("capture web.img web -q --encryption-key repo.key");
    assert!(seen.ends_with("exit: 0\n"), "{seen}");
    let refused =
        bench.see("serve --listen 127.0.0.1:0 --no-multicast --public web --encryption-key repo.key");
    assert!(
        refused.contains("none of its images can be for everybody") && refused.ends_with("exit: 11\n"),
        "{refused}"
    );
    let server = bench.serve("--no-multicast --encryption-key repo.key");
    let token = std::fs::read_to_string(bench.path("join.token")).unwrap().trim().to_owned();
    for name in ["web@1.raw", "web@1.qcow2", "web@1.raw.sha256", "", "SHA256SUMS"] {
        let words = format!("-u any:{token} {}/images/{name}", server.url);
        assert_eq!(curl(&bench, &words).0, 412, "{name}");
    }
}

#[test]
fn qemu_reads_both_forms_over_http_and_with_a_token_over_https() {
    let bench = Bench::new();
    let (server, url) = serve_both(&bench);
    for kind in ["raw", "qcow2"] {
        let info = qemu_img(&bench, &format!("info --output json {url}web.{kind}"));
        let info: serde_json::Value = serde_json::from_str(&info).unwrap();
        assert_eq!((info["format"].as_str(), &info["virtual-size"]), (Some(kind), &(16 << 20).into()));
        qemu_img(&bench, &format!("convert -f {kind} -O raw {url}web@1.{kind} {kind}.img"));
        assert_same(&bench.path("web.img"), &bench.path(&format!("{kind}.img")));
    }
    // A machine may begin on the image at once: what it writes goes into a file beside it.
    qemu_img(&bench, &format!("create -q -f qcow2 -F qcow2 -b {url}web@1.qcow2 overlay.qcow2"));
    qemu_img(&bench, "compare -q -f qcow2 -F raw overlay.qcow2 web.img");
    let token = std::fs::read_to_string(bench.path("join.token")).unwrap();
    bench.keep_secret("password", token.trim());
    let place = format!(
        "driver=qcow2,file.driver=https,file.url={}/images/own.qcow2,file.sslverify=off,file.username=any,\
         file.password-secret=token",
        server.url
    );
    qemu_img(
        &bench,
        &format!("convert --object secret,id=token,file=password --image-opts -O raw {place} own.raw"),
    );
    assert_same(&bench.path("own.img"), &bench.path("own.raw"));
}
