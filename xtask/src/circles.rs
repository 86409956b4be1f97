//! Checks the layers inside a crate: imports between its modules must not form circles, except those listed in
//! `EXCUSED`. An entry of that list without a circle is a breach too, so the list only gets shorter.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::visit::Visit;
use syn::{Attribute, Item, UseTree, Visibility};

/// Crates whose modules are checked.
const CRATES: &[&str] =
    &["base", "disk", "image", "proto", "store", "cluster", "net", "switch", "mirror", "daemon", "cli"];

/// Allowed circles, each with the reason.
const EXCUSED: &[(&str, &[&str], &str)] = &[
    (
        "store",
        &["backend", "backend::capabilities"],
        "a store is tried by its own operations before it is first written to",
    ),
    (
        "disk",
        &[
            "filesystem",
            "filesystem::btrfs",
            "filesystem::btrfs::chunks",
            "filesystem::btrfs::extents",
            "filesystem::btrfs::free",
            "filesystem::btrfs::tree",
            "filesystem::exfat",
            "filesystem::exfat::chains",
            "filesystem::exfat::folder",
            "filesystem::exfat::tree",
            "filesystem::ext",
            "filesystem::ext::bad",
            "filesystem::ext::groups",
            "filesystem::ext::superblock",
            "filesystem::fat",
            "filesystem::lvm",
            "filesystem::lvm::group",
            "filesystem::lvm::mapped",
            "filesystem::ntfs",
            "filesystem::ntfs::files",
            "filesystem::ntfs::log",
            "filesystem::ntfs::record",
            "filesystem::ntfs::table",
            "filesystem::swap",
            "filesystem::xfs",
            "filesystem::xfs::groups",
            "filesystem::xfs::log",
        ],
        "a trait and the list of those who implement it",
    ),
    ("disk", &["table", "table::gpt", "table::mbr"], "a type and its readers"),
];

/// Path of a module as a list of names; empty for the root.
type Module = Vec<String>;

pub(crate) fn check(root: &Path) -> Vec<String> {
    let named = |modules: &[&str]| modules.iter().map(|&module| module.to_owned()).collect::<Vec<String>>();
    let mut excused: BTreeSet<(&str, Vec<String>)> =
        EXCUSED.iter().map(|(name, modules, _)| (*name, named(modules))).collect();
    let mut breaches = Vec::new();
    for name in CRATES {
        let sources = sources_of(&root.join("crates").join(name).join("src"));
        for circle in circles(&edges(&sources)) {
            let names: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
            if !excused.remove(&(*name, names.clone())) {
                breaches.push(format!(
                    "crates/{name}/src: modules import each other in a circle: {}",
                    names.join(", ")
                ));
            }
        }
    }
    for (name, modules) in excused {
        breaches.push(format!(
            "xtask/src/circles.rs: {name} has no circle of {} any more: remove its line",
            modules.join(", ")
        ));
    }
    breaches
}

/// The parsed source of every module below `folder`.
fn sources_of(folder: &Path) -> BTreeMap<Module, syn::File> {
    let mut files = Vec::new();
    crate::sources::collect(folder, &mut files);
    let mut sources = BTreeMap::new();
    for file in files {
        let relative = file.strip_prefix(folder).expect("it lies there").with_extension("");
        let mut module: Module = relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
            module.pop();
        }
        // Tests may import everything.
        if module.iter().any(|part| part == "tests") {
            continue;
        }
        let text = std::fs::read_to_string(&file).expect("sources are UTF-8");
        sources.insert(
            module,
            syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display())),
        );
    }
    sources
}

/// The modules that each module imports; a name re-exported from a child counts as the child.
fn edges(sources: &BTreeMap<Module, syn::File>) -> BTreeMap<Module, BTreeSet<Module>> {
    let mut exports = BTreeMap::new();
    let mut named = BTreeMap::new();
    for (module, file) in sources {
        let mut found = Paths::default();
        found.visit_file(file);
        for path in found.exports {
            if let Some(last) = path.last() {
                exports.insert((module.clone(), last.clone()), path);
            }
        }
        named.insert(module.clone(), found.imports);
    }
    let mut edges = BTreeMap::new();
    for (module, paths) in named {
        let targets = paths.iter().filter_map(|path| resolve(sources, &exports, &module, path, 0));
        let targets: BTreeSet<Module> = targets.filter(|target| *target != module).collect();
        edges.insert(module, targets);
    }
    edges
}

