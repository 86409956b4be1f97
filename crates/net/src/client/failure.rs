//! Failed attempts of a request, and how they become errors.

use std::io::Read;

use base::{Error, ErrorKind};
use bytes::Bytes;
use reqwest::StatusCode;
use reqwest::blocking::Response;

use crate::api::{Problem, ProblemKind};

/// Longest text of a server in an error, in characters.
const DETAIL_CHARS_MAX: usize = 1000;

/// Why an attempt failed, and whether to repeat the request.
pub(super) struct Failure {
    pub(super) kind: ErrorKind,
    pub(super) passing: bool,
    /// Whether the next attempt should follow without a pause.
    pub(super) at_once: bool,
    pub(super) said: Option<String>,
    /// Whether `said` is the reason that the server gave, which says what is wrong with what.
    pub(super) by_server: bool,
    pub(super) source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Failure {
    pub(super) fn final_from(
        kind: ErrorKind,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self {
            kind,
            passing: false,
            at_once: false,
            said: None,
            by_server: false,
            source: Some(source.into()),
        }
    }

    /// The request was not delivered, or its answer did not arrive.
    pub(super) fn of_transport(error: reqwest::Error) -> Self {
        let kind = if is_untrusted(&error) { ErrorKind::Untrusted } else { ErrorKind::Unreachable };
        // The context already has the URL.
        let source = Some(error.without_url().into());
        Self {
            kind,
            passing: kind == ErrorKind::Unreachable,
            at_once: false,
            said: None,
            by_server: false,
            source,
        }
    }

    /// The server answered with an error.
    pub(super) fn of_answer(response: Response) -> Self {
        let status = response.status();
        let passing = matches!(status.as_u16(), 429 | 502..=504);
        let problem = read_at_most(response, 1 << 16).ok();
        let problem = problem.and_then(|text| serde_json::from_slice::<Problem>(&text).ok());
        let by_server = problem.is_some();
        let said = problem.as_ref().map_or_else(|| status.to_string(), |problem| cleaned(&problem.detail));
        Self {
            kind: kind_of(status, problem.map(|problem| problem.kind)),
            passing,
            at_once: false,
            said: Some(said),
            by_server,
            source: None,
        }
    }

    /// Whether the attempt took too long.
    pub(super) fn timed_out(&self) -> bool {
        let Some(source) = &self.source else { return false };
        let source: &(dyn std::error::Error + 'static) = &**source;
        causes(source).any(|cause| {
            let is_timeout = cause.downcast_ref().is_some_and(reqwest::Error::is_timeout);
            is_timeout || cause.downcast_ref().map(std::io::Error::kind) == Some(std::io::ErrorKind::TimedOut)
        })
    }

    /// The text of the innermost cause.
    pub(super) fn root_cause(&self) -> String {
        let mut cause: Option<&dyn std::error::Error> = self.source.as_deref().map(|source| source as _);
        while let Some(deeper) = cause.and_then(std::error::Error::source) {
            cause = Some(deeper);
        }
        cause.map(ToString::to_string).or_else(|| self.said.clone()).unwrap_or_default()
    }

    pub(super) fn into_error(self, context: String) -> Error {
        // Where the server is at fault, or cannot answer now, people must know which server it is.
        let elsewhere = matches!(self.kind, ErrorKind::Io | ErrorKind::Full | ErrorKind::Unreachable);
        let context = match (self.kind, self.said) {
            (_, Some(said)) if self.by_server && !elsewhere => said,
            (_, Some(said)) => format!("{context}: {said}"),
            (ErrorKind::Untrusted, None) => format!("{context}: the certificate is not the one in the token"),
            (_, None) => context,
        };
        match self.source {
            Some(source) => Error::from_source(self.kind, context, source),
            None => Error::new(self.kind, context),
        }
    }
}

/// What a server said, for the terminal of a person: without control characters, and of a bounded length.
fn cleaned(detail: &str) -> String {
    detail.chars().filter(|c| !c.is_control()).take(DETAIL_CHARS_MAX).collect()
}

fn kind_of(status: StatusCode, problem: Option<ProblemKind>) -> ErrorKind {
    match (problem, status.as_u16()) {
        (Some(ProblemKind::NotFound), _) | (None, 404 | 410) => ErrorKind::NotFound,
        (Some(ProblemKind::Unauthorized | ProblemKind::Denied), _) | (None, 401 | 403) => ErrorKind::Denied,
        (Some(ProblemKind::Exists), _) | (None, 409) => ErrorKind::Exists,
        (Some(ProblemKind::Refused), _) | (None, 412) => ErrorKind::Refused,
        (Some(ProblemKind::Corrupt), _) | (None, 422) => ErrorKind::Corrupt,
        (Some(ProblemKind::Full), _) | (None, 507) => ErrorKind::Full,
        (Some(ProblemKind::Invalid), _) | (None, 400) => ErrorKind::Invalid,
        (Some(ProblemKind::Unavailable), _) | (None, 429 | 502..=504) => ErrorKind::Unreachable,
        (Some(ProblemKind::Internal) | None, _) => ErrorKind::Io,
    }
}

/// Whether our verifier rejected the certificate.
fn is_untrusted(error: &reqwest::Error) -> bool {
    causes(error).any(|cause| matches!(cause.downcast_ref(), Some(rustls::Error::InvalidCertificate(_))))
}

/// `error` and everything beneath it.
fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |cause| {
        // `source` of an `io::Error` skips the error that it wraps.
        let wrapped = cause.downcast_ref::<std::io::Error>().and_then(|io| io.get_ref());
        wrapped.map(|wrapped| wrapped as _).or_else(|| cause.source())
    })
}

/// The body of `response`; `Corrupt` if it has more than `bytes_max` bytes.
pub(super) fn read_at_most(response: Response, bytes_max: u64) -> std::result::Result<Bytes, Failure> {
    let expected = response.content_length().unwrap_or(0).min(bytes_max);
    let mut bytes = Vec::with_capacity(usize::try_from(expected).unwrap_or(0));
    let read = response.take(bytes_max + 1).read_to_end(&mut bytes);
    read.map_err(|error| Failure {
        kind: ErrorKind::Unreachable,
        passing: true,
        at_once: false,
        said: None,
        by_server: false,
        source: Some(error.into()),
    })?;
    if bytes.len() as u64 > bytes_max {
        let said = Some(format!("the answer is longer than {bytes_max} bytes"));
        return Err(Failure {
            kind: ErrorKind::Corrupt,
            passing: false,
            at_once: false,
            said,
            by_server: false,
            source: None,
        });
    }
    Ok(bytes.into())
}
