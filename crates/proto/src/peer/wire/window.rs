//! What a REPORT tells of a run of objects: runs or a bitmap, whichever is shorter; and the bounds of packets.

use std::ops::Range;

use base::wire::{Reader, Truncated};

use crate::multicast::TAG_BYTES;
use crate::peer::availability::Availability;

/// Most bytes of a packet.
pub const PACKET_BYTES_MAX: usize = 1400;
/// Bytes of a packet before its body.
pub(super) const HEADER_BYTES: usize = 28;
/// Bytes of a REPORT beside its list: header, fixed fields and tag.
const REPORT_BYTES: usize = HEADER_BYTES + 20 + TAG_BYTES;
const LIST_BYTES_MAX: usize = PACKET_BYTES_MAX - REPORT_BYTES;
const RUN_BYTES: usize = 8;
const RUNS_MAX: usize = LIST_BYTES_MAX / RUN_BYTES;
#[expect(clippy::cast_possible_truncation, reason = "a packet is short")]
const BITMAP_OBJECTS_MAX: u32 = (LIST_BYTES_MAX * 8) as u32;

mod form {
    pub(super) const RUNS: u8 = 0;
    pub(super) const BITMAP: u8 = 1;
}

/// Why a packet was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reject {
    /// Too short or too long.
    Length,
    /// Not of this protocol, or of another version.
    Version,
    /// The tag is wrong.
    Tag,
    /// A type or form that this version does not know.
    Unknown,
    /// A number outside its bounds.
    Bounds,
}

impl From<Truncated> for Reject {
    fn from(_: Truncated) -> Self {
        Self::Length
    }
}

/// Which of the objects `first .. first + count` somebody holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// The objects that this tells about.
    pub objects: Range<u32>,
    /// Those of them that are held: runs, ascending, not empty, apart from each other.
    pub held: Vec<Range<u32>>,
}

impl Window {
    /// As much of `availability` from object `first` on as one packet can tell.
    #[must_use]
    pub fn of(availability: &Availability, first: u32) -> Self {
        let objects = availability.objects();
        let mut held: Vec<Range<u32>> = availability.runs(first..objects).take(RUNS_MAX + 1).collect();
        let by_bitmap = first.saturating_add(BITMAP_OBJECTS_MAX).min(objects);
        let by_runs = match held.len() > RUNS_MAX {
            true => held[RUNS_MAX].start,
            false => objects,
        };
        let end = by_runs.max(by_bitmap);
        if by_bitmap > by_runs {
            held = availability.runs(first..end).collect();
        }
        held.retain(|run| run.start < end);
        Self { objects: first..end, held }
    }

    pub(super) fn encode(&self, into: &mut Vec<u8>) {
        let (first, count) = (self.objects.start, self.objects.end - self.objects.start);
        let bitmap_bytes = count.div_ceil(8) as usize;
        let as_runs = self.held.len() * RUN_BYTES <= bitmap_bytes;
        into.push(if as_runs { form::RUNS } else { form::BITMAP });
        into.extend_from_slice(&first.to_le_bytes());
        into.extend_from_slice(&count.to_le_bytes());
        if as_runs {
            for run in &self.held {
                into.extend_from_slice(&run.start.to_le_bytes());
                into.extend_from_slice(&(run.end - run.start).to_le_bytes());
            }
            return;
        }
        let begin = into.len();
        into.resize(begin + bitmap_bytes, 0);
        for object in self.held.iter().cloned().flatten() {
            let at = (object - first) as usize;
            into[begin + at / 8] |= 1 << (at % 8);
        }
    }

    pub(super) fn parse(from: &mut Reader<'_>) -> Result<Self, Reject> {
        let form = from.array::<1>()?[0];
        let (first, count) = (from.u32()?, from.u32()?);
        let end = first.checked_add(count).ok_or(Reject::Bounds)?;
        let list = from.rest();
        let held = match form {
            form::RUNS => runs(list, first..end)?,
            form::BITMAP if list.len() == count.div_ceil(8) as usize => {
                let bit = |at: u32| list[(at / 8) as usize] >> (at % 8) & 1 == 1;
                let mut held: Vec<Range<u32>> = Vec::new();
                for object in (0..count).filter(|&at| bit(at)).map(|at| first + at) {
                    match held.last_mut() {
                        Some(last) if last.end == object => last.end += 1,
                        _ => held.push(object..object + 1),
                    }
                }
                held
            }
            form::BITMAP => return Err(Reject::Length),
            _ => return Err(Reject::Unknown),
        };
        Ok(Self { objects: first..end, held })
    }
}

fn runs(list: &[u8], window: Range<u32>) -> Result<Vec<Range<u32>>, Reject> {
    if !list.len().is_multiple_of(RUN_BYTES) {
        return Err(Reject::Length);
    }
    let mut from = Reader::new(list);
    let mut held = Vec::with_capacity(list.len() / RUN_BYTES);
    let mut free = window.start;
    while from.remaining() > 0 {
        let (start, count) = (from.u32()?, from.u32()?);
        let end = start.checked_add(count).ok_or(Reject::Bounds)?;
        if count == 0 || start < free || end > window.end {
            return Err(Reject::Bounds);
        }
        held.push(start..end);
        free = end;
    }
    Ok(held)
}

#[cfg(test)]
mod tests {
    use base::Chance;

    use super::*;
    use crate::multicast::Key;
    use crate::peer::wire::packet::{MemberId, Packet, Report, SwarmId, open, seal_packet};

    #[test]
    fn availability_travels_in_windows_never_longer_than_a_bitmap() {
        let mut chance = Chance::from_seed(5);
        for objects in [1, 40, 5000, 60_000] {
            for density in [0, 2, 50, 99, 100] {
                let mut held = Availability::none(objects);
                (0..objects)
                    .filter(|_| chance.below(100) < density)
                    .for_each(|object| held.set(object.into(), true));
                let (mut told, mut first, mut packets) = (Availability::none(objects), 0, 0);
                while first < objects {
                    let window = Window::of(&held, first);
                    let (end, count) = (window.objects.end, window.objects.end - first);
                    let report = Report { port: 1, uploads: 0, place: 0, objects, window };
                    let bytes =
                        seal_packet(&Key([1; 16]), SwarmId(1), MemberId(1), 0, &Packet::Report(report));
                    assert!(bytes.len() <= PACKET_BYTES_MAX);
                    assert!(bytes.len() <= REPORT_BYTES + count.div_ceil(8) as usize + 8);
                    let Ok(Packet::Report(read)) = open(None, &bytes) else { panic!("a report") };
                    told.replace(read.window.objects, read.window.held.into_iter());
                    (first, packets) = (end, packets + 1);
                }
                assert_eq!(told, held);
                assert!(packets <= objects.div_ceil(BITMAP_OBJECTS_MAX));
            }
        }
    }
}
