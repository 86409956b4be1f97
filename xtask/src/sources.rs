//! Checks source files by reading them as text: purpose, length, dead modules, `unsafe`, and words that belong to one
//! machine.

use std::path::{Path, PathBuf};

/// Longest function, in lines from its `fn` to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;
/// Longest file, in lines, its tests included.
const FILE_LINES_MAX: usize = 500;
/// Files that are longer, each with the reason. At most [`LONG_FILES_MAX`].
const LONG_FILES: &[(&str, &str)] = &[
    ("crates/cli/tests/attach.rs", "one story of one disk: each step builds on the one before"),
    ("crates/daemon/src/attached/mod.rs", "the life of one disk, from attach to detach"),
    (
        "crates/mirror/src/attached/multicast.rs",
        "a session's member and its consumer, which share their state",
    ),
    ("crates/mirror/src/fuse/disks.rs", "one table of disks, whose locks are argued in one place"),
    ("crates/mirror/src/fuse/front.rs", "one method for each call of the kernel"),
    ("crates/mirror/src/nbd/handshake.rs", "one state machine and its tests"),
    ("crates/sim/src/mirror/world.rs", "one world: disks, sources, crashes and checks act on each other"),
];
const LONG_FILES_MAX: usize = 7;
/// Longest line of code or comment, in columns.
const COLUMNS_MAX: usize = 120;
/// Programs and tools, whose functions nobody else calls.
const UNDOCUMENTED: &[&str] = &["crates/cli/", "crates/bench/", "crates/sim/", "xtask/", "fuzz/"];
/// Where `unsafe` may stand: sockets and devices.
const UNSAFE_HOMES: &[&str] = &["crates/net/src/", "crates/switch/src/", "crates/disk/src/"];

pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    for folder in ["crates", "xtask", "fuzz"] {
        collect(&root.join(folder), &mut files);
    }
    let mut breaches = Vec::new();
    if LONG_FILES.len() > LONG_FILES_MAX {
        breaches.push(format!(
            "xtask/src/sources.rs: more than {LONG_FILES_MAX} files are excused for their length"
        ));
    }
    for file in files {
        let text = std::fs::read_to_string(&file).expect("sources are UTF-8");
        let path = file.strip_prefix(root).expect("below the root").to_string_lossy().into_owned();
        breaches.extend(check_text(&path, &text));
        breaches.extend(unreached(&path, &file));
    }
    breaches
}

/// Whether cargo builds there; a module may have the same name.
pub(crate) fn is_build_folder(path: &Path) -> bool {
    path.ends_with("target") && !path.ends_with("src/target")
}

pub(crate) fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.map(|entry| entry.expect("folders can be read").path()) {
        if path.is_dir() && !is_build_folder(&path) {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn check_text(path: &str, text: &str) -> Vec<String> {
    let mut breaches = Vec::new();
    if !text.starts_with("//! ") {
        breaches.push(format!("{path}:1: a file opens with its purpose (`//! …`)"));
    }
    let is_long = text.lines().count() > FILE_LINES_MAX;
    let is_excused = LONG_FILES.iter().any(|(excused, _)| *excused == path);
    if is_long && !is_excused {
        breaches.push(format!("{path}:1: longer than {FILE_LINES_MAX} lines"));
    }
    if is_excused && !is_long {
        breaches.push(format!("xtask/src/sources.rs: {path} needs no excuse for its length any more"));
    }
    for (number, _) in text.lines().enumerate().filter(|(_, line)| line.chars().count() > COLUMNS_MAX) {
        breaches.push(format!("{path}:{}: a line of more than {COLUMNS_MAX} columns", number + 1));
    }
    if path.contains("/src/") && !UNDOCUMENTED.iter().any(|home| path.starts_with(home)) {
        breaches.extend(undocumented(path, text));
    }
    let may_be_unsafe = UNSAFE_HOMES.iter().any(|home| path.starts_with(home)) || path.starts_with("xtask/");
    for (number, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        if !may_be_unsafe && (code.contains("unsafe {") || code.contains("unsafe fn")) {
            breaches.push(format!("{path}:{}: `unsafe` is for net's sockets and disk's devices", number + 1));
        }
    }
    breaches.extend(long_functions(path, text));
    breaches
}

/// Functions that are too long. In formatted sources a function ends with a brace in the column where it began.
fn long_functions(path: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut breaches = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let trimmed = line.trim_start();
        let opens =
            ["fn ", "pub fn ", "pub(crate) fn ", "async fn ", "pub async fn ", "pub const fn ", "const fn "];
        if !opens.iter().any(|open| trimmed.starts_with(open)) {
            continue;
        }
        let close = format!("{}}}", &line[..line.len() - trimmed.len()]);
        // A method of a trait may have no body, and end with its signature.
        let signature_end = lines[start..].iter().position(|line| line.trim_end().ends_with(['{', '}', ';']));
        let one_line = signature_end.is_some_and(|end| lines[start + end].ends_with(['}', ';']));
        let length = lines[start..].iter().position(|line| *line == close).map_or(0, |offset| offset + 1);
        if !one_line && length > FUNCTION_LINES_MAX {
            breaches.push(format!("{path}:{}: a function of {length} lines", start + 1));
        }
    }
    breaches
}

/// Public functions say what they do. rustc's lint sees only those that a crate exports.
fn undocumented(path: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let is_public = |line: &str| {
        let function = line
            .strip_prefix("pub ")
            .map(|rest| rest.trim_start_matches("const ").trim_start_matches("async "));
        function.is_some_and(|rest| rest.starts_with("fn "))
    };
    let has_docs = |at: usize| {
        let mut is_inside = false;
        // Attributes may take several lines.
        let above = lines[..at].iter().rev().find(|line| {
            is_inside = (is_inside || line.ends_with(")]")) && !line.starts_with("#[");
            !is_inside && !line.starts_with("#[")
        });
        above.is_some_and(|line| line.starts_with("///"))
    };
    let bare = lines.iter().enumerate().filter(|(at, line)| is_public(line) && !has_docs(*at));
    bare.map(|(at, _)| format!("{path}:{}: a public function without docs", at + 1)).collect()
}

/// A module file that no parent declares is dead.
fn unreached(path: &str, file: &Path) -> Option<String> {
    let stem = file.file_stem()?.to_str()?;
    let parent = file.parent()?;
    let in_src = path.split('/').any(|part| part == "src");
    if !in_src || ["lib", "main", "mod"].contains(&stem) || parent.ends_with("bin") {
        return None;
    }
    let sibling = parent.with_extension("rs");
    let parents = [parent.join("lib.rs"), parent.join("main.rs"), parent.join("mod.rs"), sibling];
    let declared = parents
        .iter()
        .filter_map(|parent| std::fs::read_to_string(parent).ok())
        .any(|text| text.lines().any(|line| line.trim_start().ends_with(&format!("mod {stem};"))));
    (!declared).then(|| format!("{path}:1: no module declares this file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breaches_are_found() {
        let body = "    step();\n".repeat(FUNCTION_LINES_MAX);
        let text = format!(
            "fn long() {{\n{body}}}\n\nfn short() {{}}\n\nfn bare(\n    a: u8,\n) -> u8;\n\
             {body}\nfn loose() {{\n    unsafe {{ go() }}\n}}\n"
        );
        let found = check_text("crates/image/src/x.rs", &text);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("purpose") && found[1].contains("unsafe") && found[2].contains("72 lines"));
        assert!(
            check_text("crates/net/src/x.rs", "//! Sockets.\nfn f() {\n    unsafe { go() }\n}\n").is_empty()
        );
    }
}
