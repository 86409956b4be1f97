//! Endpoint, region and credentials of an S3 store, read from the same variables and file as other S3 programs use
//! (AWS SDKs and Tools Reference Guide, "Environment variables support", "Shared config and credentials files").
//! Never from a command-line argument, which every user of the machine could read.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use http::Uri;

const KEY_ID: &str = "AWS_ACCESS_KEY_ID";
const SECRET: &str = "AWS_SECRET_ACCESS_KEY";
const TOKEN: &str = "AWS_SESSION_TOKEN";
const CREDENTIALS_FILE: &str = "AWS_SHARED_CREDENTIALS_FILE";
const PROFILE: &str = "AWS_PROFILE";
const ENDPOINTS: [&str; 2] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"];
const REGIONS: [&str; 2] = ["AWS_REGION", "AWS_DEFAULT_REGION"];
const CA_BUNDLE: &str = "AWS_CA_BUNDLE";
const ALLOW_HTTP: &str = "DISKCAST_S3_ALLOW_HTTP";
const RETRY: &str = "DISKCAST_S3_RETRY_SECONDS";

/// The region name for stores that have no regions.
const REGION_DEFAULT: &str = "us-east-1";
/// How long a request is retried, in seconds, if no variable says so.
const RETRY_SECONDS_DEFAULT: u64 = 60;
/// Longest credentials file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Endpoint, region and credentials of an S3 store.
#[derive(Clone)]
pub struct S3Access {
    /// URL of the store; `None` for Amazon's own.
    pub(crate) endpoint: Option<String>,
    pub(crate) region: String,
    pub(crate) credentials: Credentials,
    /// File with the certificate authorities to trust instead of the machine's, PEM.
    pub(crate) ca_bundle: Option<PathBuf>,
    /// Whether the SHA-256 of each body is signed. Not needed over TLS or to this machine, where no other machine can
    /// change the body; the digests that name objects would show a change too.
    pub(crate) sign_payload: bool,
    pub(crate) allow_http: bool,
    /// How long a request is retried after throttling, a server error or a lost connection, however often that is.
    pub(crate) retry: Duration,
}

/// A key and its secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) key_id: String,
    pub(crate) secret: String,
    pub(crate) token: Option<String>,
}

impl S3Access {
    /// Reads the settings from variables. `variable` returns the value of one; an empty value counts as not set.
    ///
    /// - `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`; without them the profile `AWS_PROFILE`
    ///   (`default`) of the file `AWS_SHARED_CREDENTIALS_FILE` (`~/.aws/credentials`);
    /// - `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`: the store, if it is not Amazon's;
    /// - `AWS_REGION` or `AWS_DEFAULT_REGION`: needed for Amazon's;
    /// - `AWS_CA_BUNDLE`: certificate authorities to trust instead of the machine's;
    /// - `DISKCAST_S3_ALLOW_HTTP=1`: no TLS to another machine;
    /// - `DISKCAST_S3_RETRY_SECONDS`: how long a request is retried, 60 s unless it is set, 1 h at most.
    ///
    /// `Invalid` if a variable is missing or wrong; the error names it.
    pub fn from_variables(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let variable = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let credentials = credentials(&variable)?;
        let endpoint = first(&variable, &ENDPOINTS);
        let region = match (first(&variable, &REGIONS), &endpoint) {
            (Some((_, region)), _) => region,
            (None, Some(_)) => REGION_DEFAULT.to_owned(),
            (None, None) => {
                return Err(invalid(
                    "neither AWS_ENDPOINT_URL nor AWS_REGION is set: set the first to the URL of the store, or the \
                     second to the region of the bucket at Amazon",
                ));
            }
        };
        let allow_http = match variable(ALLOW_HTTP).as_deref() {
            None | Some("0") => false,
            Some("1") => true,
            Some(other) => return Err(invalid(format!("{ALLOW_HTTP} is `{other}`: expected 1 or 0"))),
        };
        let retry = match variable(RETRY) {
            None => RETRY_SECONDS_DEFAULT,
            Some(text) => match text.trim().parse() {
                Ok(seconds @ 0..=3600) => seconds,
                _ => return Err(invalid(format!("{RETRY} is `{text}`: expected seconds, 3600 at most"))),
            },
        };
        let security = match &endpoint {
            None => Security::Safe,
            Some((name, url)) => security(name, url)?,
        };
        if security == Security::Open && !allow_http {
            return Err(Error::new(
                ErrorKind::Refused,
                "the endpoint is http:// on another machine, where everybody on the way reads what is stored: use \
                 https://, or set DISKCAST_S3_ALLOW_HTTP=1 in a network that you trust",
            ));
        }
        Ok(Self {
            endpoint: endpoint.map(|(_, url)| url.trim_end_matches('/').to_owned()),
            region,
            credentials,
            ca_bundle: variable(CA_BUNDLE).map(PathBuf::from),
            sign_payload: security == Security::Open,
            allow_http: security != Security::Safe,
            retry: Duration::from_secs(retry),
        })
    }
}

