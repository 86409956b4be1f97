//! Disks that are logical volumes: a link in the machine's folder leads to each.
//!
//! ```text
//! disk.N -> /dev/GROUP/one-STORE-MACHINE-N            the disk
//!           /dev/GROUP/one-STORE-MACHINE-N-snap-ID    a snapshot of it
//!           /dev/GROUP/one-STORE-MACHINE-N-save       another, while it is saved
//!           /dev/GROUP/one-STORE-MACHINE-N-grow       what comes to it, until that is cleared
//! backup/disk.N -> /dev/GROUP/one-STORE-MACHINE-N-backup
//! ```

use super::place::{Place, wrong};
use super::settings::Settings;
use crate::exit::{Exit, Failure, Result};

const MIB: u64 = 1 << 20;

/// Commands of a host's shell. `volume PATH` says to which volume of ours a link leads, and nothing of all else.
pub(super) const SHELL: &str = r#"
PATH=$PATH:/usr/sbin:/sbin
trap 'exit 143' HUP INT TERM
lvm=
[ "$(id -u)" = 0 ] || lvm="sudo -n"
volume() {
    case $(readlink "$1" 2>/dev/null) in
    /dev/*/one-[0-9]*) readlink "$1" ;;
    esac
}
drop_volumes() {
    for disk; do
        found=$(volume "$disk")
        [ -z "$found" ] || [ ! -e "$found" ] || $lvm lvremove -q -y "$found" >&2
    done
}
drop_copy() {
    case $(readlink "$1" 2>/dev/null) in
    *-save) drop_volumes "$1" ;;
    esac
    rm -f "$1"
}
make_volume() {
    $lvm lvcreate -q -y -Wn -Zn -L "$2" -n "${1##*/}" "$(basename "$(dirname "$1")")" >&2
}
make_snapshot() {
    [ ! -e "$2" ] || $lvm lvremove -q -y "$2" >&2
    $lvm lvcreate -q -y -s -l 100%ORIGIN -n "${2##*/}" "$1" >&2
}
grow_volume() {
    for other in "$1"-snap-* "$1-save" "$1-backup"; do
        [ ! -e "$other" ] || { echo "$other is a snapshot of it: delete its snapshots first" >&2; exit 1; }
    done
    has=$(blockdev --getsize64 "$1")
    [ "$has" -lt "$2" ] || return 0
    [ ! -e "$1-grow" ] || $lvm lvremove -q -y "$1-grow" >&2
    make_volume "$1-grow" "$(($2 - has))b"
    blkdiscard -z "$1-grow"
    parts=$($lvm lvs --noheadings -o seg_pe_ranges "$1-grow")
    $lvm lvremove -q -y "$1-grow" >&2
    $lvm lvextend -q -L "$2b" "$1" $parts >&2
}
uuid_of() {
    $lvm lvs --noheadings -o lv_uuid "$1" 2>/dev/null | tr -d ' '
}
clear_from() {
    [ "$(blockdev --getsize64 "$1")" -le "$2" ] || blkdiscard -z -o "$2" "$1"
}
"#;

/// The volume of the disk at `target`.
pub(super) fn device(settings: &Settings, target: &Place) -> Result<String> {
    let group = settings.volume_group.as_deref().ok_or_else(|| {
        Failure::new(Exit::Usage, "DISKCAST_COPY is `volume`, but the settings name no volume group")
            .hint("`volume_group` in the settings is the group that has the disks on each host")
    })?;
    let mut parts = target.path.rsplit('/');
    match (target.disk(), parts.nth(1), parts.next()) {
        (Some(disk), Some(machine), Some(store)) if target.is_of_a_machine() => {
            Ok(format!("/dev/{group}/one-{store}-{machine}-{disk}"))
        }
        _ => Err(wrong(&format!("`{target}` is not a disk of a machine"))),
    }
}

/// Commands that make `device` the volume of the disk at `path`, with `bytes` or more, unless it is there. What it has
/// behind `image_bytes` may be of others, and is cleared.
pub(super) fn make(device: &str, path: &str, bytes: u64, image_bytes: u64) -> String {
    let mib = bytes.max(image_bytes).div_ceil(MIB);
    format!(
        "set -e{SHELL}[ ! -f {path} ] || {{ echo \"{path} is a file, and no volume\" >&2; exit 1; }}\n\
         ln -sfn {device} {path}\n[ -e {device} ] || make_volume {device} {mib}m\n\
         clear_from {device} {image_bytes}\n"
    )
}

/// Commands that do `volume` if the disk at `path` is one, with `$v` as its device, and `file` otherwise.
pub(super) fn either(path: &str, volume: &str, file: &str) -> String {
    format!("v=$(volume {path})\nif [ -n \"$v\" ]; then\n{volume}\nelse\n{file}\nfi")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::opennebula::settings::EXAMPLE;

    #[test]
    fn a_volume_is_named_by_its_machine() {
        let device = |more: &str, path: &str| {
            let settings = Settings::parse(&format!("{more}{EXAMPLE}")).unwrap();
            let place = Place::parse(&format!("h:{path}")).map_err(|failure| failure.message).unwrap();
            super::device(&settings, &place).map_err(|failure| failure.message)
        };
        let (group, disk) = ("volume_group = \"vg\"\n", "/var/lib/one/datastores/100/42/disk.1");
        assert_eq!(device(group, disk).as_deref(), Ok("/dev/vg/one-100-42-1"));
        assert!(device("", disk).unwrap_err().contains("no volume group"));
        assert!(device(group, "/var/lib/one/datastores/100/42/kernel").is_err());
        assert!(device(group, "/disk.1").is_err());
        assert!(Settings::parse(&format!("volume_group = \"../sda\"\n{EXAMPLE}")).is_err());
    }
}
