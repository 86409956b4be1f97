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
}

impl Offer {
    /// By DISKCAST_IMAGES in the template of the datastore or marketplace, if it is there.
    pub(super) fn new(names: Option<&str>) -> Self {
        Self { names: names.map(|names| names.split_whitespace().map(str::to_owned).collect()) }
    }

    /// Whether `image`, whose version has these labels, is in it.
    pub(super) fn has(&self, settings: &Settings, image: &str, labels: &Value) -> bool {
        let is_named = |name: &String| match name.strip_suffix('*') {
            Some(begin) => image.starts_with(begin),
            None => image == name,
        };
        match &self.names {
            _ if settings.of_opennebula(image).is_some() => false,
            Some(names) => names.iter().any(is_named),
            None => labels[LABEL.0] == LABEL.1,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::commands::opennebula::settings::EXAMPLE;

    #[test]
    fn a_list_or_a_label_offers_and_never_what_opennebula_made() {
        let settings = Settings::parse(EXAMPLE).unwrap();
        let has = |names, image, labels: &Value| Offer::new(names).has(&settings, image, labels);
        let (label, none) = (json!({ "opennebula": "yes" }), json!({}));
        assert!(has(None, "web", &label) && !has(None, "web", &none));
        assert!(!has(None, "web", &json!({ "opennebula": "no" })) && !has(None, "one-3", &label));
        let list = Some("web lab-*");
        assert!(has(list, "web", &none) && has(list, "lab-1", &none));
        assert!(!has(list, "web2", &label) && !has(list, "db", &none));
        assert!(!has(Some("*"), "one-vm-1-disk-0", &label));
    }
}
