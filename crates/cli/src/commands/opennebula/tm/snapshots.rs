//! Snapshots of a disk: inside a QCOW2, beside a raw file. Of a machine that runs, its QEMU makes those inside.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::commands::opennebula::host;
use crate::commands::opennebula::place::{Place, number, quoted, wrong};
use crate::commands::opennebula::settings::Settings;
use crate::commands::opennebula::vm::Machine;
use crate::commands::opennebula::volume::either;
use crate::exit::{Exit, Failure, Result};

pub(super) fn act(action: &str, target: &str, snapshot: &str, machine: &str) -> Result<()> {
    let (target, snapshot) = (Place::parse(target)?, number(snapshot)?);
    let (_, format) = Machine::with_disk(&target, machine)?;
    let path = &target.path;
    let script =
        if format == "qcow2" { inside(action, path, snapshot) } else { of_raw(action, path, snapshot) };
    host::run(&Settings::load()?, &target.host, &script, b"").map(drop)
}

/// A snapshot of a disk whose machine runs. Its filesystems stand still meanwhile if its guest agent does that; else
/// the snapshot is like a disk after a power cut.
pub(super) fn create_live(target: &str, snapshot: &str, machine: &str) -> Result<()> {
    let (target, snapshot) = (Place::parse(target)?, number(snapshot)?);
    let (machine, format) = Machine::with_disk(&target, machine)?;
    let Some(domain) = &machine.domain else { return Err(wrong("the machine has no DEPLOY_ID")) };
    let settings = Settings::load()?;
    let (virsh, path) = (&settings.virsh, &target.path);
    let ask = |script: &str| host::run(&settings, &target.host, script, b"");
    if format != "qcow2" {
        let copy = of_raw("snap_create", path, snapshot);
        return ask(&host::while_suspended(&settings, domain, &copy, ":")).map(drop);
    }
    let tell =
        |command: &Value| format!("{virsh} qemu-monitor-command {domain} {}", quoted(&command.to_string()));
    let nodes = ask(&tell(&json!({ "execute": "query-named-block-nodes", "arguments": { "flat": true } })))?;
    let node = node_of(&answer(&nodes)?, path)?;
    let about = json!({ "device": node, "name": name_inside(snapshot) });
    let remove = tell(&json!({ "execute": "blockdev-snapshot-delete-internal-sync", "arguments": about }));
    let create = tell(&json!({ "execute": "blockdev-snapshot-internal-sync", "arguments": about }));
    let script = format!(
        "{remove} >/dev/null 2>&1 || true\n\
         if {virsh} domfsfreeze {domain} >/dev/null 2>&1; then trap '{virsh} domfsthaw {domain} >&2' EXIT; fi\n\
         {create}"
    );
    answer(&ask(&script)?).map(drop)
}

/// What QEMU's monitor answers.
fn answer(text: &str) -> Result<Value> {
    let answer: Value = serde_json::from_str(text.trim())
        .map_err(|_| Failure::new(Exit::Failed, format!("QEMU did not answer with JSON: {}", text.trim())))?;
    match answer.get("error") {
        Some(error) => {
            let why = error["desc"].as_str().unwrap_or("no reason").to_owned();
            Err(Failure::new(Exit::Failed, format!("QEMU makes no snapshot: {why}")))
        }
        None => Ok(answer["return"].clone()),
    }
}

/// QEMU's name for the QCOW2 at `path`.
fn node_of(nodes: &Value, path: &str) -> Result<String> {
    let nodes = nodes.as_array().map(Vec::as_slice).unwrap_or_default();
    // OpenNebula gives QEMU the path with two slashes where a setting ends with one.
    let is_same = |file: &str| file_of(file).is_some_and(|file| file == Path::new(path));
    let is_it = |node: &&Value| node["drv"] == "qcow2" && node["file"].as_str().is_some_and(is_same);
    let name = nodes.iter().find(is_it).and_then(|node| node["node-name"].as_str());
    name.map(str::to_owned).ok_or_else(|| wrong(&format!("the machine's QEMU has no QCOW2 at `{path}`")))
}

/// The path of a node's file. QEMU tells what it opened, as JSON, where libvirt gave it the path of the file behind in
/// another form than the QCOW2 has it: absolute instead of relative.
fn file_of(name: &str) -> Option<PathBuf> {
    let Some(opened) = name.strip_prefix("json:") else { return Some(name.into()) };
    let opened: Value = serde_json::from_str(opened).ok()?;
    opened["file"]["filename"].as_str().map(PathBuf::from)
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

/// Of a file beside it; of a volume another volume, which can't be made where the group has no room for it.
fn of_raw(action: &str, path: &str, snapshot: u32) -> String {
    let kept = name_of_volume(snapshot);
    let volume = match action {
        "snap_create" => format!("make_snapshot \"$v\" {kept}"),
        // The volume may have grown since.
        "snap_revert" => format!(
            "dd if={kept} of=\"$v\" bs=1M conv=fsync status=none || {{\n\
             echo \"the disk is not whole: go back to the snapshot again, and keep it\" >&2\nexit 1\n}}\n\
             clear_from \"$v\" \"$(blockdev --getsize64 {kept})\""
        ),
        _ => format!("[ ! -e {kept} ] || $lvm lvremove -q -y {kept} >&2"),
    };
    either(path, &volume, &beside(action, path, snapshot))
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

/// The device of a snapshot of the volume `$v`, for a shell.
pub(super) fn name_of_volume(snapshot: u32) -> String {
    format!("\"$v-snap-{snapshot}\"")
}

/// What a snapshot is called in a QCOW2.
pub(super) fn name_inside(snapshot: u32) -> String {
    format!("one-{snapshot}")
}
