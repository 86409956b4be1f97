//! A machine, as OpenNebula knows it.

use std::process::{Command, Stdio};

use roxmltree::Node;

use super::place::{Place, is_plain, wrong};
use super::settings::{Form, Settings};
use super::xml;
use crate::exit::{Exit, Failure, Result};

/// OpenNebula's programs for machines and for images, and the variables that name other ones.
pub(super) const MACHINES: (&str, &str) = ("onevm", "DISKCAST_ONEVM");
pub(super) const IMAGES: (&str, &str) = ("oneimage", "DISKCAST_ONEIMAGE");

/// States in which nothing has to be moved, or a disk grows by itself (`LCM_STATE`).
const HOST_LOST: &[u64] = &[60, 61];
const GROWS_BY_ITSELF: u64 = 62;
/// Its disks go to the front-end, where it does not run: it stops, or is undeployed.
const AT_REST: &[u64] = &[10, 30];
/// The machine runs while a disk of it is saved, or while a snapshot of one is made.
const RUNS_WHILE_SAVED: &[u64] = &[3, 26];

/// What its disks are, and where it runs.
#[derive(Debug, Clone, Default)]
pub(super) struct Machine {
    disks: Vec<Disk>,
    /// What the hypervisor calls it.
    pub domain: Option<String>,
    state: u64,
}

/// A disk of a machine.
#[derive(Debug, Clone, Default)]
pub(super) struct Disk {
    pub number: u32,
    /// Size that it is to have, in MB.
    pub size_mb: Option<u64>,
    /// Format of the file: that of the driver, if it is said.
    pub format: Option<String>,
    /// Filesystem to be made on it.
    pub filesystem: Option<String>,
    /// `DISKCAST_COPY`.
    pub copy: Option<String>,
    /// The driver that has its image.
    pub driver: Option<String>,
    /// Its image.
    pub source: Option<String>,
    /// Whether it is a CD.
    pub is_cd: bool,
}

impl Machine {
    /// Asks OpenNebula.
    pub(super) fn ask(id: &str) -> Result<Self> {
        xml::parse(&show(MACHINES, id)?, Self::read)
    }

    /// The machine `id`, and how the file of its disk at `target` is read.
    pub(super) fn with_disk(target: &Place, id: &str) -> Result<(Self, &'static str)> {
        let number = target.disk().ok_or_else(|| wrong(&format!("`{target}` is not a disk")))?;
        let machine = Self::ask(id)?;
        let format = machine.disk(number)?.file_format()?;
        Ok((machine, format))
    }

    /// Reads a `VM`.
    pub(super) fn read(root: Node<'_, '_>) -> Result<Self> {
        let Some(template) = xml::child(root, "TEMPLATE") else {
            return Err(Failure::new(Exit::Usage, "the machine has no TEMPLATE"));
        };
        let disks = template.children().filter(|child| child.has_tag_name("DISK"));
        let domain = xml::text(root, "DEPLOY_ID").filter(|name| is_plain(name));
        let state = xml::number(root, "LCM_STATE").unwrap_or(0);
        Ok(Self { disks: disks.filter_map(Disk::read).collect(), domain, state })
    }

    pub(super) fn disk(&self, number: u32) -> Result<&Disk> {
        let found = self.disks.iter().find(|disk| disk.number == number);
        found.ok_or_else(|| Failure::new(Exit::NotFound, format!("the machine has no disk {number}")))
    }

    pub(super) fn disks(&self) -> &[Disk] {
        &self.disks
    }

    /// The domain that runs meanwhile, if it does.
    pub(super) fn running(&self) -> Option<&str> {
        self.domain.as_deref().filter(|_| RUNS_WHILE_SAVED.contains(&self.state))
    }

    pub(super) fn lost_its_host(&self) -> bool {
        HOST_LOST.contains(&self.state)
    }

    /// Whether its disks go where it can't run.
    pub(super) fn rests(&self) -> bool {
        AT_REST.contains(&self.state)
    }

    pub(super) fn grows_by_itself(&self) -> bool {
        self.state == GROWS_BY_ITSELF
    }
}

