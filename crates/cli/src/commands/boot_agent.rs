//! `diskcast boot-agent`: what a machine runs that booted from the network.

mod facts;
mod work;

use std::time::Duration;

use net::api::{JobOutcome, MachineAnswer, MachineCall, MachineFacts, Order, Work};
use net::client::{Client, ClientOptions};
use net::clock::Stop;
use net::machine_key::MachineKey;
use net::token::{Fingerprint, JoinToken};
use parking_lot::Mutex;

use self::facts::{describe, facts};
use self::work::{Job, Log};
use super::Context;
use crate::exit::{Exit, Failure, Result};

/// How often a machine calls while it installs.
const HEARTBEAT: Duration = Duration::from_secs(5);
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
    client: Client,
    fingerprint: Option<Fingerprint>,
    key: MachineKey,
    facts: MachineFacts,
    /// What the next call signs.
    nonce: Mutex<Option<String>>,
    stay: bool,
}

impl<'a> Agent<'a> {
    fn new(context: &'a Context, args: &Args, server: &str, pin: Option<&str>) -> Result<Self> {
        // A call needs no token; what matters is the fingerprint before it.
        let text = format!("diskcast1.{}.machine", pin.unwrap_or("-"));
        let token: JoinToken = text.parse()?;
        let output = context.output;
        let options = ClientOptions {
            first_patience: PATIENCE,
            patience: PATIENCE,
            tell: std::sync::Arc::new(move |words: &str| output.note(words)),
            ..ClientOptions::default()
        };
        let fingerprint = token.fingerprint;
        let client = Client::connect(server, &token, options)?;
        let facts = facts(&args.interface)?;
        let (key, nonce) = (MachineKey::draw()?, Mutex::default());
        Ok(Self { context, client, fingerprint, key, facts, nonce, stay: args.stay })
    }

    fn run(&self) -> Result<()> {
        let output = self.context.output;
        output.note(&format!("this machine is {}", describe(&self.facts)));
        let (mut outcome, mut told, mut is_shell) = (None::<JobOutcome>, String::new(), false);
        loop {
            let answer = self.call(None, outcome.as_ref())?;
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
                Order::Work { job, work, disk, secret } => {
                    // By this name the server shows its fetch, and a version says where it was captured.
                    if let Some(name) = &answer.name {
                        let _ = rustix::system::sethostname(name.as_bytes());
                    }
                    output.note(&format!("job {job}: {work}"));
                    let name = answer.name;
                    let task =
                        Job { server: self.client.url(), fingerprint: self.fingerprint, disk, secret, name };
                    let mut log = Log::default();
                    let done = self.at_work(job, || task.run(&work, &mut log));
                    let failure = done.err().map(|failure| failure.message);
                    if let Some(why) = &failure {
                        output.warning(why);
                    }
                    outcome = Some(JobOutcome { job, failure, log: log.into_text() });
                    is_shell = work == Work::Shell;
                }
            }
        }
    }

    /// Asks what to do. Each call signs the nonce of the one before, so one waits for the other.
    fn call(&self, working: Option<u64>, outcome: Option<&JobOutcome>) -> Result<MachineAnswer> {
        let mut nonce = self.nonce.lock();
        let signature = nonce.take().map(|nonce| self.key.sign(&nonce, &self.facts.mac));
        let (facts, key, outcome) = (self.facts.clone(), self.key.public(), outcome.cloned());
        let call = MachineCall { facts, key, signature, working, outcome };
        let answer = self.client.call_of_machine(&call)?;
        *nonce = Some(answer.nonce.clone());
        Ok(answer)
    }

    /// Does `work`, and calls the server meanwhile, so that it knows that this machine lives.
    fn at_work(&self, job: u64, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let stop = Stop::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while stop.pause(HEARTBEAT) {
                    // A server that is away for a while is no reason to stop.
                    let _ = self.call(Some(job), None);
                }
            });
            let done = work();
            stop.stop();
            done
        })
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
