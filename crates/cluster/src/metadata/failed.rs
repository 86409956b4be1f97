//! Why a request to etcd brought no answer, in words that say what to do.

use std::io;

use base::{Error, ErrorKind, Subject};
use reqwest::StatusCode;
use rustls::{AlertDescription, CertificateError, InvalidMessage};
use serde::Deserialize;

use crate::http::{place, tls_failure};

/// Codes of gRPC, in the field `code` of etcd's errors.
const INVALID_ARGUMENT: u64 = 3;
const NOT_FOUND: u64 = 5;
const EXHAUSTED: u64 = 8;
const PRECONDITION: u64 = 9;
const UNAUTHENTICATED: u64 = 16;

/// Why a request brought no answer.
#[derive(Debug)]
pub(super) enum Failed {
    /// No member answered: the change may have been made.
    Unknown(String),
    /// One of the two sides does not trust the other, or one of them speaks no TLS: nothing was changed.
    Untrusted(Error),
    /// The token has ended, or there was none. Nothing was changed: a member looks at the token before it proposes a
    /// change to the others, and each of them at the user's rights before it makes the change (`AuthInfoFromCtx` and
    /// `apply_auth.go` of etcd). So the request may be repeated with another token.
    Token(Error),
    /// etcd refused: nothing was changed.
    Refused(Error),
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Unknown(why) => Self::new(ErrorKind::Io, format!("no member of etcd answers: {why}")),
            Failed::Untrusted(error) | Failed::Token(error) | Failed::Refused(error) => error,
        }
    }
}

/// How etcd refuses.
#[derive(Debug, Deserialize)]
struct Refusal {
    #[serde(default)]
    message: String,
    #[serde(default)]
    code: u64,
}

/// What a request means that brought no answer of HTTP.
pub(super) fn unanswered(error: reqwest::Error) -> Failed {
    let at = place(error.url());
    let untrusted = |text: String| Failed::Untrusted(about(ErrorKind::Untrusted, text));
    let plain = error.url().is_some_and(|url| url.scheme() == "http");
    let mut cause: &dyn std::error::Error = &error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    match tls_failure(cause) {
        Some(rustls::Error::InvalidCertificate(why)) => untrusted(match why {
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                format!("the certificate of {at} does not have this name: --etcd names members as theirs do")
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                format!("the certificate of {at} has expired, or a clock is wrong")
            }
            // An authority of the same name with another key makes a bad signature.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                format!("the certificate of {at} was not signed by the authority of --etcd-ca")
            }
            why => format!("the certificate of {at} can't be trusted: {why}"),
        }),
        Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            untrusted(format!("{at} does not speak TLS: its address begins with http://"))
        }
        Some(rustls::Error::AlertReceived(
            AlertDescription::BadCertificate
            | AlertDescription::CertificateRequired
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::UnknownCA,
        )) => untrusted(format!(
            "{at} wants a certificate that the authority of its --trusted-ca-file has signed for clients: \
             --etcd-certificate and --etcd-key name it"
        )),
        _ => {
            let hint = if plain && error.is_request() && !error.is_connect() && !error.is_timeout() {
                "; if it speaks TLS, its address begins with https://"
            } else if error.is_connect() && broke_off(cause) {
                "; if it does not speak TLS, its address begins with http://"
            } else {
                ""
            };
            Failed::Unknown(format!("{}{hint}", base::chain(&error.without_url())))
        }
    }
}

/// Whether the other side ended the connection. Errors of I/O hold others that they do not name as their source.
fn broke_off(cause: &(dyn std::error::Error + 'static)) -> bool {
    let ends = [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
    cause.downcast_ref::<io::Error>().is_some_and(|error| {
        ends.contains(&error.kind()) || error.get_ref().is_some_and(|inner| broke_off(inner))
    })
}

/// What an answer means that is no success.
pub(super) fn refused(status: StatusCode, body: &[u8]) -> Failed {
    let refused = |kind, text: String| Failed::Refused(about(kind, text));
    let denied = |text: String| refused(ErrorKind::Denied, text);
    let Ok(Refusal { message, code }) = serde_json::from_slice::<Refusal>(body) else {
        // `accessController` of etcd, which stands before its gateway.
        return if body.starts_with(b"CommonName of client") {
            let text = "etcd takes no requests over HTTP with a certificate that has a common name: --etcd-certificate \
                        needs one without";
            denied(text.to_owned())
        } else {
            Failed::Unknown(format!("status {status}"))
        };
    };
    match code {
        EXHAUSTED if message.contains("space") => refused(
            ErrorKind::Full,
            format!(
                "{message}: the database of etcd has reached its quota, and nothing can be changed. `etcdctl compact`, \
                 `etcdctl defrag` and `etcdctl alarm disarm` make room: docs/cluster.md"
            ),
        ),
        NOT_FOUND => refused(ErrorKind::NotFound, message),
        UNAUTHENTICATED => token(&message),
        INVALID_ARGUMENT
            if message.contains("user name is empty") || message.contains("auth store is old") =>
        {
            token(&message)
        }
        INVALID_ARGUMENT if message.contains("authentication failed") => {
            denied("etcd does not know the user of --etcd-user, or the password is wrong".to_owned())
        }
        PRECONDITION if message.contains("authentication is not enabled") => {
            let text = "etcd lets in everybody: `etcdctl auth enable`, or leave --etcd-user away";
            refused(ErrorKind::Refused, text.to_owned())
        }
        _ if status == StatusCode::BAD_REQUEST => {
            refused(ErrorKind::Invalid, format!("etcd refused: {message}"))
        }
        _ if status == StatusCode::FORBIDDEN => denied(format!(
            "etcd refused: {message}: the user's role must be to read and write all keys of this cluster: \
             docs/cluster.md"
        )),
        _ if status.is_client_error()
            && status != StatusCode::TOO_MANY_REQUESTS
            && status != StatusCode::REQUEST_TIMEOUT =>
        {
            denied(format!("etcd refused: {message}"))
        }
        // It has no leader, or was too slow: the change may have been made.
        _ => Failed::Unknown(message),
    }
}

fn token(message: &str) -> Failed {
    let text =
        format!("etcd lets in its users only ({message}): --etcd-user and --etcd-password-file name one");
    Failed::Token(about(ErrorKind::Denied, text))
}

fn about(kind: ErrorKind, text: String) -> Error {
    Error::new(kind, text).about(Subject::Cluster)
}
