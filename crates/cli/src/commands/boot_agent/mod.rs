//! `diskcast boot-agent`: what a machine runs that booted from the network.

mod work;

use std::time::Duration;

use net::api::{JobOutcome, Order, Work};
use net::client::ClientOptions;
use net::clock::Stop;
use net::interface;
use net::machine_key::MachineKey;

use self::work::{Far, Job};
use super::Context;
use super::caller::Caller;
use super::facts::{describe, facts};
use super::job_log::Log;
use crate::exit::{Exit, Failure, Result};

/// How long the server may be away: it may be restarted.
const PATIENCE: Duration = Duration::from_secs(3600);
/// How the agent ends when the console is to get a shell; the init knows it.
const SHELL: i32 = 64;

/// Do what the server says, on a machine that booted from the network
///
/// The system in memory runs this (`diskcast boot-image`). It tells the server what this machine is, waits until an
/// administrator has admitted it and given it a job, does that, and starts from the disk.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast boot-agent --interface eth0
  diskcast boot-agent --interface eth0 --server https://10.0.0.1:7717 --pin FINGERPRINT --stay")]
pub(crate) struct Args {
    /// Network interface from which the machine booted
    #[arg(long, value_name = "NAME")]
    pub interface: String,
    /// The server [default: `diskcast.server=` of the kernel's command line]
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// Fingerprint of its certificate [default: `diskcast.pin=` of the kernel's command line]
    #[arg(long, value_name = "FINGERPRINT")]
    pub pin: Option<String>,
    /// End instead of starting from the disk
    #[arg(long)]
    pub stay: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let line = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let given = |own: &Option<String>, name: &str| own.clone().or_else(|| parameter(&line, name));
    let server = given(&args.server, "diskcast.server").ok_or_else(|| {
        Failure::new(Exit::Usage, "the kernel's command line names no server (diskcast.server=)")
    })?;
    let pin = given(&args.pin, "diskcast.pin");
    let agent = Agent::new(context, args, &server, pin.as_deref())?;
    agent.run()
}

/// The value of the last word `name=VALUE` in a kernel's command line.
fn parameter(line: &str, name: &str) -> Option<String> {
    let value = |word: &str| word.strip_prefix(name)?.strip_prefix('=').map(str::to_owned);
    line.split_whitespace().rev().find_map(value)
}

struct Agent<'a> {
    context: &'a Context,
    caller: Caller,
    stay: bool,
}

impl<'a> Agent<'a> {
    fn new(context: &'a Context, args: &Args, server: &str, pin: Option<&str>) -> Result<Self> {
        let output = context.output;
        let options = ClientOptions {
            first_patience: PATIENCE,
            patience: PATIENCE,
            tell: std::sync::Arc::new(move |words: &str| output.note(words)),
            ..ClientOptions::default()
        };
        let interface = interface::choose(&args.interface)?;
        let caller =
            Caller::new((server, pin), options, |_| Ok((MachineKey::draw()?, facts(&interface, false)?)))?;
        Ok(Self { context, caller, stay: args.stay })
    }

    fn run(&self) -> Result<()> {
        let output = self.context.output;
        let facts = describe(self.caller.facts());
        output.note(&format!("this machine is {facts}, with the key {}", self.caller.key()));
        let (mut outcome, mut told, mut is_shell) = (None::<JobOutcome>, String::new(), false);
        loop {
            let answer = self.caller.ask(outcome.as_ref())?;
            let again = Duration::from_millis(answer.again_ms);
            match answer.order {
                // The server has heard of it, since it has no order any more.
                Order::Wait { .. } if is_shell => std::process::exit(SHELL),
                Order::Wait { why } => {
                    if why != told {
                        output.note(&format!("waiting: {why}"));
                        told = why;
                    }
                    Stop::new().pause(again);
                }
                Order::Start => return self.start(),
                // The server has not heard yet what became of it: it was restarted, or the call was the first one.
                Order::Work { job, .. } if outcome.as_ref().is_some_and(|outcome| outcome.job == job) => {
                    Stop::new().pause(again);
                }
                Order::Work { job, work, disk, secret, .. } => {
                    // By this name the server shows its fetch, and a version says where it was captured.
                    if let Some(name) = &answer.name {
                        let _ = rustix::system::sethostname(name.as_bytes());
                    }
                    output.note(&format!("job {job}: {work}"));
                    let (name, server, fingerprint) =
                        (answer.name, self.caller.server(), self.caller.fingerprint);
                    let task = Job { server, fingerprint, disk, secret, name };
                    let (far, mut log) = (Far::default(), Log::default());
                    let how_far = || far.lock().clone();
                    let done =
                        self.caller.at_work(job, &how_far, &|_| {}, || task.run(&work, &far, &mut log));
                    let exit = done.as_ref().err().map(|failure| failure.exit as u8);
                    let failure = done.err().map(|failure| failure.message);
                    if let Some(why) = &failure {
                        output.warning(why);
                    }
                    outcome = Some(JobOutcome { job, failure, exit, log: log.into_text() });
                    is_shell = work == Work::Shell;
                }
            }
        }
    }

    fn start(&self) -> Result<()> {
        self.context.output.note("starting from the disk");
        if self.stay {
            return Ok(());
        }
        rustix::fs::sync();
        let failed = |error: rustix::io::Errno| base::Error::from_io("restart this machine", error);
        Ok(rustix::system::reboot(rustix::system::RebootCommand::Restart).map_err(failed)?)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn words_of_a_command_line() {
        let line = "BOOT_IMAGE=/vmlinuz diskcast.server=https://a:1 quiet diskcast.server=https://b:2\n";
        assert_eq!(super::parameter(line, "diskcast.server").as_deref(), Some("https://b:2"));
        assert_eq!(super::parameter(line, "diskcast.pin"), None);
        assert_eq!(super::parameter(line, "diskcast"), None);
    }
}
