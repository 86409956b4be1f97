//! `diskcast hosts`: the machines that boot from the network.

mod jobs;
mod names;
mod plan;
mod table;

use std::path::PathBuf;
use std::time::Duration;

use net::api::{MachineChange, MachineStatus, NewMachine, Work};
use net::client::Client;
use serde_json::json;

pub(crate) use self::jobs::{Terms, give};
use self::names::names;
use super::Context;
use crate::args::parse::parse_window;
use crate::args::{ServerAccess, StateFolder};
use crate::connect;
use crate::exit::{Exit, Failure, Result};

/// Show and change the machines that boot from the network, or run an agent
///
/// A machine appears when it first boots our system, or its agent first calls, and waits until somebody admits it. SEEN
/// says when, and in which step of its boot: `firmware` (it asks where to boot from), `loader`, `agent` (our system in
/// memory, or the agent of its own), `system` (another system on its disk). Only an agent shows who it is, by its key:
/// anybody on the network can pretend the rest, and the address of the card. A machine shows the fingerprint of its key
/// on its console; KEY and FROM say with which one somebody calls, and from where since when. `?` marks a key that
/// nobody has confirmed.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "\
Examples:
  diskcast hosts
  diskcast hosts admit 3f2a-91c0-77de-03b5-aa10
  diskcast hosts add 52:54:00:12:34:56 --name lab-07 --group lab --key 3f2a-91c0-77de-03b5-aa10
  diskcast hosts import machines.csv
  diskcast hosts open 30m
  diskcast hosts capture lab-07 classroom
  diskcast hosts wipe lab-07 --disk disk:serial=S1",
    args_conflicts_with_subcommands = true,
    subcommand_value_name = "WHAT",
    subcommand_help_heading = "Changes"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub change: Option<Change>,
    #[command(flatten)]
    pub at: At,
}

/// Where the table is.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct At {
    /// The server: `host`, `host:port` or a URL [default: localhost]
    #[arg(long, value_name = "SERVER")]
    pub server: Option<String>,
    #[command(flatten)]
    pub access: ServerAccess,
    #[command(flatten)]
    pub state: StateFolder,
}

/// Machines by name, address of the network card or group, or `*` for all that were admitted.
#[derive(Debug, clap::Args)]
pub(crate) struct Named {
    #[arg(required = true)]
    pub machines: Vec<String>,
    #[command(flatten)]
    pub at: At,
}

/// Machines that get a job.
#[derive(Debug, clap::Args)]
pub(crate) struct Given {
    #[arg(required = true)]
    pub machines: Vec<String>,
    #[command(flatten)]
    pub terms: Terms,
    #[command(flatten)]
    pub at: At,
}

/// A change of the table.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Change {
    /// Admit machines that have called: by the fingerprint of a key, which also confirms the key; by address of the
    /// network card, whatever key calls with it; or `*` for all that wait
    Admit(Named),
    /// Add a machine before it boots, or change its name and groups
    Add {
        /// Address of its network card
        mac: String,
        /// Its name, which becomes its host name
        #[arg(long)]
        name: Option<String>,
        /// A group that it belongs to; may be repeated
        #[arg(long = "group", value_name = "GROUP")]
        groups: Vec<String>,
        /// Fingerprint of its key, as it shows it on its console: nobody with another one is this machine
        #[arg(long, value_name = "FINGERPRINT")]
        key: Option<String>,
        #[command(flatten)]
        at: At,
    },
    /// Add all machines of a file: lines of `ADDRESS,NAME,GROUP,...`
    Import {
        file: PathBuf,
        #[command(flatten)]
        at: At,
    },
    /// Store the disk of a machine as a new version of an image
    Capture {
        /// Its name, or the address of its network card
        machine: String,
        /// The image; it need not exist yet
        image: String,
        #[command(flatten)]
        terms: Terms,
        #[command(flatten)]
        at: At,
    },
    /// Erase the disks of machines: everything on them is lost
    Wipe(Given),
    /// Keep machines in our system, with a shell on their consoles
    Shell(Given),
    /// Take jobs back that no machine works on
    Cancel(Named),
    /// Show what the console of a machine showed of its last job
    Log {
        machine: String,
        #[command(flatten)]
        at: At,
    },
    /// Forget machines: by name, address or group, or `*` for all that were admitted
    Remove {
        #[arg(required_unless_present = "strangers")]
        machines: Vec<String>,
        /// Forget all that nobody admitted
        #[arg(long, conflicts_with = "machines")]
        strangers: bool,
        #[command(flatten)]
        at: At,
    },
    /// Admit every machine that calls from now on, whatever key it has, for a time; `0s` ends that. Not where two call
    /// with one card
    Open {
        #[arg(value_name = "TIME", value_parser = parse_window)]
        time: Duration,
        #[command(flatten)]
        at: At,
    },
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let Some(change) = &args.change else {
        let machines = manager(context, &args.at)?.machines()?;
        return table::show(context, &machines);
    };
    let give = |at: &At, work: Work, machines: &[String], terms: &Terms| {
        jobs::give(context, &manager(context, at)?, work, machines, terms, Duration::ZERO).map(drop)
    };
    let (at, change) = match change {
        Change::Capture { machine, image, terms, at } => {
            let work = Work::Capture { image: image.clone() };
            return give(at, work, std::slice::from_ref(machine), terms);
        }
        Change::Wipe(Given { machines, terms, at }) => return give(at, Work::Wipe, machines, terms),
        Change::Shell(Given { machines, terms, at }) => return give(at, Work::Shell, machines, terms),
        Change::Log { machine, at } => return log(context, &manager(context, at)?, machine),
        Change::Cancel(Named { machines, at }) => (at, MachineChange::Cancel { machines: machines.clone() }),
        Change::Admit(Named { machines, at }) => (at, MachineChange::Admit { machines: machines.clone() }),
        Change::Add { mac, name, groups, key, at } => {
            let groups = (!groups.is_empty()).then(|| groups.clone());
            let machine = NewMachine { mac: mac.clone(), name: name.clone(), groups, key: key.clone() };
            (at, MachineChange::Add { machines: vec![machine] })
        }
        Change::Import { file, at } => {
            let text = std::fs::read_to_string(file)
                .map_err(|error| base::Error::from_io(format!("read `{}`", file.display()), error))?;
            (at, MachineChange::Add { machines: parse(&text)? })
        }
        Change::Remove { strangers: true, at, .. } => (at, MachineChange::RemoveStrangers),
        Change::Remove { machines, at, .. } => (at, MachineChange::Remove { machines: machines.clone() }),
        Change::Open { time, at } => (at, MachineChange::Open { seconds: time.as_secs() }),
    };
    make(context, &manager(context, at)?, &change)
}