/// The module that `path` refers to when used in `from`; `None` if it is outside the crate.
fn resolve(
    sources: &BTreeMap<Module, syn::File>,
    exports: &BTreeMap<(Module, String), Vec<String>>,
    from: &Module,
    path: &[String],
    depth: u32,
) -> Option<Module> {
    let mut rest = path;
    let mut at = from.clone();
    match rest.first()?.as_str() {
        "crate" => {
            at.clear();
            rest = &rest[1..];
        }
        "self" => rest = &rest[1..],
        "super" => {
            while rest.first().is_some_and(|part| part == "super") {
                at.pop();
                rest = &rest[1..];
            }
        }
        first => {
            let child = [&from[..], &[first.to_owned()]].concat();
            if !sources.contains_key(&child) {
                return None;
            }
        }
    }
    while let Some(part) = rest.first() {
        let child = [&at[..], std::slice::from_ref(part)].concat();
        if !sources.contains_key(&child) {
            break;
        }
        at = child;
        rest = &rest[1..];
    }
    const DEPTH_MAX: u32 = 8;
    match rest.first().and_then(|part| exports.get(&(at.clone(), part.clone()))) {
        Some(export) if depth < DEPTH_MAX => resolve(sources, exports, &at, export, depth + 1),
        _ => Some(at),
    }
}

/// The paths used in a file, without those of its tests.
#[derive(Default)]
struct Paths {
    imports: Vec<Vec<String>>,
    /// The paths of `pub use`.
    exports: Vec<Vec<String>>,
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Mod(module) if is_test(&module.attrs) => {}
            Item::Use(import) if is_test(&import.attrs) => {}
            Item::Use(import) => {
                let exported = !matches!(import.vis, Visibility::Inherited);
                let into = if exported { &mut self.exports } else { &mut self.imports };
                flatten(&import.tree, &mut Vec::new(), into);
            }
            _ => syn::visit::visit_item(self, item),
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            self.imports.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        syn::visit::visit_path(self, path);
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let list = attribute.meta.require_list();
        attribute.path().is_ident("cfg") && list.is_ok_and(|list| list.tokens.to_string().contains("test"))
    })
}

fn flatten(tree: &UseTree, before: &mut Vec<String>, into: &mut Vec<Vec<String>>) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, into);
            before.pop();
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, before, into)),
        UseTree::Name(name) => into.push([&before[..], &[name.ident.to_string()]].concat()),
        UseTree::Rename(rename) => into.push([&before[..], &[rename.ident.to_string()]].concat()),
        UseTree::Glob(_) => into.push(before.clone()),
    }
}

/// The sets of modules that all reach each other, sorted.
fn circles(edges: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<Vec<Module>> {
    let reach: BTreeMap<&Module, BTreeSet<&Module>> =
        edges.keys().map(|from| (from, reached(edges, from))).collect();
    let mut circles = BTreeSet::new();
    for (from, targets) in &reach {
        let circle: BTreeSet<&Module> = targets
            .iter()
            .copied()
            .filter(|to| reach.get(to).is_some_and(|back| back.contains(from)))
            .collect();
        if circle.len() > 1 {
            circles.insert(circle.into_iter().cloned().collect::<Vec<Module>>());
        }
    }
    circles.into_iter().collect()
}

fn reached<'a>(edges: &'a BTreeMap<Module, BTreeSet<Module>>, from: &'a Module) -> BTreeSet<&'a Module> {
    let mut found = BTreeSet::new();
    let mut waiting: Vec<&Module> = edges.get(from).into_iter().flatten().collect();
    while let Some(module) = waiting.pop() {
        if found.insert(module) {
            waiting.extend(edges.get(module).into_iter().flatten());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crate_of(files: &[(&str, &str)]) -> BTreeMap<Module, syn::File> {
        let module =
            |name: &str| name.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        files.iter().map(|(name, text)| (module(name), syn::parse_file(text).unwrap())).collect()
    }

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let circles = circles(&edges(&crate_of(files)));
        circles
            .iter()
            .map(|circle| circle.iter().map(|module| module.join("::")).collect::<Vec<_>>().join(" "))
            .collect()
    }

    #[test]
    fn circles_are_found_through_uses_paths_and_exports() {
        assert!(found(&[("a", "use crate::b::B;"), ("b", "")]).is_empty());
        assert_eq!(
            found(&[("a", "use crate::{c::C, b::{B, D}};"), ("b", "fn f() { crate::a::go() }"), ("c", "")]),
            ["a b"]
        );
        // The parent only re-exports the child's items.
        let parent = "mod child; mod other; pub use child::{Thing, Two};";
        assert!(found(&[("p", parent), ("p::child", ""), ("p::other", "use super::Thing;")]).is_empty());
        assert_eq!(
            found(&[("p", "mod child; fn f() { child::go() }"), ("p::child", "use super::f;")]),
            ["p p::child"]
        );
        // Tests may import everything.
        assert!(
            found(&[("a", "use crate::b::B;"), ("b", "#[cfg(test)] mod tests { use crate::a::A; }")])
                .is_empty()
        );
    }
}
