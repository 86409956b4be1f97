//! Switches machines by a program of the site: on, off, and on again; and asks it whether they are on.
//!
//! A board may take its time to answer. So who asks for many machines gets a run, which goes on without a request, and
//! looks at it until it is done.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::{Error, ErrorKind, Instant, Result};
use net::api::{Switch, Switched};
use net::clock::{Clock, Stop};
use net::mac::Mac;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::event::{Event, Log};

/// Longest time for one machine.
const TIME_MAX: Duration = Duration::from_secs(60);
/// How often it is looked whether a program has ended.
const LOOK: Duration = Duration::from_millis(50);
/// So many programs of a run are at work at the same time.
const AT_ONCE: usize = 16;
/// Most runs that are kept, and how long one is after its beginning.
const RUNS_MAX: usize = 16;
const RUN_KEPT: Duration = Duration::from_secs(3600);
/// What is kept of a program's output, in bytes, and of its last line, in characters.
const OUTPUT_BYTES_MAX: u64 = 16 << 10;
const LINE_CHARS_MAX: usize = 300;

/// The site's program.
#[derive(Debug, Clone)]
pub(crate) struct Program(pub PathBuf);

impl Program {
    /// Runs it for the machine with the card `mac`, and waits for its end, a minute at most. Returns its last words, or
    /// why it failed.
    pub(crate) fn switch(&self, switch: Switch, mac: Mac, name: &str) -> std::result::Result<String, String> {
        let what = format!("`{} {}`", self.0.display(), switch.word());
        let failed = |error: std::io::Error| format!("{what} can't be run: {error}");
        // Files and no pipes, which another process could hold open after its end.
        let (mut said, mut complained) =
            (tempfile::tempfile().map_err(failed)?, tempfile::tempfile().map_err(failed)?);
        let mut command = Command::new(&self.0);
        command.arg(switch.word()).arg(mac.to_string()).arg(name).stdin(Stdio::null()).process_group(0);
        command.stdout(said.try_clone().map_err(failed)?).stderr(complained.try_clone().map_err(failed)?);
        let status = ended(&mut command).map_err(failed)?;
        let (said, complained) = (last_line(&mut said), last_line(&mut complained));
        match status {
            Some(status) if status.success() => Ok(said),
            Some(_) => {
                let words = [complained, said].into_iter().find(|words| !words.is_empty());
                Err(format!("{what} failed: {}", words.as_deref().unwrap_or("it said nothing")))
            }
            None => Err(format!("{what} did not end in {} s, and was ended", TIME_MAX.as_secs())),
        }
    }
}

/// Runs a command, and those that it starts, until it ends; `None` if it was killed since it took too long.
fn ended(command: &mut Command) -> std::io::Result<Option<ExitStatus>> {
    let (mut child, clock, pause) = (command.spawn()?, Clock::start(), Stop::new());
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if clock.elapsed() > TIME_MAX {
            let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            // Who ended just now needs no signal.
            let _ = group.map(|group| kill_process_group(group, Signal::KILL));
            return child.wait().map(|_| None);
        }
        pause.pause(LOOK);
    }
}

/// The last line that says something.
fn last_line(file: &mut File) -> String {
    let mut bytes = Vec::new();
    let length = file.metadata().map_or(0, |about| about.len());
    let read = file
        .seek(SeekFrom::Start(length.saturating_sub(OUTPUT_BYTES_MAX)))
        .and_then(|_| file.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes));
    if read.is_err() {
        return String::new();
    }
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).take(LINE_CHARS_MAX).collect()
}

/// All runs that somebody may still look at.
#[derive(Default)]
pub(crate) struct Runs(Mutex<HashMap<u128, Run>>);

struct Run {
    since: Instant,
    machines: Arc<Mutex<Vec<Switched>>>,
}

impl Run {
    fn is_done(&self) -> bool {
        self.machines.lock().iter().all(Switched::is_done)
    }
}

