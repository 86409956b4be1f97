//! Figures of an encrypted repository: capture into it and install from it, compared with an unencrypted one.

use std::path::Path;
use std::process::Command;

use base::units::show_bytes;

use crate::context::{Context, said, timed};
use crate::figure::{Bar, Figure, median};
use crate::{Group, Result, load};

pub(crate) const GROUP: Group = Group {
    figures: &[
        (
            "versions.sealed_capture",
            "allocated MB/s into an encrypted repository; at least half of what a plain one takes",
        ),
        (
            "versions.sealed_install",
            "plain MB/s from an encrypted repository into a null target; at least half of a plain one's",
        ),
    ],
    measure,
};

const RUNS: usize = 5;

/// Whether a repository is encrypted, and its key.
struct Kind<'a> {
    encrypted: bool,
    key: &'a Path,
}

impl Kind<'_> {
    fn command(&self, context: &Context, repo: &Path) -> Command {
        let mut command = context.diskcast(repo);
        if self.encrypted {
            command.arg("--encryption-key").arg(self.key);
        }
        command
    }

    /// Seconds of a capture of `disk` into a new repository, and of an install from it to `null:`.
    fn run(&self, context: &Context, disk: &Path) -> Result<[f64; 2]> {
        let repo = context.folder()?;
        // The folder exists and is empty, so the repository must be initialised.
        said(self.command(context, &repo).arg("init"))?;
        said(Command::new("sync").arg("-f").arg(&context.scratch))?;
        let captured = timed(self.command(context, &repo).arg("capture").arg(disk).arg("bench"))?;
        let installed = timed(self.command(context, &repo).args(["install", "bench", "null:"]))?;
        Ok([captured.seconds, installed.seconds])
    }
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn measure(context: &Context) -> Result<Vec<Figure>> {
    let disk = load::system_disk(context)?;
    let allocated = {
        let source = disk::open_source(&disk)?;
        disk::survey(&source, &disk::SurveyOptions::default())?.allocated.sectors()
            * base::limits::SECTOR_BYTES
    };
    let keys = context.folder()?;
    let key = keys.join("repository.key");
    said(context.diskcast(&keys).args(["key", "new", "--encryption"]).arg(&key))?;
    let (mut plain, mut sealed) = ([vec![], vec![]], [vec![], vec![]]);
    for _ in 0..RUNS {
        for (encrypted, rates) in [(false, &mut plain), (true, &mut sealed)] {
            let seconds = Kind { encrypted, key: &key }.run(context, &disk)?;
            let each = rates.iter_mut().zip(seconds);
            each.for_each(|(rates, seconds)| rates.push(allocated as f64 / seconds / 1e6));
        }
    }
    let workload = format!("ext4 disk of system files, {} allocated, page cache", show_bytes(allocated));
    let figure = |name: &str, at: usize, sink: &str| {
        let beside = median(&plain[at]);
        Figure::new(name, &sealed[at], "MB/s", Bar::AtLeast(beside / 2.0))
            .peer("diskcast", "the same, not encrypted", beside, "MB/s")
            .on(&workload, sink)
    };
    Ok(vec![
        figure("versions.sealed_capture", 0, "encrypted repository in a folder of the local disk, durable"),
        figure("versions.sealed_install", 1, "null, verifying, from the encrypted repository"),
    ])
}
