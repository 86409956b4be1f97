//! What people see: results and warnings, progress, questions, tables.

pub mod output;
pub mod progress;
pub mod prompt;
pub mod table;
