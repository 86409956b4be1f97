//! `diskcast deploy SET --commit` and `--suspend`: the attached disks of all hosts become versions of one moment, and
//! the set of them a version of its own.

use std::collections::HashSet;
use std::time::Duration;

use base::ErrorKind;
use base::units::{show_bytes, show_duration};
use image::Manifest;
use image::manifest::Member;
use mirror::images::if_found;
use mirror::{Addition, Images};
use net::api::{MemberJob, WORK_FORMAT};
use net::clock::{Clock, Stop};
use net::deploy::{Checkpoint, Phase, SetRules, Standing, Stored, make_set};
use serde_json::json;
use store::{ImageName, Reference};

use super::{Args, job};
use crate::args::There;
use crate::commands::Context;
use crate::commands::work::CALLED_OFF;
use crate::exit::{Exit, Failure, Result};
use crate::inventory::{self, Entry};
use crate::ui::table::{Align, Table};
use crate::{connect, interrupt, repository};

/// How often the set is published again if others publish sets of the same name at the same time.
const PUBLICATIONS_MAX: u32 = 16;

pub(super) fn run(context: &Context, args: &Args) -> Result<()> {
    let set: ImageName = args.name.parse()?;
    let entries = inventory::read(&args.by_ssh.to, args.by_ssh.inventory.as_deref())?;
    let members = members(args, &set, &entries)?;
    if context.global.dry_run {
        return plan(context, &members);
    }
    // What is wrong with it is told before anything is frozen.
    let there = There { to: args.server.server.clone(), access: args.server.access.clone() };
    let images = connect::images(context, &there)?;
    let stop = Stop::new();
    let asked = stop.clone();
    interrupt::cooperate(move || asked.stop())?;
    let (clock, mut published) = (Clock::start(), None);
    let mut teller = Teller { context, told: None };
    let rules = rules(args);
    let done = make_set(
        &members,
        rules,
        &args.by_ssh.ssh(),
        &stop,
        |stored| {
            let manifest = publish(&*images, &set, &members, stored).map_err(|failure| failure.message)?;
            published = Some((manifest, stored.to_vec()));
            Ok(())
        },
        |set, _| teller.show(set, &members),
    );
    let Some((manifest, stored)) = published else {
        warn_of_others(context, &done, &members);
        return Err(failed(&done, &members, stop.is_stopped()));
    };
    report(context, &manifest, &stored, clock.elapsed())?;
    // Their versions are there. But a machine that was to end may run on.
    let astray = (0..members.len()).filter_map(|host| match done.host(host) {
        Standing::Failed(why) => Some(format!("{}: {why}", members[host].name)),
        _ => None,
    });
    let astray: Vec<_> = astray.collect();
    astray.iter().for_each(|why| context.output.warning(why));
    match args.by_ssh.suspend && !astray.is_empty() {
        true => Err(Failure::new(Exit::Partly, "the set is there, but not all machines have ended")),
        false => Ok(()),
    }
}

fn rules(args: &Args) -> SetRules {
    let by = &args.by_ssh;
    SetRules {
        rounds: by.attempts,
        pause: Duration::from_secs(2),
        freeze: by.quiesce_limit,
        silence: by.silence,
        standstill: by.silence.saturating_mul(10),
        time: by.time,
    }
}

/// The members, in the order of the hosts.
fn members(args: &Args, set: &ImageName, entries: &[Entry]) -> Result<Vec<net::deploy::Member>> {
    let by = &args.by_ssh;
    let mut seen = HashSet::new();
    let member = |entry: &Entry| {
        let wrong = |what: String| Failure::new(Exit::Usage, format!("{}: {what}", entry.name));
        let reached = job::reach(entry)?;
        let image = image_of(set, &entry.name);
        if !seen.insert(image.clone()) {
            return Err(wrong(format!("another host has the image `{image}` in the set, too")));
        }
        image.parse::<ImageName>()?;
        let quiesce = by.quiesce.as_deref().map(|text| job::fill(text, entry).map_err(wrong)).transpose()?;
        let job = MemberJob {
            format: WORK_FORMAT,
            disk: job::target(by, entry)?,
            image,
            quiesce,
            limit_seconds: by.quiesce_limit.as_secs(),
            suspend: by.suspend,
        };
        Ok(net::deploy::Member { name: entry.name.clone(), address: reached, job })
    };
    entries.iter().map(member).collect()
}

/// The image of a member: the set's name, and the host's in the characters of an image name.
fn image_of(set: &ImageName, host: &str) -> String {
    let name = host.to_ascii_lowercase();
    let fits = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    format!("{set}.{}", name.chars().map(fits).collect::<String>())
}

fn plan(context: &Context, members: &[net::deploy::Member]) -> Result<()> {
    let mut table = Table::new(&[
        ("HOST", Align::Left),
        ("DISK", Align::Left),
        ("IMAGE", Align::Left),
        ("QUIESCE", Align::Left),
    ]);
    let mut records = Vec::new();
    for member in members {
        let (host, MemberJob { disk, image, quiesce, .. }) = (&member.name, &member.job);
        records
            .push(json!({ "type": "plan", "host": host, "disk": disk, "image": image, "quiesce": quiesce }));
        table.row([host.clone(), disk.clone(), image.clone(), quiesce.clone().unwrap_or_default()]);
    }
    context.output.list(&records, &table)
}

