//! The one shape of errors: a kind for control flow, a context for people, the source beneath.
//!
//! Each library crate names its own kinds and calls `Fault<Kind>` its `Error`. `Display` prints the context only,
//! so that whoever walks the chain of sources prints each of them once.

use std::fmt;

/// An error of kind `K`: what was tried on which object, and what lay beneath.
pub struct Fault<K> {
    kind: K,
    context: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl<K: Copy> Fault<K> {
    /// A fault that arose here. `context` is lower case, names operation, object and offset:
    /// ``read superblock of `/dev/sdb2` at offset 1024``.
    pub fn new(kind: K, context: impl Into<String>) -> Self {
        Self { kind, context: context.into(), source: None }
    }

    /// The same, with the error beneath it.
    #[must_use]
    pub fn from_source(
        kind: K,
        context: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { kind, context: context.into(), source: Some(source.into()) }
    }

    /// What kind of error it is, for control flow.
    pub fn kind(&self) -> K {
        self.kind
    }
}

impl<K> fmt::Display for Fault<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)
    }
}

impl<K: fmt::Debug> fmt::Debug for Fault<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.context)?;
        match &self.source {
            Some(source) => write!(f, ": {source:?}"),
            None => Ok(()),
        }
    }
}

impl<K: fmt::Debug> std::error::Error for Fault<K> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// The whole chain on one line, each link once: `context: cause: cause`. Foreign errors that print their source
/// themselves do not make it stand there twice.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.ends_with(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Kind {
        Io,
    }

    #[test]
    fn chain_prints_each_link_once() {
        let beneath = std::io::Error::other("disk on fire");
        let fault = Fault::from_source(Kind::Io, "read superblock of `sda`", beneath);
        assert_eq!(fault.kind(), Kind::Io);
        assert_eq!(fault.to_string(), "read superblock of `sda`");
        assert_eq!(chain(&fault), "read superblock of `sda`: disk on fire");
        let wordy = Fault::from_source(Kind::Io, "mount: read superblock of `sda`", fault);
        assert_eq!(chain(&wordy), "mount: read superblock of `sda`: disk on fire");
    }
}
