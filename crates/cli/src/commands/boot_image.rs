//! `diskcast boot-image`: makes what machines boot from the network.

use std::path::PathBuf;

use base::units::show_bytes;
use serde_json::json;

use net::netboot::unified::words;

use super::Context;
use crate::args::StateFolder;
use crate::boot_image::{self, Unified, Wanted};
use crate::exit::Result;
use crate::repository;

/// Package of the kernel, and how hard to compress, unless it is said.
const KERNEL: &str = "linux-image-amd64";
const LEVEL: i32 = 15;

/// Make what machines boot from the network
///
/// Debian's kernel, a system in memory that runs this program, and Debian's signed boot loaders, from packages of
/// Debian that this machine's apt knows. `netboot` offers them. Takes root, and the package mmdebstrap.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast boot-image /srv/boot
  diskcast boot-image /srv/boot --firmware firmware-realtek --firmware firmware-bnx2
  diskcast boot-image /srv/boot --secure-boot-key boot.key --secure-boot-certificate boot.pem \\
      --server https://10.0.0.1:7717
  diskcast netboot eth1 --boot-image /srv/boot")]
pub(crate) struct Args {
    /// Folder for the boot files; made if it is missing
    pub out: PathBuf,
    /// Package of the kernel
    #[arg(long, value_name = "PACKAGE", default_value = KERNEL)]
    pub kernel: String,
    /// Add the firmware of this package, for network cards and disks that need it; may be repeated
    #[arg(long, value_name = "PACKAGE")]
    pub firmware: Vec<String>,
    /// How hard to compress: a level of zstd
    #[arg(long, value_name = "LEVEL", default_value_t = LEVEL, value_parser = clap::value_parser!(i32).range(1..=19))]
    pub level: i32,
    /// Also make one file of kernel, system and the server's address and certificate, signed with this RSA key (PEM),
    /// for machines with Secure Boot on that know its certificate
    #[arg(long, value_name = "FILE", requires_all = ["secure_boot_certificate", "server"])]
    pub secure_boot_key: Option<PathBuf>,
    /// Certificate of that key (PEM)
    #[arg(long, value_name = "FILE", requires = "secure_boot_key")]
    pub secure_boot_certificate: Option<PathBuf>,
    /// Firmware loads the signed file itself, not by Debian's shim: for machines whose firmware has this certificate in
    /// its own list, and no other maker's
    #[arg(long, requires = "secure_boot_key")]
    pub without_shim: bool,
    /// The server that the signed file calls, by the address of the interface on which machines boot
    #[arg(long, value_name = "https://ADDRESS:PORT", requires = "secure_boot_key")]
    pub server: Option<String>,
    /// More words for the kernel in the signed file; `netboot` takes the same
    #[arg(long, value_name = "WORDS", default_value = "", requires = "secure_boot_key")]
    pub kernel_parameters: String,
    #[command(flatten)]
    pub state: StateFolder,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let unified = unified(args)?;
    let (kernel, firmware) = (args.kernel.clone(), args.firmware.clone());
    let wanted = Wanted { kernel, firmware, level: args.level, unified };
    let output = context.output;
    let made = boot_image::make(&args.out, &wanted, |step| output.note(step))?;
    let all = made.kernel_bytes + made.system_bytes;
    let record = json!({
        "type": "boot_image", "folder": args.out.display().to_string(), "kernel": made.release,
        "kernel_bytes": made.kernel_bytes, "system_bytes": made.system_bytes,
    });
    output.result(&record, || {
        format!("made {}: Linux {}, {} to load\n", args.out.display(), made.release, show_bytes(all))
    })
}

/// What the signed image is made of, if one is asked for.
fn unified(args: &Args) -> Result<Option<Unified>> {
    let (Some(key), Some(certificate), Some(server)) =
        (&args.secure_boot_key, &args.secure_boot_certificate, &args.server)
    else {
        return Ok(None);
    };
    // The server has its certificate from now on, if it has none yet: the image names it.
    let state = daemon::state::StateFolder::open(&repository::state_folder(&args.state)?)?;
    let pin = state.identity()?.fingerprint();
    let words = words(server.trim_end_matches('/'), Some(pin), None, &args.kernel_parameters);
    Ok(Some(Unified {
        words,
        key: key.clone(),
        certificate: certificate.clone(),
        by_shim: !args.without_shim,
    }))
}

/// The boot image in the default folder, which is made if there is none. A note tells if another version of diskcast
/// made it: machines would run that one.
pub(crate) fn of_default_folder(context: &Context) -> Result<PathBuf> {
    let folder = repository::default_boot_image_folder()?;
    let wanted = Wanted { kernel: KERNEL.to_owned(), firmware: Vec::new(), level: LEVEL, unified: None };
    match boot_image::made_by(&folder)? {
        None => {
            let made = boot_image::make(&folder, &wanted, |step| context.output.note(step))?;
            context.output.note(&format!("made {}: Linux {}", folder.display(), made.release));
        }
        Some(version) if version != env!("CARGO_PKG_VERSION") => context.output.note(&format!(
            "diskcast {version} made the boot image: `diskcast boot-image {}` makes a new one",
            folder.display()
        )),
        Some(_) => {}
    }
    Ok(folder)
}
