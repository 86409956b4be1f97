//! Signatures of manifests and records, and the lists of keys that a client trusts. Ed25519 (RFC 8032).
//!
//! Signatures sign a digest. Each kind of item has its own BLAKE3 context for this digest, so a signature of a
//! manifest is never valid for a record. What is signed names the repository that it is for. Key files are text;
//! `formats/repository.md`, "Keys", specifies them.

use std::fmt;
use std::str::FromStr;

use base::{Digest, Error, ErrorKind, Result};
use ed25519_dalek::pkcs8::{DecodePrivateKey, EncodePrivateKey, spki::der::pem::LineEnding};
use ed25519_dalek::{Signer, SigningKey, VerifyingKey};

/// Most signatures of one manifest or record.
pub const SIGNATURES_MAX: usize = 16;
/// Most keys in one list of trusted keys.
pub(crate) const TRUSTED_MAX: usize = 1024;

const ALGORITHM: &str = "ed25519";
/// Begins the word in a line of a trusted key that names the repository it is trusted in.
const IN_REPOSITORY: &str = "repository=";
/// Digits of a repository's id.
const ID_DIGITS: usize = 32;

/// A public key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl PublicKey {
    /// The key with these 32 bytes. `Corrupt` if they are not a key, or a key of small order: anybody can make
    /// signatures that are valid under such a key.
    pub fn from_bytes(bytes: &[u8; 32]) -> Result<Self> {
        let none = |e| Error::from_source(ErrorKind::Corrupt, "read a public key", e);
        match VerifyingKey::from_bytes(bytes).map_err(none)? {
            key if key.is_weak() => {
                Err(Error::new(ErrorKind::Corrupt, "a weak public key, under which anybody can sign"))
            }
            key => Ok(Self(key)),
        }
    }

    /// The key's 32 bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 32] {
        self.0.to_bytes()
    }

    /// The first 12 hexadecimal digits, for people.
    #[must_use]
    pub fn short(self) -> String {
        Digest(self.to_bytes()).short()
    }
}

impl From<&SigningKey> for PublicKey {
    fn from(key: &SigningKey) -> Self {
        Self(key.verifying_key())
    }
}

impl fmt::Display for PublicKey {
    /// As in a file of trusted keys: `ed25519` and 64 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ALGORITHM} {}", Digest(self.to_bytes()))
    }
}

/// One signature as it is stored, with the key that is claimed to have made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    key: PublicKey,
    bytes: [u8; 64],
}

impl Signature {
    /// Signs `digest` with `key`.
    #[must_use]
    pub fn make(key: &SigningKey, digest: &Digest) -> Self {
        Self { key: key.into(), bytes: key.sign(&digest.0).to_bytes() }
    }

    /// A signature that was read. It is not verified here.
    #[must_use]
    pub fn new(key: PublicKey, bytes: [u8; 64]) -> Self {
        Self { key, bytes }
    }

    /// The key that is claimed to have made the signature; [`Signature::is_of`] verifies the claim.
    #[must_use]
    pub fn key(&self) -> PublicKey {
        self.key
    }

    /// The signature's 64 bytes, without the key.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 64] {
        self.bytes
    }

    /// Whether this is a valid signature of `digest` by its key, in the strict verification of RFC 8032.
    #[must_use]
    pub fn is_of(&self, digest: &Digest) -> bool {
        let signature = ed25519_dalek::Signature::from_bytes(&self.bytes);
        self.key.0.verify_strict(&digest.0, &signature).is_ok()
    }
}

/// The digest of a manifest or record, the repository that it says it is for, and the signatures that were stored
/// with it. They are not verified yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    digest: Digest,
    repository: Option<String>,
    signatures: Vec<Signature>,
}

impl Signed {
    /// A digest, the id of the repository that what it covers names, and the signatures that were stored with it.
    #[must_use]
    pub fn new(digest: Digest, repository: Option<String>, signatures: Vec<Signature>) -> Self {
        Self { digest, repository, signatures }
    }

    /// The digest that the signatures should sign.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The keys that signed the digest, verified. `Corrupt` if any signature is not valid.
    pub fn signers(&self) -> Result<Vec<PublicKey>> {
        match self.signatures.iter().find(|signature| !signature.is_of(&self.digest)) {
            None => Ok(self.signatures.iter().map(Signature::key).collect()),
            Some(forged) => Err(not_its_own(forged)),
        }
    }

