//! Names of files: `NAME@VERSION.raw`, `NAME:TAG.qcow2`, `NAME.raw` for the newest version, and those of their digests.

use std::str::FromStr;

use net::api::ProblemKind;
use store::{FormKind, Reference};

use crate::problem::Failure;

/// A file of a version, or a digest of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileName {
    pub reference: Reference,
    pub kind: FormKind,
    /// The algorithm, if the digest is meant.
    pub sum: Option<Algorithm>,
}

/// An algorithm of a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    Md5,
    Sha256,
    Sha512,
}

impl FromStr for FileName {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let unknown = || {
            let expected = "files are NAME@VERSION.raw and NAME@VERSION.qcow2, and the same with .sha256";
            Failure::new(
                ProblemKind::NotFound,
                format!("`{}` is not a file: {expected}", text.escape_debug()),
            )
        };
        let ends = [(".md5", Algorithm::Md5), (".sha256", Algorithm::Sha256), (".sha512", Algorithm::Sha512)];
        let sum = ends.into_iter().find_map(|(end, sum)| Some((text.strip_suffix(end)?, sum)));
        let (file, sum) = sum.map_or((text, None), |(file, sum)| (file, Some(sum)));
        let (reference, kind) = file.rsplit_once('.').ok_or_else(unknown)?;
        let (Ok(reference), Ok(kind)) = (reference.parse(), kind.parse()) else { return Err(unknown()) };
        Ok(Self { reference, kind, sum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_say_version_format_and_digest() {
        let parse = |text: &str| text.parse::<FileName>().ok();
        let name =
            |reference: &str, kind, sum| Some(FileName { reference: reference.parse().unwrap(), kind, sum });
        let (raw, qcow2) = (FormKind::Raw, FormKind::Qcow2);
        for (text, expected) in [
            ("debian@3.raw", name("debian@3", raw, None)),
            ("debian:web-1.2.qcow2", name("debian:web-1.2", qcow2, None)),
            ("debian-12.7.raw", name("debian-12.7", raw, None)),
            ("debian@3.raw.sha256", name("debian@3", raw, Some(Algorithm::Sha256))),
            ("debian.qcow2.sha512", name("debian", qcow2, Some(Algorithm::Sha512))),
            ("a.raw.md5", name("a", raw, Some(Algorithm::Md5))),
            // An image may have a name that looks like a file's.
            ("a.raw.sha256.raw", name("a.raw.sha256", raw, None)),
            ("debian", None),
            ("debian@3.vmdk", None),
            ("debian@0.raw", None),
            ("debian@3.raw.sha1", None),
            ("..raw", None),
            (".raw", None),
            ("Debian.raw", None),
            ("a/b.raw", None),
            ("", None),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }
}
