//! Who asks for a file. Clients of others have no token in a header of ours, so it may be the password of HTTP's basic
//! authentication; and some images are for everybody.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use image::Cipher;
use net::api::ProblemKind;
use net::token::JoinToken;

use super::super::access::claims_of;
use super::super::app::App;
use crate::auth::claims::Claims;
use crate::problem::Failure;

/// Marks requests that came in plain: no token counts there, since anybody could read it on its way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InPlain;

/// What a client may see.
pub(super) struct Viewer {
    app: Arc<App>,
    claims: Option<Claims>,
    is_in_plain: bool,
}

impl Viewer {
    /// Whether everybody sees the image.
    pub(super) fn is_public(&self, image: &str) -> bool {
        self.app.files.public.covers(image)
    }

    /// Whether this client sees the image.
    pub(super) fn sees(&self, image: &str) -> bool {
        self.is_public(image) || self.claims.as_ref().is_some_and(|claims| claims.covers(image))
    }

    /// An error unless the client sees the image. It does not tell whether there is such an image.
    pub(super) fn needs(&self, image: &str) -> Result<(), Failure> {
        if self.sees(image) {
            return Ok(());
        }
        Err(if self.is_in_plain {
            Failure::new(ProblemKind::NotFound, "there is no such public file")
        } else if self.claims.is_some() {
            Failure::new(ProblemKind::Denied, "the token is not good for this image")
        } else {
            Failure::new(ProblemKind::Unauthorized, "this file needs a token, as the password")
        })
    }
}

impl FromRequestParts<Arc<App>> for Viewer {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Failure> {
        // Who asks for a file has no key: what is in an encrypted repository leaves it encrypted, or not at all.
        if !matches!(app.repository.cipher(), Cipher::None) {
            return Err(Failure::new(
                ProblemKind::Refused,
                "the repository is encrypted, and a file would not be",
            ));
        }
        let is_in_plain = parts.extensions.get::<InPlain>().is_some();
        let header = parts.headers.get(AUTHORIZATION).filter(|_| !is_in_plain);
        let claims = match header.map(|header| header.to_str().ok().and_then(secret_of)) {
            None => None,
            Some(secret) => {
                let none =
                    || Failure::new(ProblemKind::Unauthorized, "the request has no token as its password");
                Some(claims_of(app, parts, &secret.ok_or_else(none)?)?)
            }
        };
        Ok(Self { app: Arc::clone(app), claims, is_in_plain })
    }
}

/// The secret in the header `Authorization`: a bearer token, or a password that is a whole token or its secret.
fn secret_of(header: &str) -> Option<String> {
    let (scheme, value) = header.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(value.trim().to_owned());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let text = String::from_utf8(BASE64.decode(value.trim()).ok()?).ok()?;
    let (_, password) = text.split_once(':')?;
    let token = password.parse::<JoinToken>();
    Some(token.map_or_else(|_| password.to_owned(), |token| token.secret.expose().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_a_bearer_or_a_password_whole_or_its_secret() {
        let basic = |text: &str| secret_of(&format!("Basic {}", BASE64.encode(text)));
        let secret = || Some("a.b".to_owned());
        assert_eq!(secret_of("Bearer a.b"), secret());
        assert_eq!(basic("token:a.b"), secret());
        assert_eq!(basic(":a.b"), secret());
        assert_eq!(basic("any:diskcast1.-.a.b"), secret());
        assert_eq!(basic(&format!("any:diskcast1.{}.a.b", "0a".repeat(32))), secret());
        assert_eq!(basic("a.b"), None);
        assert_eq!(secret_of("Basic %"), None);
        assert_eq!(secret_of("Digest a.b"), None);
        assert_eq!(secret_of("Bearer"), None);
    }
}
