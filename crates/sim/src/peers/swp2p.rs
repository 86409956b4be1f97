//! SWP2P (seed 004): unicast, with requests that the switch redirects to receivers that hold the chunks.
//!
//! - Client i of C asks for the chunks in order, beginning with its share: at i/C of the image.
//! - A request is for a batch of consecutive chunks. It goes to the switch, which knows from reports who holds which
//!   chunks. It redirects the request to one of those that hold the whole batch, in turn; to the server if nobody does.
//! - A client reports each batch that it has received, serves others until it has written everything, and then leaves.
//! - Chunks come by TCP from whoever the request was redirected to.
//!
//! Assumed, since the seed does not say it: batches of 4 chunks, counted from the beginning of each share, and two
//! batches asked for ahead. (A client that asks for more than its share ahead asks before its neighbour can hold it.) A
//! request that reaches a client that has left is refused by its kernel, and the requester asks again. Where there are
//! several switches, each one knows its own clients only, and C counts these.

use super::bits::Bits;
use super::{Policy, Setting, Stage};
use crate::fabric::Place;

/// Chunks asked for in a batch, unless chosen otherwise.
pub(super) const BATCH_CHUNKS: u32 = 4;
/// Chunks that a client asks for ahead, unless two batches are more.
const AHEAD_CHUNKS_MIN: u32 = 8;

/// The state of the switches and of all clients.
#[derive(Debug)]
pub struct Swp2p {
    batch_chunks: u32,
    ahead_chunks: u32,
    redirects: bool,
    clients: Vec<Client>,
    /// What each switch knows, by its place.
    switches: Vec<Switch>,
}

#[derive(Debug, Clone, Default)]
struct Client {
    /// Where its order begins.
    first: u32,
    /// Number of clients that share the image.
    shares: u32,
    /// Chunks of its order that it has asked for.
    asked: u32,
    batches: Vec<Batch>,
}

/// Chunks that a client has asked for.
#[derive(Debug, Clone, Copy)]
struct Batch {
    run: Run,
    /// How many have not arrived.
    left: u32,
}

/// What a switch knows of its clients.
#[derive(Debug, Clone, Default)]
struct Switch {
    clients: Vec<(Place, Bits)>,
    /// Whose turn it is.
    turn: usize,
}

/// Consecutive chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    first: u32,
    count: u32,
}

/// A control message.
#[derive(Debug, Clone, Copy)]
pub enum Message {
    /// From a client, to whoever holds the chunks.
    Request(Run),
    /// A request as the switch passes it on.
    Redirected(Run, Place),
    /// The client that the request was redirected to has left.
    Refused(Run),
    /// A client holds these chunks.
    Report(Run),
    /// A client leaves.
    Leave,
}

impl Swp2p {
    /// Clients that have not started. They ask for batches of at most `batch_chunks`; 1 is for no batching.
    #[must_use]
    pub fn new(setting: &Setting, batch_chunks: u32) -> Self {
        let mut switches = vec![Switch::default(); setting.topology.places()];
        let switch = |at| setting.topology.switch_of(at).expect("hosts have a switch").0 as usize;
        for &at in &setting.receivers {
            switches[switch(at)].turn += 1;
        }
        // `turn` counts the clients until here.
        let mut begun = vec![0; switches.len()];
        let client = |&at: &Place| {
            let (index, shares) = (begun[switch(at)], switches[switch(at)].turn as u32);
            begun[switch(at)] += 1;
            Client { first: share_begin(index, setting.chunks, shares), shares, ..Client::default() }
        };
        let clients = setting.receivers.iter().map(client).collect();
        switches.iter_mut().for_each(|switch| switch.turn = 0);
        let batch_chunks = batch_chunks.max(1);
        let ahead_chunks = AHEAD_CHUNKS_MIN.max(2 * batch_chunks);
        Self { batch_chunks, ahead_chunks, redirects: true, clients, switches }
    }

    /// Unicast from the server alone.
    pub(super) fn without_redirection(setting: &Setting, batch_chunks: u32) -> Self {
        Self { redirects: false, ..Self::new(setting, batch_chunks) }
    }

