//! With the feature `ebpf`: compiles the program that redirects requests in the kernel, with clang (`CLANG` names
//! another one than `clang-19` and `clang`).

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = "src/redirect.bpf.c";
/// Releases 14, 15 and 16 take all memory when they optimise the program. 17 and 18 were not tried.
const RELEASE_LEAST: u32 = 19;

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-env-changed=CLANG");
    if std::env::var_os("CARGO_FEATURE_EBPF").is_none() {
        return;
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join("redirect.bpf.o");
    let given = std::env::var("CLANG").ok();
    let names = given.as_deref().map_or_else(|| vec!["clang-19", "clang"], |name| vec![name]);
    let mut found = Vec::new();
    for name in names {
        match release(name) {
            Some(release) if release >= RELEASE_LEAST => return compile(name, &out),
            Some(release) => found.push(format!("`{name}` is of release {release}")),
            None => found.push(format!("`{name}` is not there")),
        }
    }
    panic!(
        "the feature `ebpf` needs clang {RELEASE_LEAST} or newer (package clang-{RELEASE_LEAST}; `CLANG` names \
         another one): {}",
        found.join(", ")
    );
}

/// The release of a clang; `None` if it is not there.
fn release(name: &str) -> Option<u32> {
    let said = match Command::new(name).arg("--version").output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(error) => panic!("start `{name}`: {error}"),
    };
    let number = said.split("clang version ").nth(1).and_then(|rest| rest.split('.').next());
    Some(number.and_then(|number| number.parse().ok()).unwrap_or(0))
}

fn compile(name: &str, out: &Path) {
    // Where Debian keeps `asm/types.h`, which clang does not find for a foreign target.
    let machine = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let include = format!("-I/usr/include/{machine}-linux-gnu");
    let mut clang = Command::new(name);
    clang.args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", &include]);
    let status = clang.args(["-c", SOURCE, "-o"]).arg(out).status();
    let status = status.unwrap_or_else(|error| panic!("start `{name}`: {error}"));
    assert!(status.success(), "`{name}` failed to compile {SOURCE}");
}
