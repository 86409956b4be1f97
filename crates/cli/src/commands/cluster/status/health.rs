//! What is not as it should be in a cluster, in words.

use base::units::show_duration;
use cluster::State;
use cluster::wire::{ClusterStatus, DeviceView};
use std::time::Duration;

/// Clocks that are less apart than this are not worth a word.
const SKEW_SHOWN_MS: u64 = 10_000;

/// Whether all is well, or else what is not.
pub(super) fn health(status: &ClusterStatus) -> String {
    if !status.waits_for.is_empty() {
        let devices: Vec<_> = status.waits_for.iter().map(ToString::to_string).collect();
        return format!("its state was restored: it waits for devices {}", devices.join(", "));
    }
    if !status.formed {
        let (joined, wanted) = (status.devices.len(), status.k + status.m);
        return format!("{joined} devices have joined; it takes data when {wanted} have");
    }
    let mut told: Vec<String> = [away(status), few(status), full(status), segments(status), upkeep(status)]
        .into_iter()
        .flatten()
        .collect();
    let clocks = clocks(&status.devices);
    match (told.is_empty(), &clocks) {
        (true, None) => told.push(format!("all is well: any {} devices may fail", status.m)),
        (true, Some(_)) => told.push(format!("any {} devices may fail", status.m)),
        (false, _) => {}
    }
    told.extend(clocks);
    told.join("; ")
}

/// Devices that do not answer. What a lost one held is missing, not away.
fn away(status: &ClusterStatus) -> Option<String> {
    let count =
        |of: &dyn Fn(State) -> bool| status.devices.iter().filter(|view| of(view.device.state)).count();
    let (away, all) = (count(&|state| state == State::Down), count(&|state| state != State::Lost));
    let parity = usize::from(status.m);
    let rest = match parity.checked_sub(away) {
        None => "some data may not be read".to_owned(),
        // What lacks parts, or has lost its protection, is told apart.
        Some(_) if status.segments_lacking > 0 || status.segments_unreadable > 0 => {
            "start them again".to_owned()
        }
        Some(spare) => format!("{spare} more may fail"),
    };
    (away > 0).then(|| format!("{away} of {all} devices are away: {rest}"))
}

/// Too few devices for a new segment. Where fewer than k + m answer, it has fewer data components.
fn few(status: &ClusterStatus) -> Option<String> {
    let answering = status.devices.iter().filter(|view| view.device.state.answers()).count();
    let least = usize::from(status.m) + 1;
    (answering < least).then(|| format!("nothing can be stored until {least} devices answer"))
}

/// Disks that are full. They take no data, which goes to others, and at last no entries of the index, which can't.
fn full(status: &ClusterStatus) -> Option<String> {
    let full = status.devices.iter().filter(|view| view.is_full());
    let devices: Vec<_> = full.map(|view| view.device.device.to_string()).collect();
    let named = devices.join(", ");
    match &devices[..] {
        [] => None,
        [_] => Some(format!(
            "the disk of device {named} is full, which can stop all puts: make room there, or drain it"
        )),
        _ => Some(format!(
            "the disks of devices {named} are full, which can stop all puts: make room there, or add devices and \
             drain these"
        )),
    }
}

/// Segments that are not whole.
fn segments(status: &ClusterStatus) -> Option<String> {
    let (lacking, unprotected) = (status.segments_lacking, status.segments_unprotected);
    let parts = [
        (status.segments_unreadable, "segments can't be read now"),
        (lacking, "segments lack parts that were on lost devices"),
        (unprotected, "segments are unprotected, and lose data with the next device that fails"),
    ];
    let told: Vec<_> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    (!told.is_empty()).then(|| told.join(", "))
}

/// What devices still have to do by themselves.
fn upkeep(status: &ClusterStatus) -> Option<String> {
    let sum = |of: fn(&DeviceView) -> u64| {
        status.devices.iter().filter(|view| view.device.state.answers()).map(of).sum::<u64>()
    };
    let parts = [
        (sum(|view| view.copying as u64), "parts of the index are still copied"),
        (sum(|view| view.health.incomplete), "parts of segments are to be completed"),
        (sum(|view| view.health.damaged), "damaged parts are to be mended"),
        (sum(|view| view.health.missing), "parts of segments are to be computed anew"),
        (sum(|view| view.health.searching.into()), "devices have yet to look what they lack"),
        (sum(|view| view.health.orphans), "files that no database knows are kept in `orphans`"),
    ];
    let told: Vec<_> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    (!told.is_empty()).then(|| told.join(", "))
}

