//! The HTTP/1.1 client for `object_store`, on the HTTP library that `net` uses, too: keeps connections open, uses TLS
//! with the machine's certificate authorities, and limits how long a store may stay silent. `object_store` itself
//! retries; this client tells it the kind of each error.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use http_body_util::BodyExt as _;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService,
};
use reqwest::redirect::Policy;
use reqwest::{Body, Client, Request, Url};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

/// Longest time to set up a connection, with TLS.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Longest time from the begin of a request to the head of its answer, and between two pieces of an answer.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Most idle connections that are kept open, and for how long.
const IDLE_CONNECTIONS_MAX: usize = 64;
const IDLE_MAX: Duration = Duration::from_secs(15);
/// Connections that may fail before the first one that does not. After these, a few seconds, the address is taken for a
/// wrong one, which is told soon. A store that answered before is waited for.
const FIRST_CONNECTS_MAX: u32 = 8;

/// Creates HTTP clients for `object_store`.
#[derive(Debug)]
pub(crate) struct Connector {
    tls: ClientConfig,
}

impl Connector {
    /// A connector that trusts the certificate authorities in `ca_bundle`, or the machine's if that is `None`. They
    /// are loaded only if TLS is used. `Invalid` if there are none or the file can't be read.
    pub(crate) fn new(uses_tls: bool, ca_bundle: Option<&Path>) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        if uses_tls {
            for certificate in authorities(ca_bundle)? {
                // Skip a certificate that can't be used: if it was needed, the handshake will fail and say so.
                let _ = roots.add(certificate);
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring knows TLS 1.2 and 1.3")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { tls })
    }
}

fn authorities(ca_bundle: Option<&Path>) -> Result<Vec<CertificateDer<'static>>> {
    let Some(path) = ca_bundle else {
        let found = rustls_native_certs::load_native_certs();
        if found.certs.is_empty() {
            let text = "this machine has no certificate authorities: install ca-certificates, or set \
                        AWS_CA_BUNDLE to a file with those to trust";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        return Ok(found.certs);
    };
    let read =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    match read {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(Error::new(
            ErrorKind::Invalid,
            format!("AWS_CA_BUNDLE: `{}` holds no certificate", path.display()),
        )),
        Err(error) => Err(Error::from_source(
            ErrorKind::Invalid,
            format!("AWS_CA_BUNDLE: read the certificates in `{}`", path.display()),
            error,
        )),
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = Client::builder()
            .use_preconfigured_tls(self.tls.clone())
            .user_agent(concat!("diskcast/", env!("CARGO_PKG_VERSION")))
            .no_proxy()
            .redirect(Policy::none())
            .connect_timeout(CONNECT_MAX)
            .read_timeout(SILENCE_MAX)
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .build();
        let failed = |source| object_store::Error::Generic { store: "HTTP", source: Box::new(source) };
        Ok(HttpClient::new(Service { client: client.map_err(failed)?, contact: Contact::default() }))
    }
}

#[derive(Debug)]
struct Service {
    client: Client,
    contact: Contact,
}

/// Connections that failed before the first one that did not; `REACHED` after that one.
#[derive(Debug, Default)]
struct Contact(AtomicU32);

impl Contact {
    const REACHED: u32 = u32::MAX;

    fn reached(&self) {
        self.0.store(Self::REACHED, Ordering::Relaxed);
    }

    /// A connection failed. Returns whether it is worth another one.
    fn failed(&self) -> bool {
        let count = |failed| (failed < FIRST_CONNECTS_MAX).then(|| failed + 1);
        match self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count) {
            Ok(_) => true,
            Err(failed) => failed == Self::REACHED,
        }
    }
}

#[async_trait::async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        let (head, body) = request.into_parts();
        let url = Url::parse(&head.uri.to_string())
            .map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        let mut request = Request::new(head.method, url);
        *request.headers_mut() = head.headers;
        *request.body_mut() = Some(Body::wrap(body));
        let answer = self.client.execute(request).await;
        let answer = answer.map_err(|error| match kind(&error) {
            // `object_store` does not retry what is unknown.
            HttpErrorKind::Connect if !self.contact.failed() => HttpError::new(HttpErrorKind::Unknown, error),
            kind => HttpError::new(kind, error),
        })?;
        self.contact.reached();
        let (head, body) = http::Response::<Body>::from(answer).into_parts();
        let body = body.map_err(|error| CutShort::during(kind(&error), error));
        Ok(HttpResponse::from_parts(head, HttpResponseBody::new(body)))
    }
}

fn kind(error: &reqwest::Error) -> HttpErrorKind {
    if error.is_connect() {
        HttpErrorKind::Connect
    } else if error.is_timeout() {
        HttpErrorKind::Timeout
    } else {
        kind_beneath(error)
    }
}

/// The kind of the first HTTP or system error in the chain of sources of `error`.
fn kind_beneath(error: &(dyn std::error::Error + 'static)) -> HttpErrorKind {
    let mut next = Some(error);
    while let Some(cause) = next {
        if let Some(http) = cause.downcast_ref::<hyper::Error>()
            && (http.is_closed()
                || http.is_incomplete_message()
                || http.is_canceled()
                || http.is_body_write_aborted())
        {
            // Retrying is safe even for a create: if the first try succeeded, the next one finds the record and reads
            // it back.
            return HttpErrorKind::Request;
        }
        if let Some(io) = cause.downcast_ref::<std::io::Error>() {
            return match io.kind() {
                std::io::ErrorKind::TimedOut => HttpErrorKind::Timeout,
                _ => HttpErrorKind::Request,
            };
        }
        next = cause.source();
    }
    HttpErrorKind::Unknown
}

/// The error for an answer that ended before its announced length.
#[derive(Debug)]
pub(crate) struct CutShort(Box<dyn std::error::Error + Send + Sync>);

impl CutShort {
    fn during(kind: HttpErrorKind, cause: impl std::error::Error + Send + Sync + 'static) -> HttpError {
        HttpError::new(kind, Self(Box::new(cause)))
    }
}

impl std::fmt::Display for CutShort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the answer ended in its middle")
    }
}

impl std::error::Error for CutShort {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_never_answered_is_given_up_and_a_store_that_did_is_waited_for() {
        let contact = Contact::default();
        let tries = (0..100).take_while(|_| contact.failed()).count();
        assert_eq!(tries, FIRST_CONNECTS_MAX as usize);
        let contact = Contact::default();
        assert!(contact.failed());
        contact.reached();
        assert!((0..100).all(|_| contact.failed()));
    }
}
