//! The machines that boot from the network, and what each is to do.
//!
//! [`table`] decides, without I/O and without a clock; [`ledger`] keeps what must survive a restart; [`roster`] joins
//! the two; [`boot_files`] says what firmware gets.

mod boot_files;
mod ledger;
mod roster;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use boot_files::{ServedFiles, Site};
pub(crate) use roster::Fleet;
pub(crate) use table::{Step, Task};
