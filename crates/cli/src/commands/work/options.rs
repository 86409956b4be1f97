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

/// Refuses options that each host would refuse. Names of variables that are not filled in yet are taken for values.
pub(crate) fn check(put: &Put, target: &str) -> Result<()> {
    let put = Put { reference: "image".to_owned(), ..put.clone() };
    let attaches = put.copy == Some(Copies::Attach);
    let own: &[&str] =
        if attaches { &attach(&put, target, "server") } else { &fetch(&put, target, "server") };
    let words = ["diskcast"].iter().chain(own).copied().chain(put.options.iter().map(String::as_str));
    let Err(error) = command_line().try_get_matches_from(words) else { return Ok(()) };
    if error.kind() == clap::error::ErrorKind::ValueValidation
        && put.options.iter().any(|word| word.contains('{'))
    {
        return Ok(());
    }
    let command = if attaches { "attach" } else { "fetch" };
    let said = error.to_string();
    let said = said.lines().next().unwrap_or_default().trim_start_matches("error: ");
    let text = format!("`{}` are no options of `diskcast {command}`: {said}", put.options.join(" "));
    Err(Failure::new(Exit::Usage, text).hint(format!("`diskcast {command} --help` lists them")))
}
