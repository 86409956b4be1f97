//! Where a cluster is, and with what it is joined.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use reqwest::Client;

use crate::http::{Instances, client};
use crate::token::ClusterToken;

const TLS: &str = "cluster://";
const PLAIN: &str = "cluster+http://";

/// The metadata service of a cluster, a group of objects there, and the token.
#[derive(Debug, Clone)]
pub struct ClusterAccess {
    /// Addresses of instances of the metadata service: `https://10.0.0.1:7400`.
    pub metadata: Vec<String>,
    /// The group: one repository each.
    pub group: u32,
    /// The token.
    pub token: ClusterToken,
    /// What names begin with whose content is always the same: a reader may take it from what it has in memory, also
    /// after another client deleted it.
    pub immutable: &'static [&'static str],
    /// The instance that answered last.
    pub(crate) last: Arc<AtomicUsize>,
}

impl ClusterAccess {
    /// The access to `cluster://HOST:PORT[,HOST:PORT]…[/GROUP]`; with `cluster+http://` in plain HTTP.
    ///
    /// # Errors
    /// `Invalid` if `text` is no such location.
    pub fn parse(text: &str, token: ClusterToken) -> Result<Self> {
        let wrong = || {
            let detail = "expected cluster://HOST:PORT[,HOST:PORT][/GROUP], with a group from 1 on";
            Error::new(ErrorKind::Invalid, format!("`{}`: {detail}", text.escape_debug()))
        };
        let (scheme, rest) = [(TLS, "https"), (PLAIN, "http")]
            .into_iter()
            .find_map(|(prefix, scheme)| Some((scheme, text.strip_prefix(prefix)?)))
            .ok_or_else(wrong)?;
        let (hosts, group) = rest.split_once('/').unwrap_or((rest, "1"));
        let group: u32 = group.parse().map_err(|_| wrong())?;
        let is_host = |host: &str| {
            let port = host.rsplit_once(':').map(|(name, port)| (!name.is_empty(), port.parse::<u16>()));
            let plain = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte));
            plain && matches!(port, Some((true, Ok(1..))))
        };
        if group == 0 || group == u32::MAX || !hosts.split(',').all(is_host) {
            return Err(wrong());
        }
        let metadata = hosts.split(',').map(|host| format!("{scheme}://{host}")).collect();
        Ok(Self { metadata, group, token, immutable: &[], last: Arc::default() })
    }

    pub(super) fn instances(&self, patience: Duration) -> Instances<'_> {
        Instances { addresses: &self.metadata, last: &self.last, patience }
    }

    /// An HTTP client for the cluster's parts.
    pub(super) fn http(&self) -> Result<Client> {
        client(&self.token, self.speaks_tls())
    }

    fn speaks_tls(&self) -> bool {
        self.metadata.iter().all(|address| address.starts_with("https://"))
    }

    /// The same for a repository, whose chunks and nodes are named by their content.
    #[must_use]
    pub fn of_repository(self) -> Self {
        Self { immutable: &["chunks/", "nodes/"], ..self }
    }
}

impl fmt::Display for ClusterAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<_> = self.metadata.iter().filter_map(|address| address.split("//").nth(1)).collect();
        let prefix = if self.speaks_tls() { TLS } else { PLAIN };
        write!(f, "{prefix}{}/{}", hosts.join(","), self.group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_read() {
        let token = ClusterToken::random().unwrap();
        let access = ClusterAccess::parse("cluster://10.0.0.1:7400,meta-2:7400/7", token.clone()).unwrap();
        assert_eq!(access.metadata, ["https://10.0.0.1:7400", "https://meta-2:7400"]);
        assert_eq!((access.group, access.to_string().as_str()), (7, "cluster://10.0.0.1:7400,meta-2:7400/7"));
        let plain = ClusterAccess::parse("cluster+http://[::1]:7400", token.clone()).unwrap();
        assert_eq!(plain.metadata, ["http://[::1]:7400"]);
        assert_eq!((plain.group, plain.to_string().as_str()), (1, "cluster+http://[::1]:7400/1"));
        for wrong in [
            "cluster://",
            "cluster://a",
            "cluster://a:0",
            "cluster://a:1/0",
            "cluster://a:1/x",
            "s3://a:1",
            "cluster://a b:1",
        ] {
            let error = ClusterAccess::parse(wrong, token.clone()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{wrong}");
        }
    }
}
