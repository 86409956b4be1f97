//! The HTTP/1.1 client for `object_store`: keeps connections open, uses TLS with the machine's certificate
//! authorities, and limits how long a store may stay silent. `object_store` itself retries; this client tells it the
//! kind of each error.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use futures::FutureExt as _;
use http::HeaderValue;
use http::header::USER_AGENT;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector as Tcp;
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpResponseBody, HttpService,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio::time::Sleep;

/// Longest time to set up a connection, with TLS.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Longest time from the end of a request to the head of its answer, and between two pieces of an answer.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Most idle connections that are kept open, and for how long.
const IDLE_CONNECTIONS_MAX: usize = 64;
const IDLE_MAX: Duration = Duration::from_secs(15);

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
        let mut tcp = Tcp::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_MAX));
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(self.tls.clone())
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .build(connector);
        Ok(HttpClient::new(Service(client)))
    }
}

#[derive(Debug)]
struct Service(Client<HttpsConnector<Tcp>, HttpRequestBody>);

#[async_trait::async_trait]
impl HttpService for Service {
    async fn call(&self, mut request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        let agent = HeaderValue::from_static(concat!("diskcast/", env!("CARGO_PKG_VERSION")));
        request.headers_mut().insert(USER_AGENT, agent);
        // Sending the body takes time too: allow 1 µs per byte, about one second per MiB.
        let patience = SILENCE_MAX + Duration::from_micros(request.body().content_length() as u64);
        let answered = tokio::time::timeout(patience, self.0.request(request)).await;
        let answer = answered.map_err(|silence| HttpError::new(HttpErrorKind::Timeout, silence))?;
        let (parts, body) =
            answer.map_err(|error| HttpError::new(kind_of_client(&error), error))?.into_parts();
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(Patient::new(body))))
    }
}

fn kind_of_client(error: &ClientError) -> HttpErrorKind {
    if error.is_connect() { HttpErrorKind::Connect } else { kind_beneath(error) }
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

/// The body of an answer. Reading it fails if nothing arrives for [`SILENCE_MAX`].
struct Patient {
    body: Incoming,
    silence: Pin<Box<Sleep>>,
    heard: bool,
}

impl Patient {
    fn new(body: Incoming) -> Self {
        Self { body, silence: Box::pin(tokio::time::sleep(SILENCE_MAX)), heard: false }
    }
}

impl Body for Patient {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, HttpError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.heard = true;
            return Poll::Ready(
                frame.map(|read| read.map_err(|error| CutShort::during(kind_beneath(&error), error))),
            );
        }
        // The timer is set again only when the body has to wait, not for each frame: frames often come in bursts.
        if std::mem::take(&mut self.heard) {
            let until = tokio::time::Instant::now() + SILENCE_MAX;
            self.silence.as_mut().reset(until);
        }
        self.silence.poll_unpin(context).map(|()| {
            let silence = std::io::Error::new(std::io::ErrorKind::TimedOut, "nothing more came");
            Some(Err(CutShort::during(HttpErrorKind::Timeout, silence)))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
