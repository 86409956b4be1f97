//! `diskcast token`: makes a token for clients of this machine's server, lists tokens, and revokes them.

use daemon::auth::authority::{Claims, PATTERNS_MAX, Right};
use daemon::auth::token_records::{TokenId, TokenRecord};
use daemon::state::StateFolder;
use net::token::JoinToken;
use serde_json::json;

use super::Context;
use crate::args::StateFolder as StateOption;
use crate::args::parse::parse_lifetime;
use crate::clock;
use crate::exit::{Exit, Failure, Result};
use crate::repository;
use crate::ui::table::{Align, Table};

/// Make a token for machines that join the server on this machine
///
/// A token contains the fingerprint of the server's certificate, the images that its holder may read or write, and the
/// time when it expires.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "\
Examples:
  diskcast token > join.token
  diskcast token --image 'lab-*' --write --expires 8h > write.token
  diskcast token list
  diskcast token revoke 5d1e0f6a9b3c7d24",
    args_conflicts_with_subcommands = true,
    subcommand_value_name = "WHAT",
    subcommand_help_heading = "Instead"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub instead: Option<Instead>,
    /// Images that the token grants, `*` stands for any characters; may be repeated [default: all]
    #[arg(long = "image", value_name = "PATTERN")]
    pub images: Vec<String>,
    /// Also allow writing, for example `capture --to`
    #[arg(long)]
    pub write: bool,
    /// Also allow writing, and managing the machines that boot from the network (hosts, deploy)
    #[arg(long)]
    pub manage: bool,
    /// Lifetime of the token: 30d, 8h, 15m
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime, default_value = "30d")]
    pub expires: std::time::Duration,
    /// Let the token expire for good; otherwise a long-running client (attach, mount, fetch, capture) renews it at the
    /// server in time, with the same rights and lifetime
    #[arg(long)]
    pub no_renewal: bool,
    /// Make a token for a server that runs with --no-tls
    #[arg(long)]
    pub no_tls: bool,
    #[command(flatten)]
    pub state: StateOption,
}

/// What to do instead of making a token.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Instead {
    /// List the tokens that are valid, with what they grant
    List {
        #[command(flatten)]
        state: StateOption,
    },
    /// Revoke a token and all its renewals; the running server refuses them at once
    Revoke {
        /// Id of the token, as `diskcast token list` shows it
        id: TokenId,
        #[command(flatten)]
        state: StateOption,
    },
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    match &args.instead {
        None => make(context, args),
        Some(Instead::List { state }) => list(context, state),
        Some(Instead::Revoke { id, state }) => revoke(context, *id, state),
    }
}

fn folder(option: &StateOption) -> Result<StateFolder> {
    StateFolder::of_server(&repository::state_folder(option)?).map_err(|error| {
        Failure::from(error)
            .hint("run this on the server, as its user, after `diskcast serve`; --state names its folder")
    })
}

fn list(context: &Context, state: &StateOption) -> Result<()> {
    let tokens = folder(state)?.tokens().list(clock::unix_seconds())?;
    if tokens.is_empty() {
        context.output.note("no token is valid");
    }
    let mut table = Table::new(&[
        ("ID", Align::Left),
        ("GRANTS", Align::Left),
        ("IMAGES", Align::Left),
        ("UNTIL", Align::Left),
        ("STATE", Align::Left),
        ("MADE BY", Align::Left),
    ]);
    let mut records = Vec::new();
    for token in tokens {
        let TokenRecord { id, images, right, made, expires, renewable, note, revoked } = token;
        let (made, expires) = (clock::show_unix(made), clock::show_unix(expires));
        let grants = match right {
            Right::Read => "read",
            Right::Write => "write",
            Right::Manage => "manage",
        };
        let standing = match (revoked, renewable) {
            (true, _) => "revoked",
            (false, true) => "renewable",
            (false, false) => "ends then",
        };
        table.row([
            id.to_string(),
            grants.to_owned(),
            images.join(" "),
            clock::short(&expires),
            standing.to_owned(),
            note.clone(),
        ]);
        records.push(json!({
            "type": "token_record", "id": id, "right": right, "images": images, "made": made, "expires": expires,
            "renewable": renewable, "revoked": revoked, "made_by": note,
        }));
    }
    context.output.list(&records, &table)
}

fn revoke(context: &Context, id: TokenId, state: &StateOption) -> Result<()> {
    let tokens = folder(state)?.tokens();
    if !context.global.dry_run {
        tokens.revoke(id)?;
    }
    let record = json!({ "type": "revoked", "id": id, "dry_run": context.global.dry_run });
    context.output.result(&record, || format!("{}token {id} is revoked\n", context.would()))
}

fn make(context: &Context, args: &Args) -> Result<()> {
    let state = folder(&args.state)?;
    let now = clock::unix_seconds();
    let id = TokenId::draw()?;
    let claims = Claims {
        images: if args.images.is_empty() { vec!["*".to_owned()] } else { args.images.clone() },
        right: match (args.manage, args.write) {
            (true, _) => Right::Manage,
            (false, true) => Right::Write,
            (false, false) => Right::Read,
        },
        expires: now + args.expires.as_secs(),
        lasts: (!args.no_renewal).then_some(args.expires.as_secs()),
        id: Some(id),
        brief: false,
    };
    let expires = clock::show_unix(claims.expires);
    let grants = format!("{} {}, until {expires}", doing(claims.right), claims.images.join(" "));
    if context.global.dry_run {
        let record = json!({
            "type": "plan", "images": claims.images, "right": claims.right, "expires": expires,
            "renewable": !args.no_renewal,
        });
        return context.output.result(&record, || format!("{}make a token for {grants}\n", context.would()));
    }
    let authority = state.authority()?;
    let secret = authority.mint(&claims).ok_or_else(|| {
        Failure::new(Exit::Usage, format!("a token holds at most {PATTERNS_MAX} patterns, and 1024 bytes"))
    })?;
    let fingerprint = if args.no_tls { None } else { Some(state.identity()?.fingerprint()) };
    let token = JoinToken { fingerprint, secret };
    authority.record_made(&claims, &repository::stamp().creator, now)?;
    let record = json!({
        "type": "token", "id": id, "token": token.to_string(), "images": claims.images, "right": claims.right,
        "expires": expires, "renewable": !args.no_renewal,
    });
    make_output_private()
        .map_err(|error| Failure::from(error).context("make the file of the token private"))?;
    context.output.note(&format!("token {id} for {grants}"));
    context.output.answer(&record, || format!("{token}\n"))
}

/// What a token lets its holder do.
fn doing(right: Right) -> &'static str {
    match right {
        Right::Read => "reading",
        Right::Write => "reading and writing",
        Right::Manage => "reading, writing and managing",
    }
}

/// If the output goes to a file, only its owner may read it from now on: the file will hold a secret.
fn make_output_private() -> std::io::Result<()> {
    let output = std::io::stdout();
    let is_file = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&output)?.st_mode).is_file();
    if is_file { Ok(rustix::fs::fchmod(&output, rustix::fs::Mode::from_raw_mode(0o600))?) } else { Ok(()) }
}