impl Runs {
    /// Begins the run `id` for these machines and their names, unless it was begun before: who asks twice, since an
    /// answer was lost, switches once. `Refused` if there are too many.
    pub(crate) fn begin(
        &self,
        id: u128,
        program: &Program,
        switch: Switch,
        machines: Vec<(Mac, Option<String>)>,
        (now, log): (Instant, &Log),
    ) -> Result<()> {
        let mut runs = self.0.lock();
        if runs.contains_key(&id) {
            return Ok(());
        }
        runs.retain(|_, run| !run.is_done() || now.since(run.since) < RUN_KEPT);
        if runs.len() >= RUNS_MAX {
            let oldest = runs.iter().filter(|(_, run)| run.is_done()).min_by_key(|(_, run)| run.since);
            let oldest = oldest.map(|(id, _)| *id).ok_or_else(|| {
                Error::new(
                    ErrorKind::Refused,
                    "machines are being switched for too many others: try again later",
                )
            })?;
            runs.remove(&oldest);
        }
        let switched: Vec<Switched> =
            machines.iter().map(|(mac, name)| Switched::waiting(*mac, name.clone())).collect();
        let run = Run { since: now, machines: Arc::new(Mutex::new(switched)) };
        let (next, macs) = (Arc::new(AtomicUsize::new(0)), Arc::new(machines));
        for _ in 0..AT_ONCE.min(macs.len()) {
            let (next, macs, done) = (Arc::clone(&next), Arc::clone(&macs), Arc::clone(&run.machines));
            let (program, log) = (program.clone(), Arc::clone(log));
            std::thread::spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some((mac, name)) = macs.get(index) else { return };
                    let outcome = program.switch(switch, *mac, name.as_deref().unwrap_or_default());
                    if switch != Switch::Status {
                        let failure = outcome.as_ref().err().cloned();
                        log(&Event::MachinePower { machine: mac.to_string(), switch, failure });
                    }
                    done.lock()[index].end(outcome);
                }
            });
        }
        runs.insert(id, run);
        Ok(())
    }

    /// How far the run `id` is. `NotFound` if there is none any more.
    pub(crate) fn look(&self, id: u128) -> Result<Vec<Switched>> {
        let none = || {
            let text = "the server knows nothing of this request any more: ask for the machines' status";
            Error::new(ErrorKind::NotFound, text)
        };
        self.0.lock().get(&id).map(|run| run.machines.lock().clone()).ok_or_else(none)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const ONE: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);

    fn program(folder: &tempfile::TempDir, text: &str) -> Program {
        let path = folder.path().join("power");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        Program(path)
    }

    #[test]
    fn a_program_has_the_last_word() {
        let _alone = crate::STARTS.lock();
        let folder = tempfile::tempdir().unwrap();
        let text = "case $1 in\n\
                    status) echo hello; echo \"$3 is on\"; echo ;;\n\
                    on) echo ignored; echo \"no board at $2\" >&2; exit 3 ;;\n\
                    off) exit 1 ;;\n\
                    restart) sleep 3 & printf 'done \\033[2J' ;;\nesac";
        let program = program(&folder, text);
        assert_eq!(program.switch(Switch::Status, ONE, "one").unwrap(), "one is on");
        // What goes on beside is not waited for.
        assert_eq!(program.switch(Switch::Restart, ONE, "one").unwrap(), "done [2J");
        let failed = program.switch(Switch::On, ONE, "one").unwrap_err();
        assert!(failed.ends_with("power on` failed: no board at 52:54:00:00:00:01"), "{failed}");
        assert!(program.switch(Switch::Off, ONE, "").unwrap_err().ends_with("it said nothing"));
        let missing = Program("/no/such/program".into()).switch(Switch::On, ONE, "").unwrap_err();
        assert!(missing.contains("`/no/such/program on` can't be run"), "{missing}");
    }

    #[test]
    fn who_asks_twice_switches_once_and_all_are_named() {
        let _alone = crate::STARTS.lock();
        let folder = tempfile::tempdir().unwrap();
        let calls = folder.path().join("calls");
        let text = format!("echo \"$@\" >>{}; [ \"$3\" != bad ] || exit 1; echo fine", calls.display());
        let (program, runs) = (program(&folder, &text), Runs::default());
        let log: Log = Arc::new(|_| ());
        let machines: Vec<_> = (0..40)
            .map(|number| {
                let name = if number == 7 { "bad".to_owned() } else { format!("n{number}") };
                (Mac([2, 0, 0, 0, 0, number]), Some(name))
            })
            .collect();
        for _ in 0..2 {
            runs.begin(1, &program, Switch::Off, machines.clone(), (Instant::ZERO, &log)).unwrap();
        }
        let done = loop {
            let now = runs.look(1).unwrap();
            if now.iter().all(Switched::is_done) {
                break now;
            }
            std::thread::yield_now();
        };
        let failed: Vec<_> = done.iter().filter(|one| one.failure.is_some()).collect();
        assert!(failed.len() == 1 && failed[0].name.as_deref() == Some("bad"), "{failed:?}");
        assert!(done.iter().all(|one| one.failure.is_some() || one.words.as_deref() == Some("fine")));
        assert_eq!(std::fs::read_to_string(&calls).unwrap().lines().count(), 40);
        assert_eq!(runs.look(2).unwrap_err().kind(), ErrorKind::NotFound);
        // They are kept for a while, and not without a bound.
        let none = |id: u128, now| runs.begin(id, &program, Switch::Off, Vec::new(), (now, &log)).unwrap();
        (2..200).for_each(|id| none(id, Instant::ZERO));
        assert!(runs.0.lock().len() <= RUNS_MAX);
        none(200, Instant::ZERO + RUN_KEPT);
        assert_eq!(runs.0.lock().len(), 1);
    }
}
