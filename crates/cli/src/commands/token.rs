//! `diskcast token`: makes a token for machines that join this machine's server.

use daemon::authority::{Claims, PATTERNS_MAX, Right};
use daemon::state::StateFolder;
use net::token::JoinToken;
use serde_json::json;

use super::Context;
use crate::args::Token;
use crate::clock;
use crate::exit::{Exit, Failure, Result};
use crate::repository;

pub fn run(context: &Context, args: &Token) -> Result<()> {
    let state = match &args.state.state {
        Some(path) => path.clone(),
        None => repository::default_state_folder()?,
    };
    let state = StateFolder::open(&state)?;
    let claims = Claims {
        images: if args.images.is_empty() { vec!["*".to_owned()] } else { args.images.clone() },
        right: if args.write { Right::Write } else { Right::Read },
        expires: clock::unix_seconds() + args.expires.as_secs(),
        lasts: (!args.no_renewal).then_some(args.expires.as_secs()),
    };
    let secret = state.authority()?.mint(&claims).ok_or_else(|| {
        Failure::new(Exit::Usage, format!("a token holds at most {PATTERNS_MAX} patterns, and 1024 bytes"))
    })?;
    let fingerprint = if args.no_tls { None } else { Some(state.identity()?.fingerprint()) };
    let token = JoinToken { fingerprint, secret };
    let expires = clock::show_unix(claims.expires);
    let record = json!({
        "type": "token", "token": token.to_string(), "images": claims.images, "right": claims.right, "expires": expires,
        "renewable": !args.no_renewal,
    });
    let right = if args.write { "reading and writing" } else { "reading" };
    context.output.note(&format!("for {right} {}, until {expires}", claims.images.join(" ")));
    context.output.answer(&record, || format!("{token}\n"))
}
