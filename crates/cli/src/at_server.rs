//! `--repo https://SERVER`: one way to name a server for every command. It stands for the command's own option, where
//! there is one. Commands that work on a repository itself are refused.

use clap::{Arg, ArgMatches};

use crate::args::Global;
use crate::cli::Command;
use crate::exit::{Exit, Failure, Result};

/// Commands that work on a repository itself, and what to do instead where there is only a server.
const HERE: &[(&str, &str)] = &[
    ("init", "the server has a repository: `diskcast init --repo FOLDER` makes another one on this machine"),
    ("serve", "say which repository to offer: `diskcast serve --repo FOLDER`, or s3://BUCKET/PREFIX"),
    (
        "netboot",
        "say which repository to offer: `diskcast netboot INTERFACE --repo FOLDER`, or s3://BUCKET/PREFIX",
    ),
    (
        "repository",
        "`diskcast images` shows what a server has; run `diskcast repository` where the repository is",
    ),
    ("usage", "`diskcast images` shows the size of each image; run `diskcast usage` where the repository is"),
    ("diff", "`diskcast log` lists the versions; run `diskcast diff` where the repository is"),
    ("shrink", "run `diskcast shrink` where the repository is: it stores what it made there"),
    ("tag", "a server moves no tags: use `image@version`, or run `diskcast tag` where the repository is"),
    ("remove", "a server removes nothing: run `diskcast remove` where the repository is"),
    ("profile", "`diskcast attach` uses profiles by itself; run `diskcast profile` where the repository is"),
    ("copy", "`diskcast clone` copies within a server; run `diskcast copy` where one of the repositories is"),
    ("prune", "run `diskcast prune` where the repository is; its server goes on meanwhile"),
    ("key cut-over", "run `diskcast key cut-over` where the repository is, with the key that signs"),
    (
        "verify --repair",
        "`diskcast verify` finds damage through a server; run `diskcast verify --repair` where the repository is",
    ),
];

/// The id of an option for a server in commands that have none.
const UNUSED: &str = "option_for_a_server";

/// Lets the commands that work on a repository itself take `--token-file`, so that who gives it is told what is wrong:
/// that there is no server in this command, not that there is no such option.
pub(crate) fn take_token_files(command: clap::Command) -> clap::Command {
    command.mut_subcommands(|command| {
        if !HERE.iter().any(|(name, _)| name.split(' ').next() == Some(command.get_name())) {
            return command;
        }
        if command.has_subcommands() {
            return command.mut_subcommands(with_unused);
        }
        with_unused(command)
    })
}

fn with_unused(command: clap::Command) -> clap::Command {
    if command.get_arguments().any(|argument| argument.get_long() == Some("token-file")) {
        return command;
    }
    command.arg(Arg::new(UNUSED).long("token-file").value_name("FILE").hide(true))
}

/// Whether `matches` have the option that [`take_token_files`] added.
fn has_unused(matches: &ArgMatches) -> bool {
    let Some((_, sub)) = matches.subcommand() else { return false };
    matches!(sub.try_contains_id(UNUSED), Ok(true)) || has_unused(sub)
}

/// The server that `--repo` or `DISKCAST_REPO` names, if it names one.
fn server(global: &Global) -> Option<String> {
    let repo = global.repo.as_ref()?;
    let is_url = ["https://", "http://"].iter().any(|scheme| repo.starts_with(scheme));
    is_url.then(|| repo.clone())
}

/// Gives the server that `--repo` names to `command`. Commands that name one themselves keep theirs. `matches` is what
/// both were made from.
pub(crate) fn apply(global: &mut Global, command: &mut Command, matches: &ArgMatches) -> Result<()> {
    let server = server(global);
    match command {
        Command::Fetch(args) => args.settle(server.as_deref())?,
        Command::Doctor(args) => args.settle(server.as_deref())?,
        _ => {}
    }
    let Some(server) = server else {
        if has_unused(matches) {
            let text = "--token-file is for a server, and this command works on a repository itself";
            return Err(Failure::new(Exit::Usage, text).hint("omit --token-file"));
        }
        return Ok(());
    };
    give(server, command)?;
    // From here on there is no repository of this machine's, unless the command means its default.
    global.repo = None;
    Ok(())
}

fn give(server: String, command: &mut Command) -> Result<()> {
    match command {
        Command::Images(args) => args.from.server = Some(server),
        Command::Inspect(args) => args.from.server = Some(server),
        Command::Log(args) => args.from.server = Some(server),
        Command::Install(args) => args.from.server = Some(server),
        Command::Capture(args) => drop(args.to.get_or_insert(server)),
        Command::Create(args) => drop(args.there.to.get_or_insert(server)),
        Command::Clone(args) => drop(args.there.to.get_or_insert(server)),
        Command::Commit(args) => drop(args.there.to.get_or_insert(server)),
        Command::Attach(args) if args.from.is_empty() => args.from.push(server),
        Command::Mount(args) if args.from.is_empty() => args.from.push(server),
        Command::Status(args) => drop(args.server.get_or_insert(server)),
        Command::Deploy(args) if !args.by_ssh.to.is_empty() => {
            args.server.server.get_or_insert(server);
        }
        // They have a server of their own, or need none.
        Command::Attach(_)
        | Command::Mount(_)
        | Command::Fetch(_)
        | Command::Grow(_)
        | Command::Personalize(_)
        | Command::Doctor(_)
        | Command::Detach(_)
        | Command::Disks(_)
        | Command::BootImage(_)
        | Command::Hosts(_)
        | Command::Deploy(_)
        | Command::Agent(_)
        | Command::BootAgent(_)
        | Command::Work(_)
        | Command::Switch(_)
        | Command::Cluster(_)
        | Command::Metadata(_)
        | Command::Device(_)
        | Command::Token(_)
        | Command::Opennebula(_) => {}
        Command::Key(args) if args.is_of_repository() => return Err(refusal("key cut-over")),
        Command::Key(_) => {}
        Command::Verify(args) if args.repair.is_some() => return Err(refusal("verify --repair")),
        Command::Verify(args) => args.from.server = Some(server),
        Command::Init(_) => return Err(refusal("init")),
        Command::Serve(_) => return Err(refusal("serve")),
        Command::Netboot(_) => return Err(refusal("netboot")),
        Command::Diff(_) => return Err(refusal("diff")),
        Command::Usage => return Err(refusal("usage")),
        Command::Copy(_) => return Err(refusal("copy")),
        Command::Tag(_) => return Err(refusal("tag")),
        Command::Remove(_) => return Err(refusal("remove")),
        Command::Profile(_) => return Err(refusal("profile")),
        Command::Prune(_) => return Err(refusal("prune")),
        Command::Shrink(_) => return Err(refusal("shrink")),
        Command::Repository(_) => return Err(refusal("repository")),
    }
    Ok(())
}

fn refusal(command: &str) -> Failure {
    let text = format!("`diskcast {command}` works on a repository itself, not through a server");
    let (_, instead) =
        HERE.iter().find(|(name, _)| *name == command).expect("a refused command is in the list");
    Failure::new(Exit::Usage, text).hint(*instead)
}
