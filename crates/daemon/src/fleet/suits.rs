//! Whether an image can become what a job makes of it. An administrator is told when he gives the job, and not by each
//! machine after its start.

use base::{Error, ErrorKind, Result};
use disk::grow::{self, Slot};
use disk::personal::Personal;
use net::api::{Put, Work};

/// Options of a fetch that change files of the disk's Linux root, without their values.
const OF_ROOT: [&str; 4] = ["--hostname", "--cloud-init", "--copy", "--run"];

/// `Refused`, with what would work, if the disk of `version`, which has these partitions, can't get what `work` asks
/// for.
pub(crate) fn check(version: &str, slots: &[Slot], work: &Work) -> Result<()> {
    let refused = |what: &str, error: &Error, instead: &str| {
        Error::new(ErrorKind::Refused, format!("{version} can't {what}: {error}; {instead}"))
    };
    let (own, instead) = match work {
        Work::Install { after, .. } => {
            let own = Personal { new_identity: after.own, ..Personal::default() };
            (own, "--as-captured leaves the disk as it was captured")
        }
        Work::Put(put) => (of_options(put), "it can be put there without these options"),
        Work::Capture { .. } | Work::Wipe | Work::Shell => return Ok(()),
    };
    own.fits(slots).map_err(|error| refused("become a machine of its own", &error, instead))?;
    match work {
        Work::Install { after, .. } if after.grow => grow::choose(slots, None)
            .map(drop)
            .map_err(|error| refused("grow", &error, "it can be installed without --grow")),
        _ => Ok(()),
    }
}

/// What the options of a fetch want of a disk, as far as that says which disks can get it.
fn of_options(put: &Put) -> Personal {
    let names: Vec<&str> =
        put.options.iter().map(|option| option.split_once('=').map_or(&**option, |(name, _)| name)).collect();
    let has = |name: &str| names.contains(&name);
    // A partition alone may lie in any disk; its host knows.
    if has("--partition") {
        return Personal::default();
    }
    let writes_root = put.written.is_some() || OF_ROOT.into_iter().any(has);
    Personal {
        new_identity: has("--new-identity"),
        // A name stands for all that is written there.
        host_name: writes_root.then(|| "host".to_owned()),
        uefi_fallback: has("--uefi-fallback"),
        ..Personal::default()
    }
}

#[cfg(test)]
mod tests {
    use base::Extent;
    use net::api::After;

    use super::*;

    /// Partitions that hold these filesystems.
    fn slots(kinds: &[&str]) -> Vec<Slot> {
        let slot = |(number, kind): (u32, &&str)| Slot {
            number,
            extent: Extent::new(u64::from(number) * 2048, 2048),
            type_id: String::new(),
            kind: Some((*kind).to_owned()),
        };
        (1..).zip(kinds).map(slot).collect()
    }

    fn install(own: bool, grow: bool) -> Work {
        let after = After { own, accept_stale_ids: false, grow };
        Work::Install { reference: "pc@3".to_owned(), after }
    }

    fn put(options: &[&str], written: Option<&str>) -> Work {
        let options = options.iter().map(|&option| option.to_owned()).collect();
        Work::Put(Put { options, written: written.map(str::to_owned), ..Put::default() })
    }

    #[test]
    fn what_an_image_can_not_become_is_refused_with_what_would_work() {
        let [windows, bare, linux] = [&["vfat", "ntfs"][..], &["vfat"], &["vfat", "ext4"]].map(slots);
        for (slots, work, words) in [
            (&windows, install(true, false), "sysprep; --as-captured leaves"),
            (&windows, put(&["--new-identity"], None), "sysprep; it can be put there without"),
            (&windows, put(&["--hostname={host}"], None), "no filesystem that a Linux root can be in"),
            (
                &bare,
                install(true, false),
                "pc@3 can't become a machine of its own: the disk has no filesystem",
            ),
            (&bare, put(&["--grow", "--hostname", "{host}"], None), "no filesystem that a Linux root"),
            (&bare, put(&[], Some("touch /a")), "no filesystem that a Linux root can be in"),
            (&bare, install(false, true), "pc@3 can't grow: partition 1 can't grow: it holds vfat"),
            (&slots(&[]), install(true, false), "no filesystem that a Linux root can be in"),
        ] {
            let error = check("pc@3", slots, &work).unwrap_err();
            assert!(error.kind() == ErrorKind::Refused && error.to_string().contains(words), "{error}");
        }
        for (slots, work) in [
            (&windows, install(false, true)),
            (&windows, put(&["--grow"], None)),
            (&bare, install(false, false)),
            (&bare, put(&["--partition", "1", "--hostname", "a"], None)),
            (&bare, Work::Wipe),
            (&linux, install(true, true)),
            (&linux, put(&["--new-identity", "--hostname", "{host}"], Some("touch /a"))),
        ] {
            check("pc@3", slots, &work).unwrap();
        }
    }
}
