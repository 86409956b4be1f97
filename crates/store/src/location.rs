//! Where a repository lies: a folder, or memory for tests.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result};

/// Where a repository lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A folder of this machine, or one that it has mounted.
    Folder(PathBuf),
    /// The memory of this process, gone with the `Repository` value.
    Memory,
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
            Self::Memory => f.write_str("memory:"),
        }
    }
}

impl FromStr for Location {
    type Err = Error;

    /// Parses `memory:`, `file:///folder` or a path. Any other `scheme:` is refused rather than taken for a path.
    fn from_str(text: &str) -> Result<Self> {
        let invalid = |why: &str| {
            Err(Error::new(ErrorKind::Invalid, format!("`{}` is no repository: {why}", text.escape_debug())))
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
        if text.contains("://") {
            return invalid("expected a folder, file:///folder or memory:");
        }
        if text.is_empty() || text.contains('\0') {
            return invalid("expected a folder");
        }
        Ok(Self::Folder(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_parse() {
        assert_eq!("memory:".parse::<Location>().unwrap(), Location::Memory);
        assert_eq!("file:///srv/d".parse::<Location>().unwrap(), Location::Folder("/srv/d".into()));
        assert_eq!("./a:b".parse::<Location>().unwrap(), Location::Folder("./a:b".into()));
        for text in ["", "s3://bucket", "file://host/d", "a\0b"] {
            assert_eq!(text.parse::<Location>().unwrap_err().kind(), ErrorKind::Invalid, "{text:?}");
        }
    }
}
