//! Numbers of slots as text, in questions to the index. formats/cluster.md, section 6.

use proto::cluster::SLOTS;

/// Numbers and ranges of slots.
pub(crate) fn slots_of(text: &str) -> Option<Vec<usize>> {
    let mut slots = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= SLOTS {
            return None;
        }
        slots.extend(first..=last);
    }
    (slots.len() <= SLOTS).then_some(slots)
}

/// The text of ascending slots, ranges drawn together.
pub(crate) fn slots_text(slots: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &slot in slots {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == slot => *last = slot,
            _ => parts.push((slot, slot)),
        }
    }
    let text = |(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    parts.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_survive_their_text() {
        for slots in [vec![0, 1, 2, 7, 9, 10], vec![1023], (0..SLOTS).collect()] {
            assert_eq!(slots_of(&slots_text(&slots)), Some(slots));
        }
        assert_eq!(slots_text(&[0, 1, 2, 7]), "0-2,7");
        for wrong in ["", "1024", "3-2", "a", "1,,2", "0-1023,0-1023"] {
            assert_eq!(slots_of(wrong), None, "{wrong}");
        }
    }
}