    /// Whether there is any signature, valid or not.
    #[must_use]
    pub fn has_signatures(&self) -> bool {
        !self.signatures.is_empty()
    }

    /// The keys that are claimed to have signed the digest, not verified.
    pub fn claims(&self) -> impl Iterator<Item = PublicKey> + '_ {
        self.signatures.iter().map(Signature::key)
    }

    /// What valid signatures of it bind it to, for a reader in `repository`. `Refused` if that is another repository.
    fn binding(&self, what: &dyn fmt::Display, repository: &str) -> Result<Binding> {
        match &self.repository {
            None => Ok(Binding::Nothing),
            Some(id) if id == repository => Ok(Binding::Repository),
            Some(other) => {
                let shown: String = other.escape_debug().take(ID_DIGITS).collect();
                let text =
                    format!("{what} is signed for the repository {shown}, not for this one ({repository})");
                Err(Error::new(ErrorKind::Refused, text))
            }
        }
    }
}

fn not_its_own(forged: &Signature) -> Error {
    let text = format!("the signature of key {} is not valid for this content", forged.key().short());
    Error::new(ErrorKind::Corrupt, text)
}

/// What a signature by a trusted key binds its content to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Binding {
    /// To the repository that was asked about.
    Repository,
    /// To no repository: an older program made it. It counts only if the repository has a signed cut-over record that
    /// lists it.
    Nothing,
}

/// A list of trusted keys, each with a name for people.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trust {
    keys: Vec<Trusted>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Trusted {
    key: PublicKey,
    /// Id of the only repository in which this entry counts; `None` for all.
    repository: Option<String>,
    name: String,
}

impl Trust {
    /// Adds a key that is trusted in every repository. If the list already has that, it keeps its name.
    pub fn add(&mut self, key: PublicKey, name: &str) {
        self.push(Trusted { key, repository: None, name: name.to_owned() });
    }

    fn push(&mut self, new: Trusted) {
        let same = |known: &Trusted| (known.key, &known.repository) == (new.key, &new.repository);
        if !self.keys.iter().any(same) {
            self.keys.push(new);
        }
    }

    /// Adds the keys of `other`. `Refused` if the list has more than [`TRUSTED_MAX`] keys then.
    pub fn add_all(&mut self, other: &Self) -> Result<()> {
        other.keys.iter().for_each(|entry| self.push(entry.clone()));
        if self.keys.len() > TRUSTED_MAX {
            return Err(Error::new(ErrorKind::Refused, format!("more than {TRUSTED_MAX} trusted keys")));
        }
        Ok(())
    }

    /// Whether the list has no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The name of `key` in this list, which may be empty; `None` if the key is not trusted.
    #[must_use]
    pub fn name_of(&self, key: PublicKey) -> Option<&str> {
        self.keys.iter().find(|known| known.key == key).map(|known| known.name.as_str())
    }

    /// Whether `key` is trusted in the repository with the id `repository`.
    fn counts_in(&self, key: PublicKey, repository: &str) -> bool {
        let counts = |entry: &Trusted| entry.repository.as_deref().is_none_or(|only| only == repository);
        self.keys.iter().any(|entry| entry.key == key && counts(entry))
    }

    /// Succeeds if at least one key that is trusted in the repository with the id `repository` signed `signed`, for
    /// this repository or for none; the caller decides about the latter. `what` names the item in errors. Otherwise
    /// `Corrupt` if a signature claims to be by a trusted key and is not valid; `Refused` if no trusted key signed, or
    /// for another repository.
    pub fn check(&self, what: &dyn fmt::Display, signed: &Signed, repository: &str) -> Result<Binding> {
        let claims = signed.signatures.iter().filter(|made| self.counts_in(made.key(), repository));
        let mut forged = None;
        for signature in claims {
            if signature.is_of(&signed.digest) {
                return signed.binding(what, repository);
            }
            forged = Some(signature);
        }
        if let Some(forged) = forged {
            return Err(Error::from_source(ErrorKind::Corrupt, format!("check {what}"), not_its_own(forged)));
        }
        let others: Vec<_> = signed.claims().map(PublicKey::short).collect();
        let why = match others.as_slice() {
            [] => "is not signed".to_owned(),
            keys if signed.claims().any(|key| self.name_of(key).is_some()) => {
                format!("is signed by {}, which is trusted in other repositories only", keys.join(", "))
            }
            keys => format!("is signed by {}, which is not trusted", keys.join(", ")),
        };
        Err(Error::new(ErrorKind::Refused, format!("{what} {why}")))
    }
}

