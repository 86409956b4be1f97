//! A datastore, and what is said of it.

use std::path::Path;
use std::process::Command;

use base::limits::SECTOR_BYTES;
use roxmltree::Node;
use serde_json::Value;

use crate::commands::opennebula::offer::Offer;
use crate::commands::opennebula::place::Source;
use crate::commands::opennebula::settings::{Form, Repository, Settings};
use crate::commands::opennebula::tools::{make_filesystem, tool};
use crate::commands::opennebula::{own, room, xml};
use crate::exit::{Exit, Failure, Result};

pub(super) const MIB: u64 = 1 << 20;

/// What is said of an image and its datastore.
#[derive(Debug)]
pub(super) struct Order {
    pub id: String,
    /// Who owns the image.
    pub user: Option<u64>,
    pub source: Option<String>,
    pub path: Option<String>,
    pub format: Option<String>,
    pub filesystem: Option<String>,
    pub size_mb: Option<u64>,
    pub is_persistent: bool,
    pub is_cd: bool,
    pub md5: Option<String>,
    pub sha1: Option<String>,
    pub repository: String,
    /// How disks of this image begin, if the image or the datastore says so.
    pub copy: Option<Form>,
    /// What all users of the datastore may have.
    pub offer: Offer,
    pub restricted: Vec<String>,
    pub safe: Vec<String>,
}

impl Order {
    pub(super) fn read(root: Node<'_, '_>, settings: &Settings) -> Result<Self> {
        let text = |path: &str| xml::text(root, path);
        let words = |path: &str| -> Vec<String> {
            text(path).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
        };
        let repository = match text("DATASTORE/TEMPLATE/DISKCAST_REPOSITORY") {
            Some(name) => name,
            None => settings.only()?.to_owned(),
        };
        let copy = text("IMAGE/TEMPLATE/DISKCAST_COPY").or_else(|| text("DATASTORE/TEMPLATE/DISKCAST_COPY"));
        Ok(Self {
            id: text("IMAGE/ID").unwrap_or_default(),
            user: xml::number(root, "IMAGE/UID"),
            source: text("IMAGE/SOURCE"),
            path: text("IMAGE/PATH"),
            format: text("IMAGE/FORMAT"),
            filesystem: text("IMAGE/FS"),
            size_mb: xml::number(root, "IMAGE/SIZE"),
            is_persistent: text("IMAGE/PERSISTENT").is_some_and(|word| word == "1" || word == "YES"),
            is_cd: text("IMAGE/TYPE").is_some_and(|kind| kind == "1"),
            md5: text("IMAGE/TEMPLATE/MD5").or_else(|| text("IMAGE/MD5")),
            sha1: text("IMAGE/TEMPLATE/SHA1").or_else(|| text("IMAGE/SHA1")),
            repository,
            copy: copy.as_deref().map(Form::parse).transpose()?,
            offer: Offer::new(text("DATASTORE/TEMPLATE/DISKCAST_IMAGES").as_deref()),
            restricted: words("DATASTORE/TEMPLATE/RESTRICTED_DIRS"),
            safe: words("DATASTORE/TEMPLATE/SAFE_DIRS"),
        })
    }

    pub(super) fn path(&self) -> Result<&str> {
        self.path.as_deref().ok_or_else(|| Failure::new(Exit::Usage, "the image has no PATH"))
    }
}

/// A version that a name means.
#[derive(Debug)]
pub(super) struct Found {
    /// The version with its number.
    pub version: String,
    /// Size of its disk.
    pub bytes: u64,
    pub labels: Value,
}

impl Found {
    /// The image, without the number.
    pub(super) fn image(&self) -> &str {
        self.version.split('@').next().unwrap_or_default()
    }
}

/// A datastore that is asked for something.
pub(super) struct Store<'a> {
    pub settings: &'a Settings,
    pub repository: &'a Repository,
    pub order: &'a Order,
}

