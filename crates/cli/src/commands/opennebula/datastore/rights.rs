//! Which versions a user may name in PATH. OpenNebula looks at the rights of its own images, and not at what PATH
//! names: without this anybody could take the images and backups of others, whose names are easy to guess.

use super::store::{Found, Store, refused};
use crate::commands::opennebula::vm;
use crate::exit::Result;

/// `oneadmin`, who may everything.
const ADMINISTRATOR: u64 = 0;

impl Store<'_> {
    /// Refuses a version that the user of the order may not have.
    pub(super) fn may_have(&self, found: &Found) -> Result<()> {
        let (image, user) = (found.image(), self.order.user);
        if user == Some(ADMINISTRATOR) || self.order.offer.has(self.settings, image, &found.labels) {
            return Ok(());
        }
        match self.settings.of_opennebula(image) {
            Some(own) if user.is_some() && owner(own)? == user => Ok(()),
            Some(_) => Err(refused(
                &format!("`{image}` belongs to another user"),
                "its owner can share it in OpenNebula: oneimage chmod, and oneimage clone",
            )),
            None => Err(refused(
                &format!("`{image}` is not for users of this datastore"),
                "name it in DISKCAST_IMAGES of the datastore, or capture it with --label opennebula=yes",
            )),
        }
    }
}

/// Who owns `ID` or `vm-ID-disk-NUMBER`, an image of OpenNebula or the disk of a machine.
fn owner(name: &str) -> Result<Option<u64>> {
    let machine = name.strip_prefix("vm-").and_then(|rest| rest.split_once("-disk-"));
    let (of, id) = machine.map_or((vm::IMAGES, name), |(id, _)| (vm::MACHINES, id));
    match id.parse::<u64>() {
        Ok(_) => vm::owner(of, id),
        // Nobody's that OpenNebula knows of.
        Err(_) => Ok(None),
    }
}
