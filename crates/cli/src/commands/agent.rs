//! `diskcast agent`: what a machine runs that booted from the network.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use net::api::{After, DiskFacts, JobOutcome, MachineAnswer, MachineCall, MachineFacts, Order};
use net::client::{Client, ClientOptions};
use net::clock::Stop;
use net::machine_key::MachineKey;
use net::token::{Fingerprint, JoinToken, Secret};
use parking_lot::Mutex;

use super::Context;
use crate::exit::{Exit, Failure, Result};

/// The rule for the disk of a job that names none: there must be just one.
const ONLY_DISK: &str = "disk:size=>=0";
/// How often a machine calls while it installs.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How long the server may be away: it may be restarted.
const PATIENCE: Duration = Duration::from_secs(3600);
/// Longest words of a failure that are sent, in bytes.
const WORDS_BYTES_MAX: usize = 1500;

/// Do what the server says, on a machine that booted from the network
///
/// The system in memory runs this (`diskcast boot-image`). It tells the server what this machine is, waits until an
/// administrator has admitted it and given it a job, installs the image, and starts from the disk.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast agent --interface eth0
  diskcast agent --interface eth0 --server https://10.0.0.1:7717 --pin FINGERPRINT --stay")]
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
        let (mut outcome, mut told) = (None::<JobOutcome>, String::new());
        loop {
            let answer = self.call(None, outcome.as_ref())?;
            let again = Duration::from_millis(answer.again_ms);
            match answer.order {
                Order::Wait { why } => {
                    if why != told {
                        output.note(&format!("waiting: {why}"));
                        told = why;
                    }
                    Stop::new().pause(again);
                }
                Order::Start => return self.start(),
                // The server has not heard yet what became of it: it was restarted, or the call was the first one.
                Order::Install { job, .. } if outcome.as_ref().is_some_and(|outcome| outcome.job == job) => {
                    Stop::new().pause(again);
                }
                Order::Install { job, reference, disk, after, secret } => {
                    output.note(&format!("installing {reference}"));
                    let rule = disk.as_deref().unwrap_or(ONLY_DISK);
                    let name = answer.name.as_deref();
                    let done = self.at_work(job, || self.fetch(&reference, rule, &secret, after, name));
                    let failure = done.err().map(|failure| failure.message);
                    if let Some(why) = &failure {
                        output.warning(why);
                    }
                    outcome = Some(JobOutcome { job, failure });
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

    /// Runs `diskcast fetch`, which shows its progress on this machine's console.
    fn fetch(
        &self,
        reference: &str,
        disk: &str,
        secret: &Secret,
        after: After,
        name: Option<&str>,
    ) -> Result<()> {
        let folder = tempfile::tempdir()?;
        let token = folder.path().join("token");
        let text = JoinToken { fingerprint: self.fingerprint, secret: secret.clone() }.to_string();
        // Whoever reads a token can use it.
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&token)?;
        file.write_all(text.as_bytes())?;
        let mut command = Command::new("diskcast");
        command.args(["--yes", "fetch", self.client.url(), reference, disk, "--token-file"]).arg(&token);
        if after.own {
            command.arg("--new-identity");
            name.map(|name| command.args(["--hostname", name]));
        }
        if after.grow {
            command.arg("--grow");
        }
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let mut words = String::new();
        for line in BufReader::new(child.stderr.take().expect("it is piped")).lines() {
            let line = line?;
            writeln!(std::io::stderr(), "{line}")?;
            if let Some(error) = line.strip_prefix("error: ") {
                words = error.to_owned();
            } else if line.starts_with("hint: ") && !words.is_empty() {
                words = format!("{words}; {line}");
            }
        }
        if child.wait()?.success() {
            return Ok(());
        }
        words.truncate(words.floor_char_boundary(WORDS_BYTES_MAX));
        Err(Failure::new(
            Exit::Failed,
            if words.is_empty() { "the fetch ended without a word" } else { &words },
        ))
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

/// What this machine is, which booted from `interface`.
fn facts(interface: &str) -> Result<MachineFacts> {
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        (!text.is_empty()).then_some(text)
    };
    let dmi = |name: &str| read(Path::new("/sys/class/dmi/id").join(name));
    let mac = read(Path::new("/sys/class/net").join(interface).join("address"));
    let mac =
        mac.ok_or_else(|| Failure::new(Exit::NotFound, format!("there is no interface `{interface}`")))?;
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    let product =
        [dmi("sys_vendor"), dmi("product_name")].into_iter().flatten().collect::<Vec<_>>().join(" ");
    let disk = |disk: disk::find::Candidate| DiskFacts {
        path: disk.name,
        size_bytes: disk.size_bytes,
        serial: Some(disk.serial).filter(|serial| !serial.is_empty()),
        model: Some(disk.model).filter(|model| !model.is_empty()),
    };
    Ok(MachineFacts {
        mac,
        serial: dmi("product_serial"),
        product: (!product.is_empty()).then_some(product),
        memory_bytes: kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024,
        firmware: firmware(),
        disks: disk::find::candidates().into_iter().map(disk).collect(),
    })
}

/// How this machine's firmware started it. The variable is one of UEFI 2.10, section 3.3: four bytes of attributes,
/// then the value.
fn firmware() -> String {
    let efi = Path::new("/sys/firmware/efi");
    let variable = efi.join("efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c");
    match (efi.exists(), std::fs::read(variable).ok().and_then(|bytes| bytes.get(4).copied())) {
        (false, _) => "bios".to_owned(),
        (true, Some(1)) => "uefi, secure boot".to_owned(),
        (true, _) => "uefi".to_owned(),
    }
}

fn describe(facts: &MachineFacts) -> String {
    let disks: Vec<String> = facts
        .disks
        .iter()
        .map(|disk| format!("{} ({})", disk.path, base::units::show_bytes(disk.size_bytes)))
        .collect();
    let disks = if disks.is_empty() { "no disk".to_owned() } else { disks.join(", ") };
    let product = facts.product.as_deref().unwrap_or("a machine without a name");
    format!("{}, {product}, {}, {disks}", facts.mac, facts.firmware)
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
