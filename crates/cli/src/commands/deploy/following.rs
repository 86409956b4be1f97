//! Waits until machines have done their jobs.

use std::time::Duration;

use base::units::{show_duration, show_seconds};
use net::api::{JobStage, JobsMade, MachineStatus};
use net::client::Client;
use net::clock::{Clock, Stop};
use serde_json::json;

use crate::commands::Context;
use crate::exit::{Exit, Failure, Result};
use crate::interrupt;

/// How often it is asked how far they are.
const LOOK: Duration = Duration::from_secs(1);
/// Time from one line about all of them to the next.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// A machine that waits for a job asks every few seconds.
const SILENT_SECONDS: u64 = 15;
/// How many machines are named in a line.
const NAMED: usize = 5;

/// A machine that is waited for.
struct Machine {
    mac: String,
    name: String,
    job: Option<u64>,
    /// Whether it has done its job.
    ended: Option<bool>,
    /// What was told of it last while it is lost.
    told: Option<String>,
}

/// Waits for the jobs `made`, `time` at most.
pub(super) fn follow(
    context: &Context,
    client: &Client,
    made: &JobsMade,
    time: Option<Duration>,
) -> Result<()> {
    let stop = Stop::new();
    let asked = stop.clone();
    interrupt::cooperate(move || asked.stop())?;
    let clock = Clock::start();
    let mut machines: Vec<Machine> = made.machines.iter().map(Machine::of).collect();
    let mut next_line = LINE_INTERVAL;
    loop {
        let all = client.machines()?.machines;
        for machine in machines.iter_mut().filter(|machine| machine.ended.is_none()) {
            machine.look(context, all.iter().find(|status| status.mac == machine.mac));
        }
        let waits = machines.iter().filter(|machine| machine.ended.is_none()).count();
        if waits == 0 {
            return report(context, made, &machines, clock.elapsed());
        }
        if stop.is_stopped() {
            let text = format!("{waits} machines have not done it yet: their jobs go on");
            return Err(Failure::new(Exit::Interrupted, text).hint("`diskcast hosts` shows how far they are"));
        }
        if time.is_some_and(|time| clock.elapsed() >= time) {
            let text = format!("{waits} machines have not done it in time: their jobs go on");
            let hint = "`diskcast hosts` shows how far they are, `diskcast hosts cancel` takes jobs back";
            let some = machines.iter().any(|machine| machine.ended == Some(true));
            return Err(Failure::new(if some { Exit::Partly } else { Exit::Failed }, text).hint(hint));
        }
        if clock.elapsed() >= next_line {
            next_line = clock.elapsed() + LINE_INTERVAL;
            context.output.note(&summary(&machines, &all));
        }
        stop.pause(LOOK);
    }
}

impl Machine {
    fn of(status: &MachineStatus) -> Self {
        let name = name(status).to_owned();
        let job = status.job.as_ref().map(|job| job.job);
        Self { mac: status.mac.clone(), name, job, ended: None, told: None }
    }

    /// Tells what became of it.
    fn look(&mut self, context: &Context, status: Option<&MachineStatus>) {
        let job = status.and_then(|status| status.job.as_ref()).filter(|job| Some(job.job) == self.job);
        let (state, why) = match job {
            None => ("left_out", Some("its job was taken back".to_owned())),
            Some(job) => match job.stage {
                JobStage::Done | JobStage::Back => ("ready", None),
                JobStage::Failed => ("failed", Some(job.reason.clone().unwrap_or_default())),
                JobStage::Lost => {
                    if self.told != job.reason {
                        let reason = job.reason.as_deref().unwrap_or("nothing is heard of it");
                        context.output.warning(&format!("{}: {reason}", self.name));
                        self.told.clone_from(&job.reason);
                    }
                    return;
                }
                JobStage::Queued | JobStage::Taken => return,
            },
        };
        self.ended = Some(state == "ready");
        if context.output.is_json() {
            let record = json!({ "type": "host", "host": self.name, "state": state, "why": why });
            // The end is told to a reader that is there.
            let _ = context.output.answer(&record, String::new);
        } else {
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            context.output.note(&format!("{}: {}{why}", self.name, state.replace('_', " ")));
        }
    }
}

/// All machines in one line.
fn summary(machines: &[Machine], all: &[MachineStatus]) -> String {
    let waits = machines.iter().filter(|machine| machine.ended.is_none());
    let waits: Vec<&MachineStatus> =
        waits.filter_map(|machine| all.iter().find(|status| status.mac == machine.mac)).collect();
    let stage = |stage: JobStage| {
        waits.iter().filter(|status| status.job.as_ref().is_some_and(|job| job.stage == stage)).count()
    };
    let ended = |well: bool| machines.iter().filter(|machine| machine.ended == Some(well)).count();
    let parts = [
        (ended(true), "ready"),
        (stage(JobStage::Taken), "at work"),
        (stage(JobStage::Queued), "waiting"),
        (stage(JobStage::Lost), "lost"),
        (ended(false), "failed"),
    ];
    let parts: Vec<String> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    let absent: Vec<&str> =
        waits.iter().filter(|status| is_absent(status)).map(|status| name(status)).collect();
    let more = match absent.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    match absent.is_empty() {
        true => parts.join(", "),
        false => {
            let named = absent[..absent.len().min(NAMED)].join(", ");
            format!("{}; nothing is heard of {named}{more}", parts.join(", "))
        }
    }
}

/// Whether a machine is waited for that does not ask for its job.
fn is_absent(status: &MachineStatus) -> bool {
    let waits = status.job.as_ref().is_some_and(|job| job.stage == JobStage::Queued);
    waits && status.called_seconds_ago.is_none_or(|seconds| seconds > SILENT_SECONDS)
}

fn name(status: &MachineStatus) -> &str {
    status.name.as_deref().unwrap_or(&status.mac)
}

fn report(context: &Context, made: &JobsMade, machines: &[Machine], took: Duration) -> Result<()> {
    let missing: Vec<&str> = machines
        .iter()
        .filter(|machine| machine.ended != Some(true))
        .map(|machine| machine.name.as_str())
        .collect();
    let ready = machines.len() - missing.len();
    let record = json!({
        "type": "deployed", "job": made.work.to_string(), "ready": ready, "failed": missing.len(),
        "seconds": took.as_secs_f64(), "missing": missing,
    });
    let shown = if took < LOOK { show_duration(took) } else { show_seconds(took.as_secs()) };
    let all = machines.len();
    context.output.result(&record, || format!("{}: done on {ready} of {all}, after {shown}\n", made.work))?;
    match (ready, missing.len()) {
        (_, 0) => Ok(()),
        (ready, _) => {
            let exit = if ready == 0 { Exit::Failed } else { Exit::Partly };
            Err(Failure::new(exit, format!("not done on {}", missing.join(", "))))
        }
    }
}
