//! What can go wrong in a repository, sorted by what a caller would do about it.

use base::Fault;

/// The kinds of error of this crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// There is no such repository, image, version, tag or object.
    NotFound,
    /// There is one already.
    Exists,
    /// The store failed; the same call may succeed later.
    Io,
    /// Stored bytes are not what was stored: somebody or something changed them.
    Corrupt,
    /// No space, or no quota, left in the store.
    Full,
    /// A name, reference or location that cannot be one.
    Invalid,
    /// A newer format, or a store that lacks what a repository needs.
    Unsupported,
    /// Forbidden by a rule of the repository or by the store's permissions.
    Refused,
    /// A prune took this writer, or prune, for dead: what it did since its lease began is gone, and it starts again.
    Revoked,
}

/// An error of this crate.
pub type Error = Fault<ErrorKind>;
/// The result of what a repository does.
pub type Result<T> = std::result::Result<T, Error>;

/// The error of an object store while it did `context`, as an error of ours.
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
    let text = base::fault::chain(&error);
    let context = match advice(&text) {
        Some(advice) => format!("{} ({advice})", context.into()),
        None => context.into(),
    };
    match answer(&text) {
        Some(answer) => Error::from_source(kind, context, answer),
        None => Error::from_source(kind, context, error),
    }
}

/// What an S3 store said, out of the XML that it said it in.
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

/// What versitygw says of a key that it does not know, as 404.
const UNKNOWN_KEY_OF_VERSITYGW: &str = "XAdminUserNotFound";

/// What to do about an answer of an S3 store, by the code in it (Amazon S3 API Reference, "Error responses"), or about
/// none.
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
            "the secret is another: correct AWS_SECRET_ACCESS_KEY or the credentials file",
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
        // To a HEAD a store says no more than the status.
        (
            "503 Service Unavailable",
            "the store asks for fewer requests and did so until the retries were used up: try again later",
        ),
        (
            "client error (Connect)",
            "nothing answers there: is the store running, and is AWS_ENDPOINT_URL right?",
        ),
        ("BucketAlreadyExists", "the bucket exists and is another's: choose another name"),
        ("QuotaExceeded", "no space is left there: free some, or let its owner allow more"),
    ];
    answers.into_iter().find(|(code, _)| text.contains(code)).map(|(_, advice)| advice)
}

/// An error of the operating system while it did `context`, as an error of ours.
pub(crate) fn from_io(context: impl Into<String>, error: impl Into<std::io::Error>) -> Error {
    let error = error.into();
    Error::from_source(kind_of_io(&error), context, error)
}

/// Looks for an error of the operating system along the chain of sources.
fn kind_beneath(error: &object_store::Error) -> ErrorKind {
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        if let Some(io) = cause.downcast_ref::<std::io::Error>() {
            return kind_of_io(io);
        }
        next = cause.source();
    }
    ErrorKind::Io
}

fn kind_of_io(error: &std::io::Error) -> ErrorKind {
    use std::io::ErrorKind as K;
    match error.kind() {
        K::StorageFull | K::QuotaExceeded | K::FileTooLarge => ErrorKind::Full,
        K::NotFound => ErrorKind::NotFound,
        K::AlreadyExists => ErrorKind::Exists,
        K::PermissionDenied | K::ReadOnlyFilesystem => ErrorKind::Refused,
        _ => ErrorKind::Io,
    }
}

/// An error of `image` as one of ours.
pub(crate) fn from_image(context: String, error: image::Error) -> Error {
    let kind = match error.kind() {
        image::ErrorKind::NotFound => ErrorKind::NotFound,
        image::ErrorKind::Unsupported => ErrorKind::Unsupported,
        image::ErrorKind::Refused => ErrorKind::Refused,
        image::ErrorKind::Full => ErrorKind::Full,
        image::ErrorKind::Io => ErrorKind::Io,
        image::ErrorKind::Corrupt | image::ErrorKind::Incomplete | image::ErrorKind::Verification => {
            ErrorKind::Corrupt
        }
    };
    Error::from_source(kind, context, error)
}

/// An error of ours as one of `image`, whose seams the repository fills.
pub(crate) fn into_image(error: Error) -> image::Error {
    let kind = match error.kind() {
        ErrorKind::NotFound => image::ErrorKind::NotFound,
        ErrorKind::Corrupt => image::ErrorKind::Corrupt,
        ErrorKind::Unsupported => image::ErrorKind::Unsupported,
        ErrorKind::Refused | ErrorKind::Revoked => image::ErrorKind::Refused,
        ErrorKind::Full => image::ErrorKind::Full,
        ErrorKind::Io | ErrorKind::Exists | ErrorKind::Invalid => image::ErrorKind::Io,
    };
    image::Error::from_source(kind, "use the repository", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_store_come_without_their_xml() {
        let said = "404 Not Found: <?xml?>\n<Error><Code>NoSuchBucket</Code><Message>No such bucket.</Message>\
                    <RequestId>7</RequestId></Error>";
        let error = object_store::Error::NotFound { path: "format".to_owned(), source: said.into() };
        let told = base::fault::chain(&from_store("read `format`", error));
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
}