impl FromStr for Trust {
    type Err = Error;

    /// Reads lines `ed25519 <64 hexadecimal digits> [repository=<id>] [name]`. A key with an id is trusted in that
    /// repository only, a key without in all. Skips empty lines and lines that begin with `#`. `Corrupt` with the
    /// line's number for any other line; `Corrupt` if the digits are not a key; `Refused` if there are more than
    /// [`TRUSTED_MAX`] keys.
    fn from_str(text: &str) -> Result<Self> {
        let mut trust = Self::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let trusted = trusted(line)?.ok_or_else(|| {
                let form = format!("{ALGORITHM} <64 hexadecimal digits> [{IN_REPOSITORY}<id>] [name]");
                Error::new(ErrorKind::Corrupt, format!("line {}: expected `{form}`", index + 1))
            })?;
            trust.push(trusted);
            if trust.keys.len() > TRUSTED_MAX {
                return Err(Error::new(ErrorKind::Refused, format!("more than {TRUSTED_MAX} keys")));
            }
        }
        Ok(trust)
    }
}

/// The trusted key in a line; `None` if the line has another form.
fn trusted(line: &str) -> Result<Option<Trusted>> {
    let mut words = line.splitn(3, ' ');
    let (Some(ALGORITHM), Some(Ok(bytes))) = (words.next(), words.next().map(str::parse::<Digest>)) else {
        return Ok(None);
    };
    let rest = words.next().unwrap_or_default().trim();
    let (repository, name) = match rest.strip_prefix(IN_REPOSITORY) {
        None => (None, rest),
        Some(rest) => {
            let (id, name) = rest.split_once(' ').unwrap_or((rest, ""));
            if id.len() != ID_DIGITS || !id.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
                return Ok(None);
            }
            (Some(id.to_owned()), name.trim())
        }
    };
    Ok(Some(Trusted { key: PublicKey::from_bytes(&bytes.0)?, repository, name: name.to_owned() }))
}

/// Reads a signing key from the text of its file: PKCS #8 in PEM (RFC 8410), as `openssl genpkey -algorithm ed25519`
/// writes it. `Corrupt` if the text is something else. Errors do not quote the text, since it may hold a secret.
pub fn signing_key_from_text(text: &str) -> Result<SigningKey> {
    let none = |_| Error::new(ErrorKind::Corrupt, "this is not an ed25519 key in PEM (`BEGIN PRIVATE KEY`)");
    SigningKey::from_pkcs8_pem(text.trim()).map_err(none)
}