impl fmt::Debug for S3Access {
    /// Leaves the secret out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoint, region, credentials, .. } = self;
        write!(f, "S3Access {{ {endpoint:?}, {region}, {} }}", credentials.key_id)
    }
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

/// The first of `names` that is set, and its value.
fn first<'a>(variable: &dyn Fn(&str) -> Option<String>, names: &[&'a str]) -> Option<(&'a str, String)> {
    names.iter().find_map(|&name| Some((name, variable(name)?)))
}

/// Who can read and change the traffic to an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Security {
    /// No one: TLS.
    Safe,
    /// Only this machine.
    Loopback,
    /// Every machine on the path.
    Open,
}

fn security(name: &str, url: &str) -> Result<Security> {
    let wrong = |why: &str| Err(invalid(format!("{name} is `{}`: {why}", url.escape_debug())));
    let Ok(parsed) = url.parse::<Uri>() else { return wrong("expected a URL as https://s3.example:9000") };
    let Some(host) = parsed.host().filter(|_| parsed.query().is_none()) else {
        return wrong("expected a URL as https://s3.example:9000");
    };
    if parsed.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(invalid(format!("{name} holds a user or a password: set {KEY_ID} and {SECRET} instead")));
    }
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    let is_loopback = host == "localhost" || address.is_ok_and(|address| address.is_loopback());
    match parsed.scheme_str() {
        Some("https") => Ok(Security::Safe),
        Some("http") if is_loopback => Ok(Security::Loopback),
        Some("http") => Ok(Security::Open),
        _ => wrong("expected https:// (or http:// on this machine)"),
    }
}

fn credentials(variable: &dyn Fn(&str) -> Option<String>) -> Result<Credentials> {
    match (variable(KEY_ID), variable(SECRET)) {
        (Some(key_id), Some(secret)) => Ok(Credentials { key_id, secret, token: variable(TOKEN) }),
        (Some(_), None) => Err(invalid(format!("{KEY_ID} is set but {SECRET} is not: set both"))),
        (None, Some(_)) => Err(invalid(format!("{SECRET} is set but {KEY_ID} is not: set both"))),
        (None, None) => from_file(variable),
    }
}

fn from_file(variable: &dyn Fn(&str) -> Option<String>) -> Result<Credentials> {
    let named = variable(CREDENTIALS_FILE).map(PathBuf::from);
    let usual = variable("HOME").map(|home| Path::new(&home).join(".aws/credentials"));
    let none = |file: &str| {
        invalid(format!(
            "no credentials for S3: set {KEY_ID} and {SECRET}, or write them into a file and set {CREDENTIALS_FILE} \
             to its path{file}"
        ))
    };
    let path = named.clone().or(usual).ok_or_else(|| none(""))?;
    let text = match read_small(&path) {
        Ok(text) => text,
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
            return Err(none(&format!(" (there is no `{}`)", path.display())));
        }
        Err(error) => {
            let context = format!("read the credentials for S3 in `{}`", path.display());
            return Err(Error::from_io(context, error));
        }
    };
    let profile = variable(PROFILE).unwrap_or_else(|| "default".to_owned());
    profile_of(&text, &profile).map_err(|missing| {
        let path = path.display();
        invalid(format!(
            "`{path}` has no `{missing}` in its section `[{profile}]`: add it, or set {PROFILE} to another"
        ))
    })
}

fn read_small(path: &Path) -> std::io::Result<String> {
    if std::fs::metadata(path)?.len() > FILE_BYTES_MAX {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "it is too long for credentials"));
    }
    std::fs::read_to_string(path)
}

