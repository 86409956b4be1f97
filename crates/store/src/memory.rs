//! In-memory caches of an open repository, one value of each type. They can always be rebuilt, and start empty when a
//! repository is opened. Each module defines the type of its own cache, so the repository does not depend on the
//! modules above it.

use std::any::Any;
use std::sync::OnceLock;

/// A linked list that only grows: a value, and the rest of the list.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    value: OnceLock<Box<dyn Any + Send + Sync>>,
    rest: OnceLock<Box<Memory>>,
}

impl Memory {
    /// The value of type `T`; created with its default at the first call.
    pub(crate) fn get<T: Any + Default + Send + Sync>(&self) -> &T {
        let value = self.value.get_or_init(|| Box::<T>::default());
        value.downcast_ref().unwrap_or_else(|| self.rest.get_or_init(Box::default).get())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

    use super::*;

    #[test]
    fn every_type_has_one_value() {
        let memory = Memory::default();
        memory.get::<AtomicU32>().store(1, Relaxed);
        memory.get::<AtomicU64>().store(2, Relaxed);
        assert_eq!(memory.get::<AtomicU32>().load(Relaxed), 1);
        assert_eq!(memory.get::<AtomicU64>().load(Relaxed), 2);
    }
}
