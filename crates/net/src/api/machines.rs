//! Machines that boot from the network or run an agent: what they say of themselves, what they are told to do, and the
//! table that an administrator sees.

use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

use super::deploy::Put;

/// A machine whose answer says that it is to call again sooner than this repeats its call at once, with a signature
/// under the new nonce.
pub const PROVES_NOTHING_MS: u64 = 1000;

/// What a machine's signature begins with.
const PROOF_DOMAIN: &[u8] = b"diskcast machine 1\0";

/// A disk of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskFacts {
    /// `/dev/sda`.
    pub path: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its serial number, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Its model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// What a machine says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineFacts {
    /// The address of the network card that it booted from.
    pub mac: String,
    /// The serial number that its maker gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Maker and model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// `bios`, `uefi`, or `uefi, secure boot`.
    pub firmware: String,
    /// Its disks.
    pub disks: Vec<DiskFacts>,
    /// Whether it runs its own system, in which an agent calls; otherwise it booted from the network.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub runs: bool,
    /// The IPv4 network of that card, `10.0.0.0/24`; only of an agent, which can wake machines there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
}

/// The body of `POST /api/v1/machines/call`: a machine asks what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineCall {
    /// What it is.
    pub facts: MachineFacts,
    /// Its public key (Ed25519), 64 hexadecimal digits.
    pub key: String,
    /// Its signature (`proof_text`) under the nonce of the answer before, 128 hexadecimal digits; none in the first
    /// call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// The job that it works on already: it only says that it lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working: Option<u64>,
    /// How far that job is, if it has a measure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<JobProgress>,
    /// What became of a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<JobOutcome>,
}

/// How far a job is that an agent works on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobProgress {
    /// `compare`, `install` or `verify`; `capture`; `wipe`.
    pub step: String,
    /// Bytes of this step that are done.
    pub done_bytes: u64,
    /// All bytes of this step.
    pub total_bytes: u64,
}

/// What became of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobOutcome {
    /// Its number.
    pub job: u64,
    /// Why it failed; none if it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The exit code of `diskcast` with which it failed. Agents of before say none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<u8>,
    /// The end of what the machine's console showed of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
}

/// The answer to a [`MachineCall`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineAnswer {
    /// What the next call signs, 64 hexadecimal digits.
    pub nonce: String,
    /// Milliseconds until the next call is due; below [`PROVES_NOTHING_MS`] if this one had no valid signature.
    pub again_ms: u64,
    /// The name that the machine has in the table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What to do.
    pub order: Order,
    /// The cards of machines that it is to wake on its network, beside that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wake: Vec<String>,
}

/// What a machine is to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
pub enum Order {
    /// Nothing yet: why.
    Wait {
        /// For the console.
        why: String,
    },
    /// The work of a job.
    Work {
        /// The number of the job.
        job: u64,
        /// The work.
        #[serde(flatten)]
        work: Work,
        /// The rule that says which disk, `disk:serial=S1`; none for the only one. Of [`Work::Put`] the target.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        disk: Option<String>,
        /// Whether it was ordered before, and may have begun.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        again: bool,
        /// The secret of a token for the image that the work is about.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        secret: Option<crate::token::Secret>,
    },
    /// Start from the disk.
    Start,
}

/// The work of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "work", rename_all = "kebab-case")]
pub enum Work {
    /// Put an image on the disk.
    Install {
        /// `image@version`; in a request also `image` or `image:tag`.
        reference: String,
        /// What becomes of the disk.
        #[serde(flatten)]
        after: After,
    },
    /// Store the disk as a new version of an image.
    Capture {
        /// The image.
        image: String,
    },
    /// Erase the disk.
    Wipe,
    /// Nothing: a shell on the machine's console.
    Shell,
    /// Put an image into a target of a system that runs.
    Put(Put),
}

