//! TLS for NBD by TCP: a certificate and its key from files.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::settings::TlsSettings;
use crate::error::{Error, ErrorKind, Result};

/// What a server needs. Clients are not asked who they are.
///
/// # Errors
/// `Invalid` if a file holds no PEM of its kind, or the key is another certificate's.
pub fn server(files: &TlsSettings) -> Result<Arc<ServerConfig>> {
    let failed = |path: &std::path::Path| {
        let text = format!("read `{}`", path.display());
        move |error| Error::from_source(ErrorKind::Invalid, text, error)
    };
    let chain = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    let chain = chain.map_err(failed(&files.certificate))?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(failed(&files.key))?;
    let unfit = |error| Error::from_source(ErrorKind::Invalid, "use the certificate for NBD", error);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = builder.map_err(unfit)?.with_no_client_auth().with_single_cert(chain, key).map_err(unfit)?;
    Ok(Arc::new(config))
}
