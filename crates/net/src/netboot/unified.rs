//! The unified kernel image: kernel, system in memory and the kernel's words in one file, signed with a site's own key.
//! Firmware with Secure Boot on checks all of it.
//!
//! Sources: the UAPI Group's "Unified Kernel Images", and shim's `netboot.c` (it loads `grubx64.efi` from the folder
//! and the server that it came from).

use base::{Error, ErrorKind, Result};
use bytes::Bytes;

use crate::mac::Mac;
use crate::token::Fingerprint;

/// Its folder among the boot files.
pub const FOLDER: &str = "uki";
/// Debian's shim, which checks the image against the keys that the machine's owner enrolled beside Microsoft's. Without
/// it firmware loads the image itself, and checks it against its own keys.
pub const SHIM: &str = "uki/shimx64.efi";
/// What enrolls a key.
pub const ENROLLER: &str = "uki/mmx64.efi";
/// The image, by the name that shim looks for.
pub const IMAGE: &str = "uki/grubx64.efi";

/// Sections of the file begin at multiples of this.
const SECTION_BYTES: usize = 512;

/// The kernel's words for the server at `url` with this certificate, on the machine with this card, or on any.
#[must_use]
pub fn words(url: &str, fingerprint: Option<Fingerprint>, card: Option<Mac>, more: &str) -> String {
    let pin = fingerprint.map(|pin| format!(" diskcast.pin={pin}")).unwrap_or_default();
    let card = card.map(|mac| format!(" BOOTIF=01-{}", mac.hyphenated())).unwrap_or_default();
    format!("diskcast.server={url}{pin}{card} panic=30 {more}")
}

/// `Refused` if the image `content` has not these words for the kernel: its machines would call another server.
pub fn check(content: &Bytes, words: &str) -> Result<()> {
    let words = words.trim_end().as_bytes();
    // A section is filled up with zeros, if it does not end where the next one begins.
    let has = |at: usize| {
        let end = at + words.len();
        content.get(end).is_none_or(|next| *next == 0) || end.is_multiple_of(SECTION_BYTES)
    };
    if memchr::memmem::find_iter(content, words).any(has) {
        return Ok(());
    }
    let text = format!(
        "`{IMAGE}` was made for another server, with another --state, or with other words for the kernel: make it \
         again (diskcast boot-image), for `{}`",
        String::from_utf8_lossy(words)
    );
    Err(Error::new(ErrorKind::Refused, text))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails says where")]

    use super::*;

    #[test]
    fn an_image_of_another_server_is_refused() {
        let own = words("https://10.0.0.1:7717", None, None, "");
        let image = |text: &str| Bytes::from([&[1; 3000], text.as_bytes(), &[0; 100]].concat());
        check(&image(own.trim_end()), &own).unwrap();
        for other in [
            words("https://10.0.0.1:7717", None, None, "console=ttyS0"),
            words("https://10.0.0.2:7717", None, None, ""),
            String::new(),
        ] {
            assert_eq!(check(&image(&other), &own).unwrap_err().kind(), ErrorKind::Refused, "{other}");
        }
    }
}
