//! `diskcast hosts`: the machines that boot from the network.

mod jobs;
mod names;
mod plan;
mod power;
mod table;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use net::api::{MachineChange, MachineStatus, NewMachine, Work};
use net::client::Client;
use serde_json::json;

pub(crate) use self::jobs::{Terms, give};
use self::names::{chosen, names};
use super::Context;
use crate::args::parse::parse_window;
use crate::args::{ServerAccess, StateFolder};
use crate::connect;
use crate::exit::{Exit, Failure, Result};
use crate::inventory;

/// Show and change the machines that boot from the network, or run an agent
///
/// A machine appears when it first boots our system, or its agent first calls, and waits until somebody admits it. SEEN
/// says when, and in which step of its boot: `firmware` (it asks where to boot from), `loader`, `agent` (our system in
/// memory, or the agent of its own), `system` (another system on its disk). Only an agent proves who it is, by its key:
/// anybody on the network can forge the rest, also the address of the card. A machine shows the fingerprint of its key
/// on its console. KEY shows with which key a machine calls, and FROM from which address, and since when. `?` marks a
/// key that nobody has confirmed.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "\
Examples:
  diskcast hosts
  diskcast hosts 'n[01-16]' --stage failed,lost
  diskcast hosts admit 3f2a-91c0-77de-03b5-aa10
  diskcast hosts add 52:54:00:12:34:56 --name lab-07 --group lab --key 3f2a-91c0-77de-03b5-aa10
  diskcast hosts import machines.csv
  diskcast hosts open 30m
  diskcast hosts capture lab-07 classroom
  diskcast hosts wipe lab-07 --disk disk:serial=S1
  diskcast hosts power status 'n[01-16]'",
    args_conflicts_with_subcommands = true,
    subcommand_value_name = "WHAT",
    subcommand_help_heading = "Changes"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub change: Option<Change>,
    /// Show only these: names with ranges such as `n[01-16]`, addresses of network cards, groups, `@FILE` with lines
    /// of these, or `*` for all that were admitted
    #[arg(value_name = "MACHINES", value_delimiter = ',')]
    pub machines: Vec<String>,
    /// Show only machines whose job has this stage
    #[arg(long, value_name = "STAGE", value_delimiter = ',',
        value_parser = ["queued", "taken", "done", "back", "failed", "lost"])]
    pub stage: Vec<String>,
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

/// Machines that are meant.
#[derive(Debug, clap::Args)]
pub(crate) struct Named {
    /// Names with ranges such as `n[01-16]`, addresses of network cards, groups, `@FILE` with lines of these, or `*`
    /// for all that were admitted
    #[arg(required = true, value_delimiter = ',')]
    pub machines: Vec<String>,
    #[command(flatten)]
    pub at: At,
}