    fn ask(&mut self, stage: &mut Stage<Message>, at: Place) {
        let chunks = stage.setting().chunks;
        let (batch_chunks, ahead_chunks, room) = (self.batch_chunks, self.ahead_chunks, stage.room(at));
        let client = &mut self.clients[stage.number(at).expect("a client")];
        while client.asked < chunks {
            let first = (client.first + client.asked) % chunks;
            // Batches are counted from the beginning of each share, so that all clients cut the image in the same way.
            let (begin, end) = share_around(first, chunks, client.shares);
            let to_cut = batch_chunks - (first - begin) % batch_chunks;
            let count = to_cut.min(end - first);
            let ahead: u32 = client.batches.iter().map(|batch| batch.left).sum();
            if ahead + count > ahead_chunks.min(room) {
                break;
            }
            client.asked += count;
            let run = Run { first, count };
            client.batches.push(Batch { run, left: count });
            request(stage, self.redirects, at, run);
        }
    }

    /// The switch decides who sends a batch.
    fn redirect(&mut self, stage: &mut Stage<Message>, at: Place, from: Place, run: Run) {
        let switch = &mut self.switches[at.0 as usize];
        let count = switch.clients.len();
        let holds = |&index: &usize| {
            let (client, held) = &switch.clients[index];
            *client != from && held.has_all(run.first, run.count)
        };
        let holder = (switch.turn..count).chain(0..switch.turn.min(count)).find(holds);
        let to = holder.map_or(stage.setting().server, |index| {
            switch.turn = index + 1;
            switch.clients[index].0
        });
        stage.tell(at, to, Message::Redirected(run, from));
    }

    fn report(&mut self, stage: &Stage<Message>, at: Place, from: Place, run: Run) {
        let switch = &mut self.switches[at.0 as usize];
        let known = switch.clients.iter().position(|(client, _)| *client == from);
        let index = known.unwrap_or_else(|| {
            switch.clients.push((from, Bits::new(stage.setting().chunks)));
            switch.clients.len() - 1
        });
        (run.first..run.first + run.count).for_each(|chunk| {
            switch.clients[index].1.set(chunk);
        });
    }
}

impl Policy for Swp2p {
    type Message = Message;

    fn started(&mut self, stage: &mut Stage<Message>, at: Place) {
        self.ask(stage, at);
    }

    fn told(&mut self, stage: &mut Stage<Message>, at: Place, from: Place, message: Message) {
        match message {
            Message::Request(run) if at == stage.setting().server => send(stage, at, from, run),
            Message::Request(run) => self.redirect(stage, at, from, run),
            Message::Redirected(run, to) => send(stage, at, to, run),
            Message::Refused(run) => request(stage, self.redirects, at, run),
            Message::Report(run) => self.report(stage, at, from, run),
            Message::Leave => self.switches[at.0 as usize].clients.retain(|(client, _)| *client != from),
        }
    }

    fn arrived(&mut self, stage: &mut Stage<Message>, at: Place, _: Place, chunk: u32, _: bool) {
        let client = &mut self.clients[stage.number(at).expect("a client")];
        let is_of = |batch: &Batch| (batch.run.first..batch.run.first + batch.run.count).contains(&chunk);
        let index = client.batches.iter().position(is_of).expect("it was asked for");
        client.batches[index].left -= 1;
        if client.batches[index].left == 0 {
            let run = client.batches.swap_remove(index).run;
            if self.redirects {
                stage.tell(at, stage.switch(at), Message::Report(run));
            }
        }
        self.ask(stage, at);
    }

    fn freed(&mut self, stage: &mut Stage<Message>, at: Place) {
        self.ask(stage, at);
    }

    fn ended(&mut self, stage: &mut Stage<Message>, at: Place) {
        if self.redirects {
            stage.tell(at, stage.switch(at), Message::Leave);
        }
    }

    fn unheard(&mut self, stage: &mut Stage<Message>, at: Place, _: Place, message: Message) {
        if let Message::Redirected(run, to) = message {
            stage.tell(at, to, Message::Refused(run));
        }
    }
}

fn request(stage: &mut Stage<Message>, redirects: bool, at: Place, run: Run) {
    let to = if redirects { stage.switch(at) } else { stage.setting().server };
    stage.ask(at, to, Message::Request(run));
}

fn send(stage: &mut Stage<Message>, from: Place, to: Place, run: Run) {
    for chunk in run.first..run.first + run.count {
        stage.send(from, to, chunk);
    }
}

/// The first chunk of a share.
fn share_begin(index: u32, chunks: u32, shares: u32) -> u32 {
    (u64::from(chunks) * u64::from(index) / u64::from(shares)) as u32
}

/// Begin and end of the share that a chunk belongs to.
fn share_around(chunk: u32, chunks: u32, shares: u32) -> (u32, u32) {
    let index = ((u64::from(chunk) + 1) * u64::from(shares) - 1) / u64::from(chunks);
    (share_begin(index as u32, chunks, shares), share_begin(index as u32 + 1, chunks, shares))
}
