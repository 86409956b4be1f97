//! Errors as `application/problem+json` (RFC 9457).

use serde::{Deserialize, Serialize};

/// An error in the form of RFC 9457. `kind` is for programs, `detail` for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The kind of error (the field `type`): see [`ProblemKind`].
    #[serde(rename = "type")]
    pub kind: ProblemKind,
    /// The kind of error in words.
    pub title: String,
    /// The HTTP status code.
    pub status: u16,
    /// What happened to this request.
    pub detail: String,
}

/// The kinds of errors that clients distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProblemKind {
    /// 404: no such image, version, object or session.
    NotFound,
    /// 401: no token, or one that the server did not issue.
    Unauthorized,
    /// 403: the token does not grant this, or has expired.
    Denied,
    /// 409: it exists already, or was changed in between.
    Exists,
    /// 412: a precondition does not hold.
    Refused,
    /// 400: the request cannot be understood.
    Invalid,
    /// 422: bytes that do not match their digest.
    Corrupt,
    /// 507: the repository has no space left.
    Full,
    /// 503: the server is starting, stopping, or at a limit; retry later.
    Unavailable,
    /// 500: any other error of the server.
    #[serde(other)]
    Internal,
}

impl ProblemKind {
    /// The HTTP status code of this kind.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::Unauthorized => 401,
            Self::Denied => 403,
            Self::NotFound => 404,
            Self::Exists => 409,
            Self::Refused => 412,
            Self::Corrupt => 422,
            Self::Internal => 500,
            Self::Unavailable => 503,
            Self::Full => 507,
        }
    }

    /// This kind in words, the same for every request.
    #[must_use]
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Invalid => "the request cannot be understood",
            Self::Unauthorized => "a token that this server knows is needed",
            Self::Denied => "the token does not grant this",
            Self::NotFound => "not found",
            Self::Exists => "exists already",
            Self::Refused => "a precondition does not hold",
            Self::Corrupt => "bytes do not match their digest",
            Self::Internal => "the server failed",
            Self::Unavailable => "the server cannot do this now",
            Self::Full => "no space is left",
        }
    }

    /// A problem of this kind with the text `detail`.
    #[must_use]
    pub fn with(self, detail: impl Into<String>) -> Problem {
        Problem { kind: self, title: self.title().to_owned(), status: self.status(), detail: detail.into() }
    }
}