/// Makes the set visible, by one record. Each version must be there: hosts only say so.
fn publish(
    images: &dyn Images,
    set: &ImageName,
    members: &[net::deploy::Member],
    stored: &[Stored],
) -> Result<Manifest> {
    let mut found = Vec::new();
    for (member, Stored { image, number, .. }) in members.iter().zip(stored) {
        let reference = Reference::Version(image.parse()?, *number);
        let version = images
            .find(&reference)
            .map_err(|error| error.within(format!("find the disk of {}", member.name)))?;
        let (name, image, number) = (member.name.clone(), image.clone(), *number);
        found.push(Member { name, image, number, digest: version.digest() });
    }
    let stamp = repository::stamp();
    let draft = Manifest::of_set(found, &stamp.created, &stamp.creator);
    let newest = || -> base::Result<u64> {
        let newest = if_found(images.find(&Reference::Newest(set.clone())))?;
        Ok(newest.map_or(0, |newest| newest.manifest.number))
    };
    for _ in 0..PUBLICATIONS_MAX {
        let expected = newest()?;
        let mut add = |addition: &dyn Addition| addition.publish(set, draft.clone(), expected);
        match images.add_version(&stamp, &mut add) {
            Ok(made) if made.members == draft.members => return Ok(made),
            Ok(_) => return Err(Failure::new(Exit::Failed, "the server is too old for sets of disks")),
            Err(error) if error.kind() == ErrorKind::Refused && newest()? != expected => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Failure::new(Exit::Failed, format!("too many others publish `{set}`")))
}

fn report(context: &Context, manifest: &Manifest, stored: &[Stored], took: Duration) -> Result<()> {
    let name = format!("{}@{}", manifest.image, manifest.number);
    let frozen = stored.iter().map(|stored| stored.frozen).max().unwrap_or_default();
    let bytes: u64 = stored.iter().map(|stored| stored.bytes).sum();
    let member = |(member, stored): (&Member, &Stored)| {
        json!({
            "host": member.name, "image": member.image, "number": member.number, "stored_bytes": stored.bytes,
            "frozen_seconds": stored.frozen.as_secs_f64(),
        })
    };
    let members: Vec<_> = manifest.members.iter().zip(stored).map(member).collect();
    let record = json!({
        "type": "set", "image": manifest.image, "number": manifest.number, "members": members, "stored_bytes": bytes,
        "frozen_seconds": frozen.as_secs_f64(), "seconds": took.as_secs_f64(),
    });
    context.output.result(&record, || {
        let (disks, bytes, took) = (stored.len(), show_bytes(bytes), show_duration(took));
        format!("{name} has {disks} disks of one moment, frozen for {frozen:.3?}; {bytes} stored, {took}\n")
    })
}

/// Names the other hosts that did not end as they were told: a machine there may not run on.
fn warn_of_others(context: &Context, done: &Checkpoint, members: &[net::deploy::Member]) {
    let failed = done.failure().and_then(|failure| failure.host);
    for (host, member) in members.iter().enumerate().filter(|(host, _)| Some(*host) != failed) {
        if let Standing::Failed(why) = done.host(host)
            && why != CALLED_OFF
        {
            context.output.warning(&format!("{}: {why}", member.name));
        }
    }
}

/// Why there is no set.
fn failed(done: &Checkpoint, members: &[net::deploy::Member], called_off: bool) -> Failure {
    let why = done.failure().map_or("it ended", |failure| &failure.why);
    let host = done.failure().and_then(|failure| failure.host);
    let text = match host {
        Some(host) => format!("no set was made: {}: {why}", members[host].name),
        None => format!("no set was made: {why}"),
    };
    let exit = if called_off { Exit::Interrupted } else { Exit::Failed };
    Failure::new(exit, text).hint("all machines run on; what some have stored is in images of their own")
}

/// Tells what all do.
struct Teller<'a> {
    context: &'a Context,
    told: Option<&'static str>,
}

impl Teller<'_> {
    fn show(&mut self, set: &Checkpoint, members: &[net::deploy::Member]) {
        let (name, words) = match set.phase() {
            Phase::Preparing(_) => ("preparing", "all disks prepare"),
            Phase::Freezing(_) => ("freezing", "all disks are being frozen"),
            Phase::Storing => ("storing", "all were frozen at one moment; their disks are stored"),
            Phase::Publishing | Phase::Finishing(_) => ("finishing", "the set is there"),
            Phase::Ending => ("ending", "the round has failed: all run on"),
            Phase::Pausing(_) | Phase::Over => return,
        };
        if self.told.replace(name) == Some(name) {
            return;
        }
        let why = set.failure().filter(|_| name == "ending").map(|failure| {
            let host = failure.host.map(|host| format!("{}: ", members[host].name)).unwrap_or_default();
            format!("{host}{}", failure.why)
        });
        let output = self.context.output;
        if output.is_json() {
            let record = json!({ "type": "phase", "phase": name, "why": why });
            // The end is told to a reader that is there.
            let _ = output.answer(&record, String::new);
        } else {
            output.note(&why.map_or_else(|| words.to_owned(), |why| format!("{words}: {why}")));
        }
    }
}
