//! What OpenNebula's words name: images in repositories, and files on hosts.

use std::fmt;

use crate::exit::{Exit, Failure, Result};

/// An image in a repository: `repository:name`, `repository:name@version` or `repository:name:tag`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    pub repository: String,
    /// The image and its version, as `diskcast` takes them.
    pub name: String,
}

/// A file or folder of a machine on a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub host: String,
    pub path: String,
}

impl Source {
    pub(super) fn parse(text: &str) -> Result<Self> {
        match text.split_once(':') {
            Some((repository, name))
                if !repository.is_empty() && !repository.contains('/') && is_plain(name) =>
            {
                Ok(Self { repository: repository.to_owned(), name: name.to_owned() })
            }
            _ => {
                Err(Failure::new(Exit::Usage, format!("`{text}` names no image: expected `repository:name`"))
                    .hint("the image is not from a datastore of diskcast"))
            }
        }
    }

    /// Whether it is one version for ever: machines can't change it.
    pub(super) fn is_pinned(&self) -> bool {
        self.name.contains(['@', ':'])
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.repository, self.name)
    }
}

impl Place {
    /// `HOST:PATH`.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let wrong = |why| Failure::new(Exit::Usage, format!("`{text}` {why}"));
        let (host, path) = text.split_once(':').ok_or_else(|| wrong("is not HOST:PATH"))?;
        // OpenNebula writes two slashes where a setting ends with one.
        let path = path
            .split('/')
            .filter(|part| !part.is_empty())
            .fold(String::new(), |path, part| path + "/" + part);
        let is_path = is_plain(&path) && !path.contains("/../") && !path.ends_with("/..");
        match is_path && is_plain(host) && !host.starts_with('-') {
            true => Ok(Self { host: host.to_owned(), path }),
            false => Err(wrong("has characters that are not allowed in a path")),
        }
    }

    /// Number of the disk: `.../disk.N`. `None` of a folder.
    pub(super) fn disk(&self) -> Option<u32> {
        self.name().strip_prefix("disk.")?.parse().ok()
    }

    pub(super) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// The folder it is in.
    pub(super) fn folder(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(folder, _)| folder)
    }

    /// Whether it is a machine's folder, `DATASTORES/STORE/MACHINE`, or something in one. Only that is ever removed.
    pub(super) fn is_of_a_machine(&self) -> bool {
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let is_folder = |path: &str| {
            let mut parts = path.rsplit('/');
            let machine = parts.next().unwrap_or_default();
            let store = parts.next().unwrap_or_default();
            is_number(machine) && is_number(store) && parts.next().is_some_and(|part| !part.is_empty())
        };
        is_folder(&self.path) || is_folder(self.folder())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.path)
    }
}

/// What OpenNebula says is wrong.
pub(super) fn wrong(text: &str) -> Failure {
    Failure::new(Exit::Usage, text)
}

/// A number of MB, of a disk or of a snapshot.
pub(super) fn number(word: &str) -> Result<u32> {
    word.parse().map_err(|_| wrong(&format!("`{word}` is not a number")))
}

/// Whether a shell takes it as one word, whatever it is put into.
pub(super) fn is_plain(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "/._-@:+=,".contains(c))
}

/// A word for a shell.
pub(super) fn quoted(word: &str) -> String {
    if is_plain(word) { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_of_a_machine_may_be_removed() {
        let is = |text: &str| Place::parse(text).is_ok_and(|place| place.is_of_a_machine());
        assert!(is("h:/var/lib/one/datastores/100/42"));
        assert!(is("h:/var/lib/one//datastores/100/42/disk.0"));
        assert!(is("h:/var/lib/one/datastores/100/42/disk.0.snap"));
        for wrong in
            ["h:/", "h:/100/42", "h:/var/lib/one/datastores/100", "h:/var/lib/one", "h:/a/100/42/../../../b"]
        {
            assert!(!is(wrong), "{wrong}");
        }
        assert!(Place::parse("-oProxyCommand=x:/a/1/2").is_err());
        assert!(Place::parse("h:/a/1/2;reboot").is_err());
        assert!(Place::parse("/a/1/2").is_err());
    }

    #[test]
    fn sources_have_a_repository() {
        let parse = |text: &str| Source::parse(text).map_err(|failure| failure.message).unwrap();
        let source = parse("main:web@3");
        assert_eq!(
            (source.repository.as_str(), source.name.as_str(), source.is_pinned()),
            ("main", "web@3", true)
        );
        assert!(!parse("main:one-7").is_pinned());
        for wrong in ["web", "/var/lib/one/datastores/1/x", ":web", "main:", "main:a b"] {
            assert!(Source::parse(wrong).is_err(), "{wrong}");
        }
    }
}
