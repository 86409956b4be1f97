//! With the feature `ebpf`: compiles the program that redirects requests in the kernel, with clang (`CLANG` names
//! another one than `clang`, `clang-19` and `clang-14`).

use std::path::PathBuf;
use std::process::Command;

const SOURCE: &str = "src/switch/redirect.bpf.c";

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-env-changed=CLANG");
    if std::env::var_os("CARGO_FEATURE_EBPF").is_none() {
        return;
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join("redirect.bpf.o");
    let given = std::env::var("CLANG").ok();
    let names = given.iter().map(String::as_str).chain(["clang", "clang-19", "clang-14"]);
    // Where Debian keeps `asm/types.h`, which clang does not find for a foreign target.
    let machine = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let include = format!("-I/usr/include/{machine}-linux-gnu");
    for name in names {
        let mut clang = Command::new(name);
        clang.args([
            "-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", &include, "-c", SOURCE, "-o",
        ]);
        match clang.arg(&out).status() {
            Ok(status) => return assert!(status.success(), "`{name}` failed to compile {SOURCE}"),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => panic!("start `{name}`: {error}"),
        }
    }
    panic!("the feature `ebpf` needs clang (package clang), or `CLANG` with its path");
}
