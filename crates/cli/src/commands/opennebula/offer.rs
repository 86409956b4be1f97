//! Which images of a repository all users of OpenNebula may have.

use serde_json::Value;

use super::settings::Settings;

/// The label of an image that all users may have, where no list says so: `opennebula=yes`.
const LABEL: (&str, &str) = ("opennebula", "yes");

/// What a datastore or a marketplace offers. What OpenNebula made itself is never in it: that has owners.
#[derive(Debug)]
pub(super) struct Offer {
    /// Names, of which the last character may be a `*`.
    names: Option<Vec<String>>,
    prefix: String,
}

impl Offer {
    /// By DISKCAST_IMAGES in the template of the datastore or marketplace, if it is there.
    pub(super) fn new(names: Option<&str>, settings: &Settings) -> Self {
        let names = names.map(|names| names.split_whitespace().map(str::to_owned).collect());
        Self { names, prefix: format!("{}-", settings.prefix) }
    }

    /// Whether `image`, whose version has these labels, is in it.
    pub(super) fn has(&self, image: &str, labels: &Value) -> bool {
        let is_named = |name: &String| match name.strip_suffix('*') {
            Some(begin) => image.starts_with(begin),
            None => image == name,
        };
        match &self.names {
            _ if image.starts_with(&self.prefix) => false,
            Some(names) => names.iter().any(is_named),
            None => labels[LABEL.0] == LABEL.1,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_or_a_label_offers_and_never_what_opennebula_made() {
        let text =
            "[repositories.main]\nlocation = \"/srv\"\nserver = \"https://a:1\"\ntoken_file = \"/t\"\n";
        let settings = Settings::parse(text).unwrap();
        let (label, none) = (json!({ "opennebula": "yes" }), json!({}));
        let by_label = Offer::new(None, &settings);
        assert!(by_label.has("web", &label) && !by_label.has("web", &none));
        assert!(!by_label.has("web", &json!({ "opennebula": "no" })) && !by_label.has("one-3", &label));
        let by_list = Offer::new(Some("web lab-*"), &settings);
        assert!(by_list.has("web", &none) && by_list.has("lab-1", &none));
        assert!(!by_list.has("web2", &label) && !by_list.has("db", &none));
        assert!(!Offer::new(Some("*"), &settings).has("one-vm-1-disk-0", &label));
    }
}
