//! Where the content of a run lies on the components of its segment. formats/cluster.md, section 2.

use std::ops::Range;

/// Longest piece of content that goes to one component before the next gets its turn: the stripe unit (seed 002,
/// section 2.4).
pub const UNIT_BYTES: u32 = 64 << 10;
/// Parts of runs are multiples of this.
pub const ALIGN_BYTES: u32 = 4 << 10;
/// Longest part of a run on one component. A piece of content of [`PIECE_BYTES_MAX`] fits a run of any width.
pub const PART_BYTES_MAX: u32 = 32 << 20;
/// Longest piece of content in one run; longer content has several pieces.
pub const PIECE_BYTES_MAX: u32 = 16 << 20;

/// How many components of a segment hold data, and how many parity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Width {
    /// Data components, at least 1.
    pub data: u8,
    /// Parity components; as many may be lost.
    pub parity: u8,
}

impl Width {
    /// Most components of a segment: a client that reads talks to no more devices at once, so their answers fit the
    /// buffers of its switch port (seed 002, sections 4 and 5).
    const COMPONENTS_MAX: u8 = 13;

    /// A width, if it is one: 1 to 13 components, of which one holds data at least.
    #[must_use]
    pub fn new(data: u8, parity: u8) -> Option<Self> {
        let components = data.checked_add(parity)?;
        (data > 0 && components <= Self::COMPONENTS_MAX).then_some(Self { data, parity })
    }

    /// The number of components.
    #[must_use]
    pub fn components(self) -> u8 {
        self.data + self.parity
    }
}

/// What was appended to a segment at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// Where it begins, in bytes from the beginning of each component.
    pub at: u64,
    /// Its length on each component: a multiple of [`ALIGN_BYTES`], at most [`PART_BYTES_MAX`].
    pub bytes: u32,
}

/// A contiguous piece of a run's content on one component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The number of the data component.
    pub component: u8,
    /// Where it begins in the part of the run on that component, in bytes.
    pub in_part: u32,
    /// Where it begins in the content of the run, in bytes.
    pub in_content: u64,
    /// Its length in bytes.
    pub bytes: u32,
}

impl Run {
    /// The length of the parts of a run that holds `content` bytes: the shortest.
    ///
    /// # Panics
    /// If that is more than a run can hold; the caller cuts content to pieces.
    #[must_use]
    pub fn part_bytes(content: u64, width: Width) -> u32 {
        let part = content.div_ceil(u64::from(width.data)).next_multiple_of(u64::from(ALIGN_BYTES));
        let part = u32::try_from(part).unwrap_or(u32::MAX);
        assert!(part <= PART_BYTES_MAX, "{content} bytes do not fit one run");
        part.max(ALIGN_BYTES)
    }

    /// Whether lengths and place are possible.
    #[must_use]
    pub(super) fn is_valid(self) -> bool {
        let aligned =
            self.at.is_multiple_of(u64::from(ALIGN_BYTES)) && self.bytes.is_multiple_of(ALIGN_BYTES);
        aligned && self.bytes > 0 && self.bytes <= PART_BYTES_MAX && self.at <= u64::MAX / 2
    }

    /// The end of the run on each component.
    #[must_use]
    pub fn end(self) -> u64 {
        self.at + u64::from(self.bytes)
    }

    /// The length of its content, with the zeros at the end.
    #[must_use]
    pub fn content_bytes(self, width: Width) -> u64 {
        u64::from(self.bytes) * u64::from(width.data)
    }

    /// The stripes of the run: the range of each in the parts. All but the last have whole units.
    pub fn stripes(self) -> impl Iterator<Item = Range<u32>> {
        (0..self.bytes).step_by(UNIT_BYTES as usize).map(move |from| from..self.bytes.min(from + UNIT_BYTES))
    }

