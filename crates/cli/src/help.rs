//! Texts of `-h` and `--help`. `-h` fits a screen: the options that most people need, one sentence each. `--help` has
//! all options, by what they are for.

use clap::{Arg, ArgAction, Command};

/// Options of every command that `-h` shows.
const COMMON: &[&str] = &["repo", "json", "quiet", "yes", "dry-run"];

/// Place of the common options among those of a command.
const LAST: usize = 900;

/// Most examples that `-h` shows.
const EXAMPLES_MAX: usize = 3;

/// What `-h` shows of commands with many options. Of all others it shows all of their own.
const SHOWN: &[(&str, &[&str])] = &[
    ("capture", &["skip", "raw", "live", "freeze", "snapshot", "rescue", "label", "to", "token-file"]),
    ("commit", &["disk", "range", "at", "append", "free", "to", "token-file"]),
    ("install", &["also", "overwrite", "resume", "grow", "as", "new-identity", "hostname"]),
    ("personalize", &["new-identity", "hostname", "cloud-init", "copy", "run"]),
    ("fetch", &["token-file", "transport", "overwrite", "resume", "grow", "as", "new-identity", "serve-for"]),
    ("serve", &["listen", "interface", "rate", "token-out", "agents", "netboot", "torrent", "public-http"]),
    ("deploy", &["to", "target", "inventory", "agents", "copy", "wave", "attempts", "after", "server"]),
    ("agent", &["server", "pin", "list", "kept"]),
    ("status", &["watch", "all", "token-file"]),
    ("token", &["image", "write", "manage", "expires"]),
    ("netboot", &["dhcp", "strict", "boot-image", "power-program", "listen", "token-out"]),
    ("boot-image", &["firmware", "secure-boot-key", "secure-boot-certificate", "server"]),
    ("hosts", &["server"]),
    ("attach", &["name", "from", "token-file", "nbd", "listen", "device", "read-only"]),
    ("mount", &["from", "token-file", "folder", "share"]),
    ("clone", &["disk", "quiesce", "to"]),
    ("verify", &["disk", "repair", "partition"]),
    ("cluster metadata", &["new", "listen", "width", "etcd"]),
    ("cluster device", &["new", "metadata", "listen", "domain"]),
];

/// Commands whose options `--help` shows in groups.
const WRITERS: &[&str] = &["install", "fetch"];

/// The groups of these options, by what they are for.
const HEADINGS: &[(&str, &[&str])] = &[
    (
        "Other machines",
        &[
            "no-peers",
            "serve-for",
            "memory-only",
            "serve-copy",
            "upload-limit",
            "spool-memory",
            "spool",
            "spool-folder",
            "place",
        ],
    ),
    ("Network", &["transport", "torrent", "interface", "receiver", "buffer", "wait"]),
    (
        "Which way to write",
        &["also", "copy-of", "into", "create-volume", "free", "reuse", "as", "compress", "size"],
    ),
    (
        "What is kept and checked",
        &["resume", "no-verify", "keep-signatures", "keep-size", "keep-gpt", "onto-source"],
    ),
    ("Speed and memory", &["threads", "memory", "disk-rate"]),
];

/// Arranges the help texts of `command` and of those below it: the long ones, or the short ones. `path` are the words
/// before it.
pub(crate) fn arrange(command: Command, path: &str, is_long: bool) -> Command {
    let command = command.disable_help_flag(true).arg(help_flag());
    let command =
        if is_long { command.mut_args(|arg| under_heading(arg, path)) } else { shorten(command, path) };
    command.mut_subcommands(|sub| {
        let path = format!("{path} {}", sub.get_name());
        arrange(sub, path.trim_start(), is_long)
    })
}

/// `-h` shows the short text, `--help` the long one. `--help-all` is another name for that.
fn help_flag() -> Arg {
    Arg::new("help")
        .short('h')
        .long("help")
        .alias("help-all")
        .action(ArgAction::Help)
        .help_heading(None::<&str>)
        .display_order(LAST)
        .help("Print help; -h prints the options that most people need")
}

