//! What a device says of an object, of a group and of itself. formats/cluster.md, section 6.

use base::Result;
use proto::cluster::ObjectId;
use serde_json::{Value, json};

use super::Device;
use super::tables::Change;
use crate::problem::Answer;
use crate::wire::{GroupLimits, LAYOUT_ATTRIBUTE, QUOTA_ATTRIBUTE, RATE_ATTRIBUTE};

impl Device {
    /// Keeps what a group may use on this device; a limit that is gone is removed.
    pub(super) fn limit(&self, told: &GroupLimits) -> Result<()> {
        let id = ObjectId::of_group(told.group);
        let wanted = [(QUOTA_ATTRIBUTE, told.limits.quota), (RATE_ATTRIBUTE, told.limits.rate)];
        let mut changes = Vec::new();
        for ((page, number), limit) in wanted {
            let value = limit.map(|limit| limit.to_string().into_bytes());
            if self.store.tables().attribute(id, page, number)? != value {
                changes.push(Change::Attribute { id, page, number, value });
            }
        }
        if changes.is_empty() { Ok(()) } else { self.store.commits().now(changes) }
    }

    /// All attributes of an object, of a group or of the device, by page and number.
    pub(super) fn attributes(&self, id: ObjectId) -> Answer<Value> {
        let mut pages = serde_json::Map::new();
        let own = if id == ObjectId::ROOT {
            let (bytes, free) = self.store.space()?;
            json!({ "bytes": bytes, "free": free, "used": self.store.used(), "objects": self.store.count() })
        } else if id.number == 0 {
            json!({ "used": self.store.used_by(id.group) })
        } else {
            let row = self.store.get(id)?.row();
            json!({
                "length": row.length, "sealed": row.sealed, "fence": row.fence,
                "created": row.created, "modified": row.modified,
            })
        };
        pages.insert("0".to_owned(), own);
        let mut found = self.store.tables().attributes(id)?;
        if id.holds_data() && !found.iter().any(|(page, number, _)| (*page, *number) == LAYOUT_ATTRIBUTE) {
            let layout = self.store.layout(id)?.filter(|layout| !layout.is_empty());
            found.extend(layout.map(|layout| (LAYOUT_ATTRIBUTE.0, LAYOUT_ATTRIBUTE.1, layout)));
        }
        for (page, number, value) in found {
            let text = String::from_utf8(value);
            let value = match text {
                Ok(text) => json!({ "text": text }),
                Err(bytes) => json!({ "hex": base::hex::encode(bytes.as_bytes()) }),
            };
            let page = pages.entry(page.to_string()).or_insert_with(|| json!({}));
            page[number.to_string()] = value;
        }
        Ok(Value::Object(pages))
    }
}
