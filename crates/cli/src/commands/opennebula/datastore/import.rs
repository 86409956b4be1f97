//! Where new images come from: a repository, a file of this machine, or an URL.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::makes_one;
use super::store::{MIB, Store};
use crate::commands::opennebula::place::{Source, is_plain};
use crate::commands::opennebula::tools::{download, is_url, tool};
use crate::exit::{Exit, Failure, Result};

/// What names a version of the repository, in place of a path.
const SCHEME: &str = "diskcast:";
/// Bytes of the beginning of a file by which its format is known.
const HEAD: &str = "0-65535";
const QCOW2_MAGIC: &[u8] = b"QFI\xfb";
/// Programs that decompress a file, by the end of its name.
const PACKED: &[(&str, &str)] = &[("gz", "gzip"), ("xz", "xz"), ("zst", "zstd"), ("bz2", "bzip2")];

impl Store<'_> {
    /// Makes an image of what PATH names.
    pub(super) fn import(&self) -> Result<String> {
        let path = self.order.path()?;
        if let Some(version) = self.version(path) {
            let found = self.resolve(&version)?;
            self.may_have(&found)?;
            let version = found.version;
            // What nobody changes can be the version itself, if OpenNebula does not remove it with another image.
            let is_of_others = self.settings.of_opennebula(&version).is_none();
            if !self.order.is_persistent && is_of_others {
                return Ok(self.answer(&Source { repository: self.order.repository.clone(), name: version }));
            }
            self.begin_as(&version)?;
            return Ok(self.answer(&self.own_source()?));
        }
        let own = self.own_source()?;
        let staged;
        let file = if is_url(path) {
            staged = tempfile::NamedTempFile::new_in(&self.settings.staging)?.into_temp_path();
            download(path, &staged)?;
            staged.to_path_buf()
        } else {
            self.allowed(path)?
        };
        for (sum, program) in [(&self.order.md5, "md5sum"), (&self.order.sha1, "sha1sum")] {
            if let Some(sum) = sum {
                check(&file, sum, program)?;
            }
        }
        self.remove_all(&own.name)?;
        let file = file.to_string_lossy();
        let label = format!("imported-from={path}");
        self.diskcast(&["capture", &file, &own.name, "--label", &label])?;
        Ok(self.answer(&own))
    }

    /// The size of what PATH names, in MB.
    pub(super) fn size_mb(&self) -> Result<u64> {
        let path = self.order.path()?;
        let bytes = match self.version(path) {
            Some(version) => self.resolve(&version)?.bytes,
            None if is_url(path) => size_of_url(path)?,
            None => size_of_file(&self.allowed(path)?)?,
        };
        Ok(bytes.div_ceil(MIB))
    }

    /// The version that `path` names: by our own word, or as the file that our server makes of it.
    fn version(&self, path: &str) -> Option<String> {
        path.strip_prefix(SCHEME)
            .or_else(|| {
                let rest = path.strip_prefix(self.repository.public.as_deref()?)?;
                rest.strip_prefix("/images/")?.strip_suffix(".qcow2")
            })
            .map(str::to_owned)
    }

    /// A file that users may import: not one of the front-end's own.
    fn allowed(&self, path: &str) -> Result<PathBuf> {
        let found = std::fs::canonicalize(path).map_err(|error| {
            let failure = Failure::from(base::Error::from_io(format!("find `{path}`"), error));
            // Whoever reads it may type it.
            match path.rsplit('/').next().filter(|name| name.starts_with(SCHEME) && is_plain(name)) {
                Some(version) => {
                    failure.hint(format!("`--path` makes a file name of it: {}", makes_one(version)))
                }
                None => failure,
            }
        })?;
        let is_in = |folders: &[String]| folders.iter().any(|folder| found.starts_with(folder));
        match is_in(&self.order.restricted) && !is_in(&self.order.safe) {
            true => Err(Failure::new(Exit::Refused, format!("`{path}` is in a restricted folder"))
                .hint("RESTRICTED_DIRS and SAFE_DIRS of the datastore say which files may be imported")),
            false => Ok(found),
        }
    }
}

fn check(file: &Path, sum: &str, program: &str) -> Result<()> {
    let output = tool(Command::new(program).arg("--").arg(file))?;
    let text = String::from_utf8_lossy(&output);
    let found = text.trim_start_matches('\\').split_whitespace().next().unwrap_or_default();
    match found.eq_ignore_ascii_case(sum) {
        true => Ok(()),
        false => {
            let text = format!("`{program}` gives {found}, and not {sum}: what came is damaged");
            Err(Failure::new(Exit::Verification, text))
        }
    }
}

fn size_of_file(path: &Path) -> Result<u64> {
    let end = path.extension().unwrap_or_default().to_string_lossy().into_owned();
    if let Some((_, program)) = PACKED.iter().find(|(known, _)| *known == end) {
        let script = format!("{program} -dc <\"$1\" | wc -c");
        let output = tool(Command::new("sh").args(["-c", &script, "sh"]).arg(path))?;
        return number(&output);
    }
    let output = tool(Command::new("qemu-img").args(["info", "--output=json"]).arg(path))?;
    let about: Value = serde_json::from_slice(&output).unwrap_or_default();
    about["virtual-size"]
        .as_u64()
        .ok_or_else(|| Failure::new(Exit::Failed, format!("`{}` has no size", path.display())))
}

fn number(text: &[u8]) -> Result<u64> {
    let text = String::from_utf8_lossy(text);
    text.trim().parse().map_err(|_| Failure::new(Exit::Failed, format!("`{}` is not a size", text.trim())))
}

/// The size of the disk in the file at `url`.
fn size_of_url(url: &str) -> Result<u64> {
    let head = tool(Command::new("curl").args(["-fsSL", "-r", HEAD, "--", url]))?;
    if head.starts_with(QCOW2_MAGIC)
        && let Some(size) = head.get(24..32).and_then(|bytes| <[u8; 8]>::try_from(bytes).ok())
    {
        return Ok(u64::from_be_bytes(size));
    }
    let wanted = "%header{content-length}";
    let output = tool(Command::new("curl").args(["-fsSLI", "-o", "/dev/null", "-w", wanted, "--", url]))?;
    number(&output)
}
