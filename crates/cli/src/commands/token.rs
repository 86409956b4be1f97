//! `diskcast token`: makes a token for clients of this machine's server.

use daemon::authority::{Claims, PATTERNS_MAX, Right};
use daemon::state::StateFolder;
use net::token::JoinToken;
use serde_json::json;

use super::Context;

use crate::args::parse::parse_lifetime;
use crate::clock;
use crate::exit::{Exit, Failure, Result};
use crate::repository;

/// Make a token for machines that join the server on this machine
///
/// A token contains the fingerprint of the server's certificate, the images that its holder may read or write, and the
/// time when it expires.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast token > join.token
  diskcast token --image 'lab-*' --write --expires 8h > write.token")]
pub(crate) struct Args {
    /// Images that the token grants, `*` stands for any characters; may be repeated [default: all]
    #[arg(long = "image", value_name = "PATTERN")]
    pub images: Vec<String>,
    /// Also allow writing, for example `capture --to`
    #[arg(long)]
    pub write: bool,
    /// Lifetime of the token: 30d, 8h, 15m
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime, default_value = "30d")]
    pub expires: std::time::Duration,
    /// Let the token expire for good; otherwise a long-running client (attach, mount) renews it at the server in time,
    /// with the same rights and lifetime
    #[arg(long)]
    pub no_renewal: bool,
    /// Make a token for a server that runs with --no-tls
    #[arg(long)]
    pub no_tls: bool,
    #[command(flatten)]
    pub state: crate::args::StateFolder,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let state = match &args.state.state {
        Some(path) => path.clone(),
        None => repository::default_state_folder()?,
    };
    let state = StateFolder::of_server(&state).map_err(|error| {
        Failure::from(error)
            .hint("run this on the server, as its user, after `diskcast serve`; --state names its folder")
    })?;
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
    make_output_private()
        .map_err(|error| Failure::from(error).context("make the file of the token private"))?;
    let right = if args.write { "reading and writing" } else { "reading" };
    context.output.note(&format!("for {right} {}, until {expires}", claims.images.join(" ")));
    context.output.answer(&record, || format!("{token}\n"))
}

/// If the output goes to a file, only its owner may read it from now on: the file will hold a secret.
fn make_output_private() -> std::io::Result<()> {
    let output = std::io::stdout();
    let is_file = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&output)?.st_mode).is_file();
    if is_file { Ok(rustix::fs::fchmod(&output, rustix::fs::Mode::from_raw_mode(0o600))?) } else { Ok(()) }
}
