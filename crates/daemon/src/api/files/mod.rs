//! Versions as files, for clients that know HTTP and nothing of diskcast: curl, QEMU, Ironic, MAAS, Tinkerbell.
//! formats/api.md, "Files".

mod content;
mod list;
mod name;
mod viewer;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, Request, State};
use axum::http::header::{ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LOCATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use image::SignedManifest;
use net::api::ProblemKind;
use store::Reference;
use tokio::time::timeout;

use super::app::App;
use crate::files::{FileKey, Sums};
use crate::listener::Peer;
use crate::problem::Failure;
use content::Content;
use name::{Algorithm, FileName};
use viewer::Viewer;

pub(crate) use viewer::InPlain;

/// How long a request for a digest waits while it is computed. Clients of images wait for a minute.
const SUM_TIME_MAX: Duration = Duration::from_secs(45);

/// The routes of files.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/images", get(list::list))
        .route("/images/", get(list::list))
        .route("/images/SHA256SUMS", get(list::sums))
        .route("/images/{file}", get(file))
        .layer(middleware::map_response(challenge))
}

/// Clients send a password only where they are asked for one.
async fn challenge(mut response: Response) -> Response {
    if response.status() == StatusCode::UNAUTHORIZED {
        let basic = HeaderValue::from_static("Basic realm=\"a diskcast token is the password\"");
        response.headers_mut().insert(WWW_AUTHENTICATE, basic);
    }
    response
}

/// `GET` and `HEAD` of a file, or of a digest.
async fn file(
    viewer: Viewer,
    State(app): State<Arc<App>>,
    Extension(Peer(peer)): Extension<Peer>,
    Path(file): Path<String>,
    request: Request,
) -> Result<Response, Failure> {
    let FileName { reference, kind, sum } = file.parse()?;
    viewer.needs(reference.image().as_str())?;
    let meant = reference.clone();
    let (version, _) = app.blocking(move |app| app.repository.signed_manifest(&meant)).await?;
    let key = FileKey { manifest: version.digest(), kind };
    if let Some(algorithm) = sum {
        let sums = sums_of(&app, &version, &key).await?;
        let named = file.rsplit_once('.').map_or("", |(named, _)| named);
        return Ok(answer(&sums, algorithm, named));
    }
    let form = open(&app, &version, &key).await?;
    let number = version.manifest.number;
    let mut answer =
        http_serve::serve(Content { app: app.clone(), form, key, peer: peer.ip() }, &request).map(Body::new);
    let headers = answer.headers_mut();
    let sharing = if viewer.is_public(reference.image().as_str()) { "public" } else { "private" };
    let caching = match &reference {
        Reference::Version(..) => format!("{sharing}, immutable, max-age=31536000"),
        Reference::Newest(image) | Reference::Tagged(image, _) => {
            let location = HeaderValue::try_from(format!("/images/{image}@{number}.{kind}"));
            headers.extend(location.ok().map(|location| (CONTENT_LOCATION, location)));
            format!("{sharing}, no-cache")
        }
    };
    headers.extend(HeaderValue::try_from(caching).ok().map(|caching| (CACHE_CONTROL, caching)));
    Ok(answer)
}

/// The version as a file. Those who ask for one that is not open wait for the first of them, who opens it.
async fn open(app: &Arc<App>, version: &SignedManifest, key: &FileKey) -> Result<Arc<store::Form>, Failure> {
    let (image, kind) = (version.manifest.image.parse()?, key.kind);
    let reference = Reference::Version(image, version.manifest.number);
    let opened = app.files.open.of(key);
    let open = || app.blocking(move |app| app.repository.form(&reference, kind));
    let form = opened.get_or_try_init(async || open().await.map(Arc::new)).await?;
    Ok(Arc::clone(form))
}

/// The digests of a file: those that are kept, or else as soon as they are computed.
async fn sums_of(app: &Arc<App>, version: &SignedManifest, key: &FileKey) -> Result<Arc<Sums>, Failure> {
    let of = key.clone();
    let known = app.blocking(move |app| Ok::<_, Failure>(app.files.checksums.known(&of))).await?;
    if let Some(known) = known {
        return Ok(Arc::new(known));
    }
    let form = open(app, version, key).await?;
    let later = |why: &str| Failure::new(ProblemKind::Unavailable, why);
    let mut job = app
        .files
        .checksums
        .begin(form, key)
        .ok_or_else(|| later("too many checksums are computed at once"))?;
    let outcome = timeout(SUM_TIME_MAX, job.wait_for(Option::is_some)).await;
    let outcome = outcome.map_err(|_| later("the checksum is being computed: ask again"))?;
    let outcome = outcome.map_err(|_| later("the server stops"))?;
    match outcome.as_ref().expect("it was waited for") {
        Ok(sums) => Ok(Arc::clone(sums)),
        Err(why) => Err(Failure::internal(why)),
    }
}

/// A digest in the form that `sha256sum --check` and its kin read.
fn answer(sums: &Sums, algorithm: Algorithm, named: &str) -> Response {
    let digits = match algorithm {
        Algorithm::Md5 => &sums.md5,
        Algorithm::Sha256 => &sums.sha256,
        Algorithm::Sha512 => &sums.sha512,
    };
    let headers = [(CONTENT_TYPE, "text/plain; charset=utf-8"), (ACCEPT_RANGES, "none")];
    (headers, format!("{digits}  {named}\n")).into_response()
}
