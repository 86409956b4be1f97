//! Finds the version that a reference names, and checks its signature.

use image::SignedManifest;
use mirror::Images;
use store::Reference;

use crate::commands::Context;
use crate::exit::{Exit, Failure, Result};
use crate::keys;
use crate::seen::Seen;
use crate::unreadable;

/// A name is taken for a typing error if it differs by one in this many characters (Damerau and Levenshtein).
const CHARACTERS_PER_ERROR: usize = 3;
/// Most names that a hint lists.
const LISTED_MAX: usize = 8;

/// Returns the version that `images`, which are at `place`, have for `reference`. If keys are trusted, one of them
/// signed it, and it is not older than what this machine saw there. A set of disks is refused. Warns if no trusted key
/// signed it but that is allowed, if its disk was in use or changed while it was captured, and if it could not be read
/// in full.
pub(crate) fn find(
    context: &Context,
    images: &dyn Images,
    place: &str,
    reference: &Reference,
) -> Result<SignedManifest> {
    let version = sight(context, images, place, reference)?;
    let SignedManifest { manifest, .. } = &version;
    if !manifest.members.is_empty() {
        return Err(Failure::new(
            Exit::Usage,
            format!("`{reference}` is a set of disks, and has none of its own"),
        )
        .hint("`diskcast inspect` lists them; `diskcast deploy --resume` attaches them on hosts"));
    }
    let name = format!("{}@{}", manifest.image, manifest.number);
    if let Some(lacks) = unreadable::summary(manifest) {
        context.output.warning(&format!("{name} is not complete: {lacks}"));
    }
    for how in &manifest.disk.live {
        context.output.warning(&format!("{name} does not show its disk at one moment: it {how}"));
    }
    Ok(version)
}

/// [`find`] of any version, without the warning about the disk.
pub(crate) fn sight(
    context: &Context,
    images: &dyn Images,
    place: &str,
    reference: &Reference,
) -> Result<SignedManifest> {
    let found = images.sight(reference).map_err(|error| missing(images, reference, keys::explain(error)))?;
    keys::warn(context, images, reference, &found.version)?;
    Seen::of(context).check(place, reference, &found)?;
    Ok(found.version)
}

/// Adds what there is instead to a failure to find `reference`. That it cannot be asked for is no further failure.
pub(crate) fn missing(images: &dyn Images, reference: &Reference, failure: Failure) -> Failure {
    if failure.exit != Exit::NotFound {
        return failure;
    }
    match instead(images, reference) {
        Ok(Some(hint)) => failure.hint(hint),
        Ok(None) | Err(_) => failure,
    }
}

fn instead(images: &dyn Images, reference: &Reference) -> base::Result<Option<String>> {
    let image = reference.image();
    let names: Vec<String> = images.image_names()?.iter().map(ToString::to_string).collect();
    if !names.iter().any(|name| name == image.as_str()) {
        return Ok(similar("images", image.as_str(), &names));
    }
    if let Reference::Tagged(_, tag) = reference {
        let tags: Vec<String> = images.tag_names(image)?.iter().map(ToString::to_string).collect();
        return Ok(similar("tags", &tag.to_string(), &tags));
    }
    let newest = images.version_numbers(image)?.last().copied();
    Ok(newest
        .map(|newest| format!("the newest version is `{image}@{newest}`; `diskcast log {image}` lists all")))
}

/// The name that was probably meant, or else the names that there are; `None` if there are none.
fn similar(what: &str, given: &str, names: &[String]) -> Option<String> {
    let errors = |name: &&String| strsim::damerau_levenshtein(given, name);
    let closest = names.iter().min_by_key(errors)?;
    if errors(&closest) <= given.chars().count() / CHARACTERS_PER_ERROR {
        return Some(format!("did you mean `{closest}`?"));
    }
    let listed: Vec<_> = names.iter().take(LISTED_MAX).map(|name| format!("`{name}`")).collect();
    let more = if names.len() > LISTED_MAX { " and more" } else { "" };
    Some(format!("the {what} are {}{more}", listed.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_name_is_suggested_and_else_some_names() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let suggested = |given: &str, of: &[&str]| similar("images", given, &names(of));
        assert_eq!(suggested("debain", &["web", "debian"]).unwrap(), "did you mean `debian`?");
        assert_eq!(suggested("lab", &["web", "debian"]).unwrap(), "the images are `web`, `debian`");
        let many: Vec<String> = (0..9).map(|number| format!("image-{number}")).collect();
        assert!(similar("images", "x", &many).unwrap().ends_with("`image-7` and more"));
        assert_eq!(suggested("lab", &[]), None);
    }
}
