//! Finds items that a crate exports although no code outside the crate uses them. The check compares words, not
//! parsed code: an item counts as used if its name occurs anywhere in another crate, or in tests, examples and fuzz
//! targets, or, for a type, in a public signature of its own crate.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use crate::sources::collect;

/// Allowed unused exports, each with the reason.
const EXCUSED: &[(&str, &str)] = &[
    ("NotADigest", "the error of a digest's `FromStr`"),
    ("IOCTL_CLONE", "for programs that ask a mount (docs/mount.md)"),
    ("IOCTL_COMMIT", "for programs that ask a mount (docs/mount.md)"),
];
const KINDS: &[&str] = &["fn", "struct", "enum", "trait", "const", "static", "type"];

pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    for folder in ["crates", "fuzz"] {
        collect(&root.join(folder), &mut files);
    }
    let texts: BTreeMap<PathBuf, String> = files
        .into_iter()
        .map(|file| (file.clone(), std::fs::read_to_string(file).expect("sources are UTF-8")))
        .collect();
    let mut breaches = Vec::new();
    for entry in std::fs::read_dir(root.join("crates")).expect("there are crates").flatten() {
        let src = entry.path().join("src");
        if src.join("lib.rs").exists() {
            breaches.extend(unnamed(root, &src, &texts));
        }
    }
    breaches.sort();
    breaches
}

fn unnamed(root: &Path, src: &Path, texts: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let (inside, outside): (Vec<_>, Vec<_>) = texts.iter().partition(|(file, _)| is_library(src, file));
    let outside: HashSet<&str> = outside.iter().flat_map(|(_, text)| words(text)).collect();
    let signatures: Vec<&str> = inside
        .iter()
        .flat_map(|(_, text)| text.lines())
        .filter(|line| is_public(line))
        .flat_map(words)
        .collect();
    let mut breaches = Vec::new();
    for (file, text) in inside {
        for (kind, name) in text.lines().filter_map(exported) {
            let is_type = ["struct", "enum", "trait", "type"].contains(&kind);
            let is_needed = is_type && signatures.iter().filter(|word| **word == name).count() > 1;
            let is_excused = EXCUSED.iter().any(|(excused, _)| *excused == name);
            if !outside.contains(name) && !is_needed && !is_excused {
                let path = file.strip_prefix(root).expect("below the root").display();
                breaches.push(format!("{path}: no other crate, test or fuzz target names `{name}`"));
            }
        }
    }
    breaches
}

/// Whether `file` belongs to the library in `src`, and not to a program next to it.
fn is_library(src: &Path, file: &Path) -> bool {
    let is_program = file.components().any(|part| part.as_os_str() == "bin" || part.as_os_str() == "demo");
    file.starts_with(src) && !is_program && !file.ends_with("main.rs")
}

fn is_public(line: &str) -> bool {
    line.trim_start().starts_with("pub ") || line.contains("-> ") || line.trim_start().starts_with("type ")
}

/// Kind and name of the item that `line` exports.
fn exported(line: &str) -> Option<(&str, &str)> {
    let mut words = words(line.trim_start().strip_prefix("pub ")?);
    let kind = words.find(|word| KINDS.contains(word) && !(*word == "const" && line.contains("const fn")))?;
    Some((kind, words.next()?))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_are_told_from_the_rest() {
        assert_eq!(exported("    pub fn read(&self) -> u8 {"), Some(("fn", "read")));
        assert_eq!(exported("pub const fn one() -> u8 {"), Some(("fn", "one")));
        assert_eq!(exported("pub const ONE: u8 = 1;"), Some(("const", "ONE")));
        assert_eq!(exported("pub struct Two<'a> {"), Some(("struct", "Two")));
        assert_eq!(exported("pub(crate) fn three() {}"), None);
        assert_eq!(exported("    pub four: u8,"), None);
    }
}
