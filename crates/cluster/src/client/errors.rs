//! Failures as the callers of `object_store` know them.

use object_store::Error;

use crate::http::Failure;
use crate::problem::Word;

/// The name of this store in errors.
pub(super) const STORE: &str = "cluster";

/// The failure as the trait's callers know it.
pub(super) fn error(failure: Failure, name: &str) -> Error {
    let path = name.to_owned();
    let word = failure.word();
    let source = Box::new(failure.into_error(&format!("use `{name}` in the cluster")));
    match word {
        Some(Word::Missing) => Error::NotFound { path, source },
        Some(Word::Exists) => Error::AlreadyExists { path, source },
        _ => Error::Generic { store: STORE, source },
    }
}
