//! Settings from files. `/etc/diskcast/config.toml` is for all users of a machine, the user's own file comes before it,
//! and variables and options come before both.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Command;

use crate::connect;

/// The file for all users.
const SYSTEM: &str = "/etc/diskcast/config.toml";
/// Names another file instead of these two.
const VARIABLE: &str = "DISKCAST_CONFIG";
/// Options that a file may set, by their long names.
const SETTINGS: &[&str] =
    &["repo", "token-file", "trust", "encryption-key", "cache", "cache-size", "interface", "seen", "state"];

/// Values of options, by their long names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Config(BTreeMap<String, Vec<&'static str>>);

impl Config {
    /// Reads the files. The error is for the user, and names the file.
    pub(crate) fn load() -> Result<Self, String> {
        let named = std::env::var_os(VARIABLE);
        let may_be_missing = named.is_none();
        let paths = match named {
            Some(path) => vec![PathBuf::from(path)],
            None => [Some(SYSTEM.into()), user_file()].into_iter().flatten().collect(),
        };
        let mut config = Self::default();
        for path in paths {
            match std::fs::read_to_string(&path) {
                Ok(text) => config.0.extend(Self::parse(&text).map_err(|why| said(&path, &why))?.0),
                Err(error) if may_be_missing && error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(said(&path, &error.to_string())),
            }
        }
        // A token in the environment, too, comes before the file that a file names.
        if std::env::var_os(connect::VARIABLE).is_some_and(|token| !token.is_empty()) {
            config.0.remove("token-file");
        }
        Ok(config)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.message().to_owned())?;
        let mut config = Self::default();
        for (name, value) in table {
            if !SETTINGS.contains(&name.as_str()) {
                return Err(format!("there is no setting `{name}`; there are {}", SETTINGS.join(", ")));
            }
            let words = match value {
                toml::Value::Array(values) => values.into_iter().map(word).collect(),
                value => word(value).map(|word| vec![word]),
            };
            let words: Vec<String> =
                words.ok_or_else(|| format!("`{name}` takes text, or a list of texts"))?;
            // They last as long as the process: clap takes no others as defaults.
            let words = words.into_iter().map(|word| &*Box::leak(word.into_boxed_str())).collect();
            config.0.insert(name, words);
        }
        Ok(config)
    }

    /// Makes the values the defaults of all options with these names.
    pub(crate) fn set_defaults(&self, command: Command) -> Command {
        let command = command.mut_args(|argument| {
            let words = argument.get_long().and_then(|name| self.0.get(name)).cloned();
            match words {
                Some(words) => argument.default_values(words).hide_default_value(true),
                None => argument,
            }
        });
        command.mut_subcommands(|sub| self.set_defaults(sub))
    }
}

fn word(value: toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text),
        toml::Value::Integer(number) => Some(number.to_string()),
        _ => None,
    }
}

fn said(path: &Path, why: &str) -> String {
    format!("`{}`: {why}", path.display())
}

/// The user's file (XDG Base Directory Specification).
fn user_file() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    folder.map(|folder| folder.join("diskcast/config.toml"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked_by_name_and_type() {
        let config = Config::parse("repo = \"https://10.0.0.1\"\ntrust = [\"a.pub\", \"b.pub\"]\n").unwrap();
        assert_eq!(config.0["trust"], ["a.pub", "b.pub"]);
        assert!(Config::parse("repp = \"x\"").unwrap_err().contains("no setting `repp`; there are repo,"));
        assert!(Config::parse("repo = true").unwrap_err().contains("takes text"));
        assert!(Config::parse("repo = ").is_err());
        let command = config.set_defaults(crate::cli::command_line());
        command.clone().debug_assert();
        let matches = command.try_get_matches_from(["diskcast", "images", "--repo", "here"]).unwrap();
        assert_eq!(matches.get_one::<String>("repo").unwrap(), "here");
    }

    #[test]
    fn each_setting_is_an_option_of_some_command() {
        fn has(command: &Command, name: &str) -> bool {
            command.get_arguments().any(|argument| argument.get_long() == Some(name))
                || command.get_subcommands().any(|sub| has(sub, name))
        }
        let command = crate::cli::command_line();
        SETTINGS.iter().for_each(|name| assert!(has(&command, name), "{name}"));
    }
}
