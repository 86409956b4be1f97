//! `--repo https://SERVER`: one way to name a server for every command. It stands for the command's own option, where
//! there is one. Commands that work on a repository itself are refused.

use crate::args::Global;
use crate::cli::Command;
use crate::exit::{Exit, Failure, Result};

/// The server that `--repo` or `DISKCAST_REPO` names, if it names one.
fn server(global: &Global) -> Option<String> {
    let repo = global.repo.as_ref()?;
    let is_url = ["https://", "http://"].iter().any(|scheme| repo.starts_with(scheme));
    is_url.then(|| repo.clone())
}

/// Gives the server that `--repo` names to `command`. Commands that name one themselves keep theirs.
pub(crate) fn apply(global: &mut Global, command: &mut Command) -> Result<()> {
    let Some(server) = server(global) else { return Ok(()) };
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
        // They have a server of their own, or need none.
        Command::Attach(_)
        | Command::Mount(_)
        | Command::Fetch(_)
        | Command::Doctor(_)
        | Command::Detach(_)
        | Command::Disks(_)
        | Command::Token(_) => {}
        Command::Key(args) if args.is_of_repository() => return Err(refusal("key cut-over")),
        Command::Key(_) => {}
        Command::Verify(args) if args.repair.is_some() => {
            let hint = "`diskcast verify` finds damage through a server; run `diskcast verify --repair` where \
                        the repository is: --repo FOLDER or s3://BUCKET/PREFIX";
            return Err(works_here("verify --repair").hint(hint));
        }
        Command::Verify(args) => args.from.server = Some(server),
        Command::Init(_) => return Err(refusal("init")),
        Command::Serve(_) => return Err(refusal("serve")),
        Command::Diff(_) => return Err(refusal("diff")),
        Command::Usage => return Err(refusal("usage")),
        Command::Copy(_) => return Err(refusal("copy")),
        Command::Tag(_) => return Err(refusal("tag")),
        Command::Remove(_) => return Err(refusal("remove")),
        Command::Profile(_) => return Err(refusal("profile")),
        Command::Prune(_) => return Err(refusal("prune")),
        Command::Repository(_) => return Err(refusal("repository")),
    }
    // From here on there is no repository of this machine's, unless the command means its default.
    global.repo = None;
    Ok(())
}

fn refusal(command: &str) -> Failure {
    works_here(command).hint("run it where the repository is: --repo FOLDER or s3://BUCKET/PREFIX")
}

fn works_here(command: &str) -> Failure {
    let text = format!("`diskcast {command}` works on a repository itself, not through a server");
    Failure::new(Exit::Usage, text)
}
