//! Multicast: which ports of which switches a group has joined. A switch sends one copy to each port behind which there
//! is a member, except the one that the packet came from.

use super::{Place, Port, Topology};

/// A multicast group: a small number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group(pub u32);

/// Who is to receive something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// One host or switch.
    One(Place),
    /// All members of a group but the sender.
    All(Group),
}

/// The members of all groups.
#[derive(Debug, Default)]
pub(super) struct Groups {
    groups: Vec<Members>,
}

#[derive(Debug, Clone)]
struct Members {
    member: Vec<bool>,
    /// For each place the number of members at or below it.
    count: Vec<u32>,
}

impl Groups {
    /// Adds `host` to the group, or removes it.
    pub(super) fn set(&mut self, topology: &Topology, group: Group, host: Place, joins: bool) {
        let (index, places) = (group.0 as usize, topology.places());
        if index >= self.groups.len() {
            self.groups.resize(index + 1, Members { member: vec![false; places], count: vec![0; places] });
        }
        let members = &mut self.groups[index];
        if std::mem::replace(&mut members.member[host.0 as usize], joins) == joins {
            return;
        }
        let mut at = Some(host);
        while let Some(place) = at {
            let count = &mut members.count[place.0 as usize];
            *count = if joins { *count + 1 } else { *count - 1 };
            at = topology.switch_of(place);
        }
    }

    /// The ports through which `at` sends what came from `from` for `target`.
    pub(super) fn ports(
        &self,
        topology: &Topology,
        at: Place,
        from: Option<Place>,
        target: Target,
        into: &mut Vec<Port>,
    ) {
        match target {
            Target::One(to) => into.push(topology.route(at, to)),
            Target::All(group) => {
                let Some(members) = self.groups.get(group.0 as usize) else { return };
                let count = |place: Place| members.count[place.0 as usize];
                let down =
                    topology.below(at).iter().filter(|&&below| Some(below) != from && count(below) > 0);
                into.extend(down.map(|&below| Port::down(below)));
                let up = topology.switch_of(at).filter(|&up| Some(up) != from);
                if up.is_some() && count(Topology::top()) > count(at) {
                    into.push(Port::up(at));
                }
            }
        }
    }
}
