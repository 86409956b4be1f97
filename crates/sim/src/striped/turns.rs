//! How many components a client asks at the same time, as `Turns` in `cluster/src/client/fetch.rs`: who comes first
//! begins first, and what is wide waits until enough others have ended.

use std::collections::VecDeque;

/// Components that answer at the same time.
const FAN_IN_MAX: usize = 16;

/// The turns of one client; `T` names a fetch.
#[derive(Debug)]
pub(super) struct Turns<T> {
    free: usize,
    waiting: VecDeque<(T, usize)>,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { free: FAN_IN_MAX, waiting: VecDeque::new() }
    }
}

impl<T> Turns<T> {
    /// A fetch wants to ask so many components.
    pub(super) fn want(&mut self, fetch: T, components: usize) {
        self.waiting.push_back((fetch, components.min(FAN_IN_MAX)));
    }

    /// The next fetch that may ask its components now.
    pub(super) fn next(&mut self) -> Option<T> {
        let (_, wanted) = self.waiting.front()?;
        self.free = self.free.checked_sub(*wanted)?;
        self.waiting.pop_front().map(|(fetch, _)| fetch)
    }

    /// A fetch that had asked so many components has ended.
    pub(super) fn end(&mut self, components: usize) {
        self.free += components.min(FAN_IN_MAX);
        assert!(self.free <= FAN_IN_MAX, "a turn ends once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_components_answer_at_the_same_time() {
        let mut turns = Turns::default();
        [8, 8, 8, 1].into_iter().enumerate().for_each(|(fetch, components)| turns.want(fetch, components));
        assert_eq!((turns.next(), turns.next(), turns.next()), (Some(0), Some(1), None));
        turns.end(8);
        assert_eq!((turns.next(), turns.next()), (Some(2), None), "who comes first begins first");
        turns.end(8);
        assert_eq!(turns.next(), Some(3));
    }
}
