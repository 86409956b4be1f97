//! The ISO image that machines boot from: by HTTP, or from a USB stick. It is made once; its settings lie in one block
//! of known length, where a server puts its own in.

use base::{Error, ErrorKind, Result};
use bytes::Bytes;

/// Its name in the folder of the boot files.
pub const NAME: &str = "diskcast.iso";
/// Bytes of the settings. No longer than that, so a kernel takes them all (`COMMAND_LINE_SIZE` is 2048 there).
const BLOCK_BYTES: usize = 4096;
const SECTOR_BYTES: usize = 2048;
/// How the block begins.
const MARK: &[u8] = b"# diskcast: settings of the server, 1\n";
/// What fills it up.
const FILL: &[u8] = b"#";

/// The file `grub.cfg` of an ISO image: `words` for the kernel. `Invalid` if they are too long.
pub fn settings(words: &str) -> Result<Vec<u8>> {
    let text = format!(
        "set timeout=0\necho 'diskcast: loading the system in memory'\n\
         linux /boot/vmlinuz {words}\ninitrd /boot/initrd.img\nboot\n"
    );
    let mut block = [MARK, text.as_bytes()].concat();
    if block.len() > BLOCK_BYTES {
        return Err(Error::new(ErrorKind::Invalid, "the words for the kernel are too long"));
    }
    while block.len() < BLOCK_BYTES {
        block.extend_from_slice(FILL);
    }
    Ok(block)
}

/// An ISO image in memory, and where its settings lie.
#[derive(Debug, Clone)]
pub struct Iso {
    content: Bytes,
    at: usize,
}

impl Iso {
    /// The image `content`. `Corrupt` if its settings are not there, or several times.
    pub fn of(content: Bytes) -> Result<Self> {
        // A file of an ISO image begins with a sector (ECMA-119, 6.1.2).
        let begins_here = |at: &usize| content[*at..].starts_with(MARK);
        let places: Vec<usize> =
            (0..content.len()).step_by(SECTOR_BYTES).filter(begins_here).take(2).collect();
        match places[..] {
            [at] if at + BLOCK_BYTES <= content.len() => Ok(Self { content, at }),
            _ => Err(Error::new(
                ErrorKind::Corrupt,
                format!("`{NAME}` has no settings of its own: make it again (diskcast boot-image)"),
            )),
        }
    }

    /// Its three parts, with `words` for the kernel. `Invalid` if they are too long.
    pub fn parts(&self, words: &str) -> Result<[Bytes; 3]> {
        let end = self.at + BLOCK_BYTES;
        Ok([self.content.slice(..self.at), settings(words)?.into(), self.content.slice(end..)])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails says where")]

    use super::*;

    #[test]
    fn a_server_puts_its_settings_in() {
        let made = [vec![7; 6144], settings("").unwrap(), vec![9; 3000]].concat();
        let parts = Iso::of(made.clone().into()).unwrap().parts("diskcast.server=https://a:1").unwrap();
        let all = parts.concat();
        assert_eq!((all.len(), &all[..6144], &all[10240..]), (made.len(), &made[..6144], &made[10240..]));
        let text = String::from_utf8(parts[1].to_vec()).unwrap();
        assert!(text.contains("\nlinux /boot/vmlinuz diskcast.server=https://a:1\n"), "{text}");
        // What has settings can get others.
        assert!(Iso::of(all.into()).is_ok());
    }

    #[test]
    fn an_image_without_settings_is_refused() {
        for wrong in [vec![7; 9000], settings("").unwrap()[..4000].to_vec(), settings("").unwrap().repeat(2)]
        {
            assert_eq!(Iso::of(wrong.into()).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        assert_eq!(settings(&"x".repeat(4096)).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
