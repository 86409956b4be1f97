//! Who may do what: the server's certificate, tokens and what they grant.
//!
//! ```text
//! tokens         tokens of long-running clients, which are renewed
//! join           the join token that a server publishes
//! token_uses     which tokens clients use, and which end soon
//! authority      makes and checks the secrets of tokens
//! token_records  what each token grants, and whether it was revoked
//! claims         rights, patterns of images, a time, a name
//! identity, pem  certificates and keys, in files
//! ```

pub mod authority;
pub(crate) mod claims;
pub mod identity;
pub(crate) mod join;
pub(crate) mod pem;
pub mod token_records;
pub(crate) mod token_uses;
pub mod tokens;
