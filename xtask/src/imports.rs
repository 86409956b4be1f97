//! Checks that imports between crates follow the layers of ARCHITECTURE.md, which are repeated here as a list.

use std::path::Path;

/// The crates that each shipped crate may import.
const HOUSE: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("disk", &["base"]),
    ("proto", &["base"]),
    ("image", &["base", "disk"]),
    ("store", &["base", "image", "proto"]),
    ("cluster", &["base", "proto"]),
    ("net", &["base", "image", "proto"]),
    ("switch", &["base", "net", "proto"]),
    ("torrent", &["base", "disk", "image"]),
    ("mirror", &["base", "disk", "image", "net", "store"]),
    ("daemon", &["base", "cluster", "disk", "image", "mirror", "net", "store", "torrent"]),
    ("cli", &["base", "cluster", "daemon", "disk", "image", "mirror", "net", "store", "switch", "torrent"]),
];

/// Crates that are not shipped: they may import every crate that they measure or drive.
const WORKSHOP: &[&str] = &["sim", "lab", "bench"];

/// Crates without async code: they use threads and bounded queues.
const NO_ASYNC: &[&str] = &["base", "disk", "image", "proto"];
const ASYNC_RUNTIMES: &[&str] = &["tokio", "async-std", "smol", "futures", "async-trait"];

pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut breaches = Vec::new();
    let folders = std::fs::read_dir(root.join("crates")).expect("crates/ can be read");
    for folder in folders {
        let folder = folder.expect("crates/ can be read");
        let name = folder.file_name().to_string_lossy().into_owned();
        let manifest = std::fs::read_to_string(folder.path().join("Cargo.toml")).unwrap_or_default();
        breaches.extend(check_crate(&name, &dependencies(&manifest)));
    }
    breaches
}

fn dependencies(manifest: &str) -> Vec<String> {
    let table: toml::Table = manifest.parse().unwrap_or_default();
    let names = table.get("dependencies").and_then(|names| names.as_table());
    names.map(|names| names.keys().cloned().collect()).unwrap_or_default()
}

fn check_crate(name: &str, dependencies: &[String]) -> Vec<String> {
    if WORKSHOP.contains(&name) {
        return Vec::new();
    }
    let Some((_, allowed)) = HOUSE.iter().find(|(house, _)| *house == name) else {
        return vec![format!(
            "crates/{name}: not in the house; a new crate needs a reason and a line in xtask"
        )];
    };
    let of_the_house =
        |import: &str| HOUSE.iter().any(|(house, _)| *house == import) || WORKSHOP.contains(&import);
    let imports = dependencies.iter().filter(|import| of_the_house(import));
    let wrong = imports.filter(|import| !allowed.contains(&import.as_str()));
    let mut breaches: Vec<_> =
        wrong.map(|import| format!("crates/{name}/Cargo.toml: `{name}` may not import `{import}`")).collect();
    if NO_ASYNC.contains(&name) {
        let runtimes = dependencies.iter().filter(|import| ASYNC_RUNTIMES.contains(&import.as_str()));
        breaches.extend(
            runtimes.map(|import| format!("crates/{name}/Cargo.toml: `{name}` holds no async (`{import}`)")),
        );
    }
    breaches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upward_and_async_imports_are_breaches() {
        let imports =
            dependencies("[dependencies]\nbase.workspace = true\nstore.workspace = true\ntokio = \"1\"\n");
        assert_eq!(check_crate("image", &imports).len(), 2);
        assert_eq!(check_crate("daemon", &imports).len(), 0);
        assert_eq!(check_crate("unheard-of", &[]).len(), 1);
    }
}
