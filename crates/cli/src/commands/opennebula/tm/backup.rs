//! Copies of disks for a backup, and disks that become what they were.

use super::copies::{self, Order};
use crate::commands::Context;
use crate::commands::opennebula::place::{Place, Source, number, wrong};
use crate::commands::opennebula::settings::{Form, Settings};
use crate::commands::opennebula::vm::{self, Machine};
use crate::commands::opennebula::volume::either;
use crate::commands::opennebula::{host, xml};
use crate::exit::Result;

/// Makes copies of the disks `numbers` (separated by colons) in the folder `backup`, all of one moment; or removes
/// them.
pub(super) fn act(action: &str, folder: &str, numbers: &str) -> Result<()> {
    let folder = Place::parse(folder)?;
    let settings = Settings::load()?;
    let path = &folder.path;
    if action.starts_with("postbackup") {
        let script = format!("drop_volumes {path}/backup/disk.*\nrm -rf {path}/backup");
        return host::run(&settings, &folder.host, &script, b"").map(drop);
    }
    let machine = xml::parse(&xml::standard_input()?, Machine::read)?;
    // An overlay finds its image beside it.
    let mut copies = format!(
        "drop_volumes {path}/backup/disk.*\nrm -rf {path}/backup\nmkdir {path}/backup\n\
         for base in {path}/.diskcast-*; do [ ! -e \"$base\" ] || ln \"$base\" {path}/backup/; done\n"
    );
    let mut still = String::new();
    for disk in numbers.split(':').filter(|disk| !disk.is_empty()) {
        let disk = number(disk)?;
        let (from, to) = (format!("{path}/disk.{disk}"), format!("{path}/backup/disk.{disk}"));
        let volume = format!("ln -s \"$v-backup\" {to}\nmake_snapshot \"$v\" \"$v-backup\"");
        let file = format!("cp --reflink=auto --sparse=always {from} {to}");
        still += &format!("{}\n", either(&from, &volume, &file));
    }
    copies += &match machine.domain.as_deref().filter(|_| action.ends_with("_live")) {
        None => still,
        Some(domain) => host::while_suspended(&settings, domain, &still, ":"),
    };
    host::run(&settings, &folder.host, &copies, b"").map(drop)
}

/// Puts what a backup has in the place of a disk, or of all disks (-1).
pub(super) fn restore(context: &Context, folder: &str, machine: &str, image: &str, disk: &str) -> Result<()> {
    let (folder, settings) = (Place::parse(folder)?, Settings::load()?);
    let backup = image_source(image)?;
    let all = Machine::ask(machine)?;
    let chosen =
        all.disks().iter().map(|disk| disk.number).filter(|found| disk == "-1" || disk == found.to_string());
    let mut count = 0;
    for number in chosen {
        let Some(name) = backup.part(number) else { continue };
        let target = Place { host: folder.host.clone(), path: format!("{}/disk.{number}", folder.path) };
        let disk = all.disk(number)?;
        let form = match (disk.file_format()?, disk.form(&settings)?) {
            ("qcow2", Form::Demand) => Form::Demand,
            ("qcow2", _) => Form::Overlay,
            (_, Form::Volume) => Form::Volume,
            _ => Form::Full,
        };
        let source = Source { repository: backup.repository.clone(), name };
        copies::place(context, &settings, &Order { source: &source, target: &target, form, size_mb: None })?;
        count += 1;
    }
    if count == 0 { Err(wrong(&format!("backup {image} has no disk {disk}"))) } else { Ok(()) }
}

/// What a backup is: `repository:image@version,image@version`.
pub(super) struct Backup {
    repository: String,
    parts: String,
}

fn image_source(image: &str) -> Result<Backup> {
    let text = vm::source_of(image)?;
    let (repository, parts) =
        text.split_once(':').ok_or_else(|| wrong(&format!("`{text}` is not a backup")))?;
    Ok(Backup { repository: repository.to_owned(), parts: parts.to_owned() })
}

impl Backup {
    /// The version with the disk `number`.
    fn part(&self, number: u32) -> Option<String> {
        let end = format!("-disk-{number}");
        let is_it = |part: &&str| part.split('@').next().is_some_and(|name| name.ends_with(&end));
        self.parts.split(',').find(is_it).map(str::to_owned)
    }
}
