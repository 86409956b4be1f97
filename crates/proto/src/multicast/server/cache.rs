//! Which objects the server's driver holds in memory: read ahead in the order of sending, kept a while for repairs.

use std::collections::{HashMap, VecDeque};

use crate::multicast::server::event::ServerEvent;

/// Where an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Not in memory, and not coming.
    Absent,
    /// The driver was told to load it.
    Loading,
    /// In memory.
    Ready,
}

#[derive(Debug)]
struct Entry {
    bytes: u64,
    ready: bool,
    /// How many plans need it.
    pins: u32,
    /// Which entry of `idle` is this object's valid one.
    stamp: u64,
}

/// Bounded memory of objects. What a plan needs is pinned; the rest is dropped, the longest unused first.
#[derive(Debug)]
pub(super) struct Cache {
    budget_bytes: u64,
    used_bytes: u64,
    pinned_bytes: u64,
    entries: HashMap<u64, Entry>,
    /// Unpinned objects with the stamp of their last use, oldest first; entries with an old stamp are void.
    idle: VecDeque<(u64, u64)>,
    stamp: u64,
}

impl Cache {
    pub(super) fn new(budget_bytes: u64) -> Self {
        let (entries, idle) = (HashMap::new(), VecDeque::new());
        Self { budget_bytes, used_bytes: 0, pinned_bytes: 0, entries, idle, stamp: 0 }
    }

    /// Whether plans may grow: pinned objects fill less than a quarter. What is planned keeps its place in the order,
    /// so a longer plan would let newcomers wait longer.
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

    /// A plan is done with this object.
    pub(super) fn unpin(&mut self, object: u64) {
        let Some(entry) = self.entries.get_mut(&object) else { return };
        entry.pins = entry.pins.saturating_sub(1);
        if entry.pins == 0 {
            self.pinned_bytes -= entry.bytes;
            self.stamp += 1;
            entry.stamp = self.stamp;
            self.idle.push_back((object, self.stamp));
        }
    }

    /// The driver has loaded the object, or cannot: then it is absent.
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
