//! What this machine is.

use std::path::{Path, PathBuf};

use net::api::{DiskFacts, MachineFacts};
use net::interface::Interface;

use crate::exit::{Exit, Failure, Result};

/// What this machine is, which is known by the card of `interface`; `runs` says that it runs its own system.
pub(super) fn facts(interface: &Interface, runs: bool) -> Result<MachineFacts> {
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        (!text.is_empty()).then_some(text)
    };
    let dmi = |name: &str| read(Path::new("/sys/class/dmi/id").join(name));
    let mac = interface.card.map(|card| card.to_string()).ok_or_else(|| {
        Failure::new(Exit::NotFound, format!("the interface `{}` has no card", interface.name))
    })?;
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    let product =
        [dmi("sys_vendor"), dmi("product_name")].into_iter().flatten().collect::<Vec<_>>().join(" ");
    let disk = |disk: disk::find::Candidate| DiskFacts {
        path: disk.name,
        size_bytes: disk.size_bytes,
        serial: Some(disk.serial).filter(|serial| !serial.is_empty()),
        model: Some(disk.model).filter(|model| !model.is_empty()),
    };
    Ok(MachineFacts {
        mac,
        serial: dmi("product_serial"),
        product: (!product.is_empty()).then_some(product),
        memory_bytes: kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024,
        firmware: firmware(),
        disks: disk::find::candidates().into_iter().map(disk).collect(),
        runs,
        network: interface.network.filter(|_| runs).map(|(lowest, bits)| format!("{lowest}/{bits}")),
    })
}

/// How this machine's firmware started it. The variable is one of UEFI 2.10, section 3.3: four bytes of attributes,
/// then the value.
fn firmware() -> String {
    let efi = Path::new("/sys/firmware/efi");
    let variable = efi.join("efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c");
    match (efi.exists(), std::fs::read(variable).ok().and_then(|bytes| bytes.get(4).copied())) {
        (false, _) => "bios".to_owned(),
        (true, Some(1)) => "uefi, secure boot".to_owned(),
        (true, _) => "uefi".to_owned(),
    }
}

pub(super) fn describe(facts: &MachineFacts) -> String {
    let disks: Vec<String> = facts
        .disks
        .iter()
        .map(|disk| format!("{} ({})", disk.path, base::units::show_bytes(disk.size_bytes)))
        .collect();
    let disks = if disks.is_empty() { "no disk".to_owned() } else { disks.join(", ") };
    let product = facts.product.as_deref().unwrap_or("a machine without a name");
    format!("{}, {product}, {}, {disks}", facts.mac, facts.firmware)
}
