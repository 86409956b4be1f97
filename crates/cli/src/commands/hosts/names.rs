//! Names of machines.

use net::api::MachineStatus;

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