/// Makes a change of the table, or shows it.
fn make(context: &Context, client: &Client, change: &MachineChange) -> Result<()> {
    let dry_run = context.global.dry_run;
    let changed = if dry_run { client.plan_change(change)? } else { client.change_machines(change)? };
    let record = json!({ "type": "hosts_changed", "machines": changed, "dry_run": dry_run });
    context.output.result(&record, || {
        let names = names(&changed);
        let what = match change {
            MachineChange::Open { seconds: 0 } => "machines are admitted one by one again".to_owned(),
            MachineChange::Open { seconds } => {
                format!("every machine that calls in the next {seconds} s is admitted")
            }
            MachineChange::Remove { .. } | MachineChange::RemoveStrangers => format!("removed {names}"),
            MachineChange::Cancel { .. } => format!("no job any more: {names}"),
            MachineChange::Admit { .. } => return table::admitted(&changed, context.would()),
            MachineChange::Add { .. } => format!("added {names}"),
        };
        format!("{}{what}\n", context.would())
    })
}

/// A client of the server that `at` says.
pub(crate) fn manager(context: &Context, at: &At) -> Result<Client> {
    connect::manager(context, at.server.as_deref(), &at.access, &at.state)
}

fn log(context: &Context, client: &Client, machine: &str) -> Result<()> {
    let machines = client.machines()?.machines;
    let is_meant = |status: &&MachineStatus| status.mac == machine || status.name.as_deref() == Some(machine);
    let mac = machines.iter().find(is_meant).map_or(machine, |status| &status.mac);
    let log = client.machine_log(mac)?;
    let record = json!({ "type": "host_log", "machine": mac, "job": log.job, "text": log.text });
    context.output.result(&record, || log.text.clone())
}

/// The machines of a file of lines `ADDRESS,NAME,GROUP,...`.
fn parse(text: &str) -> Result<Vec<NewMachine>> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let machine = |line: &str| {
        let mut fields = line.split(',').map(str::trim);
        let mac = fields.next().unwrap_or_default();
        if mac.parse::<net::mac::Mac>().is_err() {
            let text = format!("`{line}` does not begin with the address of a network card");
            return Err(Failure::new(Exit::Usage, text));
        }
        let name = fields.next().filter(|name| !name.is_empty()).map(str::to_owned);
        let groups: Vec<String> = fields.filter(|group| !group.is_empty()).map(str::to_owned).collect();
        let groups = (!groups.is_empty()).then_some(groups);
        Ok(NewMachine { mac: mac.to_owned(), name, groups, key: None })
    };
    lines.map(machine).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_machines() {
        let found = parse("# room 7\n52:54:00:00:00:01,lab-1,lab, first \n\n52:54:00:00:00:02\n").ok();
        let expected = [
            NewMachine {
                mac: "52:54:00:00:00:01".into(),
                name: Some("lab-1".into()),
                groups: Some(vec!["lab".into(), "first".into()]),
                key: None,
            },
            NewMachine { mac: "52:54:00:00:00:02".into(), name: None, groups: None, key: None },
        ];
        assert_eq!(found.as_deref(), Some(&expected[..]));
        assert!(parse("lab-1,52:54:00:00:00:01\n").is_err());
    }
}
