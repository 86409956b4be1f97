//! TLS, as clients of a TCP listener have it.

use std::sync::Arc;

use rustls::ServerConfig;

use crate::nbd::handshake::Privacy;

/// How clients of a TCP listener stand to TLS. Who they are is asked if the configuration verifies certificates of
/// clients, and not at all without TLS.
#[derive(Debug, Clone)]
pub enum Tls {
    /// There is none.
    Off,
    /// Who asks for it gets it.
    Offered(Arc<ServerConfig>),
    /// Who does not ask for it is told nothing.
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
