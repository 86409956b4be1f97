//! Exit codes and the one error of the binary: what people and scripts see when something does not work.

use std::error::Error;
use std::fmt::Display;
use std::process::ExitCode;

/// How the program ends. The numbers are an interface: scripts rely on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Something failed.
    Failed = 1,
    /// The command line cannot be understood; clap ends with the same number.
    Usage = 2,
    /// Some of several things failed.
    Partly = 3,
    /// No such image, version, file or device.
    NotFound = 10,
    /// A precondition refused, before anything was changed.
    Refused = 11,
    /// What is stored or was written is not what it should be.
    Verification = 12,
    /// Interrupted by a signal.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command ended without doing what was asked.
pub struct Failure {
    pub exit: Exit,
    /// The whole chain of causes on one line.
    pub message: String,
    pub hint: Option<String>,
}

/// The result of a command.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), hint: None }
    }

    fn from_error(exit: Exit, error: &dyn Error) -> Self {
        Self::new(exit, base::fault::chain(error))
    }

    /// Says what to do about it, if nobody has said so yet.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint.get_or_insert_with(|| hint.into());
        self
    }

    /// Puts what was being done before the message.
    #[must_use]
    pub fn context(mut self, doing: impl Display) -> Self {
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

impl From<disk::Error> for Failure {
    fn from(error: disk::Error) -> Self {
        use disk::ErrorKind as Kind;
        let exit = match error.kind() {
            Kind::NotFound => Exit::NotFound,
            Kind::Refused => Exit::Refused,
            Kind::Io | Kind::Malformed | Kind::Unsupported | Kind::Full => Exit::Failed,
        };
        Self::from_error(exit, &error)
    }
}

impl From<image::Error> for Failure {
    fn from(error: image::Error) -> Self {
        use image::ErrorKind as Kind;
        let exit = match error.kind() {
            Kind::NotFound => Exit::NotFound,
            Kind::Refused => Exit::Refused,
            Kind::Corrupt | Kind::Verification => Exit::Verification,
            Kind::Io | Kind::Unsupported | Kind::Full | Kind::Incomplete => Exit::Failed,
        };
        let failure = Self::from_error(exit, &error);
        match error.kind() {
            Kind::Corrupt => failure.hint("`diskcast verify` tells what is damaged in the repository"),
            Kind::Unsupported => failure.hint("it was made by a newer diskcast: update this program"),
            _ => failure,
        }
    }
}

impl From<store::Error> for Failure {
    fn from(error: store::Error) -> Self {
        use store::ErrorKind as Kind;
        let exit = match error.kind() {
            Kind::NotFound => Exit::NotFound,
            Kind::Exists | Kind::Refused => Exit::Refused,
            Kind::Invalid => Exit::Usage,
            Kind::Corrupt => Exit::Verification,
            Kind::Io | Kind::Full | Kind::Unsupported | Kind::Revoked => Exit::Failed,
        };
        Self::from_error(exit, &error)
    }
}

impl From<daemon::Error> for Failure {
    fn from(error: daemon::Error) -> Self {
        use daemon::ErrorKind as Kind;
        let exit = match error.kind() {
            Kind::Refused => Exit::Refused,
            Kind::NotFound => Exit::NotFound,
            Kind::Invalid => Exit::Usage,
            Kind::Io | Kind::Corrupt | Kind::NotRunning | Kind::Unreachable => Exit::Failed,
        };
        Self::from_error(exit, &error)
    }
}

impl From<mirror::Error> for Failure {
    fn from(error: mirror::Error) -> Self {
        use mirror::ErrorKind as Kind;
        let exit = match error.kind() {
            Kind::NotFound => Exit::NotFound,
            Kind::Exists | Kind::Refused => Exit::Refused,
            Kind::Invalid => Exit::Usage,
            Kind::Corrupt => Exit::Verification,
            Kind::Io | Kind::Full | Kind::Unsupported | Kind::Unreachable => Exit::Failed,
        };
        Self::from_error(exit, &error)
    }
}

impl From<net::Error> for Failure {
    fn from(error: net::Error) -> Self {
        use net::ErrorKind as Kind;
        let (exit, hint) = match error.kind() {
            Kind::NotFound => (Exit::NotFound, None),
            Kind::Refused | Kind::Exists => (Exit::Refused, None),
            Kind::Verification => (Exit::Verification, None),
            Kind::Corrupt => {
                (Exit::Verification, Some("`diskcast verify` on the server tells what is damaged"))
            }
            Kind::Invalid => (Exit::Usage, None),
            Kind::Stopped => (Exit::Interrupted, None),
            Kind::Unreachable => (
                Exit::Failed,
                Some("is `diskcast serve` running there, and does a firewall let its port pass?"),
            ),
            Kind::Untrusted => (
                Exit::Failed,
                Some("take the token that this server prints when it starts; it names its certificate"),
            ),
            Kind::Denied => {
                (Exit::Failed, Some("`diskcast token` on the server makes one that grants what is needed"))
            }
            Kind::Unsupported => (Exit::Failed, Some("the other side is newer: update this program")),
            Kind::Io | Kind::Full => (Exit::Failed, None),
        };
        let failure = Self::from_error(exit, &error);
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}
