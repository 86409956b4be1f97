//! Images that anybody may read as files, without a token.

use std::net::SocketAddr;

use base::{Error, ErrorKind, Result};
use image::Cipher;
use store::Repository;

use crate::auth::claims::{Claims, Right};

/// Which images these are, and where they are served without TLS.
#[derive(Debug, Clone, Default)]
pub struct PublicImages {
    /// Patterns of image names; `*` stands for any characters, also none.
    pub images: Vec<String>,
    /// Where they are served by plain HTTP, for clients that know no certificate of ours. No token is accepted there.
    pub http: Option<SocketAddr>,
}

impl PublicImages {
    /// `Refused` if there are such images in a repository that is encrypted.
    pub(crate) fn check(&self, repository: &Repository) -> Result<()> {
        if self.images.is_empty() || matches!(repository.cipher(), Cipher::None) {
            return Ok(());
        }
        let text = format!("`{}` is encrypted: none of its images can be for everybody", repository.name());
        Err(Error::new(ErrorKind::Refused, text))
    }

    /// What everybody may do.
    pub(crate) fn claims(&self) -> Claims {
        Claims::plain(self.images.clone(), Right::Read, u64::MAX)
    }
}
