//! What firmware, boot loaders and kernels get, by TFTP and HTTP. All of it is public: nobody has shown who they are.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use net::mac::Mac;
use net::netboot::BootFiles;
use net::token::Fingerprint;

use super::roster::Fleet;
use super::table::Step;

/// Files of the boot image that are offered.
const FILES: &[&str] = &["vmlinuz", "initrd.img", "shimx64.efi", "grubx64.efi", "mmx64.efi", "grub/bios.0"];
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
if [ \"$grub_platform\" = pc ]; then
    set root=(hd0)
    chainloader +1
    boot
fi
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
    site: Site,
    fleet: Arc<Fleet>,
}

impl ServedFiles {
    /// The boot image in `folder`, which is read now. `NotFound` if files are missing.
    pub(crate) fn read(folder: &Path, site: Site, fleet: Arc<Fleet>) -> Result<Self> {
        let mut files = HashMap::new();
        for name in FILES {
            match std::fs::read(folder.join(name)) {
                Ok(bytes) => drop(files.insert(*name, Bytes::from(bytes))),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound && !NEEDED.contains(name) => {}
                Err(error) => {
                    let kind = match error.kind() {
                        std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                        _ => ErrorKind::Io,
                    };
                    let what = format!("read the boot image `{}`", folder.join(name).display());
                    return Err(Error::from_source(kind, what, error));
                }
            }
        }
        Ok(Self { files, site, fleet })
    }

    /// What GRUB does for the machine with this card.
    fn settings(&self, mac: Mac) -> String {
        if !self.fleet.boots_ours(mac) {
            return START.to_owned();
        }
        let Site { url, fingerprint, kernel_parameters } = &self.site;
        let card = mac.to_string().replace(':', "-");
        let pin = fingerprint.map(|pin| format!(" diskcast.pin={pin}")).unwrap_or_default();
        let words = format!("diskcast.server={url}{pin} BOOTIF=01-{card} panic=30 {kernel_parameters}");
        // By TFTP: Debian's signed GRUB knows no HTTP, and GRUB for BIOS gets stuck in it after some megabytes.
        format!(
            "echo 'diskcast: loading the system in memory'\n\
             linux ($root)/vmlinuz {words}\n\
             initrd ($root)/initrd.img\n\
             boot\n"
        )
    }
}

impl BootFiles for ServedFiles {
    fn open(&self, path: &str) -> Option<Bytes> {
        if let Some(content) = self.files.get(path) {
            return Some(content.clone());
        }
        if path == "grub/grub.cfg" {
            return Some(Bytes::from_static(SETTINGS.as_bytes()));
        }
        let mac: Mac = path.strip_prefix("machine/")?.parse().ok()?;
        self.fleet.seen(mac, Step::Loader);
        Some(self.settings(mac).into())
    }
}
