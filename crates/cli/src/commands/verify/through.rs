//! `diskcast verify` through a server: its versions are downloaded and checked on this machine.

use image::Progress;
use mirror::Images as _;
use net::clock::Stop;
use store::{Elsewhere, ImageName, Judge, Reference, TagName, Verification, VerifyReport};

use super::doubts::{self, Doubts};
use crate::args::ServerAccess;
use crate::commands::Context;
use crate::exit::Result;
use crate::{connect, keys, repository, version};

/// Objects that are asked for at the same time: enough to fill 1 Gbit/s at a round trip of 10 ms.
const AT_ONCE: usize = 16;

/// Verifies the version `name` on `server`, or else every version and tag there that the token covers. Also returns
/// those that are not all that they should be.
pub(super) fn verify(
    context: &Context,
    name: Option<&str>,
    server: &str,
    access: &ServerAccess,
    progress: &dyn Progress,
) -> Result<(VerifyReport, Doubts)> {
    let options = &context.global.keys;
    let client = connect::client(server, access, options, Stop::new(), context.output)?;
    let _keeper = connect::keep_token(context, &client)?;
    keys::check_server(options, &client)?;
    let trust = keys::required_trust(options)?;
    let repository = if trust.is_some() { client.repository()?.id } else { String::new() };
    let cut_over = |image: &ImageName| client.cut_over(image.as_str());
    let judge =
        |trust| Judge { trust, repository: &repository, cipher: client.cipher(), cut_over: &cut_over };
    let judge = trust.as_ref().map(judge);
    let from = Elsewhere { objects: &client, cipher: client.cipher(), judge, at_once: AT_ONCE };
    let mut verification = Verification::new(from, progress);
    let doubts = |name| doubts::find(&client, name, &|reference: &Reference| client.find(reference));
    let manifest = |reference: &str| net::fetch::manifest(&client, reference);
    if let Some(name) = name {
        let reference = repository::reference(name)?;
        let sealed = manifest(&reference.to_string());
        let sealed = sealed.map_err(|error| version::missing(&client, &reference, error.into()))?;
        let image = reference.image();
        verification.version(image, sealed.manifest.number, Ok(sealed))?;
        if let Reference::Tagged(_, tag) = &reference {
            verification.tag(image, tag, client.tag(image.as_str(), tag.as_str()))?;
        }
        return Ok((verification.finish()?, doubts(Some(name))?));
    }
    for listed in client.images()?.images {
        let image: ImageName = listed.name.parse()?;
        // Tags before versions, so that the version of a tag that has just moved is there.
        let tags = listed.tags.keys().map(|tag| Ok((tag.parse::<TagName>()?, client.tag(&listed.name, tag))));
        let tags = tags.collect::<Result<Vec<_>>>()?;
        let versions = match client.versions(&listed.name) {
            Ok(found) => found.versions,
            Err(error) => {
                verification.unlisted(&image, error)?;
                continue;
            }
        };
        for number in versions.iter().map(|version| version.number) {
            verification.version(&image, number, manifest(&format!("{image}@{number}")))?;
        }
        tags.into_iter().try_for_each(|(tag, record)| verification.tag(&image, &tag, record))?;
    }
    Ok((verification.finish()?, doubts(None)?))
}
