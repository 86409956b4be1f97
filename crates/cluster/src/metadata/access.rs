//! What etcd must prove to an instance of the metadata service, and what the instance shows to etcd.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use reqwest::{Client, Url};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// How etcd and this instance recognise each other.
#[derive(Debug, Default)]
pub struct EtcdAccess {
    /// Authorities, of which one has signed the certificate of each member. TLS needs one.
    pub authorities: Vec<CertificateDer<'static>>,
    /// The certificate that members are shown, followed by those that lead to its authority, and its key.
    pub certificate: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    /// The user, if etcd has any.
    pub user: Option<EtcdUser>,
}

/// A user of etcd.
#[derive(Debug, Clone)]
pub struct EtcdUser {
    /// Name of the user.
    pub name: String,
    /// The password.
    pub password: Secret,
}

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

impl EtcdAccess {
    /// A client for requests to these members.
    ///
    /// # Errors
    /// `Invalid` if an address is none, if TLS lacks an authority or nothing uses what is for TLS, if a password would
    /// pass in the clear, or if a certificate can't be used; `Io` if the client can't be set up.
    pub(super) fn client(&self, members: &[String]) -> Result<Client> {
        members.iter().try_for_each(|member| self.check(member))?;
        let unfit = |error| Error::from_source(ErrorKind::Invalid, "use the certificates for etcd", error);
        let mut roots = RootCertStore::empty();
        self.authorities.iter().try_for_each(|authority| roots.add(authority.clone())).map_err(unfit)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(unfit)?
            .with_root_certificates(roots);
        let tls = match &self.certificate {
            Some((chain, key)) => {
                builder.with_client_auth_cert(chain.clone(), key.clone_key()).map_err(unfit)?
            }
            None => builder.with_no_client_auth(),
        };
        crate::http::made(Client::builder().use_preconfigured_tls(tls))
    }

    fn check(&self, member: &str) -> Result<()> {
        let url = Url::parse(member).ok().filter(|url| {
            matches!(url.scheme(), "http" | "https") && url.username().is_empty() && url.password().is_none()
        });
        let url = url.ok_or_else(|| {
            invalid("an address of etcd is http://HOST:PORT or https://HOST:PORT, without a user")
        })?;
        if url.scheme() == "https" {
            return if self.authorities.is_empty() {
                Err(invalid(format!("whose certificate does {member} have? --etcd-ca names its authority")))
            } else {
                Ok(())
            };
        }
        if !self.authorities.is_empty() || self.certificate.is_some() {
            let text = format!("{member} is without TLS: with --etcd-ca addresses begin with https://");
            return Err(invalid(text));
        }
        if self.user.is_some() && !is_loopback(&url) {
            let text = format!(
                "the password would pass in the clear to {member}: that takes https:// and --etcd-ca, or etcd on this \
                 machine"
            );
            return Err(invalid(text));
        }
        Ok(())
    }
}

/// Whether nothing leaves this machine.
fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_passes_in_the_clear_and_no_address_is_without_its_authority() {
        let made = rcgen::generate_simple_self_signed(vec!["etcd".to_owned()]).unwrap();
        let with = |secure: bool, user: bool| EtcdAccess {
            authorities: secure.then(|| made.cert.der().clone()).into_iter().collect(),
            user: user.then(|| EtcdUser { name: "a".into(), password: Secret("pw-of-a".into()) }),
            ..EtcdAccess::default()
        };
        assert!(!format!("{:?}", with(false, true)).contains("pw-of-a"));
        let why = |access: EtcdAccess, member: &str| {
            access.client(&[member.to_owned()]).err().map(|error| {
                assert_eq!(error.kind(), ErrorKind::Invalid);
                error.to_string()
            })
        };
        for member in ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1", "http://127.9.9.9"] {
            assert_eq!((why(with(false, true), member), why(with(false, false), member)), (None, None));
        }
        assert_eq!(why(with(false, false), "http://10.0.0.1:2379"), None);
        assert_eq!(why(with(true, true), "https://10.0.0.1:2379"), None);
        for member in ["http://10.0.0.1:2379", "http://etcd-1:2379", "http://localhost.example"] {
            assert!(why(with(false, true), member).unwrap().contains("in the clear"), "{member}");
        }
        assert!(why(with(false, false), "https://127.0.0.1:1").unwrap().contains("--etcd-ca"));
        assert!(why(with(true, false), "http://127.0.0.1:1").unwrap().contains("without TLS"));
        for member in ["127.0.0.1:2379", "ftp://127.0.0.1", "http://a:secret@127.0.0.1:1"] {
            let told = why(with(false, false), member).unwrap();
            assert!(told.contains("without a user") && !told.contains("secret"), "{told}");
        }
    }

    #[test]
    fn a_key_belongs_to_its_certificate() {
        let made = || rcgen::generate_simple_self_signed(vec!["etcd".to_owned()]).unwrap();
        let (one, other) = (made(), made());
        let client = |key: &rcgen::KeyPair| {
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            let authorities = vec![one.cert.der().clone()];
            let certificate = Some((authorities.clone(), key));
            EtcdAccess { authorities, certificate, user: None }.client(&["https://127.0.0.1:1".to_owned()])
        };
        assert!(client(&one.signing_key).is_ok());
        assert_eq!(client(&other.signing_key).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