/// The text of the key file of `key`: PKCS #8 in PEM (RFC 8410).
#[must_use]
pub fn signing_key_to_text(key: &SigningKey) -> String {
    // Without the public half, so that every openssl since 1.1.1 reads it.
    let bytes = ed25519_dalek::pkcs8::KeypairBytes { secret_key: key.to_bytes(), public_key: None };
    bytes.to_pkcs8_pem(LineEnding::LF).expect("32 bytes fit").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &str = "0123456789abcdef0123456789abcdef";
    const THERE: &str = "fedcba9876543210fedcba9876543210";

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_bytes(&[seed; 32])
    }

    fn signed(digest: Digest, keys: &[u8], of: Digest) -> Signed {
        signed_for(None, digest, keys, of)
    }

    fn signed_for(repository: Option<&str>, digest: Digest, keys: &[u8], of: Digest) -> Signed {
        let signatures = keys.iter().map(|&seed| Signature::make(&key(seed), &of)).collect();
        Signed::new(digest, repository.map(str::to_owned), signatures)
    }

    #[test]
    fn what_a_trusted_key_signed_is_trusted_and_nothing_else() {
        let (this, other) = (Digest::of(b"this"), Digest::of(b"other"));
        let mut trust = Trust::default();
        trust.add((&key(1)).into(), "one");
        let judge = |signed: &Signed| trust.check(&"it", signed, HERE).map_err(|error| error.kind());
        assert_eq!(judge(&signed(this, &[1], this)), Ok(Binding::Nothing));
        assert_eq!(judge(&signed(this, &[2, 1], this)), Ok(Binding::Nothing));
        assert_eq!(judge(&signed_for(Some(HERE), this, &[1], this)), Ok(Binding::Repository));
        assert_eq!(judge(&signed_for(Some(THERE), this, &[1], this)), Err(ErrorKind::Refused));
        assert_eq!(judge(&signed(this, &[], this)), Err(ErrorKind::Refused));
        assert_eq!(judge(&signed(this, &[2], this)), Err(ErrorKind::Refused));
        assert_eq!(judge(&signed(this, &[1], other)), Err(ErrorKind::Corrupt));
        assert_eq!(signed(this, &[2, 1], this).signers().unwrap().len(), 2);
        assert_eq!(signed(this, &[2], other).signers().unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn a_key_can_be_trusted_in_one_repository_only() {
        let this = Digest::of(b"this");
        let one = PublicKey::from(&key(1));
        let trust: Trust = format!("{one} repository={HERE} of the lab\n").parse().unwrap();
        assert_eq!(trust.name_of(one), Some("of the lab"));
        let judge = |id: &str| trust.check(&"it", &signed_for(Some(id), this, &[1], this), id);
        assert_eq!(judge(HERE).unwrap(), Binding::Repository);
        assert_eq!(judge(THERE).unwrap_err().kind(), ErrorKind::Refused);
        let both: Trust = format!("{one} repository={HERE}\n{one} repository={THERE}").parse().unwrap();
        for id in [HERE, THERE] {
            let signed = signed_for(Some(id), this, &[1], this);
            assert_eq!(both.check(&"it", &signed, id).unwrap(), Binding::Repository);
        }
        for bad in ["repository=", "repository=x", &format!("repository={}", HERE.to_uppercase())] {
            assert_eq!(format!("{one} {bad}").parse::<Trust>().unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }

    #[test]
    fn trusted_keys_are_read_with_their_names() {
        let (one, two) = (PublicKey::from(&key(1)), PublicKey::from(&key(2)));
        let text = format!("# keys of the lab\n\n{one} ops at build 1\n  {two}\n{one} again\n");
        let trust: Trust = text.parse().unwrap();
        assert_eq!((trust.name_of(one), trust.name_of(two)), (Some("ops at build 1"), Some("")));
        assert_eq!(trust.name_of((&key(3)).into()), None);
        for bad in ["ed25519", "ed25519 00", "rsa 00", "-----BEGIN PRIVATE KEY-----", &format!("{one}x")] {
            assert_eq!(bad.parse::<Trust>().unwrap_err().kind(), ErrorKind::Corrupt, "{bad}");
        }
        // The neutral element of the curve, a key of small order: some signatures are valid under it for any digest.
        let weak = Digest({
            let mut bytes = [0; 32];
            bytes[0] = 1;
            bytes
        });
        assert!(format!("ed25519 {weak}").parse::<Trust>().is_err());
    }

    #[test]
    fn signing_keys_come_back_from_text_and_openssl_reads_and_writes_the_same() {
        let text = signing_key_to_text(&key(1));
        assert!(text.starts_with("-----BEGIN PRIVATE KEY-----\n"));
        assert_eq!(signing_key_from_text(&text).unwrap().to_bytes(), [1; 32]);
        // Made by `openssl genpkey -algorithm ed25519`.
        let openssl = "-----BEGIN PRIVATE KEY-----\n\
            MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n\
            -----END PRIVATE KEY-----\n";
        let public = PublicKey::from(&signing_key_from_text(openssl).unwrap());
        assert_eq!(
            public.to_string(),
            "ed25519 d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
        );
        for bad in ["", "MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v", &openssl.replace("K2Vw", "K2Vu")] {
            assert_eq!(signing_key_from_text(bad).unwrap_err().kind(), ErrorKind::Corrupt, "{bad}");
        }
    }
}
