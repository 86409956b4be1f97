//! Converts errors of an object store into our errors, with advice for users.

use base::{Error, ErrorKind};

/// Converts an error of an object store; `context` says what failed.
pub(crate) fn from_store(context: impl Into<String>, error: object_store::Error) -> Error {
    use object_store::Error as E;
    let kind = match &error {
        E::NotFound { source, .. } if source.to_string().contains(UNKNOWN_KEY_OF_VERSITYGW) => {
            ErrorKind::Refused
        }
        E::NotFound { .. } => ErrorKind::NotFound,
        E::AlreadyExists { .. } | E::Precondition { .. } => ErrorKind::Exists,
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => ErrorKind::Refused,
        E::NotSupported { .. } | E::NotImplemented { .. } => ErrorKind::Unsupported,
        E::InvalidPath { .. } => ErrorKind::Invalid,
        other => kind_beneath(other),
    };
    let text = base::chain(&error);
    let context = match advice(&text) {
        Some(advice) => format!("{} ({advice})", context.into()),
        None => context.into(),
    };
    match answer(&text) {
        Some(answer) => Error::from_source(kind, context, answer),
        None => Error::from_source(kind, context, error),
    }
}

/// The message in the XML answer of an S3 store.
fn answer(text: &str) -> Option<String> {
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        rest.split_once(&format!("</{name}>")).map(|(inner, _)| inner.trim_end_matches('.').to_owned())
    };
    let code = element("Code")?;
    let message = element("Message").map(|message| format!(": {message}")).unwrap_or_default();
    let request = element("RequestId").map(|id| format!(" (request {id})")).unwrap_or_default();
    Some(format!("the store says {code}{message}{request}"))
}

/// The code with which versitygw answers, as 404, if it does not know the key.
const UNKNOWN_KEY_OF_VERSITYGW: &str = "XAdminUserNotFound";

/// Advice for an error of an S3 store, found by the code in its answer (Amazon S3 API Reference, "Error responses")
/// or by the text of a connection error.
fn advice(text: &str) -> Option<&'static str> {
    let answers = [
        ("NoSuchBucket", "there is no such bucket: make it first, or correct its name or AWS_ENDPOINT_URL"),
        (
            "InvalidAccessKeyId",
            "the store does not know this key: correct AWS_ACCESS_KEY_ID or the credentials file",
        ),
        (
            UNKNOWN_KEY_OF_VERSITYGW,
            "the store does not know this key: correct AWS_ACCESS_KEY_ID or the credentials file",
        ),
        (
            "SignatureDoesNotMatch",
            "the secret is wrong: correct AWS_SECRET_ACCESS_KEY or the credentials file",
        ),
        ("ExpiredToken", "the credentials have expired: get new ones and set AWS_SESSION_TOKEN with them"),
        ("RequestTimeTooSkewed", "the clocks of this machine and the store differ: set this machine's"),
        ("AuthorizationHeaderMalformed", "the bucket is in another region: correct AWS_REGION"),
        ("PermanentRedirect", "the bucket is in another region: correct AWS_REGION"),
        (
            "AccessDenied",
            "this key may not do that: let its owner allow it to get, put, list and delete in the bucket",
        ),
        (
            "SlowDown",
            "the store asks for fewer requests and did so until the retries were used up: try again later",
        ),
        // A HEAD answer has no body, so only its status is known.
        (
            "503 Service Unavailable",
            "the store asks for fewer requests and did so until the retries were used up: try again later",
        ),
        (
            "client error (Connect)",
            "nothing answers there: is the store running, and is AWS_ENDPOINT_URL right?",
        ),
        ("BucketAlreadyExists", "the bucket exists and belongs to somebody else: choose another name"),
        ("QuotaExceeded", "no space is left there: free some, or let its owner allow more"),
    ];
    answers.into_iter().find(|(code, _)| text.contains(code)).map(|(_, advice)| advice)
}

/// The kind of the first I/O error in the chain of sources, or what the client of a cluster says of its devices; `Io`
/// if there is neither.
fn kind_beneath(error: &object_store::Error) -> ErrorKind {
    use ErrorKind::{Corrupt, Denied, Full, Unreachable, Untrusted};
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        if let Some(own) = cause.downcast_ref::<Error>()
            && matches!(own.kind(), Corrupt | Denied | Full | Unreachable | Untrusted)
        {
            return own.kind();
        }
        if let Some(io) = cause.downcast_ref::<std::io::Error>() {
            return io.kind().into();
        }
        next = cause.source();
    }
    ErrorKind::Io
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_store_come_without_their_xml() {
        let said = "404 Not Found: <?xml?>\n<Error><Code>NoSuchBucket</Code><Message>No such bucket.</Message>\
                    <RequestId>7</RequestId></Error>";
        let error = object_store::Error::NotFound { path: "format".to_owned(), source: said.into() };
        let told = base::chain(&from_store("read `format`", error));
        assert!(told.starts_with("read `format` (there is no such bucket: "), "{told}");
        assert!(told.ends_with("): the store says NoSuchBucket: No such bucket (request 7)"), "{told}");
    }

    #[test]
    fn a_full_disk_is_told_from_other_faults_below_any_wrapping() {
        for (io, kind) in [
            (std::io::Error::from(std::io::ErrorKind::StorageFull), ErrorKind::Full),
            (std::io::Error::from_raw_os_error(122), ErrorKind::Full),
            (std::io::Error::from_raw_os_error(5), ErrorKind::Io),
            (std::io::Error::from(std::io::ErrorKind::ReadOnlyFilesystem), ErrorKind::Refused),
        ] {
            let wrapped = object_store::Error::Generic { store: "test", source: Box::new(io) };
            assert_eq!(from_store("put", wrapped).kind(), kind);
        }
    }

    #[test]
    fn what_devices_of_a_cluster_can_not_be_reached_for_is_not_damaged() {
        use ErrorKind::{Corrupt, Denied, Full, Io, NotFound, Revoked, Unreachable, Untrusted};
        use base::Subject;
        let kinds = [Unreachable, Corrupt, Denied, Full, Untrusted].map(|kind| (kind, kind));
        // What `store` acts upon is said by the store itself, not by what is beneath.
        for (beneath, kind) in kinds.into_iter().chain([(NotFound, Io), (Revoked, Io)]) {
            let source = Box::new(Error::new(beneath, "too few devices").about(Subject::Cluster));
            let wrapped = object_store::Error::Generic { store: "cluster", source };
            let error = from_store("get", wrapped);
            assert_eq!((error.kind(), error.subject()), (kind, Some(Subject::Cluster)));
        }
    }
}
