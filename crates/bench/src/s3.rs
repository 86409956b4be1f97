//! Figures of a repository in S3. The store is versitygw on the same machine, so client and store share its cores.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use image::{Catalogue, ObjectKind, ObjectRef, ObjectSource as _};
use lab::{Engine, Gateway};
use serde_json::json;
use store::{Location, Repository, S3Access, Setting};

use crate::context::{Context, Usage, json_line, said, timed};
use crate::figure::{Bar, Figure, median};
use crate::threads::each;
use crate::{Group, Result, load};

pub(crate) const GROUP: Group = Group {
    figures: &[
        ("versions.s3_capture", "capture into versitygw over capture into a folder; at least 0.8"),
        (
            "versions.s3_read",
            "read of a whole image, verified, over 8 ranged readers of the same objects (curl); at least 0.8",
        ),
    ],
    measure,
};

const RUNS: usize = 5;
/// Parallel readers, of diskcast and of curl.
const READERS: usize = 8;
const BUCKET: &str = "s3://images";

fn measure(context: &Context) -> Result<Vec<Figure>> {
    context.calm()?;
    let gateway = Gateway::start(Engine::VersityGw, &context.scratch)?;
    let disk = load::system_disk(context)?;
    let (mut shares, mut near, mut far) = (vec![], vec![], vec![]);
    for run in 0..RUNS {
        let (folder, bytes) = captured(context, &disk, &mut context.diskcast(&context.folder()?))?;
        let mut command = context.diskcast(Path::new(&format!("{BUCKET}/run-{run}")));
        let (s3, _) = captured(context, &disk, command.envs(Gateway::variables(gateway.address())))?;
        shares.push(folder.seconds / s3.seconds);
        near.push(bytes / folder.seconds / 1e6);
        far.push(bytes / s3.seconds / 1e6);
    }
    let workload = "ext4 disk of system files, page cache";
    let sink =
        "versitygw 1.8.0 on this machine and disk, kept connections; it flushes nothing, the folder does";
    let capture = Figure::new("versions.s3_capture", &shares, "ratio", Bar::AtLeast(0.8))
        .peer("diskcast", "capture into a folder, durable", median(&near), "MB/s")
        .on(workload, sink)
        .with(json!([{ "into S3 MB/s": median(&far), "into a folder MB/s": median(&near) }]));
    Ok(vec![capture, read(&gateway)?])
}

/// Captures `disk` with `command`; returns its time and memory, and the bytes captured.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn captured(context: &Context, disk: &Path, command: &mut Command) -> Result<(Usage, f64)> {
    // Earlier writes must not slow down this capture.
    said(Command::new("sync").arg("-f").arg(&context.scratch))?;
    let usage = timed(command.env("DISKCAST_CACHE", "off").arg("capture").arg(disk).arg("bench"))?;
    let bytes =
        json_line(&usage.output, "captured")?["allocated_bytes"].as_u64().ok_or("no allocated_bytes")?;
    Ok((usage, bytes as f64))
}

/// Reads all objects of the first run's image, in alternation with curl.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn read(gateway: &Gateway) -> Result<Figure> {
    let repository = open(gateway)?;
    let manifest = repository.resolve(&"bench".parse()?)?;
    let catalogue = Catalogue::load(&manifest, &repository, repository.cipher())?;
    let megabytes = catalogue.bytes() as f64 / 1e6;
    let (mut shares, mut own, mut peer) = (vec![], vec![], vec![]);
    for _ in 0..RUNS {
        let start = Instant::now();
        by_curl(gateway, catalogue.objects())?;
        let theirs = megabytes / start.elapsed().as_secs_f64();
        let start = Instant::now();
        each(catalogue.objects(), READERS, |object| {
            let bytes = repository.fetch(object).map_err(|error| base::chain(&error))?;
            object.verify(&bytes).map_err(|error| error.to_string())
        })?;
        let ours = megabytes / start.elapsed().as_secs_f64();
        peer.push(theirs);
        own.push(ours);
        shares.push(ours / theirs);
    }
    let version = said(Command::new("curl").arg("--version"))?;
    let name = version.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    let count = catalogue.objects().len();
    Ok(Figure::new("versions.s3_read", &shares, "ratio", Bar::AtLeast(0.8))
        .peer(&name, "8 processes, --range 0-, the same objects, nothing verified", median(&peer), "MB/s")
        .on(
            &format!("image of the ext4 disk of system files, {count} objects of {megabytes:.0} MB"),
            "memory, verified",
        )
        .with(json!([{ "diskcast MB/s": median(&own), "curl MB/s": median(&peer) }])))
}

fn open(gateway: &Gateway) -> Result<Repository> {
    let location: Location = format!("{BUCKET}/run-0").parse()?;
    Ok(Repository::open_with(&location, &setting(gateway)?)?)
}

/// The setting by which a client reaches a repository in `gateway`, without a cache.
pub(crate) fn setting(gateway: &Gateway) -> Result<Setting> {
    let variables = Gateway::variables(gateway.address());
    let find =
        |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
    Ok(Setting { s3: Some(S3Access::from_variables(&find)?), ..Setting::default() })
}

/// Reads `objects` with [`READERS`] processes of curl, each of which reads its share over one connection.
fn by_curl(gateway: &Gateway, objects: &[ObjectRef]) -> Result<()> {
    let [(_, url), (_, key), (_, secret)] = Gateway::variables(gateway.address());
    let lists = objects.chunks(objects.len().div_ceil(READERS)).map(|objects| {
        let mut list = String::new();
        for object in objects {
            let hex = object.digest.to_hex();
            let folder = match object.kind {
                ObjectKind::Chunk => "chunks",
                ObjectKind::Node => "nodes",
            };
            writeln!(list, "url = \"{url}/images/run-0/{folder}/{}/{hex}\"\noutput = /dev/null", &hex[..2])
                .expect("a string takes everything");
        }
        list
    });
    let mut readers = Vec::new();
    for list in lists {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(&file, list)?;
        let curl = Command::new("curl")
            .args(["--silent", "--fail", "--range", "0-", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user"])
            .arg(format!("{key}:{secret}"))
            .args(["--header", "x-amz-content-sha256: UNSIGNED-PAYLOAD", "--config"])
            .arg(file.path())
            .stdin(Stdio::null())
            .spawn()?;
        readers.push((curl, file));
    }
    for (mut curl, _list) in readers {
        let status = curl.wait()?;
        if !status.success() {
            return Err(format!("curl: {status}").into());
        }
    }
    Ok(())
}
