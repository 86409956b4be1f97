//! What must hold at the end: each name is found at every ready holder as its client knows it, and its content can be
//! read from the devices that are left.

use proto::cluster::DeviceId;

use super::world::{World, slot};

pub(super) fn check_all(world: &mut World) {
    let mut broken = Vec::new();
    for client in &world.clients {
        for name in client.names() {
            let Some(known) = client.known.get(&name) else { continue };
            for holder in world.metadata.map.holders(slot(name)).iter().filter(|holder| holder.is_ready()) {
                let device = &world.devices[holder.device.0 as usize - 1];
                let entry = device.live.entries.get(&name);
                let token = entry.and_then(|entry| entry.value).map(|value| value.token);
                if !known.contains(&token) {
                    let what = format!(
                        "name {name} is {token:?} at device {}, but should be one of {known:?}",
                        device.number
                    );
                    broken.push(("what was acknowledged is found", what));
                }
                if let Some(value) = entry.and_then(|entry| entry.value)
                    && let Some(what) = unreadable(world, name, value)
                {
                    broken.push(("what was acknowledged can be read", what));
                }
            }
        }
    }
    for (rule, what) in broken {
        world.violate(rule, what);
    }
}

/// Why a content can't be read, if it can't.
fn unreadable(world: &World, name: u32, value: super::world::Value) -> Option<String> {
    let Some(segment) = world.metadata.segments.get(&value.segment) else {
        return Some(format!("name {name}: segment {} is not known", value.segment));
    };
    let part = |device: &DeviceId| {
        let component = world.devices[device.0 as usize - 1].live.components.get(&value.segment)?;
        component.parts.get(&value.run.at).filter(|(run, _)| *run == value.run).map(|(_, token)| *token)
    };
    let parts: Vec<u64> = segment.devices.iter().filter_map(part).collect();
    if parts.len() < usize::from(segment.data) {
        let (have, need) = (parts.len(), segment.data);
        return Some(format!(
            "name {name}: {have} parts of segment {} at {} are left of {need}",
            value.segment, value.run.at
        ));
    }
    if parts.iter().any(|token| *token != parts[0]) {
        return Some(format!("name {name}: parts of different runs at the same place: {parts:?}"));
    }
    None
}
