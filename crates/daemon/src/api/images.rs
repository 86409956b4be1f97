//! Requests on images, versions and manifests, and the publication of drafts.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::{CONTENT_TYPE, ETAG};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use base::limits::{MANIFEST_BYTES_MAX, SECTOR_BYTES};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use image::Manifest;
use net::api::{
    IDEMPOTENCY_KEY, ImageSummary, Images, ImagesQuery, OBJECT_TYPE, ProblemKind, RepositorySummary,
    VersionSummary, Versions,
};
use store::{ImageName, Reference, Repository, TagName};

use super::access::Access;
use super::app::App;
use super::blobs::{Asked, Expect};
use super::body;
use super::objects::Upload;
use crate::auth::authority::Right;
use crate::event::Event;
use crate::problem::Failure;

/// Bytes of manifests in a list of images: some thousand.
const MANIFESTS_BYTES_MAX: usize = 8 << 20;
/// Images that are read before it is looked whether there is room for more manifests, and by how many threads.
const BATCH: usize = 256;
const AT_ONCE: usize = 16;

pub(super) async fn repository(_: Access, State(app): State<Arc<App>>) -> Json<RepositorySummary> {
    let repository = &app.repository;
    Json(RepositorySummary {
        id: repository.id().to_owned(),
        cipher: repository.cipher().name().to_owned(),
        key_check: repository.key_check().map(str::to_owned),
    })
}

pub(super) async fn list(
    access: Access,
    State(app): State<Arc<App>>,
    Asked(ImagesQuery { manifests, after }): Asked<ImagesQuery>,
) -> Result<Json<Images>, Failure> {
    let images = app.blocking(move |app| -> Result<_, Failure> {
        let names = app.repository.images()?;
        let is_after = |name: &str| after.as_ref().is_none_or(|after| name > after.as_str());
        let visible = names.into_iter().filter(|name| is_after(name.as_str()) && access.sees(name.as_str()));
        let (visible, mut images) = (visible.collect::<Vec<_>>(), Vec::new());
        let mut room = if manifests { MANIFESTS_BYTES_MAX } else { 0 };
        for names in visible.chunks(BATCH) {
            images.extend(summaries(&app.repository, names, &mut room)?);
        }
        Ok(images)
    });
    Ok(Json(Images { images: images.await? }))
}

