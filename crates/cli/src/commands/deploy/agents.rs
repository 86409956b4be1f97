//! Deploys by agents: each attempt is a job in the table of a server.

use net::api::{MachineStatus, Meaning};
use net::deploy::{Address, Agents, Host, Way};

use super::args::Args;
use super::job;
use super::plan::{check_terms, confirm, perform, plan, report};
use super::server::Serving;
use crate::commands::{Context, hosts};
use crate::exit::{Exit, Failure, Result};
use crate::inventory::{self, Entry};
use crate::{repository, version};

pub(super) fn run(context: &Context, args: &Args) -> Result<()> {
    let by = &args.by_ssh;
    check_terms(args, true)?;
    let manager = hosts::manager(context, &args.server)?;
    let found = version::find(context, &manager, manager.url(), &repository::reference(&args.name)?)?;
    let (reference, root) =
        (format!("{}@{}", found.manifest.image, found.manifest.number), found.manifest.root.name());
    let table = manager.machines()?.machines;
    let named = inventory::read(&by.to, by.inventory.as_deref())?;
    let (entries, cards): (Vec<Entry>, Vec<String>) = machines(&named, &table)?.into_iter().unzip();
    let rules = by.rules(entries.len());
    let drafts = job::drafts(by, &entries, &[])?;
    if context.global.dry_run {
        return plan(context, &reference, &drafts, &rules);
    }
    confirm(context, &drafts)?;
    let serving = Serving::of_agents(manager.url());
    let jobs: Vec<Host> = drafts
        .iter()
        .zip(cards)
        .map(|(draft, card)| Host {
            address: Address { host: card, ..Address::default() },
            ..draft.job(&serving, (&reference, root))
        })
        .collect();
    let agents = Agents::of(manager, args.terms.power())?;
    let done = perform(context, (&entries, &jobs), (root, rules), &Way::Agents(&agents))?;
    report(context, args, (&reference, &entries), &done)
}

/// The machines that are meant, with their cards.
fn machines(named: &[Entry], table: &[MachineStatus]) -> Result<Vec<(Entry, String)>> {
    let mut all: Vec<(Entry, String)> = Vec::new();
    for entry in named {
        let meaning = Meaning::of(&entry.name);
        let found: Vec<&MachineStatus> = table.iter().filter(|machine| meaning.is_status(machine)).collect();
        if found.is_empty() {
            let text = format!("no machine and no group is called `{}`", entry.name);
            return Err(Failure::new(Exit::NotFound, text).hint("`diskcast hosts` shows who has called"));
        }
        for machine in found {
            let name = machine.name.clone().unwrap_or_else(|| machine.mac.clone());
            if all.iter().all(|(_, card)| *card != machine.mac) {
                all.push((Entry { name, variables: entry.variables.clone() }, machine.mac.clone()));
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cards_and_groups_of_the_table_are_machines() {
        let machine = |number: u8, name: Option<&str>, groups: &[&str]| -> MachineStatus {
            let mac = format!("52:54:00:00:00:0{number}");
            serde_json::from_value(
                serde_json::json!({ "mac": mac, "name": name, "groups": groups, "admitted": true }),
            )
            .unwrap()
        };
        let table =
            [machine(1, Some("a"), &["rack"]), machine(2, None, &["rack"]), machine(3, Some("rack2"), &[])];
        let names = |words: &[&str]| -> Option<Vec<String>> {
            let named: Vec<Entry> =
                words.iter().map(|word| Entry { name: (*word).to_owned(), ..Entry::default() }).collect();
            let found = machines(&named, &table).ok()?;
            Some(found.into_iter().map(|(entry, card)| format!("{} {card}", entry.name)).collect())
        };
        let (a, b) = ("a 52:54:00:00:00:01".to_owned(), "52:54:00:00:00:02 52:54:00:00:00:02".to_owned());
        assert_eq!(names(&["rack"]), Some(vec![a.clone(), b.clone()]));
        assert_eq!(names(&["52:54:00:00:00:02", "rack"]), Some(vec![b, a]));
        assert_eq!(names(&["rack2"]), Some(vec!["rack2 52:54:00:00:00:03".to_owned()]));
        assert_eq!(names(&["a", "nobody"]), None);
    }
}
