//! Output for people and scripts: results, warnings, progress, questions and tables.

pub(crate) mod output;
pub(crate) mod progress;
pub(crate) mod prompt;
pub(crate) mod table;
