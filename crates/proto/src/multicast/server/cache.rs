//! Which objects the server's driver has in memory: loaded in advance in the order of sending, and kept for a while
//! for repairs.

use std::collections::{HashMap, VecDeque};

use crate::multicast::server::event::ServerEvent;

/// Whether an object is in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Not in memory, and the driver is not loading it.
    Absent,
    /// The machine has requested it from the driver by [`ServerEvent::Load`].
    Loading,
    /// In memory.
    Ready,
}

#[derive(Debug)]
struct Entry {
    bytes: u64,
    ready: bool,
    /// Number of plans that need it.
    pins: u32,
    /// The entry of `idle` with this stamp is the valid one for this object; older entries are ignored.
    stamp: u64,
}

/// Bounded memory of objects. Objects that a plan needs are pinned; the others are evicted, least recently used
/// first.
#[derive(Debug)]
pub(super) struct Cache {
    budget_bytes: u64,
    used_bytes: u64,
    pinned_bytes: u64,
    entries: HashMap<u64, Entry>,
    /// Unpinned objects with the stamp of their last use, least recent first; entries with an old stamp are ignored.
    idle: VecDeque<(u64, u64)>,
    stamp: u64,
}

impl Cache {
    pub(super) fn new(budget_bytes: u64) -> Self {
        let (entries, idle) = (HashMap::new(), VecDeque::new());
        Self { budget_bytes, used_bytes: 0, pinned_bytes: 0, entries, idle, stamp: 0 }
    }

    /// Whether plans may grow: pinned objects fill less than a quarter of the budget. A planned object keeps its
    /// place in the order, so a longer plan would make receivers that join later wait longer.
    pub(super) const fn has_room_ahead(&self) -> bool {
        self.pinned_bytes < self.budget_bytes / 4
    }

    pub(super) fn place(&self, object: u64) -> Place {
        match self.entries.get(&object) {
            None => Place::Absent,
            Some(entry) if entry.ready => Place::Ready,
            Some(_) => Place::Loading,
        }
    }

    /// A plan needs this object of `bytes` bytes.
    pub(super) fn pin(&mut self, object: u64, bytes: u64, events: &mut VecDeque<ServerEvent>) {
        let used = &mut self.used_bytes;
        let entry = self.entries.entry(object).or_insert_with(|| {
            events.push_back(ServerEvent::Load(object));
            *used += bytes;
            Entry { bytes, ready: false, pins: 0, stamp: 0 }
        });
        if entry.pins == 0 {
            self.pinned_bytes += entry.bytes;
        }
        entry.pins += 1;
        self.evict(events);
    }

    /// A plan no longer needs this object.
    pub(super) fn unpin(&mut self, object: u64) {
        let Some(entry) = self.entries.get_mut(&object) else { return };
        debug_assert!(entry.pins > 0, "an object is unpinned as often as it was pinned");
        entry.pins = entry.pins.saturating_sub(1);
        if entry.pins == 0 {
            self.pinned_bytes -= entry.bytes;
            self.stamp += 1;
            entry.stamp = self.stamp;
            self.idle.push_back((object, self.stamp));
        }
    }

    /// The driver has loaded the object, or could not load it (`ok` is false); then it is absent.
    pub(super) fn loaded(&mut self, object: u64, ok: bool) {
        let Some(entry) = self.entries.get_mut(&object) else { return };
        if ok {
            entry.ready = true;
        } else if let Some(entry) = self.entries.remove(&object) {
            self.used_bytes -= entry.bytes;
            self.pinned_bytes -= if entry.pins > 0 { entry.bytes } else { 0 };
        }
    }

    fn evict(&mut self, events: &mut VecDeque<ServerEvent>) {
        debug_assert!(self.pinned_bytes <= self.used_bytes, "pinned objects are in memory, or on their way");
        while self.used_bytes > self.budget_bytes {
            let Some((object, stamp)) = self.idle.pop_front() else { return };
            if self.entries.get(&object).is_some_and(|entry| entry.pins == 0 && entry.stamp == stamp) {
                let entry = self.entries.remove(&object).expect("just found");
                self.used_bytes -= entry.bytes;
                events.push_back(ServerEvent::Evict(object));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_the_longest_unused_goes_first() {
        let mut cache = Cache::new(100);
        let mut events = VecDeque::new();
        for object in 0..50 {
            cache.pin(object, 10, &mut events);
            assert_eq!(events.pop_front(), Some(ServerEvent::Load(object)));
            assert_eq!(events.pop_front(), (object >= 10).then(|| ServerEvent::Evict(object - 10)));
            cache.loaded(object, true);
            cache.unpin(object);
        }
        cache.pin(45, 10, &mut events);
        assert!(events.is_empty() && cache.place(45) == Place::Ready, "it was there still");
        (100..120).for_each(|object| cache.pin(object, 10, &mut events));
        assert_eq!(cache.place(45), Place::Ready, "pinned objects stay");
        assert!(!cache.has_room_ahead());
    }

    #[test]
    fn what_cannot_be_loaded_takes_no_room() {
        let mut cache = Cache::new(100);
        let mut events = VecDeque::new();
        cache.pin(1, 90, &mut events);
        assert!(!cache.has_room_ahead() && cache.place(1) == Place::Loading);
        cache.loaded(1, false);
        assert!(cache.has_room_ahead() && cache.place(1) == Place::Absent);
        cache.unpin(1);
        assert!(cache.has_room_ahead());
    }
}
