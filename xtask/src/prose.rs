//! Checks pages for users, and messages: sentences that are hard to read, and links that lead nowhere.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::sources::collect;

/// Pages that a program writes, and notes of developers.
const NOT_FOR_USERS: &[&str] = &["docs/measurements.md", "docs/test-times.md", "docs/notes/"];
/// How a sentence must not begin: its subject comes first.
const OPENERS: &[&str] = &["Of a ", "Of an ", "Of what ", "Of which ", "Whoever ", "Who has "];
/// Words that tell users nothing.
const INTERNAL: &[&str] = &["seed 001"];
/// After these words `no` is right: "there is no", "is no longer".
const BEFORE: &[&str] = &["there", "There"];
const AFTER: &[&str] = &["longer", "more", "less", "later", "earlier", "such", "further"];

pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut breaches = Vec::new();
    for page in pages(root) {
        let path = page.strip_prefix(root).expect("below the root").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&page).expect("pages are UTF-8");
        breaches
            .extend(dead_links(&page, &text).map(|link| format!("{path}: the link `{link}` leads nowhere")));
        if !NOT_FOR_USERS.iter().any(|other| path.starts_with(other)) && !path.starts_with("formats/") {
            breaches.extend(hard(&path, &text));
        }
    }
    let mut sources = Vec::new();
    collect(&root.join("crates"), &mut sources);
    for source in sources {
        let path = source.strip_prefix(root).expect("below the root").to_string_lossy().into_owned();
        if path.contains("/src/") {
            let text = std::fs::read_to_string(&source).expect("sources are UTF-8");
            breaches.extend(messages(&path, &text));
        }
    }
    breaches
}

fn pages(root: &Path) -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> = ["README.md", "CHANGELOG.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]
        .iter()
        .map(|name| root.join(name))
        .collect();
    for folder in ["docs", "docs/notes", "formats"] {
        let entries = std::fs::read_dir(root.join(folder)).expect("there are pages").flatten();
        let files = entries.map(|entry| entry.path());
        pages.extend(files.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    pages
}

/// Sentences of a page that are hard to read. Code is left out.
fn hard(path: &str, text: &str) -> Vec<String> {
    let mut breaches = Vec::new();
    for (number, line) in prose(text) {
        let at = format!("{path}:{number}");
        if let Some(words) = is_no(line) {
            breaches.push(format!("{at}: `{words}`: write \"is not a\""));
        }
        for opener in OPENERS {
            let begins = line.trim_start_matches(['-', ' ', '*', '>']).starts_with(opener);
            if begins && starts_a_sentence(text, number) || line.contains(&format!(". {opener}")) {
                breaches.push(format!("{at}: a sentence begins with `{opener}`: put its subject first"));
            }
        }
        if let Some(word) = INTERNAL.iter().find(|word| line.contains(*word)) {
            breaches.push(format!("{at}: `{word}` tells users nothing"));
        }
    }
    breaches
}

/// Whether the line with this number begins a paragraph or a point of a list, or follows the end of a sentence.
fn starts_a_sentence(text: &str, number: usize) -> bool {
    let lines: Vec<&str> = text.lines().collect();
    let before = number.checked_sub(2).map_or("", |before| lines[before].trim_end());
    lines[number - 1].trim_start().starts_with("- ")
        || before.is_empty()
        || before.ends_with(['.', ':', '!', '?'])
}

/// Lines outside of blocks of code, with their numbers from 1 on.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then_some((index + 1, line))
    })
}

/// Messages in a source, without those of its tests.
fn messages(path: &str, text: &str) -> Vec<String> {
    let shipped = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let mut breaches = Vec::new();
    for (index, line) in shipped.lines().enumerate() {
        let is_help = path.starts_with("crates/cli/") && line.trim_start().starts_with("///");
        let text = match line.split_once('"') {
            _ if is_help => line,
            Some((code, text)) if !code.contains("//") => text,
            _ => continue,
        };
        if let Some(words) = is_no(text) {
            breaches.push(format!("{path}:{}: `{words}`: write \"is not a\"", index + 1));
        }
    }
    breaches
}

/// The words "is no X", where "is not a X" is meant.
fn is_no(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    words.windows(3).enumerate().find_map(|(index, three)| {
        let [verb, no, noun] = three else { return None };
        let before = index.checked_sub(1).map_or("", |before| words[before]);
        let is_meant = ["is", "are", "was", "were"].contains(verb)
            && *no == "no"
            && noun.starts_with(|letter: char| letter.is_alphabetic())
            && !BEFORE.contains(&before)
            && !AFTER.contains(&noun.trim_end_matches(['.', ',', ':', ';']));
        is_meant.then(|| three.join(" "))
    })
}

/// Links to files and headings of the repository that do not exist.
fn dead_links(page: &Path, text: &str) -> impl Iterator<Item = String> {
    let links: Vec<&str> = prose(text)
        .flat_map(|(_, line)| line.split("](").skip(1))
        .filter_map(|rest| rest.split([')', ' ']).next())
        .filter(|link| !link.is_empty() && !link.contains("://"))
        .collect();
    let is_dead = |link: &&str| {
        let (file, heading) = link.split_once('#').unwrap_or((link, ""));
        let file =
            if file.is_empty() { page.to_owned() } else { page.parent().expect("in a folder").join(file) };
        let is_page = file.extension().is_some_and(|extension| extension == "md");
        !file.exists()
            || (!heading.is_empty()
                && is_page
                && !headings(&std::fs::read_to_string(&file).unwrap_or_default()).contains(heading))
    };
    links.into_iter().filter(is_dead).map(str::to_owned).collect::<Vec<_>>().into_iter()
}

/// Names of the headings of a page, as links use them.
fn headings(text: &str) -> BTreeSet<String> {
    let titles = prose(text).filter(|(_, line)| line.starts_with('#'));
    titles
        .map(|(_, line)| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|&letter| letter.is_alphanumeric() || "-_ ".contains(letter));
            kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard_sentences_are_told_from_others() {
        let found = |text: &str| hard("page", text).len();
        assert_eq!(found("A file is no device.\nThere is no device. It is no longer one."), 1);
        assert_eq!(found("It waits.\nOf a host that is late the job is taken.\nIt is one\nOf a kind."), 1);
        assert_eq!(found("It ends. Whoever asks gets it.\n```\nit is no sentence\n```"), 1);
        assert_eq!(found("As in seed 001."), 1);
    }

    #[test]
    fn messages_are_told_from_code_and_tests() {
        let text = "// it is no message\nlet is = \"that is no disk\";\n\
                    #[cfg(test)]\nmod tests {\n\"it is no disk\"\n}";
        assert_eq!(
            messages("crates/disk/src/a.rs", text),
            ["crates/disk/src/a.rs:2: `is no disk\";`: write \"is not a\""]
        );
    }

    #[test]
    fn headings_become_links() {
        let expected = ["what-fetch---torrent-does", "limits"].map(str::to_owned);
        assert_eq!(
            headings("# What `fetch --torrent` does\n```\n# a comment\n```\n## Limits\n"),
            BTreeSet::from(expected)
        );
    }
}
