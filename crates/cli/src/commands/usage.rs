//! `diskcast usage`: shows the space that each image takes, and the sum.

use base::units::show_bytes;
use serde_json::json;

use super::Context;
use crate::exit::Result;
use crate::repository;
use crate::ui::table::{Align, Table};

pub(crate) fn run(context: &Context) -> Result<()> {
    let usage = repository::open(&context.global)?.usage()?;
    let mut table = Table::new(&[
        ("IMAGE", Align::Left),
        ("VERSIONS", Align::Right),
        ("LOGICAL", Align::Right),
        ("OWN", Align::Right),
        ("SHARED", Align::Right),
    ]);
    let mut records = Vec::new();
    for image in &usage.images {
        table.row([
            image.image.to_string(),
            image.versions.to_string(),
            show_bytes(image.logical_bytes),
            show_bytes(image.own_bytes),
            show_bytes(image.shared_bytes),
        ]);
        records.push(json!({
            "type": "usage", "image": image.image.as_str(), "versions": image.versions,
            "logical_bytes": image.logical_bytes, "own_bytes": image.own_bytes, "shared_bytes": image.shared_bytes,
        }));
    }
    let sum = |of: fn(&store::ImageUsage) -> u64| usage.images.iter().map(of).sum::<u64>();
    table.row([
        "all".to_owned(),
        sum(|image| image.versions).to_string(),
        show_bytes(sum(|image| image.logical_bytes)),
        show_bytes(usage.stored_bytes),
        show_bytes(usage.shared_bytes),
    ]);
    records.push(json!({
        "type": "total", "stored_bytes": usage.stored_bytes, "shared_bytes": usage.shared_bytes,
        "objects": usage.objects, "logical_bytes": sum(|image| image.logical_bytes),
    }));
    context.output.list(&records, &table)
}
