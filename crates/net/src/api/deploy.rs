//! What `diskcast deploy` and `diskcast work` on a host say to each other: lines of JSON on the standard streams of a
//! program that runs there. Specified in `formats/deploy.md`.

use serde::{Deserialize, Serialize};

/// Version of this format.
pub const WORK_FORMAT: u32 = 1;
/// In [`HostJob::server`]: the address from which the host was reached.
pub const FROM_HERE: &str = "{here}";
/// The line that lets a host fetch which waits for others ([`HostJob::meets`]).
pub const GO: &str = "go";
/// In what a machine is to do: its name.
pub const MACHINE: &str = "{host}";

/// What a host is to do: the first line of its standard input. The end of that input calls it off.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostJob {
    /// [`WORK_FORMAT`].
    pub format: u32,
    /// The URL of the server that has the image; may contain [`FROM_HERE`].
    pub server: String,
    /// The token for it.
    pub token: String,
    /// Where it goes: a device, a volume, a file or a rule for disks.
    pub target: String,
    /// What goes there, and how.
    #[serde(flatten)]
    pub put: Put,
    /// Bytes that the target has at least: what the image lacks at its end is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Whether an earlier attempt may have begun: what the target holds right is kept.
    #[serde(default)]
    pub resume: bool,
    /// Whether a copy takes the place of what is there. Otherwise it is a new file, or the same copy that an earlier
    /// attempt made.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replace: bool,
    /// Whether the host says that it has arrived, and waits for [`GO`] before it fetches: others are on the way.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub meets: bool,
}

/// What is put into a target, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Put {
    /// The version: `image@number`. In what an administrator asks of agents also `image` or `image:tag`.
    pub reference: String,
    /// The name of the version's content (`Root::name`), in hexadecimal digits; there it may be empty.
    #[serde(default)]
    pub root: String,
    /// Whether the host keeps the image and makes the target a copy of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<Copies>,
    /// Folder where the host has a mount of the repository, for [`Copies::Demand`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount: Option<String>,
    /// For agents: whether an earlier job may have begun, as [`HostJob::resume`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retried: bool,
    /// For so many seconds after its fetch the host serves the image to others, while it goes on with its work.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub serve_seconds: u64,
    /// Further options of `diskcast fetch`.
    #[serde(default)]
    pub options: Vec<String>,
    /// Command for a shell before anything is written. If it fails, nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// Script that runs inside the written system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<String>,
    /// Command for a shell when the copy is there and checked. Only when it succeeds the host is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// How a target becomes a copy of an image that its host keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Copies {
    /// A QCOW2 that has what differs from the image.
    Overlay,
    /// A raw file that shares the image's blocks.
    Share,
    /// A snapshot of a logical volume that has the image, in the same volume group.
    Snapshot,
    /// A QCOW2 that has what differs from the version's file in a mount, whose content comes when it is read.
    Demand,
    /// An attached disk of this name, which runs from the server at once.
    Attach,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Put {
    /// Puts the name of a machine where `{host}` stands.
    #[must_use]
    pub fn of_machine(&self, name: &str) -> Self {
        let filled = |text: &String| text.replace(MACHINE, name);
        Self {
            options: self.options.iter().map(filled).collect(),
            before: self.before.as_ref().map(filled),
            after: self.after.as_ref().map(filled),
            ..self.clone()
        }
    }
}

/// What a host says: a line of its standard output. [`Self::Ready`] and [`Self::Failed`] are the last ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum HostWord {
    /// It is there, and does something that has no measure.
    Alive {
        /// What.
        doing: String,
    },
    /// It knows what it lacks; said once if [`HostJob::meets`].
    Arrived {
        /// Whether it waits for [`GO`], to fetch the image.
        waits: bool,
    },
    /// How far it is.
    Progress {
        /// `compare`, `install` or `verify`, in this order.
        step: String,
        /// Bytes of this step that are done.
        done_bytes: u64,
        /// Bytes of all of this step.
        total_bytes: u64,
    },
    /// It has its copy, read back and checked.
    Ready {
        /// Digest of the tree of the version.
        root: String,
        /// What `diskcast fetch` reported.
        report: serde_json::Value,
    },
    /// It has none.
    Failed {
        /// Exit code of the command that failed.
        exit: u8,
        /// Why.
        message: String,
        /// What helps.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hint: Option<String>,
    },
}

impl HostJob {
    /// The URL of the server, for a host that was reached from `here`; `None` if that is needed and not known.
    #[must_use]
    pub fn server_from(&self, here: Option<std::net::IpAddr>) -> Option<String> {
        if !self.server.contains(FROM_HERE) {
            return Some(self.server.clone());
        }
        let here = match here? {
            std::net::IpAddr::V4(here) => here.to_string(),
            std::net::IpAddr::V6(here) => format!("[{here}]"),
        };
        Some(self.server.replace(FROM_HERE, &here))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_where_the_host_was_reached_from() {
        let job = |server: &str| HostJob { server: server.to_owned(), ..HostJob::default() };
        let from = |server: &str, here: Option<&str>| {
            job(server).server_from(here.map(|here| here.parse().unwrap()))
        };
        assert_eq!(from("https://{here}:1", Some("10.0.0.1")).as_deref(), Some("https://10.0.0.1:1"));
        assert_eq!(from("https://{here}:1", Some("fd00::1")).as_deref(), Some("https://[fd00::1]:1"));
        assert_eq!(from("https://{here}:1", None), None);
        assert_eq!(from("https://a:1", None).as_deref(), Some("https://a:1"));
    }
}
