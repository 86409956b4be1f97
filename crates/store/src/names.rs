//! Names of images and tags, and references to versions, parsed once into types that cannot be wrong.
//! formats/repository.md, "Names".

use std::fmt;
use std::str::FromStr;

use base::limits::NAME_BYTES_MAX;
use base::{Error, ErrorKind, Result};

/// The tag that can't be set: it always means the newest version.
pub(crate) const LATEST: &str = "latest";

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                check(text, $what)?;
                Ok(Self(text.to_owned()))
            }
        }
    };
}

name_type!(
    /// The name of an image: 1 to [`NAME_BYTES_MAX`] characters of `a-z 0-9 . _ -`, the first a letter or a digit. No
    /// capitals, so that a folder that ignores case works too.
    ImageName,
    "an image"
);
name_type!(
    /// The name of a tag, with the same rules as [`ImageName`].
    TagName,
    "a tag"
);

fn check(text: &str, what: &str) -> Result<()> {
    let allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-');
    let first = text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    if first && text.len() <= NAME_BYTES_MAX && text.bytes().all(allowed) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Invalid,
        format!(
            "`{}` is not a name of {what}: expected 1 to {NAME_BYTES_MAX} of a-z 0-9 . _ -, the first a \
             letter or digit",
            text.escape_debug()
        ),
    ))
}

/// Names a version: `image` or `image:latest` (the newest), `image:tag`, or `image@version`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// The newest version that is not removed.
    Newest(ImageName),
    /// The version that the tag names.
    Tagged(ImageName, TagName),
    /// The version with this number, from 1.
    Version(ImageName, u64),
}

impl Reference {
    /// The image in this reference.
    #[must_use]
    pub fn image(&self) -> &ImageName {
        match self {
            Self::Newest(image) | Self::Tagged(image, _) | Self::Version(image, _) => image,
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Newest(image) => write!(f, "{image}"),
            Self::Tagged(image, tag) => write!(f, "{image}:{tag}"),
            Self::Version(image, number) => write!(f, "{image}@{number}"),
        }
    }
}

impl FromStr for Reference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some((image, number)) = text.split_once('@') {
            let image = image.parse()?;
            return match parse_number(number) {
                Some(number) => Ok(Self::Version(image, number)),
                None => Err(Error::new(
                    ErrorKind::Invalid,
                    format!(
                        "`{}` is not a version of `{image}`: expected a number from 1",
                        number.escape_debug()
                    ),
                )),
            };
        }
        match text.split_once(':') {
            None | Some((_, LATEST)) => {
                Ok(Self::Newest(text.split_once(':').map_or(text, |(image, _)| image).parse()?))
            }
            Some((image, tag)) => Ok(Self::Tagged(image.parse()?, tag.parse()?)),
        }
    }
}

/// A number from 1 in decimal digits without sign or leading zeros.
fn parse_number(text: &str) -> Option<u64> {
    let canonical = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    canonical.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_print_as_they_parse() {
        for text in ["debian", "debian:stable", "debian@1", "a.b_c-d:x", "9:9", "d@18446744073709551615"] {
            assert_eq!(text.parse::<Reference>().unwrap().to_string(), text);
        }
        let newest: Reference = "debian:latest".parse().unwrap();
        assert_eq!(newest, Reference::Newest("debian".parse().unwrap()));
    }

    #[test]
    fn what_could_leave_its_folder_is_no_name() {
        let long = "a".repeat(NAME_BYTES_MAX + 1);
        for text in [
            "", ".", "..", "../x", "a/b", "A", "ä", "a b", "-a", ".a", "_a", "a\n", "a\0", "a%2f", "a#1",
            "a\\b", &long,
        ] {
            assert_eq!(text.parse::<ImageName>().unwrap_err().kind(), ErrorKind::Invalid, "{text:?}");
        }
        for text in [
            "a@",
            "a@0",
            "a@01",
            "a@+1",
            "a@-1",
            "a@x",
            "a@18446744073709551616",
            ":x",
            "a:",
            "a:b:c",
            "a:b@1",
            "@1",
        ] {
            assert_eq!(text.parse::<Reference>().unwrap_err().kind(), ErrorKind::Invalid, "{text:?}");
        }
        assert!("a".repeat(NAME_BYTES_MAX).parse::<ImageName>().is_ok());
    }
}
