//! Turns errors into answers of type `application/problem+json` (RFC 9457).

use std::error::Error;

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use base::ErrorKind;
use net::api::{PROBLEM_TYPE, Problem, ProblemKind};

/// Why a request failed.
#[derive(Debug)]
pub(crate) struct Failure {
    problem: Problem,
    /// For the server's log; not sent to the client.
    cause: Option<String>,
}

/// Passes the cause of a failure from its answer to the log. Not sent to the client.
#[derive(Clone)]
pub(crate) struct Cause(pub String);

impl Failure {
    pub(crate) fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Self { problem: kind.with(detail), cause: None }
    }

    /// A failure of the server. The client learns only that there was one; the log gets `cause`.
    pub(crate) fn internal(cause: impl Into<String>) -> Self {
        Self { problem: ProblemKind::Internal.with("the server's log says more"), cause: Some(cause.into()) }
    }

    pub(crate) fn method_not_allowed() -> Self {
        let mut failure = Self::new(ProblemKind::Invalid, "this path does not support the method");
        failure.problem.status = StatusCode::METHOD_NOT_ALLOWED.as_u16();
        failure
    }

    /// What the log says of it.
    pub(crate) fn into_cause(self) -> String {
        self.cause.unwrap_or(self.problem.detail)
    }

    fn of(kind: ProblemKind, error: &dyn Error) -> Self {
        let chain = base::chain(error);
        if kind == ProblemKind::Internal {
            return Self::internal(chain);
        }
        let detail = without_paths(kind, error);
        // The operator needs all of what clients get a part of, and the reason where the store is at fault.
        let is_logged = detail != chain || matches!(kind, ProblemKind::Full | ProblemKind::Corrupt);
        Self { problem: kind.with(detail), cause: is_logged.then_some(chain) }
    }
}

/// The chain of `error` as far as it names no path of the repository, which is nothing to clients.
fn without_paths(kind: ProblemKind, error: &dyn Error) -> String {
    let (mut links, mut next) = (Vec::new(), Some(error));
    while let Some(error) = next {
        links.push(error.to_string());
        next = error.source();
    }
    let Some(first) = links.iter().position(|link| store::names_a_path(link)) else {
        return base::chain(error);
    };
    let end = match kind {
        ProblemKind::NotFound => "it is missing in the server's repository",
        ProblemKind::Corrupt => "it is damaged in the server's repository",
        ProblemKind::Full => "the server has no space left for it",
        _ => "the server's log says more",
    };
    links[..first].iter().map(String::as_str).chain([end]).collect::<Vec<_>>().join(": ")
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self.problem).expect("a problem is plain data");
        let mut response = (status, [(CONTENT_TYPE, PROBLEM_TYPE)], body).into_response();
        match self.problem.kind {
            ProblemKind::Unauthorized => {
                response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            ProblemKind::Unavailable => {
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        if let Some(cause) = self.cause {
            response.extensions_mut().insert(Cause(cause));
        }
        response
    }
}

impl From<base::Error> for Failure {
    fn from(error: base::Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::NotFound => ProblemKind::NotFound,
            ErrorKind::Exists => ProblemKind::Exists,
            ErrorKind::Full => ProblemKind::Full,
            ErrorKind::Corrupt => ProblemKind::Corrupt,
            // What the client sent has a codec or format version that this server does not know.
            ErrorKind::Invalid | ErrorKind::Unsupported => ProblemKind::Invalid,
            ErrorKind::Refused | ErrorKind::Revoked | ErrorKind::Incomplete => ProblemKind::Refused,
            _ => ProblemKind::Internal,
        };
        Self::of(kind, &error)
    }
}
