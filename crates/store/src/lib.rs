//! Placeholder of the house: see the crate's description.
