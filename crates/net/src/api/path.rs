//! Paths of the API, escaped.

use image::{ObjectKind, ObjectRef};

use super::PREFIX;

/// `GET`: which repository it is, and how it is encrypted.
#[must_use]
pub fn repository() -> String {
    format!("{PREFIX}/repository")
}

/// `GET`: what the request's token grants; `POST`: another one that grants the same.
#[must_use]
pub fn token() -> String {
    format!("{PREFIX}/token")
}

/// `GET`: all images.
#[must_use]
pub fn images() -> String {
    format!("{PREFIX}/images")
}

/// `GET`: the versions of an image; `POST` a manifest without number: publish it.
#[must_use]
pub fn versions(image: &str) -> String {
    format!("{PREFIX}/images/{}/versions", escape(image))
}

/// `POST` a manifest without number: publish it, if `expect` is the newest version; 0 if there is no such image.
#[must_use]
pub(crate) fn versions_onto(image: &str, expect: u64) -> String {
    format!("{}?expect={expect}", versions(image))
}

/// `GET`: the newest version of an image; `POST`: make an empty one.
#[must_use]
pub fn image(image: &str) -> String {
    format!("{PREFIX}/images/{}", escape(image))
}

/// `POST`: make an image that begins as a version of another.
#[must_use]
pub fn clone_of(image: &str) -> String {
    format!("{PREFIX}/images/{}/clone", escape(image))
}

/// `PUT`: write to an image at an offset; with `expect` only onto that version.
#[must_use]
pub(crate) fn content_at(image: &str, offset: u64, expect: Option<u64>) -> String {
    let expect = expect.map(|number| format!("&expect={number}")).unwrap_or_default();
    format!("{PREFIX}/images/{}/content?offset={offset}{expect}", escape(image))
}

/// `POST`: append to an image, which grows by `bytes` bytes.
#[must_use]
pub fn append(image: &str, bytes: u64) -> String {
    format!("{PREFIX}/images/{}/content?bytes={bytes}", escape(image))
}

/// `POST`: write and free pieces of an image; with `expect` only onto that version.
#[must_use]
pub fn commit(image: &str, expect: Option<u64>) -> String {
    let expect = expect.map(|number| format!("?expect={number}")).unwrap_or_default();
    format!("{PREFIX}/images/{}/commit{expect}", escape(image))
}

/// `GET`: bytes of a version.
#[must_use]
pub fn content(reference: &str, offset: u64, bytes: usize) -> String {
    format!("{PREFIX}/content/{}?offset={offset}&bytes={bytes}", escape(reference))
}

/// `GET`: what a machine that starts from a version is likely to read.
#[must_use]
pub fn profile(image: &str, version: u64) -> String {
    format!("{}?version={version}", boots(image))
}

/// `POST`: what a machine read when it started.
#[must_use]
pub fn boots(image: &str) -> String {
    format!("{PREFIX}/images/{}/profile", escape(image))
}

/// `POST`: what a machine that starts has just read, for what others have.
#[must_use]
pub fn reads(image: &str) -> String {
    format!("{PREFIX}/images/{}/reads", escape(image))
}

/// `GET`: the record that says where a tag is.
#[must_use]
pub fn tag(image: &str, tag: &str) -> String {
    format!("{PREFIX}/images/{}/tags/{}", escape(image), escape(tag))
}

/// `GET`: the manifest of `image`, `image:tag` or `image@version`.
#[must_use]
pub fn manifest(reference: &str) -> String {
    format!("{PREFIX}/manifests/{}", escape(reference))
}

/// `GET`, `HEAD`, `PUT`: an object of this length; one of another length is damaged, and counts as missing.
#[must_use]
pub fn object(object: &ObjectRef) -> String {
    format!("{PREFIX}/objects/{}/{}?bytes={}", segment(object.kind), object.digest, object.len)
}

/// A kind of object as it stands in a path: `chunks` or `nodes`.
#[must_use]
pub fn segment(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Chunk => "chunks",
        ObjectKind::Node => "nodes",
    }
}

/// `GET`: statistics of all sessions; `POST`: take part in one.
#[must_use]
pub fn sessions() -> String {
    format!("{PREFIX}/sessions")
}

/// Percent-encodes all but the unreserved characters (RFC 3986, section 2.3), the slash too.
#[must_use]
pub(crate) fn escape(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut path, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            path.push(char::from(byte));
        } else {
            path.push_str(&format!("%{byte:02X}"));
        }
        path
    })
}
