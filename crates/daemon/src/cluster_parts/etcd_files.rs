//! The files from which a metadata service learns how etcd and it recognise each other.

use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result};
use cluster::metadata::etcd::{EtcdAccess, EtcdUser, Secret};
use rustls::pki_types::CertificateDer;

use crate::auth::pem::{certificates, private_key};
use crate::private_file::read_private;

/// Files of certificates in PEM, and of a password.
#[derive(Debug, Clone, Default)]
pub struct EtcdFiles {
    /// Certificate of the authority that signed those of etcd's members.
    pub authority: Option<PathBuf>,
    /// The certificate that members are shown, and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// The user, and the file of the password.
    pub user: Option<(String, PathBuf)>,
}

impl EtcdFiles {
    /// What the files hold.
    ///
    /// # Errors
    /// `Invalid` if one can't be read or holds something else; `Refused` if others than the owner of a key or of the
    /// password may read it.
    pub(crate) fn read(&self) -> Result<EtcdAccess> {
        let authorities = self.authority.as_deref().map(some_certificates);
        let certificate = self
            .certificate
            .as_ref()
            .map(|(certificate, key)| Ok::<_, Error>((some_certificates(certificate)?, private_key(key)?)));
        let user = self
            .user
            .as_ref()
            .map(|(name, file)| Ok::<_, Error>(EtcdUser { name: name.clone(), password: password(file)? }));
        Ok(EtcdAccess {
            authorities: authorities.transpose()?.unwrap_or_default(),
            certificate: certificate.transpose()?,
            user: user.transpose()?,
        })
    }
}

fn some_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found = certificates(file)?;
    if found.is_empty() {
        return Err(invalid(format!("`{}` holds no certificate", file.display())));
    }
    Ok(found)
}

/// The first line of a file, which is all that it has.
fn password(file: &Path) -> Result<Secret> {
    let text = String::from_utf8(read_private(file)?);
    let text = text.map_err(|_| invalid(format!("`{}` holds no text", file.display())))?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.is_empty() || line.contains('\n') {
        return Err(invalid(format!("`{}` must hold a password in one line", file.display())));
    }
    Ok(Secret(line.to_owned()))
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::private_file::make_private;

    #[test]
    fn a_password_is_one_line_of_a_file_of_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str, bytes: &[u8]| {
            let file = folder.path().join(name);
            make_private(&file, bytes).unwrap();
            password(&file).map(|Secret(text)| text)
        };
        for (name, bytes) in [("a", "pass word"), ("b", "pass word\n"), ("c", "pass word\r\n")] {
            assert_eq!(read(name, bytes.as_bytes()).unwrap(), "pass word");
        }
        for (name, bytes) in [("d", &b""[..]), ("e", b"\n"), ("f", b"one\ntwo\n"), ("g", b"\xff\n")] {
            assert_eq!(read(name, bytes).unwrap_err().kind(), ErrorKind::Invalid);
        }
        let open = folder.path().join("a");
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(password(&open).unwrap_err().kind(), ErrorKind::Refused);
        assert_eq!(some_certificates(&folder.path().join("b")).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
