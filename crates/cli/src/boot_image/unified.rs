//! The unified kernel image: kernel, system in memory and the kernel's words in one file, signed with the site's key.
//!
//! Source: the UAPI Group's "Unified Kernel Images", which says what sections there are. `objcopy` adds them to
//! systemd's stub, each on pages of its own behind the stub's own ones.

use std::fs;
use std::path::{Path, PathBuf};

use net::netboot::{Firmware, unified};

use super::files::{KERNEL, SYSTEM};
use super::tree::{Tree, Unified, said};
use crate::exit::{Exit, Failure, Result};

const STUB: &str = "usr/lib/systemd/boot/efi/linuxx64.efi.stub";
/// What the image is, for boot managers that list images (os-release(5)).
const ABOUT: &str = concat!("NAME=diskcast\nID=diskcast\nVERSION_ID=", env!("CARGO_PKG_VERSION"), "\n");
/// Sections lie on pages: firmware may protect each in its own way.
const PAGE_BYTES: u64 = 4096;

/// Makes the image in `done`, which has kernel and system already, and what firmware loads before it. `work` is a
/// folder for what it is made of.
pub(super) fn make(tree: &Tree, release: &str, wanted: &Unified, work: &Path, done: &Path) -> Result<()> {
    let write = |name: &str, text: &str| -> Result<PathBuf> {
        let path = work.join(name);
        fs::write(&path, text)?;
        Ok(path)
    };
    // A newline at the end would be a part of the last word.
    let sections = [
        (".osrel", write("os-release", ABOUT)?),
        (".cmdline", write("cmdline", wanted.words.trim_end())?),
        (".uname", write("uname", release)?),
        (".linux", done.join(KERNEL)),
        (".initrd", done.join(SYSTEM)),
    ];
    let (stub, image) = (work.join("stub"), work.join("unified"));
    let origin = tree.path(STUB);
    let failed =
        |error| base::Error::from_io(format!("copy `{STUB}` of the package systemd-boot-efi"), error);
    fs::copy(&origin, &stub).map_err(failed)?;
    let mut objdump = tree.program("usr/bin/x86_64-linux-gnu-objdump", "objdump");
    let mut next = free_address(&said(objdump.args(["-h", "-w"]).arg(&stub), "binutils")?)?;
    let mut objcopy = tree.program("usr/bin/x86_64-linux-gnu-objcopy", "objcopy");
    // With the times of the file, and without its symbols, which would lie behind the last section.
    objcopy.args(["--preserve-dates", "--strip-all"]);
    for (name, file) in &sections {
        objcopy.arg("--add-section").arg(joined(name, file));
        objcopy.args(["--set-section-flags", &format!("{name}=alloc,load,readonly,data")]);
        objcopy.args(["--change-section-vma", &format!("{name}={next:#x}")]);
        next = (next + fs::metadata(file)?.len()).next_multiple_of(PAGE_BYTES);
    }
    // One time for everything: that of the stub, as its package has it.
    fs::File::options().append(true).open(&stub)?.set_modified(fs::metadata(&origin)?.modified()?)?;
    said(objcopy.arg(&stub).arg(&image), "binutils")?;
    let out = done.join(unified::FOLDER);
    fs::create_dir_all(&out)?;
    let mut sign = tree.program("usr/bin/sbsign", "sbsign");
    sign.arg("--key").arg(&wanted.key).arg("--cert").arg(&wanted.certificate);
    said(sign.arg("--output").arg(done.join(unified::IMAGE)).arg(&image), "sbsigntool")?;
    // It is signed with the key of the certificate that machines will know.
    let mut verify = tree.program("usr/bin/sbverify", "sbverify");
    said(verify.arg("--cert").arg(&wanted.certificate).arg(done.join(unified::IMAGE)), "sbsigntool")?;
    if wanted.by_shim {
        fs::copy(done.join(Firmware::SIGNED_LOADER), done.join(unified::SHIM))?;
        fs::copy(done.join("mmx64.efi"), done.join(unified::ENROLLER))?;
    }
    Ok(())
}

/// `NAME=FILE`.
fn joined(name: &str, file: &Path) -> std::ffi::OsString {
    let mut text = std::ffi::OsString::from(name);
    text.push("=");
    text.push(file);
    text
}

/// The first page behind all sections, by what `objdump --headers --wide` says: number, name, size, address, and more.
fn free_address(headers: &str) -> Result<u64> {
    let end = |line: &str| {
        let mut words = line.split_whitespace();
        words.next()?.parse::<u32>().ok()?;
        let mut number = |skip| u64::from_str_radix(words.nth(skip)?, 16).ok();
        let size = number(1)?;
        Some(number(0)? + size)
    };
    let free = headers.lines().filter_map(end).max().map(|end| end.next_multiple_of(PAGE_BYTES));
    free.ok_or_else(|| Failure::new(Exit::Failed, format!("`objdump` names no sections of `{STUB}`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_added_behind_the_last_one() {
        let headers = "\nstub:     file format pei-x86-64\n\nSections:\n\
            Idx Name          Size      VMA               LMA               File off  Algn  Flags\n  \
            0 .text         0000d4ab  0000000000004000  0000000000004000  00000400  2**4  CONTENTS, ALLOC\n  \
            1 .sbat         00000100  0000000000019000  0000000000019000  00013000  2**2  CONTENTS\n  \
            2 .rodata       00002001  0000000000012000  0000000000012000  00012000  2**5  CONTENTS\n";
        assert_eq!(free_address(headers).ok(), Some(0x1a000));
        assert!(free_address("objdump: no such file").is_err());
    }
}
