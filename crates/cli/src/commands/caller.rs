//! A machine that asks a server what to do: one that booted from the network, or one that runs an agent.

use std::time::Duration;

use net::api::{JobOutcome, JobProgress, MachineAnswer, MachineCall, MachineFacts, PROVES_NOTHING_MS};
use net::client::{Client, ClientOptions};
use net::clock::Stop;
use net::machine_key::MachineKey;
use net::token::{Fingerprint, JoinToken};
use parking_lot::Mutex;

use crate::exit::{Exit, Failure, Result};

/// How often a machine calls while it works.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How often a call is made that proves nothing, since it was the first one, or the server was restarted.
const ATTEMPTS: u32 = 3;

/// See the module.
pub(super) struct Caller {
    client: Client,
    pub fingerprint: Option<Fingerprint>,
    key: MachineKey,
    facts: MachineFacts,
    /// What the next call signs.
    nonce: Mutex<Option<String>>,
}

impl Caller {
    /// Sends nothing yet. `about` says by which key and facts this machine is known to the client's server.
    pub(super) fn new(
        (server, pin): (&str, Option<&str>),
        options: ClientOptions,
        about: impl FnOnce(&Client) -> Result<(MachineKey, MachineFacts)>,
    ) -> Result<Self> {
        // A call needs no token; what matters is the fingerprint before it.
        let pin = pin.unwrap_or("-");
        let token: JoinToken = format!("diskcast1.{pin}.machine").parse().map_err(|_| {
            Failure::new(Exit::Usage, format!("`{pin}` is not the fingerprint of a certificate"))
                .hint("it stands between the first two dots of each token of the server")
        })?;
        let fingerprint = token.fingerprint;
        let client = Client::connect(server, &token, options)?;
        let (key, facts) = about(&client)?;
        Ok(Self { client, fingerprint, key, facts, nonce: Mutex::default() })
    }

    /// The server's URL.
    pub(super) fn server(&self) -> &str {
        self.client.url()
    }

    /// What it says of this machine.
    pub(super) fn facts(&self) -> &MachineFacts {
        &self.facts
    }

    /// What its key is called.
    pub(super) fn key(&self) -> String {
        self.key.fingerprint()
    }

    /// Asks what to do.
    pub(super) fn ask(&self, outcome: Option<&JobOutcome>) -> Result<MachineAnswer> {
        self.call(None, None, outcome)
    }

    /// Each call signs the nonce of the one before, so one waits for the other. One that proves nothing is repeated at
    /// once: the server has not heard it.
    fn call(
        &self,
        working: Option<u64>,
        progress: Option<JobProgress>,
        outcome: Option<&JobOutcome>,
    ) -> Result<MachineAnswer> {
        let mut nonce = self.nonce.lock();
        let (facts, key, outcome) = (self.facts.clone(), self.key.public(), outcome.cloned());
        let mut call = MachineCall { facts, key, signature: None, working, progress, outcome };
        let mut attempts = 1..ATTEMPTS;
        loop {
            call.signature = nonce.as_ref().map(|nonce| self.key.sign(nonce, &self.facts.mac));
            let answer = self.client.call_of_machine(&call)?;
            *nonce = Some(answer.nonce.clone());
            if answer.again_ms >= PROVES_NOTHING_MS || attempts.next().is_none() {
                return Ok(answer);
            }
        }
    }

    /// Does `work`, and calls the server meanwhile, so that it knows that this machine lives, and how far the work is.
    /// `heard` gets its answers.
    pub(super) fn at_work(
        &self,
        job: u64,
        progress: &(dyn Fn() -> Option<JobProgress> + Sync),
        heard: &(dyn Fn(&MachineAnswer) + Sync),
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let stop = Stop::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while stop.pause(HEARTBEAT) {
                    // A server that is away for a while is no reason to stop.
                    let _ = self.call(Some(job), progress(), None).map(|answer| heard(&answer));
                }
            });
            let done = work();
            stop.stop();
            done
        })
    }
}
