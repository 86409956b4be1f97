//! Exit codes, and the error type of this program: what people and scripts see when a command fails.

use std::error::Error;
use std::fmt::Display;
use std::process::ExitCode;

use base::{ErrorKind, Subject};

/// Exit codes of the program. Scripts rely on these numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Something failed.
    Failed = 1,
    /// The command line is wrong; clap uses the same number.
    Usage = 2,
    /// Some of several things failed.
    Partly = 3,
    /// No such image, version, file or device.
    NotFound = 10,
    /// A precondition did not hold; nothing was changed.
    Refused = 11,
    /// Stored or written data is damaged.
    Verification = 12,
    /// A server did not accept who we are, or we not who it is.
    Unauthorized = 13,
    /// Interrupted by a signal.
    Interrupted = 130,
}

impl Exit {
    /// The meaning of the exit code of another `diskcast`.
    pub(crate) fn of_code(code: u8) -> Self {
        match code {
            2 => Self::Usage,
            3 => Self::Partly,
            10 => Self::NotFound,
            11 => Self::Refused,
            12 => Self::Verification,
            13 => Self::Unauthorized,
            130 => Self::Interrupted,
            _ => Self::Failed,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command failed.
pub(crate) struct Failure {
    pub exit: Exit,
    /// The whole chain of causes on one line.
    pub message: String,
    pub hint: Option<String>,
    /// What the error is about, if it says so.
    pub subject: Option<Subject>,
    /// Whether the hint is the general one for this kind of error; a hint from a command then replaces it.
    is_usual_hint: bool,
}

/// The result of a command.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), hint: None, subject: None, is_usual_hint: false }
    }

    fn from_error(exit: Exit, error: &dyn Error) -> Self {
        Self::new(exit, base::chain(error))
    }

    /// What a record of the type `error` tells, which this program printed elsewhere.
    pub(crate) fn of_record(record: &serde_json::Value) -> Self {
        let exit =
            record["exit"].as_u64().and_then(|code| code.try_into().ok()).map_or(Exit::Failed, Exit::of_code);
        let failure = Self {
            subject: record["subject"].as_str().and_then(Subject::of_word),
            ..Self::new(exit, record["message"].as_str().unwrap_or("it gives no reason"))
        };
        match record["hint"].as_str() {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }

    /// Sets the hint, unless code closer to the cause has already set a specific one.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        if self.hint.is_none() || self.is_usual_hint {
            self.hint = Some(hint.into());
            self.is_usual_hint = false;
        }
        self
    }

    /// Adds to a refusal of a target that nothing was written.
    #[must_use]
    pub(crate) fn unwritten(self) -> Self {
        if self.exit == Exit::Refused { self.hint("nothing was written") } else { self }
    }

    /// Puts the action that failed before the message.
    #[must_use]
    pub(crate) fn context(mut self, doing: impl Display) -> Self {
        self.message = format!("{doing}: {}", self.message);
        self
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        let missing = error.kind() == std::io::ErrorKind::NotFound;
        Self::from_error(if missing { Exit::NotFound } else { Exit::Failed }, &error)
    }
}

impl From<base::Error> for Failure {
    fn from(error: base::Error) -> Self {
        let subject = error.subject();
        let (exit, hint) = match error.kind() {
            ErrorKind::NotFound => (Exit::NotFound, None),
            ErrorKind::Refused | ErrorKind::Exists => (Exit::Refused, None),
            ErrorKind::Invalid => (Exit::Usage, None),
            ErrorKind::Verification => (Exit::Verification, None),
            ErrorKind::Corrupt => (
                Exit::Verification,
                Some("`diskcast verify`, where the repository is, tells what is damaged in it"),
            ),
            ErrorKind::Stopped => (Exit::Interrupted, None),
            ErrorKind::Unreachable if subject == Some(Subject::Cluster) => {
                (Exit::Failed, Some("`diskcast cluster status` tells which parts of the cluster answer"))
            }
            ErrorKind::Unreachable => (
                Exit::Failed,
                Some("is `diskcast serve` running there, and does the firewall allow its port?"),
            ),
            // Their texts say what to do: there are no tokens to be made.
            ErrorKind::Untrusted | ErrorKind::Denied if subject == Some(Subject::Cluster) => {
                (Exit::Unauthorized, None)
            }
            ErrorKind::Untrusted => (
                Exit::Unauthorized,
                Some("take the token that this server prints when it starts; it names its certificate"),
            ),
            ErrorKind::Denied => (
                Exit::Unauthorized,
                Some("`diskcast token` on the server makes one that grants what is needed"),
            ),
            ErrorKind::Unsupported => (Exit::Failed, Some("if a newer diskcast made it, update this one")),
            ErrorKind::Io
            | ErrorKind::Malformed
            | ErrorKind::Incomplete
            | ErrorKind::Full
            | ErrorKind::Revoked
            | ErrorKind::NotRunning => (Exit::Failed, None),
        };
        let failure = Self::from_error(exit, &error);
        Self { hint: hint.map(str::to_owned), subject, is_usual_hint: true, ..failure }
    }
}
