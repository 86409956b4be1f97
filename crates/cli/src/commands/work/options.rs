//! The words of the command that a job starts, and whether it takes the options that the job adds to them.

use net::api::{Copies, Put};

use crate::cli::command_line;
use crate::exit::{Exit, Failure, Result};

/// `diskcast fetch` of the image that `put` names, but for what depends on the moment. The token comes on its standard
/// input.
pub(super) fn fetch<'a>(put: &'a Put, target: &'a str, server: &'a str) -> [&'a str; 8] {
    ["--json", "--yes", "fetch", server, &put.reference, target, "--token-file", "-"]
}

/// The same for `diskcast attach` as the disk `name`.
pub(super) fn attach<'a>(put: &'a Put, name: &'a str, server: &'a str) -> [&'a str; 7] {
    ["--json", "attach", &put.reference, "--name", name, "--from", server]
}

/// Refuses jobs, each with its target, whose hosts would refuse the options. A variable that is not filled in yet may
/// have any value.
pub(crate) fn check<'a>(jobs: impl IntoIterator<Item = (&'a Put, &'a str)>) -> Result<()> {
    let mut jobs = jobs.into_iter().filter(|(put, _)| !put.options.is_empty()).peekable();
    if jobs.peek().is_none() {
        return Ok(());
    }
    let mut program = command_line();
    jobs.try_for_each(|(put, target)| check_one(&mut program, put, target))
}

fn check_one(program: &mut clap::Command, put: &Put, target: &str) -> Result<()> {
    let put = Put { reference: "image".to_owned(), ..put.clone() };
    let attaches = put.copy == Some(Copies::Attach);
    let own: &[&str] =
        if attaches { &attach(&put, target, "server") } else { &fetch(&put, target, "server") };
    let words = ["diskcast"].iter().chain(own).copied().chain(put.options.iter().map(String::as_str));
    let Err(error) = program.try_get_matches_from_mut(words) else { return Ok(()) };
    if error.kind() == clap::error::ErrorKind::ValueValidation
        && put.options.iter().any(|word| word.contains('{'))
    {
        return Ok(());
    }
    let command = if attaches { "attach" } else { "fetch" };
    let said = error.to_string();
    let said = said.lines().next().unwrap_or_default().trim_start_matches("error: ");
    let text = format!("`{}` are not options of `diskcast {command}`: {said}", put.options.join(" "));
    Err(Failure::new(Exit::Usage, text).hint(format!("`diskcast {command} --help` lists them")))
}
