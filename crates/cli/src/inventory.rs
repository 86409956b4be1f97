//! Which hosts are meant, in all commands that take several: names with ranges, groups and variables.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use crate::exit::{Exit, Failure, Result};

/// Most hosts of a deployment.
const HOSTS_MAX: usize = 100_000;

/// A host and its variables.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Entry {
    pub name: String,
    pub variables: BTreeMap<String, String>,
}

impl Entry {
    /// The line that stands for it in a file of hosts.
    pub(crate) fn line(&self) -> String {
        let pairs = self.variables.iter().map(|(name, value)| {
            let quote = if value.contains('"') { '\'' } else { '"' };
            match value.is_empty() || value.contains([' ', '#', '"', '\'']) {
                true => format!(" {name}={quote}{value}{quote}"),
                false => format!(" {name}={value}"),
            }
        });
        std::iter::once(self.name.clone()).chain(pairs).collect()
    }
}

/// An inventory as Ansible has them in INI form: hosts in groups, variables of hosts and groups, groups of groups.
#[derive(Debug, Default)]
struct Inventory {
    /// All hosts, in the order of the file.
    hosts: Vec<Entry>,
    groups: BTreeMap<String, Vec<String>>,
    children: BTreeMap<String, Vec<String>>,
    variables: BTreeMap<String, Vec<(String, String)>>,
}

/// The hosts that `named` means, each once, in this order.
pub(crate) fn read(named: &[String], inventory: Option<&Path>) -> Result<Vec<Entry>> {
    let inventory = match inventory {
        Some(path) => Inventory::parse(&text_of(path)?).map_err(|why| wrong(path, &why))?,
        None => Inventory::default(),
    };
    let mut entries = Vec::new();
    for word in named.iter().map(|word| word.trim()).filter(|word| !word.is_empty()) {
        if let Some(file) = word.strip_prefix('@') {
            let path = Path::new(file);
            let listed = Inventory::parse(&text_of(path)?).map_err(|why| wrong(path, &why))?;
            entries.extend(listed.hosts.iter().map(|host| listed.complete(host)));
        } else if let Some(hosts) = inventory.group(word) {
            entries.extend(hosts);
        } else {
            for name in ranges(word).map_err(|why| Failure::new(Exit::Usage, format!("`{word}`: {why}")))? {
                let known = inventory.hosts.iter().find(|host| host.name == name);
                entries.push(known.map_or_else(
                    || Entry { name: name.clone(), variables: BTreeMap::new() },
                    |host| inventory.complete(host),
                ));
            }
        }
    }
    let mut seen = HashSet::new();
    entries.retain(|entry| seen.insert(entry.name.clone()));
    match entries.len() {
        0 => Err(Failure::new(Exit::Usage, "no host is named")),
        1..=HOSTS_MAX => Ok(entries),
        more => Err(Failure::new(
            Exit::Usage,
            format!("{more} hosts are named, at most {HOSTS_MAX} are possible"),
        )),
    }
}

/// The names, cards and groups in a server's table that `words` mean: ranges and files of hosts are taken apart, and
/// what is left is for the table to know.
pub(crate) fn names(words: &[String]) -> Result<Vec<String>> {
    Ok(read(words, None)?.into_iter().map(|entry| entry.name).collect())
}

fn text_of(path: &Path) -> Result<String> {
    let context = || format!("read the hosts in `{}`", path.display());
    Ok(std::fs::read_to_string(path).map_err(|error| base::Error::from_io(context(), error))?)
}

fn wrong(path: &Path, why: &str) -> Failure {
    Failure::new(Exit::Usage, format!("`{}`: {why}", path.display()))
}

