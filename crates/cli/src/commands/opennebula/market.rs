//! The marketplace: images of a repository that any datastore may import.

use base64::Engine as _;
use serde_json::Value;

use super::offer::Offer;
use super::settings::{Repository, Settings};
use super::{own, xml};
use crate::clock;
use crate::exit::{Exit, Failure, Result};

const MIB: u64 = 1 << 20;

/// Does what OpenNebula asks for, and returns what it is to read.
pub(super) fn act(action: &str, words: &[String]) -> Result<String> {
    let settings = Settings::load()?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (text, _) = xml::told(&words)?;
    let [name, images] = xml::parse(&text, |root| {
        Ok(["REPOSITORY", "IMAGES"]
            .map(|what| xml::text(root, &format!("MARKETPLACE/TEMPLATE/DISKCAST_{what}"))))
    })?;
    let repository = match &name {
        Some(name) => settings.repository(name)?,
        None => settings.repository(settings.only()?)?,
    };
    let offer = Offer::new(images.as_deref());
    match action.to_ascii_lowercase().as_str() {
        "monitor" => catalogue(&settings, repository, &offer),
        "import" | "delete" => {
            let text = "the marketplace shows the images of a repository, and is not written to";
            Err(Failure::new(Exit::Refused, text)
                .hint("`diskcast capture`, `clone` and `remove` change what it shows"))
        }
        other => Err(Failure::new(Exit::Usage, format!("no action `{other}`"))),
    }
}

/// The images that are for all users, by their newest versions.
fn catalogue(settings: &Settings, repository: &Repository, offer: &Offer) -> Result<String> {
    let images = own::run(&["images", "--repo", &repository.location])?;
    let mut used = 0;
    let mut text = String::new();
    let has =
        |image: &&Value| offer.has(settings, image["name"].as_str().unwrap_or_default(), &image["labels"]);
    for image in images.iter().filter(|record| record["type"] == "image").filter(has) {
        used += image["encoded_bytes"].as_u64().unwrap_or(0);
        let app = base64::engine::general_purpose::STANDARD.encode(app(repository, image));
        text += &format!("APP=\"{app}\"\n");
    }
    let used = used.div_ceil(MIB);
    let total = repository.capacity_mb.unwrap_or(used);
    text +=
        &format!("USED_MB=\"{used}\"\nFREE_MB=\"{}\"\nTOTAL_MB=\"{total}\"\n", total.saturating_sub(used));
    Ok(text)
}

fn app(repository: &Repository, image: &Value) -> String {
    let name = image["name"].as_str().unwrap_or_default();
    let number = image["newest"].as_u64().unwrap_or(0);
    let size = image["disk_bytes"].as_u64().unwrap_or(0).div_ceil(MIB);
    let source = repository.offer(&format!("{name}@{number}"));
    let format = repository.offered_format("qcow2");
    let created = image["created"].as_str().unwrap_or_default();
    let registered = clock::parse_rfc3339(created).unwrap_or(0);
    format!(
        "NAME=\"{name}\"\nSOURCE=\"{source}\"\nIMPORT_ID=\"-1\"\nORIGIN_ID=\"-1\"\nTYPE=\"IMAGE\"\n\
         REGTIME=\"{registered}\"\nPUBLISHER=\"diskcast\"\nFORMAT=\"{format}\"\nVERSION=\"{number}\"\nSIZE=\"{size}\"\n\
         MD5=\"\"\nTAGS=\"\"\n\
         DESCRIPTION=\"Version {number} of {name}, made {created}\"\nLINK=\"\"\n",
    )
}