impl std::fmt::Display for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Install { reference, .. } => write!(f, "install {reference}"),
            Self::Capture { image } => write!(f, "capture {image}"),
            Self::Wipe => write!(f, "wipe"),
            Self::Shell => write!(f, "shell"),
            Self::Put(Put { reference, .. }) => write!(f, "put {reference}"),
        }
    }
}

/// What becomes of an installed disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct After {
    /// Whether it gets an identity of its own, and the machine's name.
    #[serde(default)]
    pub own: bool,
    /// Whether that goes on even if files that can't be changed name old identifiers.
    #[serde(default)]
    pub accept_stale_ids: bool,
    /// Whether its last partition grows.
    #[serde(default)]
    pub grow: bool,
}

/// How machines of a job are got to boot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Power {
    /// Somebody else does it.
    #[default]
    Leave,
    /// They are woken by the network, and switched on by the server's power program if it has one.
    Wake,
    /// They are restarted by the server's power program.
    Restart,
}

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobStage {
    /// It waits for its machine.
    Queued,
    /// Its machine has it.
    Taken,
    /// Its work is done. After an install or a capture the machine was told to start from its disk.
    Done,
    /// The machine was seen on the network again, with another system than ours.
    Back,
    /// It failed.
    Failed,
    /// Its machine is silent.
    Lost,
}

impl JobStage {
    /// The word in tables and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Taken => "taken",
            Self::Done => "done",
            Self::Back => "back",
            Self::Failed => "failed",
            Self::Lost => "lost",
        }
    }
}

/// What a machine has to do, or did last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Its number.
    pub job: u64,
    /// What is to be done.
    #[serde(flatten)]
    pub work: Work,
    /// The rule for the disk, or the target of [`Work::Put`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
    /// When it may begin, in seconds since 1970; 0 for at once.
    #[serde(default)]
    pub begins: u64,
    /// How its machine is got to boot when it begins.
    #[serde(default)]
    pub power: Power,
    /// The number of the first job of the same request.
    #[serde(default)]
    pub with: u64,
    /// How many seconds the first machine waits for the others of the same request.
    #[serde(default)]
    pub window: u64,
    /// How far it is.
    pub stage: JobStage,
    /// Why it failed, or what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The exit code of `diskcast` with which it failed, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<u8>,
}

impl Work {
    /// Whether it changes the repository.
    #[must_use]
    pub fn writes(&self) -> bool {
        matches!(self, Self::Capture { .. })
    }

    /// Whether its machine starts from its disk in the end.
    #[must_use]
    pub fn ends_with_start(&self) -> bool {
        match self {
            Self::Install { .. } | Self::Capture { .. } => true,
            Self::Wipe | Self::Shell | Self::Put(_) => false,
        }
    }

    /// Whether the agent of a system that runs does it, and not a machine that booted from the network.
    #[must_use]
    pub fn is_for_agents(&self) -> bool {
        matches!(self, Self::Put(_))
    }
}

impl JobStatus {
    /// Whether its work is still to be done, or to be finished.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.stage, JobStage::Queued | JobStage::Taken | JobStage::Lost)
    }

    /// Whether it may not begin yet at the time `unix`, in seconds since 1970.
    #[must_use]
    pub fn is_early(&self, unix: u64) -> bool {
        self.stage == JobStage::Queued && unix < self.begins
    }
}

/// A machine in the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineStatus {
    /// The address of its network card.
    pub mac: String,
    /// Its name, which becomes its host name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The groups that it belongs to.
    #[serde(default)]
    pub groups: Vec<String>,
    /// The address that it is always given by DHCP, and nobody else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Ipv4Addr>,
    /// Whether an administrator admitted it.
    pub admitted: bool,
    /// Seconds since it called, and showed that it has its key; none if it never did since the server started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub called_seconds_ago: Option<u64>,
    /// Seconds since anything was seen of its card; none if nothing was since the server started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_seconds_ago: Option<u64>,
    /// The step of the boot in which that was: `firmware`, `loader`, `system`, which anybody can pretend, or `agent`,
    /// which is its own call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_in: Option<String>,
    /// The key by which it is known while it runs the system in memory; a new one at each boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyStatus>,
    /// The key of its agent, which stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_key: Option<KeyStatus>,
    /// The key of another one that calls with its card, and gets nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rival: Option<KeyStatus>,
    /// Fingerprint of the key that an administrator named for it and that has not called yet: nobody else is heard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named_key: Option<String>,
    /// What it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<MachineFacts>,
    /// Its job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobStatus>,
    /// How far that is, as an agent said last, or as the fetch of an install reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<JobProgress>,
}

