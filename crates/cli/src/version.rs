//! The version that a name means, signed by somebody who is trusted, if only some are.

use image::{ObjectSource, Sealed};
use net::client::Client;
use store::{Reference, Repository};

use crate::commands::Context;
use crate::exit::{Exit, Failure, Result};
use crate::keys;

/// The manifest that the repository has for `reference`.
pub fn in_repository(context: &Context, repository: &Repository, reference: &Reference) -> Result<Sealed> {
    let (version, _) = repository.sealed(reference).map_err(keys::explain)?;
    keys::judge(context, reference, version.signed())?;
    warn_of_live(context, &version);
    Ok(version)
}

/// Says if the disk changed, or may have, while it was captured.
fn warn_of_live(context: &Context, version: &Sealed) {
    let Sealed { manifest, .. } = version;
    for how in &manifest.disk.live {
        let name = format!("{}@{}", manifest.image, manifest.number);
        context.output.warning(&format!("{name} is of no single moment: its disk {how}"));
    }
}

/// The manifest that the server has for `reference`. The tag that names it has to be signed, too: else the server could
/// answer with any version that was ever signed.
pub fn on_server(context: &Context, client: &Client, reference: &Reference) -> Result<Sealed> {
    let options = &context.global.keys;
    let trust = if options.allow_untrusted { None } else { keys::trust(options)? };
    let version = match (trust, reference) {
        (Some(trust), Reference::Tagged(image, tag)) => {
            let record = client.tag(image.as_str(), tag.as_str())?;
            let (number, digest) = store::read_tag(image, tag, record, &ObjectSource::cipher(client), &trust)
                .map_err(keys::explain)?;
            let version =
                net::fetch::manifest(client, &Reference::Version(image.clone(), number).to_string())?;
            if version.digest() != digest {
                let text = format!("`{reference}` was put on another version {number} than the server has");
                return Err(Failure::new(Exit::Verification, text));
            }
            version
        }
        _ => net::fetch::manifest(client, &reference.to_string())?,
    };
    keys::judge(context, reference, version.signed())?;
    warn_of_live(context, &version);
    Ok(version)
}
