//! What firmware, boot loaders and kernels get, by TFTP and HTTP. All of it is public: nobody has shown who they are.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use net::mac::Mac;
use net::netboot::{BootFiles, Firmware, iso, unified};
use net::token::Fingerprint;

use super::machine::Step;
use super::roster::Fleet;

/// Files of the boot image that are offered.
const FILES: &[&str] = &[
    "vmlinuz",
    "initrd.img",
    "grubx64.efi",
    "mmx64.efi",
    Firmware::SIGNED_LOADER,
    Firmware::UEFI_LOADER,
    Firmware::BIOS_LOADER,
    unified::SHIM,
    unified::ENROLLER,
    unified::IMAGE,
];
/// Without one of these, no machine could boot.
const NEEDED: &[&str] = &["vmlinuz", "initrd.img"];
/// What GRUB reads first. It asks for the settings of its own machine.
const SETTINGS: &str = "\
set timeout=0
# The settings of this machine, by the address of its card.
configfile ($root)/machine/$net_default_mac
";

/// Starts a machine from its disk. Firmware that got control back would stop at its menu (UEFI 2.10, 3.1.1: a boot
/// option that returns without an error ends the list), so the disk's own loader is started from here.
const START: &str = "\
echo 'diskcast: nothing to do here, starting from the disk'
for loader in /EFI/Microsoft/Boot/bootmgfw.efi /EFI/debian/shimx64.efi /EFI/ubuntu/shimx64.efi \
    /EFI/redhat/shimx64.efi /EFI/rocky/shimx64.efi /EFI/almalinux/shimx64.efi /EFI/fedora/shimx64.efi \
    /EFI/opensuse/shim.efi /EFI/BOOT/BOOTX64.EFI; do
    if search --no-floppy --file --set=root $loader; then
        chainloader $loader
        boot
    fi
done
exit
";
/// What iPXE reads where another server names our files: it asks for the script of its own machine.
const IPXE: &str = "#!ipxe
chain machine/${netX/mac:hexhyp}/ipxe
";
/// Starts a machine from its disk by iPXE: on BIOS the first one that has a boot sector, else what firmware has next.
const IPXE_START: &str = "#!ipxe
echo diskcast: nothing to do here, starting from the disk
iseq ${platform} pcbios || exit 1
sanboot --no-describe --drive 0x80 ||
sanboot --no-describe --drive 0x81 ||
sanboot --no-describe --drive 0x82 ||
sanboot --no-describe --drive 0x83 ||
exit 1
";

/// Where machines find the server.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    /// `https://ADDRESS:PORT`
    pub url: String,
    /// Its certificate; `None` without TLS.
    pub fingerprint: Option<Fingerprint>,
    /// More words for the kernel.
    pub kernel_parameters: String,
}

/// The files of a boot image, and those that are made for each machine.
pub(crate) struct ServedFiles {
    files: HashMap<&'static str, Bytes>,
    /// What firmware loads at once; `None` if the folder has none.
    iso: Option<iso::Iso>,
    site: Site,
    fleet: Arc<Fleet>,
}

impl ServedFiles {
    /// The boot image in `folder`, which is read now. `NotFound` if files are missing.
    pub(crate) fn read(folder: &Path, site: Site, fleet: Arc<Fleet>) -> Result<Self> {
        let mut files = HashMap::new();
        for name in FILES {
            if let Some(content) = read(folder, name)? {
                files.insert(*name, content);
            }
        }
        let iso = read(folder, iso::NAME)?.map(iso::Iso::of).transpose()?;
        if let Some(iso) = &iso {
            // Words that are too long are refused now; they are as long for every card.
            iso.parts(&site.words(Some(Mac::default())))?;
        }
        if let Some(image) = files.get(unified::IMAGE) {
            unified::check(image, &site.words(None))?;
        }
        Ok(Self { files, iso, site, fleet })
    }

    /// The file at `path` for HTTP, in parts; `None` if there is none.
    pub(crate) fn parts(&self, path: &str) -> Option<Vec<Bytes>> {
        let mac = if path == iso::NAME {
            None
        } else if let Some((mac, iso::NAME)) = machine(path) {
            self.fleet.seen(mac, Step::Loader);
            Some(mac)
        } else {
            return self.open(path).map(|content| vec![content]);
        };
        Some(self.iso.as_ref()?.parts(&self.site.words(mac)).ok()?.into())
    }

    /// What GRUB does for the machine with this card.
    fn grub(&self, mac: Mac) -> String {
        if !self.fleet.boots_ours(mac) {
            return START.to_owned();
        }
        // By TFTP: Debian's signed GRUB knows no HTTP.
        format!(
            "echo 'diskcast: loading the system in memory'\n\
             linux ($root)/vmlinuz {}\n\
             initrd ($root)/initrd.img\n\
             boot\n",
            self.site.words(Some(mac))
        )
    }