    /// Where the bytes `range` of the content lie, in their order. The range is cut at the end of the content.
    pub fn spans(self, width: Width, range: Range<u64>) -> impl Iterator<Item = Span> {
        let data = u64::from(width.data);
        let end = range.end.min(self.content_bytes(width));
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let stripe_bytes = u64::from(UNIT_BYTES) * data;
            let stripe = at / stripe_bytes;
            let from = stripe * u64::from(UNIT_BYTES);
            let unit = u64::from(UNIT_BYTES).min(u64::from(self.bytes) - from);
            let in_stripe = at - stripe * stripe_bytes;
            let (component, in_unit) = (in_stripe / unit, in_stripe % unit);
            let bytes = (unit - in_unit).min(end - at);
            let span = Span {
                component: narrow(component),
                in_part: narrow(from + in_unit),
                in_content: at,
                bytes: narrow(bytes),
            };
            at += bytes;
            Some(span)
        })
    }
}

/// A number that the limits of runs and widths keep small.
fn narrow<T: TryFrom<u64>>(number: u64) -> T {
    T::try_from(number).ok().expect("runs and widths are bounded")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn content_goes_to_the_components_in_turn() {
        let width = Width::new(2, 1).expect("a width");
        let run = Run { at: 0, bytes: UNIT_BYTES + ALIGN_BYTES };
        let unit = u64::from(UNIT_BYTES);
        let spans: Vec<_> = run.spans(width, unit - 10..2 * unit + 5).collect();
        assert_eq!(
            spans,
            [
                Span { component: 0, in_part: UNIT_BYTES - 10, in_content: unit - 10, bytes: 10 },
                Span { component: 1, in_part: 0, in_content: unit, bytes: UNIT_BYTES },
                Span { component: 0, in_part: UNIT_BYTES, in_content: 2 * unit, bytes: 5 },
            ]
        );
        let stripes: Vec<_> = run.stripes().collect();
        assert_eq!(stripes, [0..UNIT_BYTES, UNIT_BYTES..UNIT_BYTES + ALIGN_BYTES]);
    }

    #[test]
    fn widths_are_bounded() {
        assert_eq!(Width::new(0, 2), None);
        assert_eq!(Width::new(12, 2), None);
        assert_eq!(Width::new(255, 1), None);
        assert_eq!(Width::new(8, 2).map(Width::components), Some(10));
    }

    proptest! {
        /// Every byte of the content has one place, and no two share one.
        #[test]
        fn spans_cover_the_content_once(data in 1u8..13, tiles in 1u32..60, cut in 0u64..1000) {
            let width = Width::new(data, 0).expect("a width");
            let run = Run { at: 0, bytes: tiles * ALIGN_BYTES };
            let content = run.content_bytes(width);
            let cut = content * cut / 1000;
            let mut parts = vec![vec![false; run.bytes as usize / 4096]; data.into()];
            let mut next = 0;
            for span in run.spans(width, 0..cut).chain(run.spans(width, cut..content)) {
                prop_assert_eq!(span.in_content, next);
                next += u64::from(span.bytes);
                let first = span.in_part.div_ceil(4096);
                for tile in first..(span.in_part + span.bytes).div_ceil(4096) {
                    prop_assert!(!std::mem::replace(&mut parts[usize::from(span.component)][tile as usize], true));
                }
            }
            prop_assert_eq!(next, content);
            prop_assert!(parts.iter().flatten().all(|&seen| seen));
        }

        /// The part is long enough, and no shorter one is.
        #[test]
        fn parts_are_as_short_as_can_be(data in 1u8..13, content in 1u64..4 << 20) {
            let width = Width::new(data, 1).expect("a width");
            let bytes = Run::part_bytes(content, width);
            let run = Run { at: 0, bytes };
            prop_assert!(run.is_valid());
            prop_assert!(run.content_bytes(width) >= content);
            let shorter = u64::from(bytes - ALIGN_BYTES) * u64::from(data);
            prop_assert!(shorter < content);
        }
    }
}
