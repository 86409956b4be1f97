//! The server's certificate: self-signed, made once, and trusted by clients through its fingerprint in the join
//! token.

use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use net::token::Fingerprint;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A certificate with its key.
pub struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// A new key and certificate as PEM text.
    pub(crate) fn make_pem() -> Result<Vec<u8>> {
        let failed = |error| Error::from_source(ErrorKind::Io, "make a certificate", error);
        let key = rcgen::KeyPair::generate().map_err(failed)?;
        let mut parameters = rcgen::CertificateParams::new(vec!["diskcast".to_owned()]).map_err(failed)?;
        parameters.distinguished_name.push(rcgen::DnType::CommonName, "diskcast");
        let certificate = parameters.self_signed(&key).map_err(failed)?;
        Ok(format!("{}{}", key.serialize_pem(), certificate.pem()).into_bytes())
    }

    /// Reads a certificate and its key from PEM text. The error says what is missing.
    pub(crate) fn from_pem(pem: &[u8]) -> std::result::Result<Self, &'static str> {
        let certificate = CertificateDer::from_pem_slice(pem).map_err(|_| "holds no certificate")?;
        let key = PrivateKeyDer::from_pem_slice(pem).map_err(|_| "holds no private key")?;
        Ok(Self { certificate, key })
    }

    /// The certificate's fingerprint, as join tokens have it.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }

    /// The TLS configuration of an HTTP/1.1 server with this certificate.
    pub(crate) fn tls(&self) -> Result<Arc<ServerConfig>> {
        let failed = |error| Error::from_source(ErrorKind::Malformed, "use the server's certificate", error);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config = builder
            .map_err(failed)?
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], self.key.clone_key())
            .map_err(failed)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_made_certificate_serves_tls_and_broken_text_does_not() {
        let pem = Identity::make_pem().unwrap();
        let identity = Identity::from_pem(&pem).unwrap();
        assert!(identity.tls().is_ok());
        assert_eq!(Identity::from_pem(&pem).unwrap().fingerprint(), identity.fingerprint());
        assert!(Identity::from_pem(&pem[..pem.len() / 2]).is_err());
        assert!(Identity::from_pem(b"").is_err());
    }
}
