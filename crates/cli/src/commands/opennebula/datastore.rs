//! The datastore: images as OpenNebula knows them.

mod backup;
mod import;
mod store;

use self::store::{Order, Store, refused};
use super::settings::Settings;
use super::xml;
use crate::exit::{Exit, Failure, Result};

/// Does what OpenNebula asks for, and returns what it is to read.
pub(super) fn act(action: &str, words: &[String]) -> Result<String> {
    let settings = Settings::load()?;
    let text = xml::standard_input()?;
    let order = xml::parse(&text, |root| Order::read(root, &settings))?;
    let store =
        Store { repository: settings.repository(&order.repository)?, settings: &settings, order: &order };
    match (action.to_ascii_lowercase().as_str(), words) {
        ("cp", [_, ..]) => store.import(),
        ("mkfs", [_, ..]) => store.make(),
        ("stat", [..]) => Ok(store.size_mb()?.to_string()),
        ("clone", [_, ..]) => store.clone_image(),
        ("rm", [_, ..]) => store.remove(),
        ("monitor", [..]) => store.space(),
        ("export", [..]) => store.export(),
        ("backup", [folder, disks, _, _, machine, ..]) => backup::save(&store, folder, disks, machine),
        ("increment_flatten", [..]) => store.flat(),
        ("snap_delete" | "snap_revert" | "snap_flatten", [..]) => Err(refused(
            "images of diskcast have versions, and no snapshots",
            "`diskcast images` lists the versions; oneimage create --path diskcast:NAME@VERSION makes an image of one",
        )),
        ("restore", [..]) => Err(refused(
            "a backup is restored as an image",
            "oneimage create --path diskcast:NAME@VERSION, with a name from its SOURCE; or restore it in place",
        )),
        ("backup_cancel", [folder, ..]) => backup::cancel(&store, folder),
        ("ls", [..]) => Err(refused("diskcast can't list files in a backup", "see docs/opennebula.md")),
        (other, words) => {
            Err(Failure::new(Exit::Usage, format!("no action `{other}` with {} arguments", words.len())))
        }
    }
}