/// Puts an option of a command that writes disks under the heading of what it is for.
fn under_heading(arg: Arg, path: &str) -> Arg {
    if !WRITERS.contains(&path) || arg.get_help_heading().is_some() {
        return arg;
    }
    let is_it = |options: &[&str]| arg.get_long().is_some_and(|long| options.contains(&long));
    match HEADINGS.iter().find(|(_, options)| is_it(options)) {
        Some((heading, _)) => arg.help_heading(*heading),
        None => arg,
    }
}

/// Leaves in the help what most people need.
fn shorten(command: Command, path: &str) -> Command {
    let shown = if path.is_empty() {
        Some(COMMON)
    } else {
        let is_it = |name: &str| name == path || name.strip_prefix("cluster ") == Some(path);
        SHOWN.iter().find(|(name, _)| is_it(name)).map(|(_, options)| *options)
    };
    let command = command.mut_args(|arg| {
        let is_shown = match arg.get_long() {
            Some(long) => long == "help" || shown.is_none_or(|shown| shown.contains(&long)),
            None => true,
        };
        let text = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let arg = arg.help(brief(&text).to_owned()).hide_env(true).hide_short_help(!is_shown);
        // Those that every command has come last.
        let arg = if path.is_empty() { arg.display_order(LAST) } else { arg };
        arg.help_heading(None::<&str>)
    });
    let command = command.mut_subcommands(|sub| {
        let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
        sub.about(brief(&about).to_owned())
    });
    let mut text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    if let Some((end, _)) = text.match_indices('\n').nth(EXAMPLES_MAX) {
        text.truncate(end);
        // An example of two lines.
        if text.ends_with('\\') {
            text.truncate(text.rfind('\n').unwrap_or(0));
        }
    }
    let more = format!("All options: diskcast {path} --help").replace("  ", " ");
    command.after_help(format!("{text}\n\n{more}").trim_start().to_owned())
}

/// The first sentence or clause of a help text.
pub(crate) fn brief(text: &str) -> &str {
    let ends = [". ", "; ", " [default:", " (", ": "];
    let end = ends.iter().filter_map(|end| text.find(end)).filter(|end| *end > 20).min();
    let text = &text[..end.unwrap_or(text.len())];
    // It ended inside of brackets.
    match text.rfind('[') {
        Some(open) if !text[open..].contains(']') => text[..open].trim_end(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command_line;

    /// Lines of the short helps of `command` and of those below it that are longer than a screen.
    fn too_long(command: &mut Command, path: &str, found: &mut Vec<String>) {
        let lines = command.render_help().to_string().lines().count();
        if lines > 40 {
            found.push(format!("{path}: {lines} lines"));
        }
        for sub in command.get_subcommands_mut() {
            let path = format!("{path} {}", sub.get_name());
            too_long(sub, &path, found);
        }
    }

    #[test]
    fn short_helps_fit_a_screen_of_forty_lines() {
        let mut command = command_line().term_width(100);
        command.build();
        let mut found = Vec::new();
        too_long(&mut command, "diskcast", &mut found);
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    fn known(command: &Command, path: &str, names: &[&str]) -> Vec<String> {
        let has = |name: &str| command.get_arguments().any(|arg| arg.get_long() == Some(name));
        names.iter().filter(|name| !has(name)).map(|name| format!("{path} --{name}")).collect()
    }

    #[test]
    fn what_short_helps_show_exists() {
        let root = command_line();
        let mut unknown = known(&root, "diskcast", COMMON);
        for (path, names) in SHOWN {
            let command = path.split(' ').try_fold(&root, |command, name| command.find_subcommand(name));
            match command {
                Some(command) => unknown.extend(known(command, path, names)),
                None => unknown.push((*path).to_owned()),
            }
        }
        assert!(unknown.is_empty(), "{}", unknown.join("\n"));
    }

    #[test]
    fn a_brief_text_is_a_whole_clause() {
        assert_eq!(brief("Where each host gets it: a device"), "Where each host gets it");
        assert_eq!(brief("Print errors only"), "Print errors only");
        assert_eq!(brief("Image that gets it [with --disk: that of the disk]"), "Image that gets it");
        assert_eq!(brief("Give (all) of them to whoever asks. More."), "Give (all) of them to whoever asks");
    }
}
