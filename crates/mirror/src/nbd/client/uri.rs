//! Addresses of NBD exports, by the NBD project's `doc/uri.md`: `nbd://host:port/export` and
//! `nbd+unix:///export?socket=path`.

use std::fmt;
use std::path::PathBuf;

use base::{Error, ErrorKind, Result};
use url::Url;

/// The port that the protocol has at IANA.
const PORT: u16 = 10809;

/// Where an export is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportAddress {
    /// The server.
    pub server: ServerAddress,
    /// The export's name; empty for the server's default.
    pub export: String,
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerAddress {
    /// A host and its port.
    Tcp(String, u16),
    /// A socket in the filesystem.
    Unix(PathBuf),
}

impl ExportAddress {
    /// Whether `text` begins like an address of an export.
    #[must_use]
    pub fn is_one(text: &str) -> bool {
        ["nbd://", "nbd+unix://", "nbds://", "nbds+unix://"].iter().any(|begin| text.starts_with(begin))
    }

    /// Parses an address. `Invalid` if it is none; `Unsupported` for TLS.
    pub fn parse(text: &str) -> Result<Self> {
        let invalid = |why: &str| {
            Error::new(ErrorKind::Invalid, format!("`{text}` is not the address of an NBD export: {why}"))
        };
        let url = Url::parse(text).map_err(|error| invalid(&error.to_string()))?;
        let decoded = |part: &str| {
            // A path keeps its percent signs; a query's value has lost them.
            let pairs = format!("part={}", part.replace('+', "%2B"));
            url::form_urlencoded::parse(pairs.as_bytes())
                .next()
                .map(|(_, part)| part.into_owned())
                .unwrap_or_default()
        };
        let export = decoded(url.path().strip_prefix('/').unwrap_or_default());
        let server = match url.scheme() {
            "nbd" => {
                let host = url
                    .host_str()
                    .filter(|host| !host.is_empty())
                    .ok_or_else(|| invalid("it names no host"))?;
                ServerAddress::Tcp(host.to_owned(), url.port().unwrap_or(PORT))
            }
            "nbd+unix" => {
                let socket = url.query_pairs().find(|(key, _)| key == "socket");
                let socket = socket.ok_or_else(|| invalid("it names no socket (?socket=PATH)"))?.1;
                ServerAddress::Unix(PathBuf::from(socket.into_owned()))
            }
            "nbds" | "nbds+unix" => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("`{text}`: NBD with TLS is served, but not read"),
                ));
            }
            _ => return Err(invalid("it begins with neither nbd:// nor nbd+unix://")),
        };
        Ok(Self { server, export })
    }
}

impl fmt::Display for ExportAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.server {
            ServerAddress::Tcp(host, port) => write!(f, "nbd://{host}:{port}/{}", self.export),
            ServerAddress::Unix(path) => write!(f, "nbd+unix:///{}?socket={}", self.export, path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_other_clients() {
        let tcp = |host: &str, port, export: &str| ExportAddress {
            server: ServerAddress::Tcp(host.to_owned(), port),
            export: export.to_owned(),
        };
        for (text, expected) in [
            ("nbd://host", tcp("host", 10809, "")),
            ("nbd://host/", tcp("host", 10809, "")),
            ("nbd://10.0.0.1:99/a%20b", tcp("10.0.0.1", 99, "a b")),
            ("nbd://[::1]:99//dev/sda", tcp("[::1]", 99, "/dev/sda")),
            ("nbd://host/a+b", tcp("host", 10809, "a+b")),
        ] {
            assert_eq!(ExportAddress::parse(text).unwrap(), expected, "{text}");
        }
        let found = ExportAddress::parse("nbd+unix:///web?socket=/run/a%20b").unwrap();
        assert_eq!(found.server, ServerAddress::Unix("/run/a b".into()));
        assert_eq!(found.export, "web");
        for text in ["nbd:///x", "nbd+unix:///x", "http://host/x", "nbd", "nbd://host:99999/"] {
            assert_eq!(ExportAddress::parse(text).unwrap_err().kind(), ErrorKind::Invalid, "{text}");
        }
        assert_eq!(ExportAddress::parse("nbds://host/").unwrap_err().kind(), ErrorKind::Unsupported);
        assert!(ExportAddress::is_one("nbd://x") && !ExportAddress::is_one("/dev/nbd0"));
    }
}
