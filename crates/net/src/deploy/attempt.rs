//! One attempt: a program on a host that gets a job, and says how far it is.

use std::process::Command;
use std::sync::Arc;

use parking_lot::Mutex;
use proto::deploy::Said;

use super::meeting::{Meeting, OnTheWay};
use super::program::{End, Line, Listener, Program, may_help};
use crate::api::{GO, HostJob, HostWord};
use crate::clock::Stop;

/// An attempt that runs.
pub(super) struct Attempt {
    program: Program,
    called_off: Stop,
}

impl Attempt {
    /// Starts it. `say` gets what it says; the last word comes when the program has ended. `None` if it could not be
    /// started, and `say` got that.
    pub(super) fn start(
        command: Command,
        mut job: HostJob,
        meeting: Option<Meeting>,
        say: impl Fn(Said) + Clone + Send + 'static,
    ) -> Option<Self> {
        // Where no meeting is possible, its host fetches when it has arrived.
        let meeting = meeting.and_then(|meeting| Some((meeting.set_out().ok()?, meeting)));
        job.meets = meeting.is_some();
        let others = Others { called_off: Stop::new(), meeting: Arc::new(Mutex::new(meeting)) };
        let (says, told) = (say.clone(), say.clone());
        let (called_off, meeting) = (others.called_off.clone(), Arc::clone(&others.meeting));
        let talk = move |program: &Program, listener| listen(listener, &says, program, &others);
        let ended = move |last: Option<Option<HostWord>>, end: End| {
            // It will not arrive any more, whether its words have ended or not.
            drop(meeting.lock().take());
            told(outcome(last.flatten(), &end));
        };
        match Program::start(command, &job, talk, ended) {
            Ok(program) => Some(Self { program, called_off }),
            Err(why) => {
                say(Said::Failed { why, again: false });
                None
            }
        }
    }

    /// Calls the work off: the host ends it and says so.
    pub(super) fn call_off(&self) {
        self.called_off.stop();
        self.program.call_off();
    }

    /// Ends the client here, whatever the host does.
    pub(super) fn kill(&self) {
        self.program.kill();
    }
}

/// The others that bring the same image to hosts, until the host has arrived.
struct Others {
    called_off: Stop,
    meeting: Arc<Mutex<Option<(OnTheWay, Meeting)>>>,
}

impl Others {
    /// The host has arrived. If it waits, it goes on as soon as the others are there, too.
    fn arrived(&self, waits: bool, program: &Program) {
        let meeting = self.meeting.lock().take().map(|(_, meeting)| meeting);
        if waits {
            meeting.into_iter().for_each(|meeting| meeting.wait(&self.called_off));
            program.send(format!("{GO}\n").as_bytes());
        }
    }
}

/// Tells what is said, and returns the last word.
fn listen(
    mut listener: Listener,
    say: &impl Fn(Said),
    program: &Program,
    others: &Others,
) -> Option<HostWord> {
    loop {
        match listener.next() {
            Line::Word(HostWord::Alive { .. }) => say(Said::Alive),
            Line::Word(HostWord::Arrived { waits }) => {
                say(Said::Alive);
                others.arrived(waits, program);
                say(Said::Alive);
            }
            Line::Word(HostWord::Progress { step, done_bytes, total_bytes }) => {
                say(Said::Progress { step: number_of(&step), done: done_bytes, total: total_bytes });
            }
            Line::Word(last) => return Some(last),
            Line::TooLong => {
                let message = "it says more than a host has to say".to_owned();
                return Some(HostWord::Failed { exit: 1, message, hint: None });
            }
            Line::End => return None,
        }
    }
}

/// The steps of a job in their order.
pub(super) fn number_of(step: &str) -> u8 {
    match step {
        "compare" => 1,
        "install" => 2,
        "verify" => 3,
        "after" => 4,
        _ => 0,
    }
}

/// What became of an attempt.
fn outcome(last: Option<HostWord>, end: &End) -> Said {
    let (why, again) = match last {
        Some(HostWord::Ready { root, .. }) => match root.parse() {
            Ok(root) => return Said::Ready { root },
            Err(_) => ("it says that it is ready, but not with what".to_owned(), false),
        },
        Some(HostWord::Failed { exit, message, hint }) => {
            let hint = hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
            (format!("{message}{hint}"), may_help(exit))
        }
        _ => end.explain(),
    };
    Said::Failed { why, again }
}
