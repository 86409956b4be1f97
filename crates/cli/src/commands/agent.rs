//! `diskcast agent`: looks after the images that a host keeps, and takes jobs.

mod jobs;
mod work;

use std::time::Duration;

use base::units::show_bytes;
use daemon::kept::KeptImages;
use net::clock::Stop;
use serde_json::json;

use self::jobs::Jobs;
use super::Context;
use crate::args::{DisksFolder, Keeping};
use crate::exit::Result;
use crate::ui::table::{Align, Table};
use crate::{clock, interrupt, notify};

/// How often it looks.
const LOOK: Duration = Duration::from_secs(60);

/// Look after the images that this host keeps, and take jobs
///
/// `diskcast deploy --copy` keeps images on hosts, so that their next machines get copies at once. This removes those
/// that were used least recently when they are too many, or the disk is too full; never one that a machine or a
/// transfer uses. It may be stopped at any time: what it needs to know is in the folder.
///
/// With `--server` it also takes jobs of that server (`diskcast serve --agents`), which `diskcast deploy IMAGE HOSTS
/// --target TARGET` gives. An administrator admits this host first, by `diskcast hosts admit`. Whoever manages that
/// server can write to this host's disks.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast agent
  diskcast agent --kept /srv/images --kept-size 500G --keep-free 50G
  diskcast agent --list
  diskcast agent --server https://10.0.0.1:7717 --pin FINGERPRINT")]
pub(crate) struct Args {
    /// Show the images and end
    #[arg(long)]
    pub list: bool,
    /// Look once and end
    #[arg(long, conflicts_with = "list")]
    pub once: bool,
    /// Take jobs of this server
    #[arg(long, value_name = "URL", env = "DISKCAST_SERVER", hide_env_values = true,
        conflicts_with_all = ["list", "once"])]
    pub server: Option<String>,
    /// Fingerprint of its certificate: between the dots of its tokens
    #[arg(long, value_name = "FINGERPRINT", env = "DISKCAST_PIN", hide_env_values = true)]
    pub pin: Option<String>,
    /// Network interface by whose card the server knows this host [default: the one towards the server]
    #[arg(long, value_name = "NAME", requires = "server")]
    pub interface: Option<String>,
    #[command(flatten)]
    pub keeping: Keeping,
    #[command(flatten)]
    pub place: DisksFolder,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let kept = KeptImages::open(&args.keeping.folder()?)?;
    if args.list {
        return list(context, &kept);
    }
    if args.once {
        let removed = kept.clean(args.keeping.bounds())?;
        let record = json!({ "type": "cleaned", "removed": removed });
        return context
            .output
            .result(&record, || removed.iter().map(|name| format!("removed {name}\n")).collect());
    }
    let stop = Stop::new();
    let asked = stop.clone();
    interrupt::cooperate(move || asked.stop())?;
    let jobs = args.server.as_deref().map(|server| Jobs::new(context, args, server, &stop)).transpose()?;
    std::thread::scope(|scope| {
        if let Some(jobs) = &jobs {
            scope.spawn(|| jobs.run());
        }
        notify::ready("looks after the images of this host");
        look_after(context, args, &kept, &stop);
        notify::stopping();
    });
    Ok(())
}

/// Keeps the bounds until it is told to stop.
fn look_after(context: &Context, args: &Args, kept: &KeptImages, stop: &Stop) {
    loop {
        match kept.clean(args.keeping.bounds()) {
            Ok(removed) => removed.iter().for_each(|name| context.output.note(&format!("removed {name}"))),
            // A disk may be away for a while.
            Err(error) => context.output.warning(&base::chain(&error)),
        }
        if !stop.pause(LOOK) {
            return;
        }
    }
}

fn list(context: &Context, kept: &KeptImages) -> Result<()> {
    let mut table = Table::new(&[
        ("IMAGE", Align::Left),
        ("SIZE", Align::Right),
        ("OWN", Align::Right),
        ("USED", Align::Left),
        ("NEEDED", Align::Left),
    ]);
    let mut records = Vec::new();
    for image in kept.list()? {
        let used = clock::show_unix(image.used);
        records.push(json!({
            "type": "kept", "key": image.key, "image": image.about.reference, "size_bytes": image.about.size_bytes,
            "own_bytes": image.own_bytes, "used": used, "in_use": image.in_use,
        }));
        let needed = if image.in_use { "yes" } else { "no" }.to_owned();
        let (size, own) = (show_bytes(image.about.size_bytes), show_bytes(image.own_bytes));
        table.row([image.about.reference, size, own, clock::short(&used), needed]);
    }
    context.output.list(&records, &table)
}
