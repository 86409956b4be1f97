//! Paths of the API, percent-encoded.

use image::{ObjectKind, ObjectRef};

use super::PREFIX;

/// `GET`: the repository's id, and how it is encrypted.
#[must_use]
pub fn repository() -> String {
    format!("{PREFIX}/repository")
}

/// `GET`: what the request's token grants; `POST`: a new token that grants the same.
#[must_use]
pub fn token() -> String {
    format!("{PREFIX}/token")
}

/// `PUT`: the progress of the fetch `id`, 32 hexadecimal digits.
#[must_use]
pub fn host(id: &str) -> String {
    format!("{PREFIX}/hosts/{}", escape(id))
}

/// `POST`: joins the swarm of a version.
#[must_use]
pub fn swarms() -> String {
    format!("{PREFIX}/swarms")
}

/// `POST`: starts a probe of the network.
#[must_use]
pub fn probes() -> String {
    format!("{PREFIX}/probes")
}

/// `GET`: the state of the probe `id`, 32 hexadecimal digits.
#[must_use]
pub fn probe(id: &str) -> String {
    format!("{PREFIX}/probes/{}", escape(id))
}

/// `GET`: what becomes of the machines that fetch.
#[must_use]
pub fn status() -> String {
    format!("{PREFIX}/status")
}

/// `GET`: the machines that boot from the network.
#[must_use]
pub fn machines() -> String {
    format!("{PREFIX}/machines")
}

/// `POST`: a machine that booted from the network asks what to do.
pub(crate) fn machine_call() -> String {
    format!("{PREFIX}/machines/call")
}

/// `POST`: changes the table of machines.
pub(crate) fn machine_changes() -> String {
    format!("{PREFIX}/machines/changes")
}

/// `POST`: what a change of the table would do.
pub(crate) fn machine_change_plans() -> String {
    format!("{PREFIX}/machines/changes/plan")
}

/// `GET`: what a machine's console showed of its last job.
pub(crate) fn machine_log(mac: &str) -> String {
    format!("{PREFIX}/machines/{mac}/log")
}

/// `PUT`: switches machines; `GET`: how far that is.
pub(crate) fn machine_power(id: u128) -> String {
    format!("{PREFIX}/machines/power/{id:032x}")
}

/// `POST`: gives machines a job.
#[must_use]
pub fn jobs() -> String {
    format!("{PREFIX}/jobs")
}

/// `POST`: what giving machines a job would do.
pub(crate) fn job_plans() -> String {
    format!("{PREFIX}/jobs/plan")
}

/// `GET`: all images.
#[must_use]
pub fn images() -> String {
    format!("{PREFIX}/images")
}

/// `GET`: all images, with the manifests of their newest versions.
pub(crate) fn images_with_manifests(after: Option<&str>) -> String {
    let after = after.map(|name| format!("&after={}", escape(name))).unwrap_or_default();
    format!("{}?manifests=true{after}", images())
}

/// `GET`: the versions of an image; `POST`: publishes a draft (a manifest without a number).
#[must_use]
pub fn versions(image: &str) -> String {
    format!("{PREFIX}/images/{}/versions", escape(image))
}

/// `POST`: publishes a draft if `expect` is the newest version; 0 if the image does not exist yet.
#[must_use]
pub(crate) fn versions_onto(image: &str, expect: u64) -> String {
    format!("{}?expect={expect}", versions(image))
}

/// `GET`: the newest version of an image; `POST`: creates an empty image.
#[must_use]
pub fn image(image: &str) -> String {
    format!("{PREFIX}/images/{}", escape(image))
}

/// `POST`: creates an image that starts as a version of another one.
#[must_use]
pub fn clone_of(image: &str) -> String {
    format!("{PREFIX}/images/{}/clone", escape(image))
}

/// `PUT`: writes to an image at an offset; with `expect` only if that is the newest version.
#[must_use]
pub(crate) fn content_at(image: &str, offset: u64, expect: Option<u64>) -> String {
    let expect = expect.map(|number| format!("&expect={number}")).unwrap_or_default();
    format!("{PREFIX}/images/{}/content?offset={offset}{expect}", escape(image))
}

/// `POST`: appends to an image, which grows by `bytes` bytes.
#[must_use]
pub fn append(image: &str, bytes: u64) -> String {
    format!("{PREFIX}/images/{}/content?bytes={bytes}", escape(image))
}

/// `POST`: writes and frees pieces of an image; with `expect` only if that is the newest version.
#[must_use]
pub fn commit(image: &str, expect: Option<u64>) -> String {
    let expect = expect.map(|number| format!("?expect={number}")).unwrap_or_default();
    format!("{PREFIX}/images/{}/commit{expect}", escape(image))
}

/// `GET`: `bytes` bytes of a version, from `offset` on.
#[must_use]
pub fn content(reference: &str, offset: u64, bytes: usize) -> String {
    format!("{PREFIX}/content/{}?offset={offset}&bytes={bytes}", escape(reference))
}

/// `GET`: what a machine that boots from a version is likely to read.
#[must_use]
pub fn profile(image: &str, version: u64) -> String {
    format!("{}?version={version}", boots(image))
}

/// `POST`: reports what a machine read when it booted.
#[must_use]
pub fn boots(image: &str) -> String {
    format!("{PREFIX}/images/{}/profile", escape(image))
}

/// `POST`: reports what a machine that boots has just read; answered with what other machines have read.
#[must_use]
pub fn reads(image: &str) -> String {
    format!("{PREFIX}/images/{}/reads", escape(image))
}

/// `GET`: the newest record of a tag.
#[must_use]
pub fn tag(image: &str, tag: &str) -> String {
    format!("{PREFIX}/images/{}/tags/{}", escape(image), escape(tag))
}

/// `GET`: the newest cut-over record of an image.
#[must_use]
pub fn cut_over(image: &str) -> String {
    format!("{PREFIX}/images/{}/cut-over", escape(image))
}

/// `GET`: the manifest of `image`, `image:tag` or `image@version`.
#[must_use]
pub fn manifest(reference: &str) -> String {
    format!("{PREFIX}/manifests/{}", escape(reference))
}

/// `GET`: the torrent of `image`, `image:tag` or `image@version`, for version 1 of BitTorrent.
#[must_use]
pub fn torrent(reference: &str) -> String {
    format!("{PREFIX}/torrents/{}", escape(reference))
}

/// `GET`, `HEAD`, `PUT`: an object of this length. A stored object of another length is damaged and counts as
/// missing.
#[must_use]
pub fn object(object: &ObjectRef) -> String {
    format!("{PREFIX}/objects/{}/{}?bytes={}", segment(object.kind), object.digest, object.len)
}

/// A kind of object in a path: `chunks` or `nodes`.
#[must_use]
pub fn segment(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Chunk => "chunks",
        ObjectKind::Node => "nodes",
    }
}

/// `GET`: statistics of all sessions; `POST`: requests a grant for one.
#[must_use]
pub fn sessions() -> String {
    format!("{PREFIX}/sessions")
}

/// Percent-encodes all characters except the unreserved ones (RFC 3986, section 2.3); the slash is encoded too.
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
