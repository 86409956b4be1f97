//! The TLS options of a TCP listener.

use std::sync::Arc;

use rustls::ServerConfig;

use crate::nbd::handshake::Privacy;

/// Whether the clients of a TCP listener may or must use TLS. Clients are authenticated only if the configuration
/// verifies client certificates; without TLS they are not.
#[derive(Debug, Clone)]
pub enum Tls {
    /// No TLS.
    Off,
    /// Clients may use TLS.
    Offered(Arc<ServerConfig>),
    /// Clients that do not use TLS get no information.
    Required(Arc<ServerConfig>),
}

impl Tls {
    pub(crate) fn privacy(&self) -> Privacy {
        match self {
            Self::Off => Privacy::Plain,
            Self::Offered(_) => Privacy::Offered,
            Self::Required(_) => Privacy::Required,
        }
    }

    pub(crate) fn config(&self) -> Option<&Arc<ServerConfig>> {
        match self {
            Self::Off => None,
            Self::Offered(config) | Self::Required(config) => Some(config),
        }
    }
}
