//! Where a repository is stored: a folder, a bucket of an S3 store, a cluster of devices, or memory for tests.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use base::{Error, ErrorKind, Result};

/// Where a repository is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A folder of this machine, which may be a mounted network filesystem.
    Folder(PathBuf),
    /// A bucket of an S3-compatible store, or a part of one. [`crate::S3Access`] has its endpoint and credentials.
    S3(Bucket),
    /// A group of objects in a cluster of devices: `cluster://HOST:PORT/GROUP`, or `cluster+http://…` without TLS.
    /// [`crate::Setting`] has the store.
    Cluster(String),
    /// The memory of this process; lost when the `Repository` value is dropped.
    Memory,
}

/// A bucket, and the prefix under which a repository is stored in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// 3 to 63 of `a-z 0-9 . -`, the first and the last a letter or a digit.
    pub(crate) name: String,
    /// Prefix of the keys of all records, without slashes at its ends. Empty if the repository has the whole bucket.
    pub(crate) prefix: String,
}

impl From<&Path> for Location {
    fn from(path: &Path) -> Self {
        Self::Folder(path.to_owned())
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => write!(f, "{}", path.display()),
            Self::S3(bucket) => write!(f, "{bucket}"),
            Self::Cluster(text) => f.write_str(text),
            Self::Memory => f.write_str("memory:"),
        }
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}", self.name)?;
        if self.prefix.is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

impl FromStr for Location {
    type Err = Error;

    /// Parses `memory:`, `s3://bucket[/prefix]`, `cluster://host:port`, `file:///folder` or a path. Any other
    /// `scheme://` is `Invalid`; it is not treated as a path.
    fn from_str(text: &str) -> Result<Self> {
        let invalid = |why: &str| {
            let text = format!("`{}` is not a repository: {why}", text.escape_debug());
            Err(Error::new(ErrorKind::Invalid, text))
        };
        if text == "memory:" {
            return Ok(Self::Memory);
        }
        if let Some(path) = text.strip_prefix("file://") {
            return match path.starts_with('/') {
                true => Ok(Self::Folder(path.into())),
                false => invalid("expected file:/// and an absolute path"),
            };
        }
        if let Some(rest) = text.strip_prefix("s3://") {
            return match bucket(rest) {
                Ok(bucket) => Ok(Self::S3(bucket)),
                Err(why) => invalid(why),
            };
        }
        if ["cluster://", "cluster+http://"].iter().any(|scheme| text.starts_with(scheme) && text != *scheme)
        {
            // What makes the store reads the rest.
            return Ok(Self::Cluster(text.to_owned()));
        }
        if text.contains("://") {
            return invalid(
                "expected a folder, s3://bucket/prefix, cluster://host:port, file:///folder or memory:",
            );
        }
        if text.is_empty() || text.contains('\0') {
            return invalid("expected a folder");
        }
        Ok(Self::Folder(text.into()))
    }
}

/// Parses `bucket[/prefix]`, or says what is wrong. It can't contain credentials.
fn bucket(text: &str) -> std::result::Result<Bucket, &'static str> {
    let (name, prefix) = text.split_once('/').unwrap_or((text, ""));
    let inner = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-');
    let ends = [name.bytes().next(), name.bytes().last()];
    let ends_well = ends.iter().all(|end| end.is_some_and(|byte| byte.is_ascii_alphanumeric()));
    if !(3..=63).contains(&name.len()) || !name.bytes().all(inner) || !ends_well {
        return Err("expected s3://bucket/prefix, with a bucket of 3 to 63 of a-z 0-9 . -");
    }
    let prefix = prefix.trim_end_matches('/');
    let part = |part: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+=@".contains(&byte);
        !matches!(part, "" | "." | "..") && part.bytes().all(allowed)
    };
    if prefix.len() > 512 || !(prefix.is_empty() || prefix.split('/').all(part)) {
        return Err("expected a prefix of names of A-Z a-z 0-9 . _ - + = @ with a slash between them");
    }
    Ok(Bucket { name: name.to_owned(), prefix: prefix.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_parse() {
        assert_eq!("memory:".parse::<Location>().unwrap(), Location::Memory);
        assert_eq!("file:///srv/d".parse::<Location>().unwrap(), Location::Folder("/srv/d".into()));
        assert_eq!("./a:b".parse::<Location>().unwrap(), Location::Folder("./a:b".into()));
        for (text, name, prefix) in [
            ("s3://images", "images", ""),
            ("s3://images/", "images", ""),
            ("s3://lab.images-1/a/b_c/", "lab.images-1", "a/b_c"),
        ] {
            let bucket = Bucket { name: name.to_owned(), prefix: prefix.to_owned() };
            assert_eq!(text.parse::<Location>().unwrap(), Location::S3(bucket), "{text}");
        }
        let location: Location = "s3://images/lab/".parse().unwrap();
        assert_eq!(location.to_string(), "s3://images/lab");
    }

    #[test]
    fn what_is_no_location_is_refused() {
        for text in [
            "",
            "file://host/d",
            "a\0b",
            "http://host/bucket",
            "s3://",
            "s3://ab",
            "s3://Images",
            "s3://-images",
            "s3://key:secret@bucket",
            "s3://images//a",
            "s3://images/../a",
            "s3://images/a?b",
            "s3://images/a b",
            "s3://images/%2e%2e/b",
        ] {
            assert_eq!(text.parse::<Location>().unwrap_err().kind(), ErrorKind::Invalid, "{text:?}");
        }
    }
}
