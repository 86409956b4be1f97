//! Machines that are switched by the server's power program.

use serde::{Deserialize, Serialize};

use crate::mac::Mac;

/// What a server's power program does with machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Switch {
    /// It switches them on.
    On,
    /// It switches them off, without asking their systems.
    Off,
    /// It switches them off, and on again.
    Restart,
    /// It says whether they are on.
    Status,
}

impl Switch {
    /// The word by which the program is called.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Restart => "restart",
            Self::Status => "status",
        }
    }
}

/// The body of `PUT /api/v1/machines/power/{id}`: switches machines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchRequest {
    /// What is done.
    pub switch: Switch,
    /// Names, addresses or groups.
    pub machines: Vec<String>,
}

/// What became of one machine. The answer to a [`SwitchRequest`], and to `GET` at the same place, is a list of these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switched {
    /// The address of its network card.
    pub mac: String,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The last line that the program said, if it has done it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub words: Option<String>,
    /// Why it failed, if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl Switched {
    /// A machine of which nothing is known yet.
    #[must_use]
    pub fn waiting(mac: Mac, name: Option<String>) -> Self {
        Self { mac: mac.to_string(), name, words: None, failure: None }
    }

    /// The program ended.
    pub fn end(&mut self, outcome: Result<String, String>) {
        match outcome {
            Ok(words) => self.words = Some(words),
            Err(failure) => self.failure = Some(failure),
        }
    }

    /// Whether the program has ended for it.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.words.is_some() || self.failure.is_some()
    }
}