/// A key with which somebody calls as a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyStatus {
    /// Its fingerprint, as the machine shows it on its console.
    pub fingerprint: String,
    /// Since when it calls, in seconds since 1970; 0 if that is not known.
    pub since: u64,
    /// Where it called from last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Whether an administrator named it.
    pub confirmed: bool,
    /// Whether it went on with a job that another key had begun.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub followed: bool,
}

/// The answer to `GET /api/v1/machines`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machines {
    /// All of them, by name and address.
    pub machines: Vec<MachineStatus>,
    /// Seconds for which machines are still admitted by themselves.
    pub open_seconds: u64,
}

/// The answer to `GET /api/v1/machines/{mac}/log`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineLog {
    /// The job.
    pub job: u64,
    /// The end of what the machine's console showed of it.
    pub text: String,
}

/// The body of `POST /api/v1/machines/changes`: what an administrator changes in the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case")]
pub enum MachineChange {
    /// Adds machines, or changes their names and groups. All of them are admitted.
    Add {
        /// What is set.
        machines: Vec<NewMachine>,
    },
    /// Admits machines that have called.
    Admit {
        /// Names, addresses, fingerprints of keys, which confirms these, or `*` for all that wait.
        machines: Vec<String>,
    },
    /// Forgets machines.
    Remove {
        /// Names, addresses, groups, or `*` for all that were admitted.
        machines: Vec<String>,
    },
    /// Forgets all machines that nobody admitted.
    RemoveStrangers,
    /// Takes jobs back that no machine works on.
    Cancel {
        /// Names, addresses or groups.
        machines: Vec<String>,
    },
    /// Admits all that call from now on, for a time; 0 ends that.
    Open {
        /// For how long.
        seconds: u64,
    },
}

/// A machine that is added.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewMachine {
    /// The address of its network card.
    pub mac: String,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its groups; none to leave them as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<String>>,
    /// The address that the server's DHCP gives to it always, and to nobody else; 0.0.0.0 for any, none to leave that
    /// as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Ipv4Addr>,
    /// Fingerprint of its key: nobody with another one is this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// The body of `POST /api/v1/jobs`: gives machines a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRequest {
    /// What is to be done.
    #[serde(flatten)]
    pub work: Work,
    /// Names, addresses or groups.
    pub machines: Vec<String>,
    /// The rule that says which disk; none for the only one. Of [`Work::Put`] the target, where `{host}` stands for the
    /// name of a machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
    /// When it may begin, in seconds since 1970; 0 for at once.
    #[serde(default)]
    pub begins: u64,
    /// How the machines are got to boot when it begins.
    #[serde(default)]
    pub power: Power,
    /// How many seconds the first machine waits for the others, so that they begin together.
    #[serde(default)]
    pub window: u64,
}

/// The answer to a [`JobRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobsMade {
    /// What is to be done; a reference is the version that was meant.
    #[serde(flatten)]
    pub work: Work,
    /// The machines that have the job now.
    pub machines: Vec<MachineStatus>,
}

/// What a machine with the card `mac` signs to show that it has its key.
pub(crate) fn proof_text(nonce: &str, mac: &str) -> Vec<u8> {
    [PROOF_DOMAIN, nonce.as_bytes(), b"\0", mac.as_bytes()].concat()
}
