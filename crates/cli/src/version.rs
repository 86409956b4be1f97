//! The version that a name means, signed by a trusted key, if only some are trusted.

use image::SignedManifest;
use mirror::Images;
use store::Reference;

use crate::commands::Context;
use crate::exit::Result;
use crate::keys;

/// The version that `images` has for `reference`. Warns where it is used although no trusted key signed it, and where
/// its disk changed, or may have, while it was captured.
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