/// Clocks that are wrong. If most devices differ from the metadata service by the same, its clock is the wrong one.
fn clocks(devices: &[DeviceView]) -> Option<String> {
    let mut skews: Vec<i64> = devices.iter().filter_map(|view| view.skew_ms).collect();
    skews.sort_unstable();
    let middle = *skews.get(skews.len() / 2)?;
    let service =
        (middle.unsigned_abs() >= SKEW_SHOWN_MS).then(|| ("the metadata service".to_owned(), -middle));
    let of_device = |view: &DeviceView| {
        let skew = view.skew_ms? - middle;
        (skew.unsigned_abs() >= SKEW_SHOWN_MS).then(|| (format!("device {}", view.device.device), skew))
    };
    let wrong = service.into_iter().chain(devices.iter().filter_map(of_device));
    let told: Vec<_> = wrong
        .map(|(whose, skew)| {
            let side = if skew > 0 { "ahead" } else { "behind" };
            // Both were read at about the same time, not at the same.
            let by = show_duration(Duration::from_secs((skew.unsigned_abs() + 500) / 1000));
            format!("the clock of {whose} is {by} {side}")
        })
        .collect();
    (!told.is_empty()).then(|| told.join(", "))
}

#[cfg(test)]
mod tests {
    use cluster::wire::DeviceHealth;
    use serde_json::json;

    use super::*;

    fn device(number: u32, state: &str) -> DeviceView {
        let view = json!({
            "device": number, "address": "http://a:1", "domain": "d", "state": state,
            "bytes": 9_u64 << 40, "free": 1_u64 << 40,
            "used": 0, "slots": 1, "copying": 0, "silent_ms": 0, "skew_ms": 0,
            "mended": 0, "damaged": 0, "incomplete": 0,
        });
        serde_json::from_value(view).unwrap()
    }

    fn status(states: [&str; 5]) -> ClusterStatus {
        let devices: Vec<_> = (1..).zip(states).map(|(number, state)| device(number, state)).collect();
        let status = json!({
            "cluster": "c", "epoch": 1, "k": 3, "m": 2, "formed": true, "devices": devices, "segments_open": 0,
            "segments_sealed": 4, "segments_emptied": 0, "compacting": 0, "rebuilding": 0, "records": 0,
        });
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn all_is_well_only_if_nothing_is_wrong() {
        let well = status(["up"; 5]);
        assert_eq!(health(&well), "all is well: any 2 devices may fail");
        assert!(health(&ClusterStatus { formed: false, ..well.clone() }).contains("takes data when 5 have"));
        let down = status(["up", "down", "up", "up", "up"]);
        assert_eq!(health(&down), "1 of 5 devices are away: 1 more may fail");
        let lost = status(["up", "lost", "up", "up", "up"]);
        assert_eq!(health(&lost), "all is well: any 2 devices may fail", "it held nothing");
        let lost = ClusterStatus { segments_lacking: 3, segments_unprotected: 1, ..lost };
        let told = health(&lost);
        assert!(
            told.starts_with("3 segments lack parts that were on lost devices, 1 segments are unprot"),
            "{told}"
        );
        let few = status(["lost", "lost", "up", "lost", "up"]);
        assert_eq!(health(&few), "nothing can be stored until 3 devices answer", "it held nothing");
        let three = status(["down", "down", "down", "up", "up"]);
        assert!(
            health(&ClusterStatus { segments_unreadable: 2, ..three })
                .contains("2 segments can't be read now")
        );
        let mut full = well.clone();
        full.devices[2].device.free = 20 << 20;
        assert!(health(&full).starts_with("the disk of device 3 is full, "), "{}", health(&full));
        full.devices[4].device.free = 0;
        assert!(health(&full).starts_with("the disks of devices 3, 5 are full, "), "{}", health(&full));
        let mut busy = well;
        busy.devices[2].health =
            DeviceHealth { damaged: 1, incomplete: 2, mended: 5, ..DeviceHealth::default() };
        busy.devices[3].copying = 7;
        busy.devices[4].health = DeviceHealth::unknown();
        let told = health(&busy);
        assert!(
            !told.contains("all is well") && told.contains("7 parts of the index are still copied"),
            "{told}"
        );
        assert!(told.contains("2 parts of segments are to be completed, 1 damaged parts"), "{told}");
        assert!(told.contains("1 devices have yet to look what they lack"), "{told}");
    }

    #[test]
    fn the_wrong_clock_is_named_that_of_the_service_too() {
        let mut status = status(["up"; 5]);
        status.devices[2].skew_ms = Some(7_200_000);
        let told = health(&status);
        assert_eq!(told, "any 2 devices may fail; the clock of device 3 is 2h00m ahead");
        for view in &mut status.devices {
            view.skew_ms = view.skew_ms.map(|skew| skew + 3_600_000);
        }
        let told = health(&status);
        assert!(told.contains("the clock of the metadata service is 1h00m behind, "), "{told}");
        assert!(told.contains("device 3 is 2") && !told.contains("device 1"), "{told}");
    }
}
