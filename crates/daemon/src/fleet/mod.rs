//! The machines that boot from the network or run an agent, and what each is to do.
//!
//! [`table`] decides for all, [`changes`] what an administrator's word changes, [`machine`] for one, and [`speaker`]
//! who speaks for it by which of its [`keys`], without I/O and without a clock; [`nonces`] says what machines sign;
//! [`ledger`] keeps what must survive a restart; [`silence`] says who is missed, [`wakes`] which agent wakes whom;
//! [`roster`] joins them; [`boot_files`] says what firmware gets.

mod boot_files;
mod changes;
#[cfg(test)]
mod chaos;
mod keys;
mod ledger;
mod machine;
mod nonces;
pub(crate) mod power;
mod roster;
mod silence;
mod speaker;
pub(crate) mod suits;
mod table;
#[cfg(test)]
mod tests;
mod wakes;

pub(crate) use boot_files::{ServedFiles, Site};
pub(crate) use keys::News;
pub(crate) use machine::{Step, Task};
pub(crate) use roster::{Book, Fleet};
pub(crate) use silence::Watch;
