//! What a status tells of a cluster that is not well.

use std::time::Duration;

use serde_json::Value;

use super::site::DEVICES;

/// What is not well.
pub(super) fn unwell(cluster: &Value, devices: &[Value]) -> Option<String> {
    let up = devices.iter().filter(|device| device["state"] == "up").count();
    if cluster["formed"] != true || up != DEVICES as usize {
        return Some(format!("{up} devices are up"));
    }
    let of_cluster = ["segments_lacking", "segments_unprotected", "segments_unreadable", "rebuilding"];
    let of_device = ["copying", "damaged", "incomplete", "missing"];
    let wrong = |value: &Value, names: &[&str]| {
        let name = names.iter().find(|name| value[**name].as_u64() != Some(0))?;
        Some(format!("{name} is {}", value[*name]))
    };
    wrong(cluster, &of_cluster).or_else(|| {
        let of = |device: &Value| {
            let what = (device["searching"] != false).then(|| "it has yet to look what it lacks".to_owned());
            Some(format!("of device {}, {}", device["device"], what.or_else(|| wrong(device, &of_device))?))
        };
        devices.iter().find_map(of)
    })
}

/// A device that was not heard since it was started. Until its lease has ended, what it told before it was killed
/// stands. `ages` has a part of each device's address, and how long ago it was started.
pub(super) fn unheard(devices: &[Value], ages: &[(String, Duration)]) -> Option<String> {
    let is_unheard = |device: &&Value| {
        let address = device["address"].as_str().unwrap_or_default();
        let age = ages.iter().find(|(known, _)| address.contains(known)).map(|(_, age)| *age);
        let silent = device["silent_ms"].as_u64().map(Duration::from_millis);
        age.is_none_or(|age| silent.is_none_or(|silent| silent > age))
    };
    let device = devices.iter().find(is_unheard)?;
    Some(format!("device {} was not heard since it was started", device["device"]))
}
