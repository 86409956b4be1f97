//! The certificates of a cluster. Its token determines the key of one authority, which signs the certificates of all
//! parts, so that nothing has to be configured or handed out: who has the token can be a part and recognises the
//! others. formats/cluster.md, section 10.

use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, PKCS_ED25519, date_time_ymd,
};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};

use crate::token::ClusterToken;

const CONTEXT: &str = "diskcast 2026 cluster authority v1";
/// What stands before the 32 bytes of an Ed25519 key in PKCS #8 (RFC 8410, section 7).
const PKCS8_OF_ED25519: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
/// The name that every part's certificate has. Clients verify this name and not the address that they connect to: all
/// parts are equal before the token, and a part may have several addresses, or be behind a translation of addresses.
const PART_NAME: &str = "cluster.diskcast";

/// The authority that signs the certificates of a cluster's parts.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// The authority of the cluster with this token: always the same, byte for byte.
    ///
    /// # Errors
    /// `Io` if the certificate can't be made.
    pub fn of(token: &ClusterToken) -> Result<Self> {
        let seed = blake3::derive_key(CONTEXT, token.as_str().as_bytes());
        let key = PrivatePkcs8KeyDer::from([&PKCS8_OF_ED25519[..], &seed].concat());
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ED25519).map_err(failed)?;
        let mut parameters = for_ever("diskcast cluster", vec![])?;
        parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        CertifiedIssuer::self_signed(parameters, key).map(Self).map_err(failed)
    }

    /// Its certificate, for programs that are no part of the cluster.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// TLS for a part that serves: with a key and a certificate made now. `host` is the host under which others reach
    /// it, for programs that verify that.
    ///
    /// # Errors
    /// `Invalid` if `host` can't stand in a certificate; `Io` if there are no random bytes.
    pub fn server(&self, host: Option<&str>) -> Result<Arc<ServerConfig>> {
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(failed)?;
        let hosts = host.map(|host| host.trim_matches(['[', ']']).to_owned());
        let mut parameters = for_ever(PART_NAME, hosts.into_iter().chain([PART_NAME.to_owned()]).collect())?;
        parameters.use_authority_key_identifier_extension = true;
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = parameters.signed_by(&key, &self.0).map_err(failed)?;
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(failed)?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.into()], key.into())
            .map_err(failed)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// TLS for a client of the parts, which trusts this authority alone.
    pub(crate) fn client(&self) -> Result<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).map_err(failed)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone());
        let verifier = PartVerifier(verifier.build().map_err(failed)?);
        Ok(ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(failed)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth())
    }
}

/// What all certificates of a cluster have: they never expire, whatever a machine's clock shows. A new token ends them.
fn for_ever(name: &str, hosts: Vec<String>) -> Result<CertificateParams> {
    let unfit = |error| Error::from_source(ErrorKind::Invalid, "name a part of the cluster", error);
    let mut parameters = CertificateParams::new(hosts).map_err(unfit)?;
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.not_before = date_time_ymd(1970, 1, 1);
    parameters.not_after = date_time_ymd(9999, 12, 31);
    Ok(parameters)
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::from_source(ErrorKind::Io, "set up TLS for the cluster", error)
}

/// Verifies that a certificate is one of a part, whatever address it was reached at.
#[derive(Debug)]
struct PartVerifier(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for PartVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let name = ServerName::try_from(PART_NAME).expect("it is a name of the DNS");
        self.0.verify_server_cert(end_entity, intermediates, &name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::{ClientConnection, ServerConnection};

    use super::*;

    fn authority(digit: &str) -> Authority {
        Authority::of(&digit.repeat(64).parse().unwrap()).unwrap()
    }

    /// What a client with the authority `ours` says of a part with the authority `theirs`, reached as `host`.
    fn meet(ours: &Authority, theirs: &Authority, host: &str) -> std::result::Result<(), rustls::Error> {
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let mut client = ClientConnection::new(Arc::new(ours.client().unwrap()), name).unwrap();
        let mut server = ServerConnection::new(theirs.server(Some("[fd00::7]")).unwrap()).unwrap();
        while client.is_handshaking() || server.is_handshaking() {
            let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
            client.write_tls(&mut to_server).unwrap();
            server.read_tls(&mut to_server.as_slice()).unwrap();
            server.process_new_packets()?;
            server.write_tls(&mut to_client).unwrap();
            client.read_tls(&mut to_client.as_slice()).unwrap();
            client.process_new_packets()?;
        }
        Ok(())
    }

    #[test]
    fn parts_with_the_same_token_know_each_other_wherever_they_are() {
        for host in ["10.0.0.7", "fd00::8", "elsewhere.example", "cluster.diskcast"] {
            meet(&authority("a"), &authority("a"), host).unwrap();
            let refused = meet(&authority("b"), &authority("a"), host).unwrap_err();
            assert!(matches!(refused, rustls::Error::InvalidCertificate(_)), "{refused}");
        }
    }

    #[test]
    fn certificates_are_good_at_any_time_and_for_parts_alone() {
        let (ours, provider) = (authority("a"), Arc::new(rustls::crypto::ring::default_provider()));
        let mut roots = RootCertStore::empty();
        roots.add(ours.0.der().clone()).unwrap();
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider).build().unwrap();
        let verifier = PartVerifier(verifier);
        let verify = |certificate: &CertificateDer<'_>, seconds| {
            let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
            let address = ServerName::try_from("10.0.0.7").unwrap();
            verifier.verify_server_cert(certificate, &[], &address, &[], now)
        };
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let of = |name: &str| {
            let parameters = for_ever(name, vec![name.to_owned()]).unwrap();
            parameters.signed_by(&key, &ours.0).unwrap().der().clone()
        };
        for seconds in [0, 1_800_000_000, 253_370_764_800] {
            verify(&of(PART_NAME), seconds).unwrap();
        }
        assert!(verify(&of("10.0.0.7"), 1_800_000_000).is_err(), "it is signed, but no part's");
        assert!(verify(ours.0.der(), 1_800_000_000).is_err(), "the authority is no part");
    }

    #[test]
    fn the_authority_of_a_token_is_always_the_same() {
        let golden = include_str!("../../../golden/cluster/authority.pem");
        assert_eq!(authority("a").pem(), golden);
        assert_ne!(authority("b").pem(), golden);
    }
}
