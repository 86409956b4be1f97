//! Which images go when there are too many.

/// How much may be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of all images, at most.
    pub size: u64,
    /// Bytes that stay free on the filesystem.
    pub keep_free: u64,
}

/// An image.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub bytes: u64,
    /// When it was used last.
    pub used: u64,
    pub in_use: bool,
}

/// The images that must go for `bounds` to hold, where `free` bytes are free now: those that were used least recently,
/// and none that is in use or would free nothing.
pub(super) fn leaving(images: &[Candidate], bounds: Bounds, mut free: u64) -> Vec<usize> {
    let mut order: Vec<usize> =
        (0..images.len()).filter(|&at| !images[at].in_use && images[at].bytes > 0).collect();
    order.sort_by_key(|&at| images[at].used);
    let mut held: u64 = images.iter().map(|image| image.bytes).sum();
    let mut gone = Vec::new();
    for at in order {
        if held <= bounds.size && free >= bounds.keep_free {
            break;
        }
        held -= images[at].bytes;
        free += images[at].bytes;
        gone.push(at);
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn image(bytes: u64, used: u64, in_use: bool) -> Candidate {
        Candidate { bytes, used, in_use }
    }

    #[test]
    fn the_least_recently_used_go_and_none_that_is_used() {
        let images = [image(10, 3, false), image(10, 1, true), image(10, 2, false), image(0, 0, false)];
        let bounds = |size, keep_free| Bounds { size, keep_free };
        assert_eq!(leaving(&images, bounds(30, 5), 100), [0usize; 0]);
        assert_eq!(leaving(&images, bounds(29, 5), 100), [2]);
        assert_eq!(leaving(&images, bounds(20, 15), 100), [2]);
        assert_eq!(leaving(&images, bounds(100, 50), 35), [2, 0]);
        assert_eq!(leaving(&images, bounds(0, 0), 100), [2, 0], "what is used stays");
    }
}
