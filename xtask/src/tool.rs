//! Cargo, as a developer calls it.

use std::env;
use std::ffi::OsString;
use std::process::Command;

/// Path of cargo.
pub(crate) fn cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Takes from `command` what cargo tells a program that it runs about its package. Build scripts of dependencies look
/// at these variables (ring's), and so cargo would build them anew, and half of the workspace with them.
pub(crate) fn forget_package(command: &mut Command) {
    let of_package = |name: &String| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for name in env::vars_os().filter_map(|(name, _)| name.into_string().ok()).filter(of_package) {
        command.env_remove(name);
    }
}
