//! Lists of the files: of each image that the client sees, the newest version and those with tags.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use base::ErrorKind;
use base::limits::SECTOR_BYTES;
use image::{Manifest, SignedManifest};
use serde::Serialize;
use store::{FormKind, ImageName, Reference};

use super::super::app::App;
use super::viewer::Viewer;
use crate::files::FileKey;
use crate::problem::Failure;

/// The answer of `GET /images/`.
#[derive(Serialize)]
pub(super) struct Listed {
    images: Vec<ListedImage>,
}

#[derive(Serialize)]
struct ListedImage {
    name: String,
    /// Ascending.
    versions: Vec<ListedVersion>,
}

#[derive(Serialize)]
struct ListedVersion {
    number: u64,
    tags: Vec<String>,
    created: String,
    disk_bytes: u64,
    files: Vec<ListedFile>,
}

#[derive(Serialize)]
struct ListedFile {
    /// Relative to the list.
    path: String,
    format: String,
    /// `None` until somebody asked for its digest.
    bytes: Option<u64>,
    sha256: Option<String>,
}

/// `GET /images/`.
pub(super) async fn list(viewer: Viewer, State(app): State<Arc<App>>) -> Result<Json<Listed>, Failure> {
    Ok(Json(app.blocking(move |app| listed(app, &viewer)).await?))
}

/// `GET /images/SHA256SUMS`: of the files whose digests are known.
pub(super) async fn sums(viewer: Viewer, State(app): State<Arc<App>>) -> Result<String, Failure> {
    let Listed { images } = app.blocking(move |app| listed(app, &viewer)).await?;
    let files = images.into_iter().flat_map(|image| image.versions).flat_map(|version| version.files);
    Ok(files.filter_map(|file| Some(format!("{}  {}\n", file.sha256?, file.path))).collect())
}

fn listed(app: &App, viewer: &Viewer) -> Result<Listed, Failure> {
    let names = app.repository.images()?.into_iter().filter(|name| viewer.sees(name.as_str()));
    let images = names.map(|name| image(app, &name)).collect::<Result<_, _>>()?;
    Ok(Listed { images })
}

fn image(app: &App, name: &ImageName) -> Result<ListedImage, Failure> {
    let mut numbers: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    numbers.extend(app.repository.versions(name)?.last().map(|newest| (*newest, Vec::new())));
    for tag in app.repository.tags(name)? {
        numbers.entry(tag.version).or_default().push(tag.name.to_string());
    }
    let versions = numbers.into_iter().filter_map(|(number, tags)| {
        match app.repository.look(&Reference::Version(name.clone(), number)) {
            Ok((found, _)) => Some(Ok(version(app, &found, tags))),
            // A tag may be of a version that was removed.
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => Some(Err(error.into())),
        }
    });
    Ok(ListedImage { name: name.to_string(), versions: versions.collect::<Result<_, Failure>>()? })
}

fn version(app: &App, found: &SignedManifest, tags: Vec<String>) -> ListedVersion {
    let Manifest { image, number, .. } = &found.manifest;
    let disk_bytes = found.manifest.size_sectors * SECTOR_BYTES;
    let file = |kind: FormKind| {
        let known = app.files.checksums.known(&FileKey { manifest: found.digest(), kind });
        let raw_bytes = (kind == FormKind::Raw).then_some(disk_bytes);
        ListedFile {
            path: format!("{image}@{number}.{kind}"),
            format: kind.to_string(),
            bytes: known.as_ref().map(|known| known.bytes).or(raw_bytes),
            sha256: known.map(|known| known.sha256),
        }
    };
    let files = [FormKind::Raw, FormKind::Qcow2].map(file).into();
    ListedVersion { number: *number, tags, created: found.manifest.created.clone(), disk_bytes, files }
}
