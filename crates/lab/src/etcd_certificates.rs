//! Certificates for an etcd cluster on loopback, in files.

#![allow(clippy::unwrap_used, reason = "tests fail by it")]

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, KeyPair,
};

/// Makes certificates in `folder`, each with its key (`NAME.pem`, `NAME.key`): of an authority, `ca`; signed by it, of
/// the members, `member`, of a client without a common name, `client`, and of one with, `named`; of another authority,
/// `other-ca`, and of a client of that one, `stranger`.
pub(super) fn make(folder: &Path) {
    let (ours, other) = (authority(), authority());
    write(folder, "ca", &ours.pem(), ours.key());
    write(folder, "other-ca", &other.pem(), other.key());
    for (name, hosts, common_name, issuer) in [
        ("member", vec!["127.0.0.1".to_owned()], Some("etcd"), &ours),
        ("client", vec![], None, &ours),
        ("named", vec![], Some("diskcast"), &ours),
        ("stranger", vec![], None, &other),
    ] {
        let mut parameters = CertificateParams::new(hosts).unwrap();
        parameters.distinguished_name = DistinguishedName::new();
        parameters.distinguished_name.push(DnType::OrganizationName, "diskcast");
        if let Some(common_name) = common_name {
            parameters.distinguished_name.push(DnType::CommonName, common_name);
        }
        // A member shows its certificate to itself, too: its gateway is a client of it.
        let uses = [ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        parameters.extended_key_usages = uses.to_vec();
        let key = KeyPair::generate().unwrap();
        write(folder, name, &parameters.signed_by(&key, issuer).unwrap().pem(), &key);
    }
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut parameters = CertificateParams::default();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.distinguished_name.push(DnType::CommonName, "authority of a test");
    CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap()
}

fn write(folder: &Path, name: &str, certificate: &str, key: &KeyPair) {
    for (file, text) in [(format!("{name}.pem"), certificate), (format!("{name}.key"), &key.serialize_pem())]
    {
        let mut options = std::fs::File::options();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(folder.join(file));
        file.unwrap().write_all(text.as_bytes()).unwrap();
    }
}