/// Machines that get a job.
#[derive(Debug, clap::Args)]
pub(crate) struct Given {
    /// Names with ranges such as `n[01-16]`, addresses of network cards, groups, `@FILE` with lines of these, or `*`
    /// for all that were admitted
    #[arg(required = true, value_delimiter = ',')]
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
    /// Add a machine before it boots, or change its name, groups and address
    Add {
        /// Address of its network card
        mac: String,
        /// Its name, which becomes its host name
        #[arg(long)]
        name: Option<String>,
        /// A group that it belongs to; may be repeated
        #[arg(long = "group", value_name = "GROUP")]
        groups: Vec<String>,
        /// The address that the server's DHCP always gives to it, and to no other machine; `none` for any address
        /// (`netboot --dhcp RANGE`)
        #[arg(long, value_parser = parse_address)]
        address: Option<Ipv4Addr>,
        /// Fingerprint of its key, as its console shows it: a machine with another key is not this machine
        #[arg(long, value_name = "FINGERPRINT")]
        key: Option<String>,
        #[command(flatten)]
        at: At,
    },
    /// Add all machines of a file: lines of `CARD,NAME,GROUP,...`, where an IPv4 address among the groups is the one
    /// that DHCP always gives to the machine
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
    /// Switch machines on or off by the server's power program, or ask whether they are on
    Power {
        /// `on`; `off`, without asking their systems; `cycle`: off, and on again; or `status`
        what: power::What,
        #[command(flatten)]
        named: Named,
    },
    /// Take back jobs that no machine works on
    Cancel(Named),
    /// Show what a machine's console showed during its last job
    Log {
        machine: String,
        #[command(flatten)]
        at: At,
    },
    /// Forget machines
    Remove {
        /// Names with ranges such as `n[01-16]`, addresses of network cards, groups, `@FILE` with lines of these, or
        /// `*` for all that were admitted
        #[arg(required_unless_present = "strangers", value_delimiter = ',')]
        machines: Vec<String>,
        /// Forget all that nobody admitted
        #[arg(long, conflicts_with = "machines")]
        strangers: bool,
        #[command(flatten)]
        at: At,
    },
    /// Admit every machine that calls from now on, with any key, for a time; `0s` ends that. A machine is not admitted
    /// while another one calls with the same card
    Open {
        #[arg(value_name = "TIME", value_parser = parse_window)]
        time: Duration,
        #[command(flatten)]
        at: At,
    },
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let Some(change) = &args.change else {
        let mut all = manager(context, &args.at)?.machines()?;
        all.machines = chosen(all.machines, &args.machines)?;
        let is_so = |machine: &MachineStatus| {
            machine.job.as_ref().is_some_and(|job| args.stage.iter().any(|stage| stage == job.stage.name()))
        };
        all.machines.retain(|machine| args.stage.is_empty() || is_so(machine));
        return table::show(context, &all, !args.machines.is_empty() || !args.stage.is_empty());
    };
    let give = |at: &At, work: Work, machines: &[String], terms: &Terms| {
        let machines = inventory::names(machines)?;
        jobs::give(context, &manager(context, at)?, work, &machines, terms, Duration::ZERO).map(drop)
    };
    let (at, change) = match change {
        Change::Capture { machine, image, terms, at } => {
            let work = Work::Capture { image: image.clone() };
            return give(at, work, std::slice::from_ref(machine), terms);
        }
        Change::Wipe(Given { machines, terms, at }) => return give(at, Work::Wipe, machines, terms),
        Change::Shell(Given { machines, terms, at }) => return give(at, Work::Shell, machines, terms),
        Change::Log { machine, at } => return log(context, &manager(context, at)?, machine),
        Change::Power { what, named: Named { machines, at } } => {
            return power::run(context, &manager(context, at)?, *what, machines);
        }
        Change::Cancel(Named { machines, at }) => {
            (at, MachineChange::Cancel { machines: inventory::names(machines)? })
        }
        Change::Admit(Named { machines, at }) => {
            (at, MachineChange::Admit { machines: inventory::names(machines)? })
        }
        Change::Add { mac, name, groups, address, key, at } => {
            let groups = (!groups.is_empty()).then(|| groups.clone());
            let (mac, name, key) = (mac.clone(), name.clone(), key.clone());
            let machine = NewMachine { mac, name, groups, address: *address, key };
            (at, MachineChange::Add { machines: vec![machine] })
        }
        Change::Import { file, at } => {
            let text = std::fs::read_to_string(file)
                .map_err(|error| base::Error::from_io(format!("read `{}`", file.display()), error))?;
            (at, MachineChange::Add { machines: parse(&text)? })
        }
        Change::Remove { strangers: true, at, .. } => (at, MachineChange::RemoveStrangers),
        Change::Remove { machines, at, .. } => {
            (at, MachineChange::Remove { machines: inventory::names(machines)? })
        }
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

/// An address that is fixed, or `none`, for which 0.0.0.0 stands.
fn parse_address(text: &str) -> std::result::Result<Ipv4Addr, String> {
    let found = if text == "none" { Ok(Ipv4Addr::UNSPECIFIED) } else { text.parse() };
    found.map_err(|_| "expected an address such as 10.0.0.7, or `none`".to_owned())
}

/// The machines of a file of lines `CARD,NAME,GROUP,...`. No group is called like an address, so one may stand there.
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
        let (mut address, mut groups) = (None, Vec::new());
        for field in fields.filter(|field| !field.is_empty()) {
            match field.parse::<Ipv4Addr>() {
                Ok(_) if address.is_some() => {
                    let text = format!("`{line}` has two addresses for one machine");
                    return Err(Failure::new(Exit::Usage, text));
                }
                Ok(found) => address = Some(found),
                Err(_) => groups.push(field.to_owned()),
            }
        }
        let groups = (!groups.is_empty()).then_some(groups);
        Ok(NewMachine { mac: mac.to_owned(), name, groups, address, key: None })
    };
    lines.map(machine).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_machines() {
        let text = "# room 7\n52:54:00:00:00:01,lab-1,lab, first \n\n52:54:00:00:00:02\n\
                    52:54:00:00:00:03,lab-3,10.0.0.7,lab\n";
        let machine =
            |number: u8| NewMachine { mac: format!("52:54:00:00:00:0{number}"), ..NewMachine::default() };
        let (name, groups) = (Some("lab-1".into()), Some(vec!["lab".into(), "first".into()]));
        let first = NewMachine { name, groups, ..machine(1) };
        let (name, groups) = (Some("lab-3".into()), Some(vec!["lab".into()]));
        let third = NewMachine { name, groups, address: Some(Ipv4Addr::new(10, 0, 0, 7)), ..machine(3) };
        assert_eq!(parse(text).ok(), Some(vec![first, machine(2), third]));
        for wrong in ["lab-1,52:54:00:00:00:01\n", "52:54:00:00:00:01,a,10.0.0.7,10.0.0.8\n"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!((parse_address("none"), parse_address("x").is_ok()), (Ok(Ipv4Addr::UNSPECIFIED), false));
    }
}
