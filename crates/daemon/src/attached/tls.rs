//! TLS for NBD over TCP, with a certificate and its key from files. Clients show a certificate, too, if an authority
//! for theirs is given.

use std::path::Path;
use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};

use super::settings::TlsSettings;
use crate::auth::pem::{certificates, private_key};

/// The TLS configuration of the NBD server.
///
/// # Errors
/// `Invalid` if a file has no PEM text of its kind, or the key does not belong to the certificate; `Refused` if others
/// than its owner may read the key.
pub(super) fn server(files: &TlsSettings) -> Result<Arc<ServerConfig>> {
    let chain = certificates(&files.certificate)?;
    let key = private_key(&files.key)?;
    let unfit = |error| Error::from_source(ErrorKind::Invalid, "use the certificate for NBD", error);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(unfit)?;
    let builder = match &files.client_authority {
        Some(path) => builder.with_client_cert_verifier(signed_by(path)?),
        None => builder.with_no_client_auth(),
    };
    Ok(Arc::new(builder.with_single_cert(chain, key).map_err(unfit)?))
}

/// Accepts clients that show a certificate which an authority in the file `path` has signed.
fn signed_by(path: &Path) -> Result<Arc<dyn ClientCertVerifier>> {
    let mut authorities = RootCertStore::empty();
    let unfit = |error: Box<dyn std::error::Error + Send + Sync>| {
        let text = format!("use `{}` for the certificates of clients", path.display());
        Error::from_source(ErrorKind::Invalid, text, error)
    };
    for certificate in certificates(path)? {
        authorities.add(certificate).map_err(|error| unfit(error.into()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider);
    verifier.build().map(|verifier| verifier as _).map_err(|error| unfit(error.into()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::private_file::make_private;

    #[test]
    fn a_certificate_and_its_own_key_serve_and_others_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let made = rcgen::generate_simple_self_signed(vec!["disks".to_owned()]).unwrap();
            let files = TlsSettings {
                certificate: folder.path().join(format!("{name}.pem")),
                key: folder.path().join(format!("{name}.key")),
                client_authority: None,
            };
            make_private(&files.certificate, made.cert.pem().as_bytes()).unwrap();
            make_private(&files.key, made.signing_key.serialize_pem().as_bytes()).unwrap();
            files
        };
        let (one, two) = (make("one"), make("two"));
        assert!(server(&one).is_ok());
        let mixed = TlsSettings { key: two.key.clone(), ..one.clone() };
        let swapped =
            TlsSettings { certificate: one.key.clone(), key: one.certificate.clone(), ..one.clone() };
        let missing = TlsSettings { key: folder.path().join("none"), ..one.clone() };
        let with_clients =
            |path: &Path| TlsSettings { client_authority: Some(path.to_owned()), ..one.clone() };
        assert!(server(&with_clients(&two.certificate)).is_ok());
        let (no_authority, no_file) = (with_clients(&two.key), with_clients(Path::new("none")));
        for files in [mixed, swapped, missing, no_authority, no_file] {
            assert_eq!(server(&files).unwrap_err().kind(), ErrorKind::Invalid);
        }
        std::fs::set_permissions(&one.key, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(server(&one).unwrap_err().kind(), ErrorKind::Refused);
    }
}
