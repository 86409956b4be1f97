//! What each command does with `--dry-run`: the one table that `main` asks before it runs a command. A test compares it
//! with the command line, so that no new command is forgotten, and another one runs each row.

/// What a command does with `--dry-run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DryRun {
    /// It checks what it can, and shows what it would do.
    Plans,
    /// It changes nothing anyway, or only with an option that `--dry-run` switches off.
    Reads,
    /// It refuses: it could say nothing before it began.
    Refuses,
}

use DryRun::{Plans, Reads, Refuses};

/// All commands, by the words that name them.
pub(crate) const COMMANDS: &[(&str, DryRun)] = &[
    ("capture", Plans),
    ("install", Plans),
    ("commit", Plans),
    ("grow", Plans),
    ("shrink", Plans),
    ("personalize", Plans),
    ("serve", Refuses),
    ("fetch", Plans),
    ("deploy", Plans),
    ("agent", Refuses),
    ("work", Refuses),
    ("switch", Refuses),
    ("status", Reads),
    ("doctor", Reads),
    ("token", Plans),
    ("token list", Reads),
    ("token revoke", Plans),
    ("opennebula", Refuses),
    ("netboot", Refuses),
    ("boot-image", Refuses),
    ("hosts", Reads),
    ("hosts admit", Plans),
    ("hosts add", Plans),
    ("hosts import", Plans),
    ("hosts capture", Plans),
    ("hosts wipe", Plans),
    ("hosts shell", Plans),
    ("hosts cancel", Plans),
    ("hosts log", Reads),
    ("hosts remove", Plans),
    ("hosts open", Plans),
    ("boot-agent", Refuses),
    ("attach", Plans),
    ("detach", Plans),
    ("disks", Reads),
    ("mount", Plans),
    ("images", Reads),
    ("inspect", Reads),
    ("log", Reads),
    ("diff", Reads),
    ("tag", Plans),
    ("create", Plans),
    ("clone", Plans),
    ("remove", Plans),
    ("profile show", Reads),
    ("profile remove", Plans),
    ("init", Plans),
    ("repository", Reads),
    ("usage", Reads),
    ("copy", Plans),
    ("verify", Reads),
    ("prune", Plans),
    ("key new", Plans),
    ("key show", Reads),
    ("key cut-over", Plans),
    ("cluster try", Refuses),
    ("cluster status", Reads),
    ("cluster drain", Plans),
    ("cluster lost", Plans),
    ("cluster rebalance", Plans),
    ("cluster limit", Reads),
    ("cluster rebuild-index", Refuses),
    ("cluster certificate", Reads),
    ("metadata", Refuses),
    ("device", Refuses),
];