impl Store<'_> {
    /// The name of the image that belongs to OpenNebula's.
    fn own_name(&self) -> Result<String> {
        match self.order.id.parse::<u64>() {
            Ok(id) => Ok(format!("{}-{id}", self.settings.prefix)),
            Err(_) => Err(Failure::new(Exit::Usage, "the image has no ID")),
        }
    }

    pub(super) fn own_source(&self) -> Result<Source> {
        Ok(Source { repository: self.order.repository.clone(), name: self.own_name()? })
    }

    /// Runs this program on the repository.
    pub(super) fn diskcast(&self, words: &[&str]) -> Result<Vec<Value>> {
        let mut all = words.to_vec();
        all.extend(["--repo", &self.repository.location]);
        own::run(&all)
    }

    /// What a new image is called, and the format that its disks have.
    pub(super) fn answer(&self, source: &Source) -> String {
        let format = if self.order.is_cd { "raw" } else { self.form().format() };
        format!("{source} {format}")
    }

    /// How disks of the image begin.
    fn form(&self) -> Form {
        self.order.copy.unwrap_or(self.settings.copy)
    }

    /// A second image with the same content, whatever its size.
    pub(super) fn clone_image(&self) -> Result<String> {
        let from = Source::parse(self.order.path()?)?;
        if from.repository != self.order.repository {
            return Err(refused("the image is in another repository", "export it, and import it here"));
        }
        self.begin_as(&from.name)?;
        Ok(self.answer(&self.own_source()?))
    }

    /// Makes the own image a clone of a version. An earlier try may have done it.
    pub(super) fn begin_as(&self, version: &str) -> Result<()> {
        self.remove_all(&self.own_name()?)?;
        self.diskcast(&["clone", version, &self.own_name()?]).map(drop)
    }

    /// An empty image, or a name for one that will be saved.
    pub(super) fn make(&self) -> Result<String> {
        let (source, order) = (self.own_source()?, self.order);
        if order.format.as_deref() == Some("save_as") {
            return Ok(source.to_string());
        }
        let size_mb = order.size_mb.ok_or_else(|| Failure::new(Exit::Usage, "the image has no SIZE"))?;
        self.remove_all(&source.name)?;
        match order.filesystem.as_deref() {
            None => drop(self.diskcast(&["create", &source.name, &format!("{size_mb}M")])?),
            Some(kind) => self.format(kind, size_mb, &source.name)?,
        }
        Ok(source.to_string())
    }

    fn format(&self, kind: &str, size_mb: u64, name: &str) -> Result<()> {
        let file = tempfile::NamedTempFile::new_in(&self.settings.staging)?;
        file.as_file().set_len(size_mb * MIB)?;
        // A capture refuses what is open for writing.
        let file = file.into_temp_path();
        let path = file.to_string_lossy().into_owned();
        let words = make_filesystem(kind)?;
        tool(Command::new(&words[0]).args(&words[1..]).arg(&path))?;
        self.diskcast(&["capture", &path, name]).map(drop)
    }

    /// Removes what belongs to the image alone. It may be gone.
    pub(super) fn remove(&self) -> Result<String> {
        let Some(source) = &self.order.source else { return Ok(String::new()) };
        // Parts of a backup are images of their own.
        let (_, names) = source.split_once(':').unwrap_or_default();
        let own = self.own_name()?;
        let is_of_machine =
            |image| self.settings.of_opennebula(image).is_some_and(|rest| rest.starts_with("vm-"));
        for name in names.split(',') {
            match name.split_once('@') {
                // One of several backups of a disk. What is imported from one is a clone.
                Some((image, version)) if is_of_machine(image) => {
                    self.remove_version(image, version)?;
                }
                None if name == own => self.remove_all(name)?,
                // A version of the repository stays.
                _ => {}
            }
        }
        Ok(String::new())
    }

    fn remove_version(&self, image: &str, version: &str) -> Result<()> {
        gone(self.diskcast(&["remove", &format!("{image}@{version}")]).map(drop))
    }

    pub(super) fn remove_all(&self, image: &str) -> Result<()> {
        let versions = match self.diskcast(&["images", image]) {
            Err(failure) if failure.exit == Exit::NotFound => return Ok(()),
            found => found?,
        };
        for version in versions.iter().filter_map(|record| record["number"].as_u64()) {
            self.remove_version(image, &version.to_string())?;
        }
        Ok(())
    }

    /// How much room there is.
    pub(super) fn space(&self) -> Result<String> {
        let location = &self.repository.location;
        if !location.contains("://") {
            return room::of_folder(Path::new(location));
        }
        let records = self.diskcast(&["usage"])?;
        let used =
            records.iter().filter_map(|record| record["stored_bytes"].as_u64()).max().unwrap_or(0) / MIB;
        let total = self.repository.capacity_mb.ok_or_else(|| {
            Failure::new(Exit::Usage, format!("it is not known how much room {location} has"))
                .hint("set capacity_mb for this repository in the settings")
        })?;
        Ok(format!("USED_MB={used}\nFREE_MB={}\nTOTAL_MB={total}\n", total.saturating_sub(used)))
    }

    /// How a marketplace gets the image.
    pub(super) fn export(&self) -> Result<String> {
        let text = self.order.source.as_deref().unwrap_or_default();
        let Found { version, bytes, .. } = self.resolve(&Source::parse(text)?.name)?;
        let source = self.repository.offer(&version);
        Ok(format!(
            "<IMPORT_INFO><IMPORT_SOURCE><![CDATA[{source}]]></IMPORT_SOURCE><MD5></MD5><SIZE>{}</SIZE>\
             <FORMAT>{}</FORMAT><DISPOSE>NO</DISPOSE></IMPORT_INFO>\n",
            bytes.div_ceil(MIB),
            self.repository.offered_format(self.form().format()),
        ))
    }

    /// Backups have no increments: each is whole, and shares what did not change.
    pub(super) fn flat(&self) -> Result<String> {
        let source = self.order.source.as_deref().unwrap_or_default();
        Ok(format!("{} {source}", self.order.size_mb.unwrap_or(0)))
    }

    /// The version that a name means now.
    pub(super) fn resolve(&self, name: &str) -> Result<Found> {
        let records = self.diskcast(&["inspect", name])?;
        let manifest = &own::record(&records, "version")?["manifest"];
        let image = manifest["image"].as_str().unwrap_or_default();
        let [number, sectors] = ["number", "size_sectors"].map(|name| manifest[name].as_u64().unwrap_or(0));
        let version = format!("{image}@{number}");
        Ok(Found { version, bytes: sectors * SECTOR_BYTES, labels: manifest["labels"].clone() })
    }
}

/// What is to be gone may be gone.
fn gone(done: Result<()>) -> Result<()> {
    match done {
        Err(failure) if failure.exit == Exit::NotFound => Ok(()),
        done => done,
    }
}

/// A refusal, and what helps.
pub(super) fn refused(text: &str, hint: &str) -> Failure {
    Failure::new(Exit::Refused, text).hint(hint)
}
