//! Switches machines by the server's power program, and shows what it said.

use std::time::Duration;

use net::api::{Switch, SwitchRequest, Switched};
use net::client::Client;
use net::clock::{self, Stop};
use serde_json::json;

use super::names::{chosen, names};
use crate::commands::Context;
use crate::exit::{Exit, Failure, Result};
use crate::interrupt;
use crate::ui::prompt;
use crate::ui::table::{Align, Table};

/// How often it is asked how far it is.
const LOOK: Duration = Duration::from_millis(300);

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum What {
    On,
    Off,
    Cycle,
    Status,
}

impl What {
    fn switch(self) -> Switch {
        match self {
            Self::On => Switch::On,
            Self::Off => Switch::Off,
            Self::Cycle => Switch::Restart,
            Self::Status => Switch::Status,
        }
    }
}

/// Switches the machines that `words` mean, all of them known to the server of `client`, and shows what became of each.
/// Asks first if that may stop somebody's work.
pub(super) fn run(context: &Context, client: &Client, what: What, words: &[String]) -> Result<()> {
    let machines = chosen(client.machines()?.machines, words)?;
    let switch = what.switch();
    let of = names(&machines);
    if context.global.dry_run {
        let macs: Vec<&str> = machines.iter().map(|machine| &*machine.mac).collect();
        let record = json!({ "type": "plan", "power": switch, "machines": macs });
        return context.output.result(&record, || format!("would do: power {} of {of}\n", switch.word()));
    }
    if matches!(what, What::Off | What::Cycle) && !context.global.yes {
        let question = format!("{of} will be switched off at once, whatever they are doing");
        prompt::confirm(&question, "say --yes if you are sure")?;
    }
    // What was shown, and nothing that got that name meanwhile.
    let machines = machines.into_iter().map(|machine| machine.mac).collect();
    let done = wait(client, &SwitchRequest { switch, machines })?;
    show(context, switch, &done)?;
    let failed = done.iter().filter(|one| one.words.is_none()).count();
    match failed {
        0 => Ok(()),
        failed => {
            let exit = if failed == done.len() { Exit::Failed } else { Exit::Partly };
            Err(Failure::new(exit, format!("power {} failed for {failed} of {}", switch.word(), done.len())))
        }
    }
}

/// Waits until the server has done it. Where that is broken off, it goes on there.
fn wait(client: &Client, request: &SwitchRequest) -> Result<Vec<Switched>> {
    let stop = Stop::new();
    let asked = stop.clone();
    interrupt::cooperate(move || asked.stop())?;
    let mut chance = clock::jitter();
    let id = (u128::from(chance.u64()) << 64) | u128::from(chance.u64());
    let mut now = client.switch_machines(id, request)?;
    while !now.iter().all(Switched::is_done) {
        if !stop.pause(LOOK) {
            let waits = now.iter().filter(|one| !one.is_done()).count();
            let text = format!("{waits} machines have not been switched yet: the server goes on");
            return Err(Failure::new(Exit::Interrupted, text));
        }
        now = client.switched(id)?;
    }
    Ok(now)
}

fn show(context: &Context, switch: Switch, done: &[Switched]) -> Result<()> {
    let mut table = Table::new(&[("NAME", Align::Left), ("CARD", Align::Left), ("POWER", Align::Left)]);
    let mut records = Vec::new();
    for Switched { mac, name, words, failure } in done {
        let said = match (words.as_deref(), failure) {
            (_, Some(failure)) => failure.clone(),
            (Some(""), None) => "done".to_owned(),
            (words, None) => words.unwrap_or("-").to_owned(),
        };
        table.row([name.clone().unwrap_or_else(|| "-".to_owned()), mac.clone(), said]);
        records.push(json!({
            "type": "power", "mac": mac, "name": name, "power": switch, "words": words, "failure": failure,
        }));
    }
    context.output.list(&records, &table)
}