impl Inventory {
    fn parse(text: &str) -> std::result::Result<Self, String> {
        let mut inventory = Self::default();
        let (mut group, mut kind) = ("ungrouped".to_owned(), "");
        for (number, line) in (1..).zip(text.lines()) {
            let at = |why: String| format!("line {number}: {why}");
            let line = line.trim();
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                let (name, of) = section.split_once(':').unwrap_or((section, ""));
                kind = match of {
                    "" => "",
                    "vars" => "vars",
                    "children" => "children",
                    other => return Err(at(format!("`:{other}` is neither `:vars` nor `:children`"))),
                };
                name.clone_into(&mut group);
                inventory.groups.entry(group.clone()).or_default();
                continue;
            }
            match kind {
                "vars" => {
                    let (name, value) =
                        line.split_once('=').ok_or_else(|| at("expected NAME=VALUE".to_owned()))?;
                    let pair = (name.trim().to_owned(), unquoted(value.trim()).to_owned());
                    inventory.variables.entry(group.clone()).or_default().push(pair);
                }
                "children" => inventory.children.entry(group.clone()).or_default().push(line.to_owned()),
                _ => inventory.add(&group, line).map_err(at)?,
            }
        }
        Ok(inventory)
    }

    fn add(&mut self, group: &str, line: &str) -> std::result::Result<(), String> {
        let mut words = words(line)?.into_iter();
        let pattern = words.next().unwrap_or_default();
        let mut variables = BTreeMap::new();
        for word in words {
            let (name, value) = word.split_once('=').ok_or_else(|| format!("`{word}` is not NAME=VALUE"))?;
            variables.insert(name.to_owned(), unquoted(value).to_owned());
        }
        for name in ranges(&pattern)? {
            self.groups.entry(group.to_owned()).or_default().push(name.clone());
            match self.hosts.iter_mut().find(|host| host.name == name) {
                Some(host) => host.variables.extend(variables.clone()),
                None => self.hosts.push(Entry { name, variables: variables.clone() }),
            }
            if self.hosts.len() > HOSTS_MAX {
                return Err(format!("more than {HOSTS_MAX} hosts"));
            }
        }
        Ok(())
    }

    /// The hosts of a group and of the groups in it; `None` if there is no such group.
    fn group(&self, name: &str) -> Option<Vec<Entry>> {
        if name == "all" && !self.hosts.is_empty() {
            return Some(self.hosts.iter().map(|host| self.complete(host)).collect());
        }
        (self.groups.contains_key(name) || self.children.contains_key(name)).then(|| {
            let members = self.members(name);
            let is_in = |host: &&Entry| members.contains(host.name.as_str());
            self.hosts.iter().filter(is_in).map(|host| self.complete(host)).collect()
        })
    }

    fn members(&self, name: &str) -> HashSet<&str> {
        let (mut members, mut seen, mut open) = (HashSet::new(), HashSet::new(), vec![name]);
        while let Some(group) = open.pop() {
            // Groups may name each other.
            if seen.insert(group) {
                members.extend(self.groups.get(group).into_iter().flatten().map(String::as_str));
                open.extend(self.children.get(group).into_iter().flatten().map(String::as_str));
            }
        }
        members
    }

    /// A host with the variables of its groups; its own come first, then those of smaller groups.
    fn complete(&self, host: &Entry) -> Entry {
        let mut of_groups: Vec<_> = self
            .variables
            .iter()
            .map(|(group, variables)| {
                let members = if group == "all" { None } else { Some(self.members(group)) };
                (members, variables)
            })
            .filter(|(members, _)| {
                members.as_ref().is_none_or(|members| members.contains(host.name.as_str()))
            })
            .collect();
        of_groups
            .sort_by_key(|(members, _)| std::cmp::Reverse(members.as_ref().map_or(usize::MAX, HashSet::len)));
        let mut variables: BTreeMap<String, String> =
            of_groups.into_iter().flat_map(|(_, variables)| variables.iter().cloned()).collect();
        variables.extend(host.variables.clone());
        Entry { name: host.name.clone(), variables }
    }
}

/// The words of a line; quotes keep spaces together, `#` begins a comment.
fn words(line: &str) -> std::result::Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, '#') if word.is_empty() => break,
            (None, c) if c.is_whitespace() => {
                words.extend(Some(std::mem::take(&mut word)).filter(|w| !w.is_empty()))
            }
            (_, c) => word.push(c),
        }
    }
    if quote.is_some() {
        return Err("a quote is not closed".to_owned());
    }
    words.extend(Some(word).filter(|word| !word.is_empty()));
    Ok(words)
}

