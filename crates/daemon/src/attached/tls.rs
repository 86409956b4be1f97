//! TLS for NBD over TCP, with a certificate and its key from files.

use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::settings::TlsSettings;

/// The TLS configuration of the NBD server. It does not authenticate clients.
///
/// # Errors
/// `Invalid` if a file has no PEM text of its kind, or the key does not belong to the certificate.
pub(super) fn server(files: &TlsSettings) -> Result<Arc<ServerConfig>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_and_its_own_key_serve_and_others_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let made = rcgen::generate_simple_self_signed(vec!["disks".to_owned()]).unwrap();
            let files = TlsSettings {
                certificate: folder.path().join(format!("{name}.pem")),
                key: folder.path().join(format!("{name}.key")),
            };
            std::fs::write(&files.certificate, made.cert.pem()).unwrap();
            std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
            files
        };
        let (one, two) = (make("one"), make("two"));
        assert!(server(&one).is_ok());
        let mixed = TlsSettings { key: two.key.clone(), ..one.clone() };
        let swapped = TlsSettings { certificate: one.key.clone(), key: one.certificate.clone() };
        let missing = TlsSettings { key: folder.path().join("none"), ..one };
        for files in [mixed, swapped, missing] {
            assert_eq!(server(&files).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }
}
