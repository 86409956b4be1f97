//! Names of machines: for people, and those by which people mean them.

use net::api::{MachineStatus, Meaning};

use crate::exit::{Exit, Failure, Result};
use crate::inventory;

/// Names of machines for people.
pub(super) fn names(machines: &[MachineStatus]) -> String {
    let names: Vec<&str> =
        machines.iter().map(|machine| machine.name.as_deref().unwrap_or(&machine.mac)).collect();
    match names.len() {
        0 => "no machine".to_owned(),
        1..=5 => names.join(", "),
        count => format!("{count} machines"),
    }
}

/// The machines of `table` that `words` mean; all, if there are none. `NotFound` if a word means no machine.
pub(super) fn chosen(mut table: Vec<MachineStatus>, words: &[String]) -> Result<Vec<MachineStatus>> {
    if words.is_empty() {
        return Ok(table);
    }
    let words = inventory::names(words)?;
    let meanings: Vec<Meaning<'_>> = words.iter().map(|word| Meaning::of(word)).collect();
    let is_found = |meaning: &Meaning<'_>| table.iter().any(|status| meaning.is_status(status));
    if let Some(index) = meanings.iter().position(|meaning| !is_found(meaning)) {
        let text = format!("no machine and no group is called `{}`", words[index]);
        return Err(Failure::new(Exit::NotFound, text).hint("`diskcast hosts` shows who has called"));
    }
    table.retain(|status| meanings.iter().any(|meaning| meaning.is_status(status)));
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_groups_and_cards_mean_machines() {
        let machine = |number: u8, groups: &[&str]| -> MachineStatus {
            let (mac, name) = (format!("52:54:00:00:00:0{number}"), format!("n0{number}"));
            let machine =
                serde_json::json!({ "mac": mac, "name": name, "groups": groups, "admitted": number < 4 });
            serde_json::from_value(machine).unwrap()
        };
        let table = vec![machine(1, &["lab"]), machine(2, &[]), machine(3, &["lab"]), machine(4, &[])];
        let names = |words: &[&str]| -> Option<Vec<String>> {
            let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            let found = chosen(table.clone(), &words).ok()?;
            Some(found.into_iter().filter_map(|machine| machine.name).collect())
        };
        for (words, expected) in [
            (&[][..], &["n01", "n02", "n03", "n04"][..]),
            (&["n[02-03]"], &["n02", "n03"]),
            (&["lab"], &["n01", "n03"]),
            (&["lab", "n[03-04]"], &["n01", "n03", "n04"]),
            (&["52-54-00-00-00-02"], &["n02"]),
            (&["*"], &["n01", "n02", "n03"]),
        ] {
            assert_eq!(names(words).unwrap(), expected, "{words:?}");
        }
        for words in [&["n[04-05]"][..], &["lab", "nobody"], &["n[2-1]"]] {
            assert_eq!(names(words), None, "{words:?}");
        }
    }
}
