//! Runs the tools that people use with NBD, and checks that they succeed or fail.

use std::process::{Command, Stdio};

/// Whether `tools` are installed. If `CI` is set they must be.
#[expect(clippy::print_stderr, reason = "a test that leaves something out says so")]
pub(crate) fn available(tools: &[&str]) -> bool {
    let found = |tool: &&str| {
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
            .any(|folder| folder.join(tool).exists())
    };
    let missing: Vec<_> = tools.iter().filter(|tool| !found(tool)).collect();
    assert!(missing.is_empty() || std::env::var_os("CI").is_none(), "missing in CI: {missing:?}");
    if !missing.is_empty() {
        eprintln!("left out, since there is no {missing:?}");
    }
    missing.is_empty()
}

/// Runs a tool that must succeed, and returns its output.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}{errors}");
    said
}

/// Runs a tool that must fail, and returns its output and errors.
pub(crate) fn fails(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(!output.status.success(), "{program} {arguments:?} succeeds: {said}");
    said
}

/// Runs `qemu-io` with these commands, each of which must succeed.
pub(crate) fn qemu_io(uri: &str, words: &[&str]) -> String {
    let commands: Vec<&str> = words.iter().flat_map(|word| ["-c", word]).collect();
    let said = run("qemu-io", &[&["-f", "raw", uri], &commands[..]].concat());
    assert!(!said.contains("failed") && !said.contains("error"), "{words:?}: {said}");
    said
}
