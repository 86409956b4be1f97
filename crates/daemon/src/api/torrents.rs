//! Versions as torrents: their metainfo, and the tracker's announces (BEP 3, BEP 23, BEP 7).

use std::sync::Arc;

use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, HOST};
use axum::response::{IntoResponse as _, Response};
use net::api::ProblemKind;
use serde::Deserialize;
use store::{FormKind, Reference};
use torrent::{Kind, tracker};

use super::access::Access;
use super::app::App;
use super::blobs::Asked;
use crate::auth::authority::Right;
use crate::listener::{Here, Peer};
use crate::problem::Failure;
use crate::swarms::torrents::Torrents;

/// Where clients announce themselves, which are not clients of this API.
pub(super) const ANNOUNCE: &str = "/announce";
/// Where they ask how many take part: by its name they find it beside the former.
pub(super) const SCRAPE: &str = "/scrape";
/// The type of metainfo, which is in general use and not registered.
const METAINFO_TYPE: &str = "application/x-bittorrent";

#[derive(Deserialize)]
pub(super) struct Query {
    #[serde(default)]
    kind: Version,
    #[serde(default)]
    form: AsFile,
}

/// In which form the version is a file.
#[derive(Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum AsFile {
    #[default]
    Raw,
    Qcow2,
}

/// For which versions of BitTorrent.
#[derive(Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum Version {
    #[default]
    V1,
    Hybrid,
}

/// `GET torrents/{reference}`: the metainfo of a version.
pub(super) async fn metainfo(
    access: Access,
    State(app): State<Arc<App>>,
    Path(reference): Path<String>,
    Asked(query): Asked<Query>,
    Extension(Here(here)): Extension<Here>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let reference: Reference = reference.parse()?;
    access.needs(Right::Read, reference.image().as_str())?;
    if app.torrents.is_none() {
        return Err(Failure::new(
            ProblemKind::NotFound,
            "this server serves no torrents: see `serve --torrent`",
        ));
    }
    let kind = match query.kind {
        Version::V1 => Kind::V1,
        Version::Hybrid => Kind::Hybrid,
    };
    let form = match query.form {
        AsFile::Raw => FormKind::Raw,
        AsFile::Qcow2 => FormKind::Qcow2,
    };
    let torrent = app.blocking_slow(move |app| -> base::Result<_> {
        let (version, _) = app.repository.signed_manifest(&reference)?;
        let torrents = app.torrents.as_ref().expect("they were there");
        torrents.of(&app.repository, &version, (form, kind))
    });
    let torrent = torrent.await?;
    // By the name that the client knows, which may be that of a gateway.
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = host.map_or_else(|| here.to_string(), str::to_owned);
    let file = format!("attachment; filename=\"{}.torrent\"", torrent.name());
    let headers = [(CONTENT_TYPE, METAINFO_TYPE.to_owned()), (CONTENT_DISPOSITION, file)];
    Ok((headers, torrent.encode(Some(&format!("http://{host}{ANNOUNCE}")))).into_response())
}

/// `GET /announce`: who else takes part. Needs no token: clients have none, and who knows the torrent's name was told
/// it by somebody who had one.
pub(super) async fn announce(
    State(app): State<Arc<App>>,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(Here(here)): Extension<Here>,
    RawQuery(query): RawQuery,
) -> Result<Response, Failure> {
    let query = query.unwrap_or_default();
    tracked(&app, move |torrents| torrents.announce(&query, peer.ip(), here.ip())).await
}

/// `GET /scrape`: how many take part in the torrents that it names (BEP 48).
pub(super) async fn scrape(
    State(app): State<Arc<App>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Failure> {
    tracked(&app, move |torrents| torrents.scrape(&query.unwrap_or_default())).await
}

/// An answer of the tracker.
async fn tracked(
    app: &Arc<App>,
    ask: impl FnOnce(&Torrents) -> base::Result<Vec<u8>> + Send + 'static,
) -> Result<Response, Failure> {
    let answer = app.blocking(move |app| -> Result<Vec<u8>, Failure> {
        let torrents = app.torrents.as_ref();
        let torrents =
            torrents.ok_or_else(|| Failure::new(ProblemKind::NotFound, "this server has no tracker"))?;
        // Clients show these words, and do not read problems.
        Ok(ask(torrents).unwrap_or_else(|error| tracker::refusal(&error.to_string())))
    });
    Ok(([(CONTENT_TYPE, "text/plain")], answer.await?).into_response())
}
