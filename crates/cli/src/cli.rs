//! The definition of the command line, from which clap makes help texts and usage errors.

use std::fmt::Write as _;

use clap::CommandFactory as _;
use clap::builder::{OsStr, Resettable};
use clap::error::ErrorKind;

use crate::args::Global;
use crate::commands;
use crate::dry_run::{COMMANDS, DryRun};
use crate::exit::{Exit, Failure, Result};
use crate::help;

/// The commands in the order of the help text, by what they are for. Those that machines call are not among them.
const GROUPS: &[(&str, &[&str])] = &[
    ("Capture and install", &["capture", "install", "commit", "grow", "shrink", "personalize"]),
    (
        "To many machines",
        &["serve", "fetch", "deploy", "agent", "switch", "status", "doctor", "token", "opennebula"],
    ),
    ("Machines that boot from the network", &["netboot", "boot-image", "hosts"]),
    ("Disks that run before they arrived", &["attach", "detach", "disks", "mount"]),
    (
        "Images and versions",
        &["images", "inspect", "log", "diff", "tag", "create", "clone", "remove", "profile"],
    ),
    ("Repositories", &["init", "repository", "usage", "copy", "verify", "prune", "key"]),
    ("A cluster of disks under a repository", &["cluster"]),
];

/// Commands that `-h` shows.
const MAIN: &[&str] = &[
    "capture", "install", "serve", "fetch", "deploy", "status", "doctor", "netboot", "hosts", "attach",
    "mount", "images", "log", "tag", "remove", "verify", "prune", "cluster",
];

const EXIT_CODES: &str = "\
Exit codes:
  0 done    1 failed    2 wrong usage    3 partly done    10 not found
  11 refused before anything was changed    12 verification failed
  13 refused by a server, or a server that is not trusted    130 interrupted

A NAME is `image` (its newest version), `image:tag` or `image@version`.
Sizes take K, M, G, T (1024); rates take K, M, G bits per second (1000).";

const EXAMPLES: &str = "\
Examples:
  diskcast capture /dev/sda classroom            capture a disk as a new version of `classroom`
  diskcast serve                                 offer all images to the network
  diskcast fetch https://10.0.0.1:7717 classroom /dev/sda --token-file join.token
  diskcast install classroom@3 disk.img          without a server, into a file";

/// Capture disks as versioned images and multicast them to many machines.
#[derive(Debug, clap::Parser)]
#[command(name = "diskcast", version, after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
#[command(propagate_version = true, disable_help_subcommand = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// The command line, with the commands in groups in its help text: clap itself has no groups of commands. `-h` shows
/// the main ones, `--help` all.
pub(crate) fn command_line() -> clap::Command {
    let command = Cli::command();
    let is_long = std::env::args_os().any(|word| word == "--help" || word == "--help-all");
    let groups = if is_long { GROUPS } else { &[("Commands", MAIN)] };
    let groups: String =
        groups.iter().map(|(heading, names)| group(&command, heading, names, is_long)).collect();
    help::arrange(command, "", is_long)
        .override_usage("diskcast [OPTIONS] <COMMAND>")
        .mut_subcommands(|command| command.hide(true))
        .help_template(format!(
            "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{{all-args}}{{after-help}}"
        ))
}

/// The part of the help text that lists the commands with these names.
fn group(command: &clap::Command, heading: &str, names: &[&str], is_long: bool) -> String {
    let mut text = format!("\x1b[1m\x1b[4m{heading}:\x1b[0m\n");
    for name in names {
        let found = command.find_subcommand(name).expect("a group has only commands");
        let aliases: Vec<_> = found.get_visible_aliases().collect();
        let also =
            if aliases.is_empty() { String::new() } else { format!(" [alias: {}]", aliases.join(", ")) };
        let about = found.get_about().map(ToString::to_string).unwrap_or_default();
        let about = if is_long { &about } else { help::brief(&about) };
        writeln!(text, "  \x1b[1m{name:<12}\x1b[0m {about}{also}").expect("strings take whatever is written");
    }
    text.push('\n');
    text
}

/// What the user asks for. Ends the program if that is help, or wrong.
pub(crate) fn matches_of(command: clap::Command) -> clap::ArgMatches {
    command.clone().try_get_matches().unwrap_or_else(|error| match error.kind() {
        // A variable counts as an argument, so that clap would not show the help to who gives none.
        ErrorKind::MissingSubcommand => without_variables(command).get_matches(),
        _ => error.exit(),
    })
}

