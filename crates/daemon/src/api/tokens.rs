//! Requests on the token itself: what it grants, and its renewal. formats/api.md, "Tokens".

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use net::api::{ProblemKind, TokenGrant};

use super::access::Access;
use super::app::App;
use crate::auth::authority::{Claims, Right};
use crate::clock;
use crate::problem::Failure;

pub(super) async fn get(access: Access) -> Json<TokenGrant> {
    Json(grant(access.claims(), clock::unix_seconds()))
}

/// `POST token`: answers with a new token that grants the same and has the full lifetime again.
pub(super) async fn renew(access: Access, State(app): State<Arc<App>>) -> Result<Json<TokenGrant>, Failure> {
    let now = clock::unix_seconds();
    let refused = || Failure::new(ProblemKind::Denied, "the token was made so that it can't be renewed");
    let claims = access.claims().renewed(now).ok_or_else(refused)?;
    let renewed = claims.clone();
    app.blocking(move |app| app.authority.record_renewed(&renewed)).await?;
    let secret = app.authority.mint(&claims);
    let secret = secret.ok_or_else(|| Failure::internal("the renewed token could not be made"))?;
    Ok(Json(TokenGrant { secret: Some(secret), ..grant(&claims, now) }))
}

fn grant(claims: &Claims, now: u64) -> TokenGrant {
    let right = match claims.right {
        Right::Read => "read",
        Right::Write => "write",
        Right::Manage => "manage",
    };
    TokenGrant {
        images: claims.images.clone(),
        right: right.to_owned(),
        expires: claims.expires,
        left_seconds: claims.expires.saturating_sub(now),
        lasts_seconds: claims.lasts,
        secret: None,
    }
}
