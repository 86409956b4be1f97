//! Versions that were read as files lately. To open one as a QCOW2 takes a walk over its tree, and many clients ask for
//! the same one.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use store::Form;
use tokio::sync::OnceCell;

use super::key::FileKey;

/// Most versions that are kept open; the one that nobody asked for the longest goes first.
const OPEN_MAX: usize = 64;

/// A file that is open, or is being opened by one of those who wait for it.
pub(crate) type Opened = Arc<OnceCell<Arc<Form>>>;

/// The open files, those asked for last at the end.
#[derive(Default)]
pub(crate) struct Forms(Mutex<VecDeque<(FileKey, Opened)>>);

impl Forms {
    /// The place of the file, whether it is open or not.
    pub(crate) fn of(&self, key: &FileKey) -> Opened {
        let mut open = self.0.lock();
        let found = open.iter().position(|(known, _)| known == key).and_then(|at| open.remove(at));
        let opened = found.map(|(_, opened)| opened).unwrap_or_default();
        open.push_back((key.clone(), Arc::clone(&opened)));
        if open.len() > OPEN_MAX {
            open.pop_front();
        }
        opened
    }
}

#[cfg(test)]
mod tests {
    use base::Digest;
    use store::FormKind;

    use super::*;

    #[test]
    fn what_is_asked_for_stays_and_the_rest_goes() {
        let forms = Forms::default();
        let key = |number: u32| FileKey { manifest: Digest::of(&number.to_le_bytes()), kind: FormKind::Raw };
        let first = forms.of(&key(0));
        for number in 1..1000 {
            forms.of(&key(number));
            assert!(Arc::ptr_eq(&first, &forms.of(&key(0))), "{number}");
        }
        let second = forms.of(&key(1));
        assert!(forms.0.lock().len() <= OPEN_MAX && !Arc::ptr_eq(&first, &second));
        let other = FileKey { kind: FormKind::Qcow2, ..key(0) };
        assert!(!Arc::ptr_eq(&first, &forms.of(&other)));
    }
}