fn without_variables(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|argument| argument.env(Resettable::<OsStr>::Reset));
    command.mut_subcommands(without_variables)
}

/// Refuses `--dry-run` if the command that `matches` names can't tell what it would do.
pub(crate) fn check_dry_run(global: &Global, matches: &clap::ArgMatches) -> Result<()> {
    if !global.dry_run {
        return Ok(());
    }
    let mut words = Vec::new();
    let mut rest = matches;
    while let Some((name, inner)) = rest.subcommand() {
        words.push(name);
        rest = inner;
    }
    let name = words.join(" ");
    let (_, does) = COMMANDS.iter().find(|(known, _)| *known == name).expect("each command is in the table");
    if *does != DryRun::Refuses {
        return Ok(());
    }
    let text = format!("`diskcast {name}` takes no --dry-run: it can't tell beforehand what it would do");
    Err(Failure::new(Exit::Usage, text).hint("nothing was done; leave out --dry-run to run it"))
}

/// What to do.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Init(commands::init::Args),
    Capture(commands::capture::Args),
    Install(commands::install::Args),
    Fetch(commands::fetch::Args),
    Grow(commands::grow::Args),
    Shrink(commands::shrink::Args),
    Personalize(commands::personalize::Args),
    Serve(commands::serve::Args),
    Netboot(commands::netboot::Args),
    BootImage(commands::boot_image::Args),
    Hosts(commands::hosts::Args),
    Deploy(commands::deploy::Args),
    BootAgent(commands::boot_agent::Args),
    Agent(commands::agent::Args),
    Work(commands::work::Args),
    Switch(commands::switch::Args),
    Status(commands::status::Args),
    Doctor(commands::doctor::Args),
    Attach(commands::attach::Args),
    Detach(commands::detach::Args),
    Disks(commands::disks::Args),
    Mount(commands::mount::Args),
    Token(commands::token::Args),
    Opennebula(commands::opennebula::Args),
    #[command(visible_alias = "ls")]
    Images(commands::images::Args),
    #[command(visible_alias = "info")]
    Inspect(commands::inspect::Args),
    Log(commands::log::Args),
    Diff(commands::diff::Args),
    Create(commands::create::Args),
    Clone(commands::clone::Args),
    Commit(commands::commit::Args),
    /// Show how much space images use: alone, shared with other images, and in total
    ///
    /// LOGICAL is the allocated size of all versions of an image together; OWN is what `diskcast prune` frees once the
    /// image is removed; SHARED is also used by other images. The last line counts everything once.
    #[command(after_help = "\
Examples:
  diskcast usage
  diskcast usage --repo s3://images/lab --json")]
    Usage,
    Copy(commands::copy::Args),
    Tag(commands::tag::Args),
    #[command(visible_alias = "rm")]
    Remove(commands::remove::Args),
    Profile(commands::profile::Args),
    Prune(commands::prune::Args),
    Verify(commands::verify::Args),
    Key(commands::key::Args),
    Cluster(commands::cluster::Args),
    Metadata(commands::metadata::Args),
    Device(commands::device::Args),
    Repository(commands::repository::Args),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commands that machines call, and former names.
    const HIDDEN: &[&str] = &["work", "boot-agent", "metadata", "device"];

    #[test]
    fn the_command_line_is_consistent_and_each_command_is_in_one_group() {
        command_line().debug_assert();
        let command = Cli::command();
        let mut commands: Vec<_> = command.get_subcommands().map(clap::Command::get_name).collect();
        let grouped = GROUPS.iter().flat_map(|(_, names)| names.iter().copied());
        let mut grouped: Vec<_> = grouped.chain(HIDDEN.iter().copied()).collect();
        commands.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, commands);
    }

    /// The words of `command` and of those below it that can be run, behind the words `before`.
    fn runnable(command: &clap::Command, before: &str, found: &mut Vec<String>) {
        for sub in command.get_subcommands() {
            let name = format!("{before}{}", sub.get_name());
            if !sub.is_subcommand_required_set() {
                found.push(name.clone());
            }
            runnable(sub, &format!("{name} "), found);
        }
    }

    #[test]
    fn each_command_says_what_it_does_with_a_dry_run() {
        let mut commands = Vec::new();
        runnable(&Cli::command(), "", &mut commands);
        let mut known: Vec<_> = COMMANDS.iter().map(|(name, _)| (*name).to_owned()).collect();
        commands.sort_unstable();
        known.sort_unstable();
        assert_eq!(known, commands);
    }
}
