//! What people see: results and warnings, progress, questions, tables.

pub(crate) mod output;
pub(crate) mod progress;
pub(crate) mod prompt;
pub(crate) mod table;
