//! The words by which an administrator means machines: one rule, for the server and for who looks at its table.

use super::machines::MachineStatus;
use crate::mac::Mac;

/// A word by which an administrator means machines of the table: the address of a card, a name, a group, or `*` for all
/// that were admitted.
#[derive(Debug, Clone, Copy)]
pub struct Meaning<'a> {
    word: &'a str,
    mac: Option<Mac>,
}

impl<'a> Meaning<'a> {
    /// Stands for all machines that were admitted; where they are admitted, for all that wait.
    pub const ALL: &'static str = "*";

    /// What `word` means.
    #[must_use]
    pub fn of(word: &'a str) -> Self {
        Self { word, mac: word.parse().ok() }
    }

    /// Whether that is the machine with this card, name and groups.
    pub fn is<'b>(
        &self,
        (mac, name): (Mac, Option<&str>),
        groups: impl IntoIterator<Item = &'b String>,
        admitted: bool,
    ) -> bool {
        (self.word == Self::ALL && admitted)
            || self.mac == Some(mac)
            || name == Some(self.word)
            || groups.into_iter().any(|group| group == self.word)
    }

    /// The same of a machine as the server shows it.
    #[must_use]
    pub fn is_status(&self, status: &MachineStatus) -> bool {
        let MachineStatus { mac, name, groups, admitted, .. } = status;
        mac.parse().is_ok_and(|mac| self.is((mac, name.as_deref()), groups, *admitted))
    }
}