fn unquoted(value: &str) -> &str {
    let inner = |quote| value.strip_prefix(quote).and_then(|rest: &str| rest.strip_suffix(quote));
    inner('"').or_else(|| inner('\'')).unwrap_or(value)
}

/// The names that a pattern means: `node[01-16]`, or `node[01:16]` as Ansible writes it.
fn ranges(pattern: &str) -> std::result::Result<Vec<String>, String> {
    let Some((head, rest)) = pattern.split_once('[') else { return Ok(vec![pattern.to_owned()]) };
    // An address of IPv6 in brackets.
    let Some((range, tail)) = rest.split_once(']') else { return Err("`[` without `]`".to_owned()) };
    let ends = range.split_once([':', '-']);
    let numbers =
        ends.and_then(|(first, last)| Some((first, first.parse::<u32>().ok()?, last.parse::<u32>().ok()?)));
    let Some((first, from, to)) = numbers.filter(|(_, from, to)| from <= to) else {
        return Err(format!("`[{range}]` is not a range such as [01-16]"));
    };
    if (to - from) as usize >= HOSTS_MAX {
        return Err(format!("`[{range}]` means too many hosts"));
    }
    let width = if first.starts_with('0') { first.len() } else { 0 };
    let mut names = Vec::new();
    for number in from..=to {
        names.extend(ranges(&format!("{head}{number:0width$}{tail}"))?);
        if names.len() > HOSTS_MAX {
            return Err(format!("`{pattern}` means too many hosts"));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INVENTORY: &str = "\
# a lab
gate ansible_host=10.0.0.9

[rack1]
node[01:03] target=/dev/vda   ; none
[rack2]
node7 target=\"/dev/disk/by-id/a b\" note='it''s'

[lab:children]
rack1
rack2
lab

[lab:vars]
place = lab
target=/dev/sda
[all:vars]
place=here
";

    fn names(named: &[&str], path: &Path) -> Vec<String> {
        let named: Vec<_> = named.iter().map(|&word| word.to_owned()).collect();
        read(&named, Some(path))
            .map(|found| found.into_iter().map(|entry| entry.name).collect())
            .unwrap_or_default()
    }

    #[test]
    fn groups_ranges_and_variables() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts.ini");
        std::fs::write(&path, INVENTORY.replace("   ; none", "")).unwrap();
        assert_eq!(
            names(&["rack1", "node02", "other[8-10]"], &path),
            ["node01", "node02", "node03", "other8", "other9", "other10"]
        );
        assert_eq!(names(&["lab"], &path), ["node01", "node02", "node03", "node7"]);
        assert_eq!(names(&["all"], &path).len(), 5);
        let found =
            read(&["node7".to_owned(), "gate".to_owned(), "node01".to_owned()], Some(&path)).ok().unwrap();
        let of = |host: usize, name: &str| found[host].variables.get(name).map(String::as_str);
        assert_eq!(of(0, "target"), Some("/dev/disk/by-id/a b"));
        assert_eq!(of(0, "place"), Some("lab"), "the smaller group counts");
        assert_eq!((of(1, "place"), of(1, "target")), (Some("here"), None));
        assert_eq!(of(2, "target"), Some("/dev/vda"));
        // What is written for another try says the same.
        let again = folder.path().join("again");
        std::fs::write(&again, found.iter().map(|entry| entry.line() + "\n").collect::<String>()).unwrap();
        assert_eq!(read(&[format!("@{}", again.display())], None).ok().unwrap(), found);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (pattern, part) in
            [("a[1-", "without"), ("a[9-1]", "not a range"), ("a[0-999999999]", "too many")]
        {
            let why = ranges(pattern).unwrap_err();
            assert!(why.contains(part), "{why}");
        }
        assert!(Inventory::parse("[a:b]\n").unwrap_err().contains("line 1"));
        assert!(Inventory::parse("a b\n").unwrap_err().contains("NAME=VALUE"));
        assert!(Inventory::parse("a b='c\n").unwrap_err().contains("quote"));
    }
}
