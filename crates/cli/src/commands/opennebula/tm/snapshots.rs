//! Snapshots of a disk, of a machine that is off: inside a QCOW2, beside a raw file.

use crate::commands::opennebula::host;
use crate::commands::opennebula::place::{Place, number};
use crate::commands::opennebula::settings::Settings;
use crate::commands::opennebula::vm::Machine;
use crate::exit::Result;

pub(super) fn act(action: &str, target: &str, snapshot: &str, machine: &str) -> Result<()> {
    let (target, snapshot) = (Place::parse(target)?, number(snapshot)?);
    let (_, format) = Machine::with_disk(&target, machine)?;
    let path = &target.path;
    let script =
        if format == "qcow2" { inside(action, path, snapshot) } else { beside(action, path, snapshot) };
    host::run(&Settings::load()?, &target.host, &script, b"").map(drop)
}

/// Each may be repeated: a snapshot that a script made before it was killed is made anew.
fn inside(action: &str, path: &str, snapshot: u32) -> String {
    let name = name_inside(snapshot);
    let remove = format!(
        "if qemu-img snapshot -q -l {path} | awk '{{ print $2 }}' | grep -qx {name}; then\n  \
         qemu-img snapshot -q -d {name} {path}\nfi"
    );
    match action {
        "snap_create" => format!("{remove}\nqemu-img snapshot -q -c {name} {path}"),
        "snap_revert" => format!("qemu-img snapshot -q -a {name} {path}"),
        _ => remove,
    }
}

fn beside(action: &str, path: &str, snapshot: u32) -> String {
    let kept = format!("{path}.snap/{snapshot}");
    let copy = |from: &str, to: &str| {
        format!("cp --reflink=auto --sparse=always {from} {to}.part\nsync {to}.part\nmv -f {to}.part {to}")
    };
    match action {
        "snap_create" => format!("mkdir -p {path}.snap\n{}", copy(path, &kept)),
        "snap_revert" => copy(&kept, path),
        _ => format!("rm -f {kept}"),
    }
}

/// What a snapshot is called in a QCOW2.
pub(super) fn name_inside(snapshot: u32) -> String {
    format!("one-{snapshot}")
}
