//! Finds the version that a reference names, and checks its signature.

use image::SignedManifest;
use mirror::Images;
use store::Reference;

use crate::commands::Context;
use crate::exit::Result;
use crate::keys;

/// Returns the version that `images` has for `reference`. Warns if no trusted key signed it but that is allowed, and
/// if its disk was in use or changed while it was captured.
pub(crate) fn find(context: &Context, images: &dyn Images, reference: &Reference) -> Result<SignedManifest> {
    let version = images.find(reference).map_err(keys::explain)?;
    keys::judge(context, reference, version.signed())?;
    let SignedManifest { manifest, .. } = &version;
    for how in &manifest.disk.live {
        let name = format!("{}@{}", manifest.image, manifest.number);
        context.output.warning(&format!("{name} is of no single moment: its disk {how}"));
    }
    Ok(version)
}