/// The credentials under `[profile]`, or the name of the key that is missing.
fn profile_of(text: &str, profile: &str) -> std::result::Result<Credentials, &'static str> {
    let mut found: [Option<String>; 3] = Default::default();
    const NAMES: [&str; 3] = ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"];
    let mut inside = false;
    for line in text.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            inside = section.trim() == profile;
        } else if let Some((name, value)) =
            line.split_once('=').filter(|_| inside && !line.starts_with(['#', ';']))
            && let Some(at) = NAMES.iter().position(|known| name.trim().eq_ignore_ascii_case(known))
        {
            found[at] = Some(value.trim().to_owned()).filter(|value| !value.is_empty());
        }
    }
    let [key_id, secret, token] = found;
    Ok(Credentials { key_id: key_id.ok_or(NAMES[0])?, secret: secret.ok_or(NAMES[1])?, token })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(variables: &[(&str, &str)]) -> Result<S3Access> {
        S3Access::from_variables(&|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    const KEYS: [(&str, &str); 2] = [(KEY_ID, "key"), (SECRET, "secret")];

    fn with<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        [&KEYS[..], more].concat()
    }

    #[test]
    fn variables_are_read_and_the_secret_is_not_shown() {
        let url = ("AWS_ENDPOINT_URL", "https://s3.example/");
        let found = access(&with(&[url, ("AWS_SESSION_TOKEN", "token")])).unwrap();
        assert_eq!(found.endpoint.as_deref(), Some("https://s3.example"));
        assert_eq!(
            (found.region.as_str(), found.sign_payload, found.allow_http),
            ("us-east-1", false, false)
        );
        assert_eq!(found.credentials.token.as_deref(), Some("token"));
        assert!(!format!("{found:?}").contains("secret"));
        let amazon =
            access(&with(&[("AWS_DEFAULT_REGION", "eu-west-1"), ("AWS_ENDPOINT_URL", " ")])).unwrap();
        assert_eq!((amazon.endpoint, amazon.region.as_str()), (None, "eu-west-1"));
        let hasty = access(&with(&[url, (RETRY, "5")])).unwrap();
        assert_eq!((found.retry.as_secs(), hasty.retry.as_secs()), (60, 5));
    }

    #[test]
    fn what_is_missing_is_named() {
        for (variables, name) in [
            (vec![], "AWS_ACCESS_KEY_ID"),
            (vec![("HOME", "/nowhere")], "/nowhere/.aws/credentials"),
            (vec![(KEY_ID, "key")], "AWS_SECRET_ACCESS_KEY is not"),
            (vec![(SECRET, "secret")], "AWS_ACCESS_KEY_ID is not"),
            (KEYS.to_vec(), "AWS_REGION"),
            (with(&[("AWS_ENDPOINT_URL", "s3.example")]), "AWS_ENDPOINT_URL is"),
            (with(&[("AWS_ENDPOINT_URL_S3", "ftp://s3.example")]), "AWS_ENDPOINT_URL_S3 is"),
            (with(&[("AWS_ENDPOINT_URL", "https://a:b@s3.example")]), "AWS_ACCESS_KEY_ID"),
            (with(&[("AWS_REGION", "x"), (ALLOW_HTTP, "yes")]), ALLOW_HTTP),
            (with(&[("AWS_REGION", "x"), (RETRY, "forever")]), RETRY),
        ] {
            let error = access(&variables).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(name), "{variables:?}: {error}");
            assert!(!error.to_string().contains("a:b@"), "{error}");
        }
        let missing = access(&[(CREDENTIALS_FILE, "/nowhere/file")]).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn plain_http_stays_in_the_machine_unless_somebody_says_so() {
        for url in ["http://127.0.0.1:7070", "http://localhost:1", "http://[::1]:9", "http://127.9.9.9"] {
            let found = access(&with(&[("AWS_ENDPOINT_URL", url)])).unwrap();
            assert!(found.allow_http && !found.sign_payload, "{url}");
        }
        for url in ["http://10.0.0.1:9000", "http://localhost.example", "http://s3.example"] {
            let open = with(&[("AWS_ENDPOINT_URL", url)]);
            let refused = access(&open).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Refused, "{url}");
            assert!(refused.to_string().contains(ALLOW_HTTP));
            let allowed = access(&[&open[..], &[(ALLOW_HTTP, "1")]].concat()).unwrap();
            assert!(allowed.allow_http && allowed.sign_payload, "{url}: changes on the way are noticed");
        }
    }

    #[test]
    fn a_file_holds_profiles() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "# lab\n[default]\naws_access_key_id = a\naws_secret_access_key=b=c\n\n[ lab ]\n\
                    AWS_ACCESS_KEY_ID=d\n;aws_secret_access_key=x\naws_session_token=t\n";
        std::fs::write(&file, text).unwrap();
        let path = file.path().to_str().unwrap();
        let base = [(CREDENTIALS_FILE, path), ("AWS_REGION", "x")];
        let found = access(&base).unwrap().credentials;
        assert_eq!((found.key_id.as_str(), found.secret.as_str(), found.token), ("a", "b=c", None));
        let error = access(&[&base[..], &[(PROFILE, "lab")]].concat()).unwrap_err().to_string();
        assert!(error.contains("`aws_secret_access_key`") && error.contains("[lab]"), "{error}");
        // Variables take precedence over the file.
        assert_eq!(access(&with(&base)).unwrap().credentials.key_id, "key");
    }
}
