//! Says how far the work is: lines of JSON on standard output, at least one every few seconds.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use net::api::HostWord;
use net::clock::Stop;
use parking_lot::Mutex;
use serde::Serialize;

use crate::exit::Result;

/// Longest time without a word.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// Says it, and that the host lives.
pub(super) struct Speaker {
    /// Called when nobody listens.
    unheard: Box<dyn Fn() + Send + Sync>,
    doing: Mutex<String>,
    ended: Stop,
}

impl Speaker {
    /// `unheard` is called when nobody listens any more.
    pub(super) fn start(unheard: impl Fn() + Send + Sync + 'static) -> Result<Arc<Self>> {
        let (unheard, doing) = (Box::new(unheard), Mutex::new("begins".to_owned()));
        let speaker = Arc::new(Self { unheard, doing, ended: Stop::new() });
        let own = Arc::clone(&speaker);
        std::thread::Builder::new().name("heartbeat".into()).spawn(move || {
            own.alive();
            while own.ended.pause(HEARTBEAT) {
                own.alive();
            }
        })?;
        Ok(speaker)
    }

    /// What is done now, which has no measure.
    pub(super) fn doing(&self, what: &str) {
        what.clone_into(&mut self.doing.lock());
        self.alive();
    }

    pub(super) fn say(&self, word: &impl Serialize) {
        let mut line = serde_json::to_vec(word).expect("words are plain data");
        line.push(b'\n');
        let mut stdout = std::io::stdout().lock();
        if stdout.write_all(&line).and_then(|()| stdout.flush()).is_err() {
            (self.unheard)();
        }
    }

    /// The last word.
    pub(super) fn end(&self, word: &impl Serialize) {
        self.ended.stop();
        self.say(word);
    }

    fn alive(&self) {
        let doing = self.doing.lock().clone();
        self.say(&HostWord::Alive { doing });
    }
}
