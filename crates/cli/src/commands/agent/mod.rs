//! `diskcast agent`: looks after the images that a host keeps, and takes jobs.

mod args;
mod jobs;
mod work;

use std::time::Duration;

use base::units::show_bytes;
use daemon::image_cache::ImageCache;
use net::clock::Stop;
use serde_json::json;

pub(crate) use self::args::Args;
use self::jobs::Jobs;
use super::Context;
use crate::exit::Result;
use crate::ui::table::{Align, Table};
use crate::{clock, interrupt, notify};

/// How often it looks.
const LOOK: Duration = Duration::from_secs(60);

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let kept = ImageCache::open(&args.keeping.folder()?)?;
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
fn look_after(context: &Context, args: &Args, kept: &ImageCache, stop: &Stop) {
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

fn list(context: &Context, kept: &ImageCache) -> Result<()> {
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
            "own_bytes": image.own_bytes, "used": used, "in_use": image.in_use, "volume": image.volume,
        }));
        let needed = if image.in_use { "yes" } else { "no" }.to_owned();
        let (size, own) = (show_bytes(image.about.size_bytes), show_bytes(image.own_bytes));
        table.row([image.about.reference, size, own, clock::short(&used), needed]);
    }
    context.output.list(&records, &table)
}