    /// What iPXE does for it. On UEFI the kernel finds the system in memory by its name.
    fn ipxe(&self, mac: Mac) -> String {
        if !self.fleet.boots_ours(mac) {
            return IPXE_START.to_owned();
        }
        format!(
            "#!ipxe\n\
             echo diskcast: loading the system in memory\n\
             kernel /vmlinuz initrd=initrd.img {}\n\
             initrd --name initrd.img /initrd.img\n\
             boot\n",
            self.site.words(Some(mac))
        )
    }
}

impl Site {
    /// The kernel's words for the machine with this card; `None` for any machine.
    fn words(&self, mac: Option<Mac>) -> String {
        unified::words(&self.url, self.fingerprint, mac, &self.kernel_parameters)
    }
}

impl BootFiles for ServedFiles {
    fn open(&self, path: &str) -> Option<Bytes> {
        // So shim joins a folder and a name.
        let path = &path.replace("//", "/");
        if let Some(content) = self.files.get(path.as_str()) {
            return Some(content.clone());
        }
        match path.as_str() {
            "grub/grub.cfg" => return Some(Bytes::from_static(SETTINGS.as_bytes())),
            "ipxe" => return Some(Bytes::from_static(IPXE.as_bytes())),
            _ => {}
        }
        let (mac, rest) = machine(path)?;
        let text = match rest {
            "" => self.grub(mac),
            "ipxe" => self.ipxe(mac),
            _ => return None,
        };
        self.fleet.seen(mac, Step::Loader);
        Some(text.into())
    }

    fn boots(&self, mac: Mac) -> bool {
        (self.iso.is_some() || self.unified().is_some()) && self.fleet.boots_ours(mac)
    }

    fn unified(&self) -> Option<&'static str> {
        self.files.get(unified::IMAGE)?;
        Some(if self.files.contains_key(unified::SHIM) { unified::SHIM } else { unified::IMAGE })
    }
}

/// The card, and what follows, in `machine/CARD/REST`.
fn machine(path: &str) -> Option<(Mac, &str)> {
    let path = path.strip_prefix("machine/")?;
    let (mac, rest) = path.split_once('/').unwrap_or((path, ""));
    Some((mac.parse().ok()?, rest))
}

/// A file of the boot image in `folder`; `None` if it is missing and may be.
fn read(folder: &Path, name: &str) -> Result<Option<Bytes>> {
    let is_missing = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
    match std::fs::read(folder.join(name)) {
        Ok(bytes) => Ok(Some(bytes.into())),
        Err(error) if is_missing(&error) && !NEEDED.contains(&name) => Ok(None),
        Err(error) => {
            let kind = if is_missing(&error) { ErrorKind::NotFound } else { ErrorKind::Io };
            let what = format!("read the boot image `{}`", folder.join(name).display());
            Err(Error::from_source(kind, what, error))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails says where")]

    use std::time::Duration;

    use super::super::silence::Watch;
    use super::*;

    const MAC: &str = "52:54:00:00:00:01";

    fn served(folder: &Path) -> ServedFiles {
        std::fs::write(folder.join("vmlinuz"), "kernel").unwrap();
        std::fs::write(folder.join("initrd.img"), "system").unwrap();
        std::fs::write(folder.join("secret"), "a key").unwrap();
        std::fs::write(folder.join(iso::NAME), iso::settings("").unwrap()).unwrap();
        let watch = Watch { boot_time: Duration::ZERO, sees_systems: true, strict: false };
        let site = Site {
            url: "https://10.0.0.1:7717".to_owned(),
            fingerprint: None,
            kernel_parameters: "console=ttyS0".to_owned(),
        };
        ServedFiles::read(folder, site, Fleet::open(folder, watch).unwrap()).unwrap()
    }

    #[test]
    fn what_is_no_boot_file_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let files = served(folder.path());
        assert_eq!(files.open("vmlinuz").as_deref(), Some(&b"kernel"[..]));
        for path in [
            "secret",
            "../secret",
            "./vmlinuz",
            "/etc/passwd",
            "machines.redb",
            "",
            "grub/../secret",
            "machine/",
            "machine/x",
            "machine/../secret",
            "machine/52:54:00:00:00:01/../../secret",
            "diskcast.iso/x",
        ] {
            assert!(files.parts(path).is_none(), "{path}");
        }
    }

    #[test]
    fn boot_files_hold_no_secret() {
        let folder = tempfile::tempdir().unwrap();
        let files = served(folder.path());
        for path in ["grub/grub.cfg", "ipxe", iso::NAME] {
            let text = String::from_utf8(files.parts(path).unwrap().concat()).unwrap();
            assert!(!text.contains("token") && !text.contains("secret"), "{text}");
        }
        let card = "BOOTIF=01-52-54-00-00-00-01";
        let words = format!("diskcast.server=https://10.0.0.1:7717 {card} panic=30 console=ttyS0");
        for rest in ["", "/ipxe", "/diskcast.iso"] {
            let parts = files.parts(&format!("machine/{MAC}{rest}")).unwrap();
            let text = String::from_utf8(parts.concat()).unwrap();
            assert!(text.contains(&words) && !text.contains("secret"), "{rest}: {text}");
        }
    }
}
