//! The machines that boot from the network or run an agent, and what each is to do.
//!
//! [`table`] decides for all, [`machine`] for one, without I/O and without a clock; [`ledger`] keeps what must survive
//! a restart; [`silence`] says who is missed, [`wakes`] which agent wakes whom; [`roster`] joins them; [`boot_files`]
//! says what firmware gets.

mod boot_files;
#[cfg(test)]
mod chaos;
mod ledger;
mod machine;
mod roster;
mod silence;
mod table;
#[cfg(test)]
mod tests;
mod wakes;

pub(crate) use boot_files::{ServedFiles, Site};
pub(crate) use machine::{Step, Task};
pub(crate) use roster::{Book, Fleet};
pub(crate) use silence::Watch;
