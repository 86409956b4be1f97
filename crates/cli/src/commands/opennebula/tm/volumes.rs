//! Volumes of machines that move: their group is of one host, so they are sent as they are.

use std::process::Stdio;

use crate::commands::opennebula::host;
use crate::commands::opennebula::place::{Place, is_plain};
use crate::commands::opennebula::settings::Settings;
use crate::commands::opennebula::volume::device;
use crate::exit::{Exit, Failure, Result};

/// A disk that is a volume, or is to be one again.
pub(super) struct Volume {
    pub disk: u32,
    bytes: u64,
    /// What LVM knows it by; `file` of a file.
    uuid: String,
}

/// The volumes among the disks at `from`, and files that were some: they have a mark. `Refused` if one has snapshots,
/// which would be lost.
pub(super) fn list(settings: &Settings, from: &Place) -> Result<Vec<Volume>> {
    let script = format!(
        r#"cd {}
for path in disk.*; do
    number=${{path#disk.}}
    case $number in *[!0-9]*) continue ;; esac
    v=$(volume $path)
    if [ -n "$v" ]; then
        for snapshot in "$v"-snap-*; do
            [ ! -e "$snapshot" ] || echo snapshots $number
        done
        bytes=$(blockdev --getsize64 "$v")
        echo $number $bytes $(uuid_of "$v")
    elif [ -f $path.volume ]; then
        echo $number $(stat -c %s $path) file
    fi
done"#,
        from.path
    );
    let told = host::run(settings, &from.host, &script, b"")?;
    let mut volumes = Vec::new();
    for line in told.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        volumes.push(match *words {
            ["snapshots", disk] => {
                let text = format!("disk {disk} is a volume with snapshots, which can't go to another host");
                return Err(Failure::new(Exit::Refused, text).hint("delete its snapshots first"));
            }
            [disk, bytes, uuid] if !uuid.is_empty() && is_plain(uuid) => {
                let wrong = |_| Failure::new(Exit::Failed, format!("host {}: `{line}`", from.host));
                let (disk, bytes) = (disk.parse().map_err(wrong)?, bytes.parse().map_err(wrong)?);
                Volume { disk, bytes, uuid: uuid.to_owned() }
            }
            _ => return Err(Failure::new(Exit::Failed, format!("host {}: `{line}`", from.host))),
        });
    }
    Ok(volumes)
}

/// Sends one from the machine's folder `from` to `to`, whose present name is `part`: as a volume of the other host, or
/// as a file where the machine `rests`.
pub(super) fn send(
    settings: &Settings,
    volume: &Volume,
    (from, to, part): (&Place, &Place, &Place),
    rests: bool,
) -> Result<()> {
    let Volume { disk, bytes, .. } = volume;
    let name = format!("{}/disk.{disk}", part.path);
    let put = match rests {
        true => format!(
            "dd of={name} bs=1M iflag=fullblock conv=sparse,fsync status=none\n\
             truncate -s {bytes} {name}\n: >{name}.volume"
        ),
        false => {
            let (make, device) = make(settings, to, &name, volume)?;
            format!("{make}dd of={device} bs=1M iflag=fullblock conv=fsync status=none")
        }
    };
    let get = format!("dd if={}/disk.{disk} bs=1M status=none", from.path);
    pipe(settings, (from, &get), (to, &put))
}

/// Makes volumes like those of the machine in the folder `from` on the host of `to`, whose hypervisor fills them.
pub(super) fn make_like(settings: &Settings, from: &Place, to: &Place) -> Result<()> {
    if settings.volume_group.is_none() {
        return Ok(());
    }
    let volumes = list(settings, from)?;
    if volumes.is_empty() {
        return Ok(());
    }
    let mut script = format!("mkdir -p {}\n", to.path);
    for volume in volumes {
        script += &make(settings, to, &format!("{}/disk.{}", to.path, volume.disk), &volume)?.0;
    }
    host::run(settings, &to.host, &script, b"").map(drop)
}

/// Commands that make a volume like `volume` for the machine's folder `folder`, with a link at `path`; and its device.
/// What is there by its name is of an earlier attempt, unless both hosts have the same group: then it is the disk.
fn make(settings: &Settings, folder: &Place, path: &str, volume: &Volume) -> Result<(String, String)> {
    let Volume { disk, bytes, uuid } = volume;
    let place = Place { host: folder.host.clone(), path: format!("{}/disk.{disk}", folder.path) };
    let device = device(settings, &place)?;
    let script = format!(
        r#"if [ -e {device} ]; then
    there=$(uuid_of {device})
    if [ -z "$there" ] || [ "$there" = {uuid} ]; then
        echo "the volume group of {device} is shared with the other host, which diskcast can't do" >&2
        exit 1
    fi
fi
ln -sfn {device} {path}
drop_volumes {path}
make_volume {device} {bytes}b
clear_from {device} {bytes}
"#
    );
    Ok((script, device))
}

/// Passes what a script on one host prints to one on another host, through this machine.
pub(super) fn pipe(
    settings: &Settings,
    (from, get): (&Place, &str),
    (to, put): (&Place, &str),
) -> Result<()> {
    let failed = |error| base::Error::from_io("run ssh".to_owned(), error);
    let mut getter = host::shell(settings, &from.host, get);
    let mut getting = getter.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let mut putter = host::shell(settings, &to.host, put);
    let taken = putter.stdin(getting.stdout.take().expect("it is piped")).output().map_err(failed)?;
    // It holds the pipe as long as it exists: of one that failed, nobody would take the rest.
    drop(putter);
    let given = getting.wait().map_err(failed)?;
    match given.success() && taken.status.success() {
        true => Ok(()),
        false => {
            let why = String::from_utf8_lossy(&taken.stderr).trim().to_owned();
            let why = if why.is_empty() { format!("the sender ended: {given}") } else { why };
            let text = format!("`{from}` could not be sent to `{to}`: {why}");
            Err(Failure::new(Exit::Failed, text).hint("it is still where it was"))
        }
    }
}
