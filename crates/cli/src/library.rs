//! The images that a command reads: those of the repository, or of a server that `--repo` names.

use std::collections::BTreeMap;

use daemon::auth::tokens::Keeper;
use image::{Cipher, Manifest, ObjectSource, PublicKey, SignedManifest};
use mirror::Images;
use net::client::Client;
use net::clock::Stop;
use store::{FreeProofs, ImageName, Reference, Repository};

use crate::args::FromServer;
use crate::commands::Context;
use crate::exit::Result;
use crate::{connect, keys, repository};

/// What is wrong with a version whose free space is not proven.
pub(crate) const MAY_LACK_ZEROS: &str = "zeros may be missing, so an install over a used disk may leave old bytes in \
                                         files: an older program may have made it by a commit of a whole disk";
/// What ends the doubt.
pub(crate) const HEALS: &str = "the next `diskcast capture` or commit of the whole disk is sound";

/// Where the objects of a version come from, and how they are encrypted.
pub(crate) type Objects<'a> = (&'a dyn ObjectSource, &'a Cipher);

/// Names of tags, by the number of the version that they name.
pub(crate) type Tags = BTreeMap<u64, Vec<String>>;

/// An image in a list.
pub(crate) struct Listed {
    pub newest: Manifest,
    /// Number of its versions.
    pub versions: u64,
    pub tags: Tags,
}

/// See the module.
pub(crate) enum Library {
    Here(Box<Repository>),
    There(Box<Client>, keys::Named),
}

impl Library {
    /// Opens the repository, or connects to the server.
    pub(crate) fn open(context: &Context, from: &FromServer) -> Result<Self> {
        let options = &context.global.keys;
        let Some(server) = &from.server else {
            return Ok(Self::Here(Box::new(repository::open(&context.global)?)));
        };
        let client = connect::client(server, &from.access, options, Stop::new(), context.output)?;
        keys::check_server(options, &client)?;
        Ok(Self::There(Box::new(client), keys::Named::of(options)?))
    }

    /// The same, where objects that were checked within the last day are not checked again.
    pub(crate) fn open_with_scrubs(context: &Context, from: &FromServer) -> Result<Self> {
        Ok(match Self::open(context, from)? {
            Self::Here(here) => Self::Here(Box::new(repository::with_scrubs(&context.global, *here))),
            there @ Self::There(..) => there,
        })
    }

    /// Renews the token of a server while this is held.
    pub(crate) fn keep_token(&self, context: &Context) -> Result<Option<Keeper>> {
        match self {
            Self::Here(_) => Ok(None),
            Self::There(there, _) => connect::keep_token(context, there),
        }
    }

    /// As the images that it has.
    pub(crate) fn images(&self) -> &dyn Images {
        match self {
            Self::Here(here) => &**here,
            Self::There(there, _) => &**there,
        }
    }

    /// Where they are.
    pub(crate) fn place(&self, context: &Context) -> Result<String> {
        match self {
            Self::Here(_) => repository::place(&context.global),
            Self::There(there, _) => Ok(there.url().to_owned()),
        }
    }

    /// As the source of their objects.
    pub(crate) fn objects(&self) -> &dyn ObjectSource {
        match self {
            Self::Here(here) => &**here,
            Self::There(there, _) => &**there,
        }
    }

    /// How its objects are encrypted.
    pub(crate) fn cipher(&self) -> &Cipher {
        match self {
            Self::Here(here) => here.cipher(),
            Self::There(there, _) => there.cipher(),
        }
    }

    /// A version, to look at: of the repository also one that no trusted key signed.
    pub(crate) fn look(&self, reference: &Reference) -> base::Result<SignedManifest> {
        match self {
            Self::Here(here) => here.look(reference).map(|(version, _)| version),
            Self::There(there, _) => there.find(reference),
        }
    }

    /// The versions of `image`, newest first.
    pub(crate) fn log<'a>(
        &'a self,
        image: &ImageName,
    ) -> base::Result<Box<dyn Iterator<Item = base::Result<SignedManifest>> + 'a>> {
        match self {
            Self::Here(here) => Ok(Box::new(here.log(image, None)?)),
            Self::There(there, _) => {
                let (numbers, image) = (there.version_numbers(image)?, image.clone());
                let look = move |number| there.find(&Reference::Version(image.clone(), number));
                Ok(Box::new(numbers.into_iter().rev().map(look)))
            }
        }
    }

    /// Tells which versions may lack zeros.
    pub(crate) fn free_proofs(
        &self,
    ) -> FreeProofs<impl FnMut(&Reference) -> base::Result<SignedManifest> + use<'_>> {
        FreeProofs::new(|reference: &Reference| self.look(reference))
    }

    /// All images, in the order of their names.
    pub(crate) fn list(&self) -> base::Result<Vec<Listed>> {
        match self {
            Self::Here(here) => {
                let each = here.image_names()?.into_iter().map(|name| {
                    let versions = here.version_numbers(&name)?.len() as u64;
                    let tags = self.tags(&name)?;
                    Ok(Listed { newest: self.look(&Reference::Newest(name))?.manifest, versions, tags })
                });
                each.collect()
            }
            Self::There(there, _) => {
                let each = mirror::newest_versions(there)?.into_iter().map(|(found, newest)| Listed {
                    newest: newest.manifest,
                    versions: found.versions,
                    tags: by_version(found.tags),
                });
                Ok(each.collect())
            }
        }
    }

    /// The tags of `image`, by version number.
    pub(crate) fn tags(&self, image: &ImageName) -> base::Result<Tags> {
        Ok(match self {
            Self::Here(here) => {
                by_version(here.tags(image)?.into_iter().map(|tag| (tag.name.to_string(), tag.version)))
            }
            Self::There(there, _) => {
                let images = there.images()?.images;
                let found = images.into_iter().filter(|found| found.name == image.as_str());
                by_version(found.flat_map(|found| found.tags))
            }
        })
    }

    /// A key as text for people: its name in the trusted keys, and its first digits.
    pub(crate) fn show_key(&self, key: PublicKey) -> String {
        match self {
            Self::Here(here) => keys::show(here, key),
            Self::There(_, named) => named.show(key),
        }
    }
}

fn by_version(tags: impl IntoIterator<Item = (String, u64)>) -> Tags {
    let mut all = Tags::new();
    for (tag, version) in tags {
        all.entry(version).or_default().push(tag);
    }
    all
}
