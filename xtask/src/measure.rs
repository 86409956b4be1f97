//! Measures the house: sizes of crates and functions, comments and assertions. `cargo xtask measure` prints the table.

use std::fmt::Write as _;
use std::path::Path;

use crate::sources::collect;

/// Words that state what must be true.
const ASSERTIONS: &[&str] = &["assert!(", "assert_eq!(", "assert_ne!(", "debug_assert", "unreachable!("];

/// What the sources of a crate hold. Tests are counted by their lines alone.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counted {
    files: usize,
    /// Lines of code that is shipped, without blank ones and comments.
    code: usize,
    /// Lines of unit tests in the same files, and of integration tests.
    tests: usize,
    /// Lines of comments inside functions, and all lines there.
    comments: usize,
    inside: usize,
    assertions: usize,
    /// Lines of each function.
    functions: Vec<usize>,
}

impl Counted {
    fn add(&mut self, other: &Self) {
        self.files += other.files;
        self.code += other.code;
        self.tests += other.tests;
        self.comments += other.comments;
        self.inside += other.inside;
        self.assertions += other.assertions;
        self.functions.extend(&other.functions);
        self.functions.sort_unstable();
    }

    /// Length of the function that so many of a hundred do not exceed.
    fn percentile(&self, hundredths: usize) -> usize {
        let last = self.functions.len().saturating_sub(1);
        self.functions.get(last * hundredths / 100).copied().unwrap_or(0)
    }
}

/// The table: a row for each crate, and one for all that is shipped.
pub(crate) fn table(root: &Path) -> String {
    let mut text = String::from(
        "crate      files    code   tests  functions  p50  p90  max  comments %  assertions/function\n",
    );
    let mut names: Vec<_> = std::fs::read_dir(root.join("crates"))
        .expect("there are crates")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort_unstable();
    let mut shipped = Counted::default();
    for name in names {
        let counted = of_crate(&root.join("crates").join(&name));
        if !["sim", "lab", "bench"].contains(&name.as_str()) {
            shipped.add(&counted);
        }
        row(&mut text, &name, &counted);
    }
    row(&mut text, "shipped", &shipped);
    text
}

fn row(text: &mut String, name: &str, counted: &Counted) {
    let tenths = |part: usize, whole: usize, times: usize| {
        let value = part * times * 100 / whole.max(1);
        format!("{}.{:02}", value / 100, value % 100)
    };
    let functions = counted.functions.len();
    let _ = writeln!(
        text,
        "{name:<9}{:>7}{:>8}{:>8}{functions:>11}{:>5}{:>5}{:>5}{:>12}{:>21}",
        counted.files,
        counted.code,
        counted.tests,
        counted.percentile(50),
        counted.percentile(90),
        counted.percentile(100),
        tenths(counted.comments, counted.inside, 100),
        tenths(counted.assertions, functions, 1),
    );
}

fn of_crate(folder: &Path) -> Counted {
    let mut all = Counted::default();
    for (part, is_test) in [("src", false), ("tests", true)] {
        let mut files = Vec::new();
        collect(&folder.join(part), &mut files);
        for file in files {
            let text = std::fs::read_to_string(&file).expect("sources are UTF-8");
            let is_test = is_test || file.components().any(|name| name.as_os_str() == "tests");
            all.add(&of_text(&text, is_test));
        }
    }
    all
}

fn of_text(text: &str, is_test: bool) -> Counted {
    let (shipped, tests) = match text.split_once("#[cfg(test)]\nmod tests {") {
        _ if is_test => ("", text),
        Some((shipped, tests)) => (shipped, tests),
        None => (text, ""),
    };
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
    let mut counted = Counted {
        files: 1,
        code: shipped.lines().filter(is_code).count(),
        tests: tests.lines().filter(is_code).count(),
        ..Counted::default()
    };
    let lines: Vec<&str> = shipped.lines().collect();
    for (start, line) in lines.iter().enumerate() {
        let trimmed = line.trim_start();
        let close = format!("{}}}", &line[..line.len() - trimmed.len()]);
        // A method of a trait may have no body.
        let signature = lines[start..].iter().find(|line| line.ends_with(['{', '}', ';']));
        let is_function = opens_function(trimmed) && signature.is_some_and(|line| line.ends_with('{'));
        // In formatted sources a function ends with a brace in the column where it began.
        let length = is_function.then(|| lines[start..].iter().position(|line| *line == close)).flatten();
        let Some(length) = length else {
            continue;
        };
        let body = &lines[start + 1..start + length];
        counted.functions.push(length + 1);
        counted.inside += body.len();
        counted.comments += body.iter().filter(|line| line.trim_start().starts_with("//")).count();
        let has = |line: &&&str| ASSERTIONS.iter().any(|word| line.contains(word));
        counted.assertions += body.iter().filter(has).count();
    }
    counted.functions.sort_unstable();
    counted
}

/// Whether a function with a body of several lines begins here. Its body may begin in a later line.
fn opens_function(line: &str) -> bool {
    let name = line.split("fn ").next().unwrap_or_default();
    let words = ["pub", "pub(crate)", "pub(super)", "const", "async", "unsafe"];
    line.contains("fn ")
        && name.split_whitespace().all(|word| words.contains(&word))
        && !line.ends_with(['}', ';'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_comments_and_assertions_are_counted() {
        let text = "//! A file.\n\npub(crate) fn one() {\n    // Why.\n    assert!(true);\n}\n\n\
                    fn two() -> u8 { 2 }\n\n\
                    #[cfg(test)]\nmod tests {\n    #[test]\n    fn three() {\n        one();\n    }\n}\n";
        let expected = Counted {
            files: 1,
            code: 4,
            tests: 5,
            comments: 1,
            inside: 2,
            assertions: 1,
            functions: vec![4],
        };
        assert_eq!(of_text(text, false), expected);
        assert_eq!(of_text(text, true).code, 0);
    }
}
