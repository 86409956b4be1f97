//! Names the versions that are intact and yet not all that they should be: those that may lack zeros, because their
//! free space is not proven (formats/image.md, "How a version was made"), and those whose disk could not be read in
//! full.

use image::SignedManifest;
use mirror::Images;
use serde_json::json;
use store::{FreeProofs, Reference};

use crate::commands::Context;
use crate::exit::Result;
use crate::{library, repository, unreadable};

/// Most versions that are named as text; JSON has all of them.
const SHOWN_MAX: usize = 100;

/// What was found.
#[derive(Default)]
pub(super) struct Doubts {
    /// The versions whose free space is not proven.
    pub(super) unproven: Vec<Reference>,
    /// The versions whose disk could not be read in full, each with what it lacks.
    pub(super) unreadable: Vec<(Reference, String)>,
}

/// Finds them in the version `name`, or in all of `images`. `look` returns a version. One that can't be read was
/// reported as damage.
pub(super) fn find(
    images: &dyn Images,
    name: Option<&str>,
    look: &dyn Fn(&Reference) -> base::Result<SignedManifest>,
) -> Result<Doubts> {
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
    let mut found = Doubts::default();
    for reference in references {
        let Ok(SignedManifest { manifest, .. }) = look(&reference) else { continue };
        let version = Reference::Version(reference.image().clone(), manifest.number);
        if let Some(lacks) = unreadable::summary(&manifest) {
            found.unreadable.push((version.clone(), lacks));
        }
        if proofs.is_unproven(&manifest)? {
            found.unproven.push(version);
        }
    }
    Ok(found)
}

impl Doubts {
    /// Shows them.
    pub(super) fn show(&self, context: &Context) -> Result<()> {
        self.unproven.iter().enumerate().try_for_each(|(index, version)| show(context, index, version))?;
        for (index, (version, lacks)) in self.unreadable.iter().enumerate() {
            if context.output.is_json() || index < SHOWN_MAX {
                let record = json!({ "type": "unreadable", "version": version.to_string(), "lacks": lacks });
                context.output.answer(&record, || format!("not complete: {version}: {lacks}\n"))?;
            }
        }
        Ok(())
    }
}

/// Shows a version whose free space is not proven, the `index`th.
fn show(context: &Context, index: usize, version: &Reference) -> Result<()> {
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
