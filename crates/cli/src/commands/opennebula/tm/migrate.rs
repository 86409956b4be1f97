//! Before and after a machine moves while it runs. Its hypervisor copies the disks.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::volumes;
use crate::commands::opennebula::place::Place;
use crate::commands::opennebula::settings::Settings;
use crate::commands::opennebula::vm::Machine;
use crate::commands::opennebula::{host, own, xml};
use crate::exit::{Exit, Failure, Result};

/// The folder of the drivers' scripts, which our scripts say.
const SCRIPTS: &str = "DISKCAST_TM";

/// Removes what is in the way there, before; what stayed here, after; what came there, if it failed. Then the drivers
/// of the machine's other disks do theirs.
pub(super) fn act(
    action: &str,
    (from, to, folder): (&str, &str, &str),
    words: &[&str],
    rest: &[&str],
) -> Result<()> {
    if from == to {
        return Ok(());
    }
    let text = xml::standard_input()?;
    let gone = if action == "postmigrate" { from } else { to };
    let place = Place::parse(&format!("{gone}:{folder}"))?;
    if !place.is_of_a_machine() {
        return Err(Failure::new(Exit::Refused, format!("`{place}` is not a machine's folder")));
    }
    let settings = Settings::load()?;
    let remove = format!("drop_volumes {0}/disk.* {0}/backup/disk.*\nrm -rf {0}", place.path);
    host::run(&settings, &place.host, &remove, b"")?;
    let machine = xml::parse(&text, Machine::read)?;
    if action == "premigrate" {
        let from = Place { host: from.to_owned(), path: place.path.clone() };
        volumes::make_like(&settings, &from, &place)?;
    }
    // The sixth word says that another driver has asked us: it asks the others, too.
    if rest.len() >= 3 {
        return Ok(());
    }
    let mut others: Vec<&str> = machine.disks().iter().filter_map(|disk| disk.driver.as_deref()).collect();
    others.sort_unstable();
    others.dedup();
    for other in others.into_iter().filter(|other| *other != "diskcast") {
        ask(other, action, words, &text)?;
    }
    Ok(())
}

fn ask(driver: &str, action: &str, words: &[&str], text: &str) -> Result<()> {
    let Some(scripts) = std::env::var_os(SCRIPTS) else { return Ok(()) };
    if driver.contains(['/', '.']) {
        return Err(Failure::new(Exit::Usage, format!("`{driver}` is not a driver")));
    }
    let script = PathBuf::from(scripts).join(driver).join(action);
    if !script.exists() {
        return Ok(());
    }
    let mut command = Command::new(&script);
    command.args(words).arg("diskcast").stderr(Stdio::inherit());
    let output = own::with_input(&mut command, text.as_bytes())
        .map_err(|error| base::Error::from_io(format!("run `{}`", script.display()), error))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Failure::new(
            Exit::Failed,
            format!("`{}`: {}", script.display(), String::from_utf8_lossy(&output.stderr).trim()),
        )),
    }
}