impl Disk {
    fn read(node: Node<'_, '_>) -> Option<Self> {
        let text = |name| xml::text(node, name);
        Some(Self {
            number: text("DISK_ID")?.parse().ok()?,
            size_mb: xml::number(node, "SIZE"),
            format: text("DRIVER").or_else(|| text("FORMAT")),
            filesystem: text("FS"),
            copy: text("DISKCAST_COPY"),
            driver: text("TM_MAD"),
            source: text("SOURCE"),
            is_cd: text("TYPE").is_some_and(|kind| kind == "CDROM"),
        })
    }

    /// How it begins. OpenNebula sets the driver to the image's format, and starts the machine with that.
    pub(super) fn form(&self, settings: &Settings) -> Result<Form> {
        // A CD is read as it is, and is nobody's to change.
        if self.is_cd {
            return Ok(Form::Full);
        }
        let wanted = self.copy.as_deref().map(Form::parse).transpose()?;
        let form = wanted.unwrap_or(settings.copy);
        if self.format.is_none() || self.file_format()? == form.format() {
            return Ok(form);
        }
        match (wanted, self.file_format()?) {
            (Some(_), format) => {
                let (number, needs) = (self.number, form.format());
                let text = format!(
                    "DISKCAST_COPY of disk {number} needs the format {needs}, its image has {format}"
                );
                Err(Failure::new(Exit::Refused, text)
                    .hint("make an image with this DISKCAST_COPY in its template"))
            }
            // The settings were others when the image was made.
            (None, "qcow2") => Ok(Form::Overlay),
            (None, _) => Ok(Form::Full),
        }
    }

    /// `qcow2` or `raw`, as the template has it: what a machine writes must not decide.
    pub(super) fn file_format(&self) -> Result<&'static str> {
        match self.format.as_deref() {
            Some("qcow2") => Ok("qcow2"),
            Some("raw") | None => Ok("raw"),
            Some(other) => {
                Err(Failure::new(Exit::Refused, format!("disk {} has the format {other}", self.number)))
            }
        }
    }
}

/// The SOURCE of an image.
pub(super) fn source_of(image: &str) -> Result<String> {
    let found = xml::parse(&show(IMAGES, image)?, |root| Ok(xml::text(root, "SOURCE")))?;
    found.ok_or_else(|| Failure::new(Exit::NotFound, format!("image {image} has no SOURCE")))
}

/// The user who owns one of [`MACHINES`] or [`IMAGES`]. A failure if OpenNebula does not know it.
pub(super) fn owner(of: (&str, &str), id: &str) -> Result<Option<u64>> {
    xml::parse(&show(of, id)?, |root| Ok(xml::number(root, "UID")))
}

/// Asks OpenNebula, by one of its programs.
fn show((program, variable): (&str, &str), id: &str) -> Result<String> {
    let program = std::env::var(variable).unwrap_or_else(|_| program.to_owned());
    let output = Command::new(&program).args(["show", "-x", id]).stdin(Stdio::null()).output();
    let output = output.map_err(|error| base::Error::from_io(format!("run `{program}`"), error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Failure::new(Exit::Failed, format!("`{program} show -x {id}`: {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::opennebula::settings::EXAMPLE;

    #[test]
    fn a_disk_begins_as_its_image_has_it_whatever_the_settings_say_now() {
        let of = |default: &str, driver: &str, copy: &str| {
            let settings = Settings::parse(&format!("copy = \"{default}\"\n{EXAMPLE}")).unwrap();
            let word = |word: &str| Some(word.to_owned()).filter(|word| !word.is_empty());
            let disk = Disk { format: word(driver), copy: word(copy), ..Disk::default() };
            disk.form(&settings).map_err(|failure| failure.message)
        };
        for (default, driver, copy, form) in [
            ("overlay", "qcow2", "", Form::Overlay),
            ("overlay", "raw", "", Form::Full),
            ("demand", "qcow2", "", Form::Demand),
            ("full", "qcow2", "", Form::Overlay),
            ("share", "raw", "", Form::Share),
            ("overlay", "raw", "volume", Form::Volume),
            ("full", "qcow2", "demand", Form::Demand),
            ("full", "", "", Form::Full),
        ] {
            assert_eq!(of(default, driver, copy), Ok(form), "{default} {driver} {copy}");
        }
        for (driver, copy) in [("qcow2", "full"), ("raw", "overlay")] {
            assert!(of("overlay", driver, copy).is_err_and(|why| why.contains("needs the format")), "{copy}");
        }
    }
}