/// The images `names` in a list, with their newest manifests as long as `room` holds them. After the first one that it
/// does not, no room is left: a client asks for the rest at once.
///
/// A store far away takes some requests for each image, so several threads read them. They are outside of the runtime,
/// within which each look into a folder would start a thread of its own.
fn summaries(
    repository: &Repository,
    names: &[ImageName],
    room: &mut usize,
) -> Result<Vec<ImageSummary>, Failure> {
    let wanted = *room > 0;
    let read = |names: &[ImageName]| -> Vec<_> {
        names.iter().map(|name| summary(repository, name, wanted)).collect()
    };
    let found: Vec<_> = std::thread::scope(|scope| {
        let parts = names.chunks(names.len().div_ceil(AT_ONCE).max(1));
        let threads: Vec<_> = parts.map(|names| scope.spawn(move || read(names))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Vec<_>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().flat_map(join).collect()
    });
    let fit = |found: Result<(ImageSummary, Option<Bytes>), Failure>| {
        let (mut summary, manifest) = found?;
        if let Some(bytes) = manifest {
            match room.checked_sub(bytes.len()) {
                Some(left) => (*room, summary.manifest) = (left, Some(BASE64.encode(bytes))),
                None => *room = 0,
            }
        }
        Ok(summary)
    };
    found.into_iter().map(fit).collect()
}

/// An image in a list, and its newest manifest if that is `wanted` and can be read.
fn summary(
    repository: &Repository,
    name: &ImageName,
    wanted: bool,
) -> Result<(ImageSummary, Option<Bytes>), Failure> {
    let versions = repository.versions(name)?;
    let tags = repository.tags(name)?.into_iter().map(|tag| (tag.name.to_string(), tag.version));
    let latest = versions.last().copied().unwrap_or(0);
    let newest = || repository.signed_manifest(&Reference::Version(name.clone(), latest)).ok();
    let manifest = if wanted { newest().map(|(_, bytes)| bytes) } else { None };
    let summary = ImageSummary {
        name: name.to_string(),
        latest,
        versions: versions.len() as u64,
        tags: tags.collect::<BTreeMap<_, _>>(),
        manifest: None,
    };
    Ok((summary, manifest))
}

pub(super) async fn versions(
    access: Access,
    State(app): State<Arc<App>>,
    Path(image): Path<String>,
) -> Result<Json<Versions>, Failure> {
    access.needs(Right::Read, &image)?;
    let versions = app.blocking(move |app| -> Result<_, Failure> {
        let name: ImageName = image.parse()?;
        let numbers = app.repository.versions(&name)?.into_iter();
        numbers.map(|number| version(&app.repository, &name, number)).collect::<Result<Vec<_>, _>>()
    });
    Ok(Json(Versions { versions: versions.await? }))
}

fn version(repository: &Repository, name: &ImageName, number: u64) -> Result<VersionSummary, Failure> {
    let (sealed, _) = repository.look(&Reference::Version(name.clone(), number))?;
    let found = &sealed.manifest;
    Ok(VersionSummary {
        number,
        manifest: sealed.digest().to_hex(),
        created: found.created.clone(),
        disk_bytes: found.size_sectors * SECTOR_BYTES,
        allocated_bytes: found.statistics.allocated_bytes,
        encoded_bytes: found.statistics.encoded_bytes,
    })
}

/// `GET tags/{tag}`: the newest move of the tag with its signatures, which the client checks against its trusted
/// keys.
pub(super) async fn tag(
    access: Access,
    State(app): State<Arc<App>>,
    Path((image, tag)): Path<(String, String)>,
) -> Result<Response, Failure> {
    access.needs(Right::Read, &image)?;
    let (image, tag): (ImageName, TagName) = (image.parse()?, tag.parse()?);
    let record = app.blocking(move |app| app.repository.tag_record(&image, &tag)).await?;
    Ok(([(CONTENT_TYPE, OBJECT_TYPE)], record).into_response())
}

/// `GET cut-over`: the newest record of what counts of older programs' signatures, which the client checks, too.
pub(super) async fn cut_over(
    access: Access,
    State(app): State<Arc<App>>,
    Path(image): Path<String>,
) -> Result<Response, Failure> {
    access.needs(Right::Read, &image)?;
    let image: ImageName = image.parse()?;
    let record = app.blocking(move |app| app.repository.cut_over_record(&image)).await?;
    Ok(([(CONTENT_TYPE, OBJECT_TYPE)], record).into_response())
}

pub(super) async fn manifest(
    access: Access,
    State(app): State<Arc<App>>,
    Path(reference): Path<String>,
) -> Result<Response, Failure> {
    let reference: Reference = reference.parse()?;
    access.needs(Right::Read, reference.image().as_str())?;
    let (sealed, bytes) = app.blocking(move |app| app.repository.signed_manifest(&reference)).await?;
    Ok(answer(StatusCode::OK, &sealed.digest().to_hex(), bytes))
}

fn answer(status: StatusCode, digest: &str, bytes: Bytes) -> Response {
    let headers = [(CONTENT_TYPE, OBJECT_TYPE.to_owned()), (ETAG, format!("\"{digest}\""))];
    (status, headers, bytes).into_response()
}

/// `POST versions`: publishes a draft. A repeated request with the same key gets the version that the first one made.
pub(super) async fn publish(
    access: Access,
    State(app): State<Arc<App>>,
    Path(image): Path<String>,
    Asked(Expect { expect }): Asked<Expect>,
    upload: Upload,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    access.needs(Right::Write, &image)?;
    let name: ImageName = image.parse()?;
    let key = headers.get(IDEMPOTENCY_KEY).map(|key| key.as_bytes().to_vec()).filter(|key| key.len() <= 128);
    let key = key
        .ok_or_else(|| Failure::new(ProblemKind::Invalid, format!("a header {IDEMPOTENCY_KEY} is needed")))?;
    let (draft, _memory) = body::receive(&app, upload.peer.ip(), &headers, body, MANIFEST_BYTES_MAX).await?;
    let (peer, slot) = (upload.peer, app.publications.slot(name.as_str(), key));
    let mut published = slot.lock().await;
    let reference = match *published {
        Some(number) => Reference::Version(name, number),
        None => {
            let publish = move |app: &App| publish_draft(app, &upload, &name, &draft, expect);
            let version = app.blocking(publish).await?;
            *published = Some(version.number);
            (app.log)(&Event::Published { reference: format!("{}@{}", version.image, version.number), peer });
            Reference::Version(version.image.parse()?, version.number)
        }
    };
    let (sealed, bytes) = app.blocking(move |app| app.repository.look(&reference)).await?;
    Ok(answer(StatusCode::CREATED, &sealed.digest().to_hex(), bytes))
}

/// Publishes `draft` if all objects that it needs are in the repository.
fn publish_draft(
    app: &App,
    upload: &Upload,
    name: &ImageName,
    draft: &Bytes,
    expect: Option<u64>,
) -> Result<Manifest, Failure> {
    let repository: &Repository = &app.repository;
    let writer = app.uploads.writer(repository, &upload.name)?;
    let draft = Manifest::decode(&repository.cipher().decrypt_manifest(draft)?)?;
    writer.check_complete(&draft)?;
    let published = match expect {
        Some(expected) => writer.publish_onto(name, draft, expected),
        None => writer.publish(name, draft),
    };
    // A named upload ends with its draft. An unnamed one may serve other requests of the same address, and ends only
    // after a failure, since a failed writer must not be used again.
    if upload.is_named || published.is_err() {
        app.uploads.end(&upload.name);
    }
    Ok(published?)
}
