//! Checks the bearer token of a request and what it grants.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use net::api::ProblemKind;

use super::app::App;
use crate::auth::authority::{Claims, Rejection, Right};
use crate::clock;
use crate::event::Event;
use crate::listener::Peer;
use crate::problem::Failure;

/// The claims of a valid token. As a parameter of a handler, it makes the request require a token.
pub(super) struct Access(Claims);

impl Access {
    /// What the token grants.
    pub(super) fn claims(&self) -> &Claims {
        &self.0
    }

    /// Whether the token covers the image; lists have only such images.
    pub(super) fn sees(&self, image: &str) -> bool {
        self.0.covers(image)
    }

    /// `Denied` unless the token grants `right` for the image.
    pub(super) fn needs(&self, right: Right, image: &str) -> Result<(), Failure> {
        self.needs_anywhere(right)?;
        if self.sees(image) {
            return Ok(());
        }
        Err(Failure::new(
            ProblemKind::Denied,
            format!("the token is not good for the image `{}`", image.escape_debug()),
        ))
    }

    /// `Denied` unless the token is an administrator's.
    pub(super) fn manages(&self) -> Result<(), Failure> {
        if self.0.right >= Right::Manage {
            return Ok(());
        }
        let text = "the token does not allow managing machines: make one with `diskcast token --manage`";
        Err(Failure::new(ProblemKind::Denied, text))
    }

    /// `Denied` unless the token grants `right` for some image.
    pub(super) fn needs_anywhere(&self, right: Right) -> Result<(), Failure> {
        if self.0.right >= right {
            Ok(())
        } else {
            Err(Failure::new(ProblemKind::Denied, "the token does not allow writing"))
        }
    }
}

impl FromRequestParts<Arc<App>> for Access {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Failure> {
        let header = parts.headers.get(AUTHORIZATION).and_then(|header| header.to_str().ok());
        let secret = header.and_then(|header| {
            let (scheme, secret) = header.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
        });
        let secret = secret
            .ok_or_else(|| Failure::new(ProblemKind::Unauthorized, "the request has no bearer token"))?;
        claims_of(app, parts, secret).map(Self)
    }
}

/// What the token with this `secret` grants. `Unauthorized` if this server did not make it; `Denied` if it has expired
/// or was revoked.
pub(super) fn claims_of(app: &App, parts: &Parts, secret: &str) -> Result<Claims, Failure> {
    let now = clock::unix_seconds();
    let claims = app.authority.check(secret, now).map_err(|rejection| match rejection {
        Rejection::Unknown => Failure::new(ProblemKind::Unauthorized, "the token is not from this server"),
        Rejection::Revoked => Failure::new(ProblemKind::Denied, "the token was revoked"),
        Rejection::Expired(expired) => {
            app.metrics.expired();
            let when = clock::rfc3339(expired);
            Failure::new(ProblemKind::Denied, format!("the token has expired, {when}"))
        }
    })?;
    // A command on this machine made one for itself, for a moment.
    let is_own = claims.right == Right::Manage && claims.id.is_none();
    if !is_own && app.token_uses.shown(secret, &claims, now) {
        let (images, expires) = (claims.images.join(" "), clock::rfc3339(claims.expires));
        let peer = parts.extensions.get::<Peer>().map(|peer| peer.0);
        (app.log)(&Event::TokenEnds { images, expires, peer });
    }
    Ok(claims)
}
