//! The words by which devices and the metadata service say what went wrong, and their HTTP status.
//! formats/cluster.md, section 6.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

use crate::wire::{EPOCH_HEADER, LENGTH_HEADER};

/// What a command answers.
pub(crate) type Answer<T> = std::result::Result<T, Problem>;

/// What went wrong, as the other side is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Word {
    Capability,
    Expired,
    Rights,
    Fenced,
    Epoch,
    Exists,
    Length,
    Stale,
    Missing,
    Range,
    Damaged,
    NotReady,
    NoLease,
    Quota,
    Full,
    Invalid,
    /// The disk or the program failed.
    Failed,
    /// The join token is missing or wrong.
    Token,
    /// There are too few devices.
    Devices,
    /// The request came in plain HTTP to a port that speaks TLS.
    Tls,
    /// Another instance of the metadata service leads, or this one waits for devices.
    NotLeader,
    /// The state of the metadata service is older than what the device knows.
    Older,
}

impl Word {
    fn status(self) -> StatusCode {
        match self {
            Self::Capability | Self::Expired | Self::Token => StatusCode::UNAUTHORIZED,
            Self::Rights | Self::Fenced => StatusCode::FORBIDDEN,
            Self::Epoch | Self::Exists | Self::Length | Self::Stale | Self::Older => StatusCode::CONFLICT,
            Self::Missing => StatusCode::NOT_FOUND,
            Self::Range => StatusCode::RANGE_NOT_SATISFIABLE,
            Self::Damaged => StatusCode::UNPROCESSABLE_ENTITY,
            Self::NotReady | Self::NoLease | Self::Devices | Self::NotLeader => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Quota | Self::Full => StatusCode::INSUFFICIENT_STORAGE,
            Self::Invalid | Self::Tls => StatusCode::BAD_REQUEST,
            Self::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The kind of error that a client reports.
    pub(crate) fn kind(self) -> ErrorKind {
        match self {
            Self::Capability | Self::Expired | Self::Rights | Self::Token => ErrorKind::Denied,
            Self::Fenced => ErrorKind::Revoked,
            Self::Exists => ErrorKind::Exists,
            Self::Missing => ErrorKind::NotFound,
            Self::Damaged => ErrorKind::Corrupt,
            Self::Epoch | Self::NotReady | Self::NoLease | Self::Devices | Self::NotLeader | Self::Older => {
                ErrorKind::Unreachable
            }
            Self::Tls => ErrorKind::Untrusted,
            Self::Quota | Self::Full => ErrorKind::Full,
            Self::Range | Self::Length | Self::Stale | Self::Invalid => ErrorKind::Invalid,
            Self::Failed => ErrorKind::Io,
        }
    }
}

/// A refusal: the word, a sentence for people, and what the word promises in headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) word: Word,
    pub(crate) detail: String,
    /// The epoch of the device, with `Epoch`; the length of the object, with `Length`; the largest stamp, with `Stale`.
    pub(crate) number: Option<u64>,
}

/// Its body.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Body {
    pub(crate) title: String,
    pub(crate) detail: String,
    pub(crate) problem: Word,
}

impl Problem {
    pub(crate) fn new(word: Word, detail: impl Into<String>) -> Self {
        Self { word, detail: detail.into(), number: None }
    }

    pub(crate) fn with_number(self, number: u64) -> Self {
        Self { number: Some(number), ..self }
    }

    pub(crate) fn failed(what: &str, error: impl std::fmt::Display) -> Self {
        Self::new(Word::Failed, format!("{what}: {error}"))
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let word = match error.kind() {
            ErrorKind::NotFound => Word::Missing,
            ErrorKind::Exists => Word::Exists,
            ErrorKind::Invalid => Word::Invalid,
            ErrorKind::Full => Word::Full,
            ErrorKind::Corrupt => Word::Damaged,
            ErrorKind::Unreachable => Word::Devices,
            ErrorKind::Refused => Word::Fenced,
            // Only the metadata service says so: its instance leads no more, or waits for what devices know.
            ErrorKind::Revoked => Word::NotLeader,
            ErrorKind::Incomplete => Word::Older,
            _ => Word::Failed,
        };
        let mut detail = error.to_string();
        let mut next = std::error::Error::source(&error);
        while let Some(cause) = next {
            detail = format!("{detail}: {cause}");
            next = cause.source();
        }
        Self::new(word, detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.word.status();
        let title = status.canonical_reason().unwrap_or("refused").to_owned();
        let body = Body { title, detail: self.detail, problem: self.word };
        let mut answer = (status, axum::Json(body)).into_response();
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        let name = match self.word {
            Word::Epoch => Some(EPOCH_HEADER),
            Word::Length | Word::Stale => Some(LENGTH_HEADER),
            _ => None,
        };
        if let (Some(name), Some(number)) = (name, self.number) {
            headers.insert(name, HeaderValue::from(number));
        }
        answer
    }
}
