//! The datastore: images as OpenNebula knows them.

mod backup;
mod import;
mod rights;
mod store;
mod token;

use self::store::{Order, Store, refused};
use super::settings::Settings;
use super::xml;
use crate::commands::Context;
use crate::exit::{Exit, Failure, Result};

/// What stands for a version in hints.
const VERSION: &str = "diskcast:NAME@VERSION";

/// How an image is made of what `path` names. By `--path`, OpenNebula's command makes a file name of it.
fn makes_one(path: &str) -> String {
    format!("printf 'NAME=x\\nPATH=\"{path}\"\\n' | oneimage create -d DATASTORE")
}

/// Does what OpenNebula asks for, and returns what it is to read.
pub(super) fn act(context: &Context, action: &str, words: &[String]) -> Result<String> {
    let settings = Settings::load()?;
    let action = action.to_ascii_lowercase();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (text, words) = xml::told(&words)?;
    if let ("backup_cancel", [folder, ..]) = (action.as_str(), words) {
        // OpenNebula says nothing of the datastore.
        return backup::cancel(&settings, folder);
    }
    let order = xml::parse(&text, |root| Order::read(root, &settings))?;
    let store =
        Store { repository: settings.repository(&order.repository)?, settings: &settings, order: &order };
    match (action.as_str(), words) {
        ("cp", [_, ..]) => store.import(),
        ("mkfs", [_, ..]) => store.make(),
        ("stat", [..]) => Ok(store.size_mb()?.to_string()),
        ("clone", [_, ..]) => store.clone_image(),
        ("rm", [_, ..]) => store.remove(),
        ("monitor", [..]) => {
            token::keep(context, store.repository);
            store.space()
        }
        ("export", [..]) => store.export(),
        ("backup", [folder, disks, _, _, machine, ..]) => backup::save(&store, folder, disks, machine),
        ("increment_flatten", [..]) => store.flat(),
        ("snap_delete" | "snap_revert" | "snap_flatten", [..]) => Err(refused(
            "images of diskcast have versions, and no snapshots",
            &format!("`diskcast images` lists the versions; {} makes an image of one", makes_one(VERSION)),
        )),
        ("restore", [..]) => Err(refused(
            "a backup is restored as an image",
            &format!("{}, with a name from its SOURCE; or restore it in place", makes_one(VERSION)),
        )),
        ("ls", [..]) => Err(refused("diskcast can't list files in a backup", "see docs/opennebula.md")),
        (other, words) => {
            Err(Failure::new(Exit::Usage, format!("no action `{other}` with {} arguments", words.len())))
        }
    }
}
