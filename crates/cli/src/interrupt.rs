//! Handles SIGINT, SIGTERM and SIGHUP. They end the program with exit code 130, unless the running command has
//! registered its own way to stop. Ending at once is safe: objects are written once, versions appear completely or
//! not at all, and installs can be resumed. Cleanup that must not be skipped is registered with [`at_last`].

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::{Condvar, Mutex};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::exit::{Exit, Failure, Result};
use crate::ui::output::Output;

static COOPERATIVE: AtomicBool = AtomicBool::new(false);
static STOP: AtomicBool = AtomicBool::new(false);
static LEAVES: Mutex<Leaves> = Mutex::new(Leaves::Nothing);
static LAST: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();
/// How many signals came to this process, how many it was told of, and of how many something was done.
static COME: AtomicU32 = AtomicU32::new(0);
static TOLD: AtomicU32 = AtomicU32::new(0);
static DONE: AtomicU32 = AtomicU32::new(0);
static OUTPUT: OnceLock<Output> = OnceLock::new();
static PASS_ON: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();
static CHANGE: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());

/// Hint for a target that got only a part of an image.
pub(crate) const GO_ON: &str = "the target holds a part of the image (a file has the name NAME.part until it is \
                                whole); the same command with --resume goes on from here";

/// What an interruption leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaves {
    /// Nothing that people must know of.
    Nothing,
    /// A target that can be gone on with.
    PartOfTarget,
    /// A disk whose last partition, or its filesystem, may still have its old size.
    NotGrown,
    /// A disk that may not have all of its own yet.
    NotPersonal,
    /// Nothing, since the target was `null:`.
    NoTarget,
    /// The beginning of a disk in standard output.
    PartOfStream,
    /// A file that is not a disk until it is complete.
    PartOfFile,
    /// Objects that no version needs.
    NoVersion,
    /// A version, or not: its publication was under way.
    PerhapsVersion,
    /// A disk that runs on, and a commit of it that may still be made.
    CalledOff,
}

impl Leaves {
    fn failure(self) -> Failure {
        let (words, hint) = match self {
            Self::Nothing => ("interrupted", None),
            Self::PartOfTarget => ("interrupted", Some(GO_ON)),
            Self::NotGrown => ("interrupted: the disk may not have grown", Some("`diskcast grow` goes on")),
            Self::NotPersonal => {
                ("interrupted: the disk may lack some of its own", Some("`diskcast personalize` goes on"))
            }
            Self::NoTarget => ("interrupted: nothing was written, and not everything was verified", None),
            Self::PartOfStream => ("interrupted: standard output got a part of the disk only", None),
            Self::PartOfFile => (
                "interrupted: the file is not a complete disk yet",
                Some("the same command with --overwrite writes it again"),
            ),
            Self::NoVersion => ("interrupted: no version was made", None),
            Self::PerhapsVersion => {
                let hint = "`diskcast log IMAGE` tells whether it was";
                ("interrupted: the version was about to be made", Some(hint))
            }
            Self::CalledOff => {
                let hint = "a commit to a server is called off, and the disk runs on with all that was written: \
                            commit again";
                ("interrupted", Some(hint))
            }
        };
        let failure = Failure::new(Exit::Interrupted, words);
        if let Some(hint) = hint { failure.hint(hint) } else { failure }
    }
}

/// Starts the thread that handles signals.
pub(crate) fn watch(output: Output) -> Result<()> {
    let _ = OUTPUT.set(output);
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    if !is_ignored(SIGHUP, &std::fs::read_to_string("/proc/self/status").unwrap_or_default()) {
        signals.add_signal(SIGHUP)?;
    }
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for _ in signals.forever() {
            match PASS_ON.get() {
                Some(pass_on) => pass_on(),
                None => answer(COME.fetch_add(1, Ordering::SeqCst) + 1),
            }
        }
    })?;
    Ok(())
}

/// Does what is to be done after the signal of this number, the first being 1.
fn answer(number: u32) {
    if DONE.fetch_max(number, Ordering::SeqCst) >= number {
        return;
    }
    let first = !STOP.load(Ordering::SeqCst);
    if !first || !COOPERATIVE.load(Ordering::SeqCst) {
        end_at_once();
    }
    let _guard = CHANGE.0.lock();
    STOP.store(true, Ordering::SeqCst);
    CHANGE.1.notify_all();
}

/// Ends the program as after a second signal.
pub(crate) fn end_at_once() -> ! {
    if let Some(output) = OUTPUT.get() {
        output.interruption(&failure());
    }
    LAST.get().into_iter().for_each(|act| act());
    std::process::exit(Exit::Interrupted as i32)
}

/// From now on this process does nothing about signals but to call `act` for each.
pub(crate) fn pass_on(act: impl Fn() + Send + Sync + 'static) {
    PASS_ON.get_or_init(|| Box::new(act));
}

/// Another process got a signal for this one. It may have come here, too, as Ctrl-C does; it counts once.
pub(crate) fn told() {
    answer(TOLD.fetch_add(1, Ordering::SeqCst) + 1);
}

/// Whether a process ignores `signal`, according to its `status` file of proc(5). nohup(1) starts programs so.
fn is_ignored(signal: i32, status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Says what an interruption leaves behind from now on.
pub(crate) fn leaves(what: Leaves) {
    *LEAVES.lock() = what;
}

/// The failure of a command that is interrupted now.
pub(crate) fn failure() -> Failure {
    LEAVES.lock().failure()
}

/// Registers cleanup that runs before the program exits because of a signal. It must return soon: only SIGKILL can
/// interrupt it. Only the first call has an effect.
pub(crate) fn at_last(act: impl Fn() + Send + Sync + 'static) {
    LAST.get_or_init(|| Box::new(act));
}

/// Calls `stop` after the first signal, so that the command can end in its own way; a second signal ends the program.
pub(crate) fn cooperate(stop: impl FnOnce() + Send + 'static) -> Result<()> {
    hold();
    std::thread::Builder::new().name("stop".into()).spawn(|| {
        wait();
        stop();
    })?;
    Ok(())
}

/// From now on the first signal only ends [`wait`]. To be called before others are told that the program is ready: a
/// signal may follow at once.
pub(crate) fn hold() {
    COOPERATIVE.store(true, Ordering::SeqCst);
}

/// The first signal ends the program again. Fails if there was one meanwhile.
pub(crate) fn release() -> Result<()> {
    COOPERATIVE.store(false, Ordering::SeqCst);
    if STOP.load(Ordering::SeqCst) { Err(failure()) } else { Ok(()) }
}

/// Waits for the first signal; a second one ends the program.
pub(crate) fn wait() {
    hold();
    let mut guard = CHANGE.0.lock();
    while !STOP.load(Ordering::SeqCst) {
        CHANGE.1.wait(&mut guard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nohup_is_seen() {
        let status =
            |mask: &str| format!("SigBlk:\t0000000000000000\nSigIgn:\t{mask}\nSigCgt:\t0000000000000001\n");
        assert!(is_ignored(SIGHUP, &status("0000000000000001")));
        assert!(!is_ignored(SIGHUP, &status("0000000000001000")) && !is_ignored(SIGHUP, ""));
        assert!(is_ignored(13, &status("0000000000001000")));
    }
}
