//! Names the versions that may lack zeros: their free space is not proven. formats/image.md, "How a version was made".

use image::SignedManifest;
use mirror::Images;
use serde_json::json;
use store::{FreeProofs, Reference};

use crate::commands::Context;
use crate::exit::Result;
use crate::{library, repository};

/// Most versions that are named as text; JSON has all of them.
const SHOWN_MAX: usize = 100;

/// The version `name`, or all of `images`, as far as their free space is not proven. `look` returns a version. One that
/// can't be read was reported as damage.
pub(super) fn find(
    images: &dyn Images,
    name: Option<&str>,
    look: &dyn Fn(&Reference) -> base::Result<SignedManifest>,
) -> Result<Vec<Reference>> {
    let mut references = Vec::new();
    match name {
        Some(name) => references.push(repository::reference(name)?),
        None => {
            for image in images.image_names()? {
                let numbers = images.version_numbers(&image).unwrap_or_default();
                references
                    .extend(numbers.into_iter().map(|number| Reference::Version(image.clone(), number)));
            }
        }
    }
    let mut proofs = FreeProofs::new(look);
    let mut found = Vec::new();
    for reference in references {
        let Ok(SignedManifest { manifest, .. }) = look(&reference) else { continue };
        if proofs.is_unproven(&manifest)? {
            found.push(Reference::Version(reference.image().clone(), manifest.number));
        }
    }
    Ok(found)
}

/// Shows one of them, the `index`th.
pub(super) fn show(context: &Context, index: usize, version: &Reference) -> Result<()> {
    let record = json!({ "type": "unproven_free", "version": version.to_string() });
    if !context.output.is_json() && index >= SHOWN_MAX {
        return Ok(());
    }
    let (why, cure) = (library::MAY_LACK_ZEROS, library::HEALS);
    context.output.answer(&record, || match index {
        0 => format!("in doubt: {version}: {why}; {cure}\n"),
        _ => format!("in doubt: {version}: the same\n"),
    })
}
