//! Drives `proto::cluster::Writer`: opens segments, sends parts of runs to devices, inserts entries, seals.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::Instant;
use bytes::{Bytes, BytesMut};
use futures::future::{BoxFuture, FutureExt as _, Shared};
use parking_lot::Mutex;
use proto::cluster::{
    COMPONENT_BYTES, Command, DeviceId, Entry, ItemId, ObjectId, Piece, Run, RunId, SegmentRight, Width,
    Writer, WriterSetting,
};
use reqwest::Method;
use tokio::sync::{mpsc, oneshot};

use super::form::{Formed, NewPiece, form};
use super::hold::{Hold, Released, Stored};
use super::index::wants_renewal;
use super::session::Session;
use crate::buffers::Buffers;
use crate::clock::monotonic;
use crate::http::{Failure, Reply, send};
use crate::problem::Word;
use crate::wire::{LayoutAttribute, SealRequest, SegmentAnswer, SegmentRequest};

/// A run takes no further piece once it has this many bytes.
const RUN_BYTES: u64 = 4 << 20;
/// Pieces from this length on go to one of so many writers of their own.
const LONG_BYTES: usize = 1 << 20;
const LONG_WRITERS: usize = 3;
/// A segment that got nothing for so long is sealed.
const IDLE: Duration = Duration::from_secs(2);
/// How long pieces wait for a segment to be opened.
const PATIENCE: Duration = Duration::from_secs(60);
/// Failures that waiting does not help against, such as a full disk, before pieces are given up.
const HOPELESS_AFTER: u32 = 12;
/// Wait between tries to open a segment.
const PAUSE: Duration = Duration::from_millis(200);
/// Longest wait for the answer to an append, beside what its bytes take at `SLOWEST`.
const APPEND_MAX: Duration = Duration::from_secs(4);
/// Bytes per second below which a device counts as failed.
const SLOWEST: u64 = 4 << 20;
/// Memory of runs that is kept for later ones.
const SPARE_BYTES_MAX: usize = 64 << 20;
/// Pieces that wait to be taken by the writer.
const QUEUE: usize = 64;

/// What became of a piece.
type Placed = Result<Stored, Arc<Failure>>;

/// Hands pieces to the writers' tasks. Long pieces have writers of their own, several, so that one sends while another
/// waits for disks; short ones share one, so that as many as possible are stored at once.
#[derive(Debug)]
pub(super) struct Writes {
    short: mpsc::Sender<Input>,
    long: Vec<mpsc::Sender<Input>>,
    turn: AtomicUsize,
}

/// What the writer's task is told.
#[derive(Debug)]
enum Input {
    Store { piece: NewPiece, placed: oneshot::Sender<Placed> },
    Opened(Box<Reply<SegmentAnswer>>),
    Appended { segment: u64, component: u8, done: Reply<()> },
    Inserted(RunId),
    Finish(oneshot::Sender<()>),
}

/// A segment that is appended to, or whose entries are not all inserted.
struct Open {
    grant: Arc<Grant>,
    hold: Hold,
    released: Released,
    /// Bytes of contents in its complete runs.
    content: u64,
}

/// The devices of a segment, and what opens them.
#[derive(Debug)]
struct Grant {
    segment: u64,
    client: u64,
    capabilities: Vec<String>,
    devices: Vec<DeviceId>,
    layout: Bytes,
}

struct Waiting {
    piece: NewPiece,
    placed: oneshot::Sender<Placed>,
}

type FormedRun = Shared<BoxFuture<'static, Arc<Formed>>>;

struct Task {
    session: Arc<Session>,
    buffers: Buffers,
    writer: Writer,
    own: mpsc::WeakSender<Input>,
    pieces: HashMap<ItemId, Waiting>,
    next_item: u64,
    runs: HashMap<RunId, (u64, Vec<ItemId>, FormedRun)>,
    segments: HashMap<u64, Open>,
    /// When pieces began to wait: since the last run that all components took.
    waits_since: Option<Instant>,
    /// Failures of components and segments since then.
    failures: u32,
    /// Seals under way, for the end.
    seals: Arc<Mutex<tokio::task::JoinSet<()>>>,
    finishing: Option<oneshot::Sender<()>>,
}

impl Writes {
    pub(super) fn start(session: &Arc<Session>) -> Self {
        let buffers = Buffers::new(SPARE_BYTES_MAX);
        let writer = || Self::writer(Arc::clone(session), buffers.clone());
        Self {
            short: writer(),
            long: (0..LONG_WRITERS).map(|_| writer()).collect(),
            turn: AtomicUsize::new(0),
        }
    }

    fn writer(session: Arc<Session>, buffers: Buffers) -> mpsc::Sender<Input> {
        let (inputs, taken) = mpsc::channel(QUEUE);
        let setting = WriterSetting {
            run_bytes: RUN_BYTES,
            short_runs_max: 1,
            runs_max: 8,
            component_bytes: COMPONENT_BYTES,
        };
        let task = Task {
            session,
            buffers,
            writer: Writer::new(setting),
            own: inputs.downgrade(),
            pieces: HashMap::new(),
            next_item: 0,
            runs: HashMap::new(),
            segments: HashMap::new(),
            waits_since: None,
            failures: 0,
            seals: Arc::default(),
            finishing: None,
        };
        tokio::spawn(task.run(taken));
        inputs
    }

    /// Stores a piece durably. If it is to be indexed, the index has it, too, when this returns.
    pub(super) async fn store(&self, piece: NewPiece) -> Placed {
        let (placed, answer) = oneshot::channel();
        let ended = || Arc::new(Failure::Unreachable("the client of the cluster has ended".to_owned()));
        let writer = match piece.content.len() < LONG_BYTES {
            true => &self.short,
            false => &self.long[self.turn.fetch_add(1, Ordering::Relaxed) % LONG_WRITERS],
        };
        writer.send(Input::Store { piece, placed }).await.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }

    /// Seals what is open.
    pub(super) async fn finish(&self) {
        let ends = self.long.iter().chain([&self.short]).map(|writer| async move {
            let (done, finished) = oneshot::channel();
            if writer.send(Input::Finish(done)).await.is_ok() {
                let _ = finished.await;
            }
        });
        futures::future::join_all(ends).await;
    }
}

impl Task {
    async fn run(mut self, mut inputs: mpsc::Receiver<Input>) {
        loop {
            let input = tokio::select! {
                input = inputs.recv() => input,
                () = tokio::time::sleep(IDLE) => {
                    if self.writer.is_idle() {
                        self.writer.close_current();
                        self.obey();
                    }
                    continue;
                }
            };
            let Some(input) = input else { return };
            self.take(input);
            self.obey();
            if self.writer.is_idle()
                && let Some(done) = self.finishing.take()
            {
                self.writer.close_current();
                self.obey();
                let seals = std::mem::take(&mut *self.seals.lock());
                tokio::spawn(async move {
                    seals.join_all().await;
                    done.send(())
                });
            }
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Store { piece, placed } => {
                let item = ItemId(self.next_item);
                self.next_item += 1;
                let (bytes, name_bytes) = (piece.content.len() as u64, piece.name.len());
                self.pieces.insert(item, Waiting { piece, placed });
                self.writer.submit(item, bytes, name_bytes);
            }
            Input::Opened(answer) => self.opened(*answer),
            Input::Appended { segment, component, done: Ok(()) } => {
                self.writer.appended(segment, component);
            }
            Input::Appended { segment, component, done: Err(failure) } => {
                self.failed(failure);
                self.writer.append_failed(segment, component);
            }
            Input::Inserted(run) => {
                (self.waits_since, self.failures) = (None, 0);
                self.writer.inserted(run);
                self.runs.remove(&run);
            }
            Input::Finish(done) => self.finishing = Some(done),
        }
    }

    fn opened(&mut self, answer: Reply<SegmentAnswer>) {
        let right = answer.and_then(|answer| {
            let width = Width::new(answer.k, answer.m);
            let parts = width.map_or(0, |width| usize::from(width.components()));
            if answer.devices.len() != parts || answer.capabilities.len() != parts {
                return Err(Failure::Unreachable("the metadata service granted no whole segment".to_owned()));
            }
            Ok((width.expect("it has parts"), answer))
        });
        match right {
            Ok((width, answer)) => {
                let SegmentAnswer { segment, k, m, devices, .. } = answer.clone();
                let layout = LayoutAttribute { component: None, devices, k, m, segment };
                let grant = Grant {
                    segment: answer.segment,
                    client: answer.client,
                    capabilities: answer.capabilities,
                    devices: answer.devices.clone(),
                    layout: Bytes::from(layout.text()),
                };
                self.session.rights.opened(answer.segment, answer.index);
                let (hold, released) = Hold::new(answer.client);
                let open = Open { grant: Arc::new(grant), hold, released, content: 0 };
                self.segments.insert(answer.segment, open);
                self.writer.opened(SegmentRight { segment: answer.segment, width, devices: answer.devices });
            }
            Err(failure) => {
                self.writer.open_failed();
                self.failed(failure);
                self.writer.retry();
            }
        }
    }

    /// A segment could not be opened, or a component failed. Gives up what waits, if that was the case for too long or
    /// if waiting does not help.
    fn failed(&mut self, failure: Failure) {
        self.failures += 1;
        let since = *self.waits_since.get_or_insert_with(monotonic);
        let passes = matches!(
            failure.word(),
            None | Some(Word::Devices | Word::Epoch | Word::NoLease | Word::Fenced | Word::Failed)
        );
        let hopeless = !passes && self.failures > HOPELESS_AFTER;
        if hopeless || monotonic().since(since) > PATIENCE {
            let failure = Arc::new(failure);
            for item in self.writer.give_up() {
                if let Some(waiting) = self.pieces.remove(&item) {
                    let _ = waiting.placed.send(Err(Arc::clone(&failure)));
                }
            }
            (self.waits_since, self.failures) = (None, 0);
        }
    }

    /// Does what the machine wants.
    fn obey(&mut self) {
        while let Some(command) = self.writer.poll_command() {
            match command {
                Command::Open { avoid } => self.open(avoid),
                Command::Form { run, segment, place, width, items } => {
                    self.form(run, segment, place, width, items)
                }
                Command::Append { segment, component, at, runs, .. } => {
                    self.append(segment, component, at, &runs)
                }
                Command::Insert { run } => self.insert(run),
                Command::Forget { run } => {
                    self.runs.remove(&run);
                }
                Command::Seal { segment, length } => self.seal(segment, length),
            }
        }
    }

    fn open(&self, avoid: Vec<DeviceId>) {
        let (session, own) = (Arc::clone(&self.session), self.own.clone());
        avoid.iter().for_each(|&device| session.suspect(device));
        // Also those that failed in earlier segments: the map may still count them.
        let avoid = session.suspects();
        let again = self.failures > 1;
        session.begin_change();
        tokio::spawn(async move {
            if again {
                tokio::time::sleep(PAUSE).await;
            }
            let request = SegmentRequest { client: session.client(), group: session.group(), avoid };
            let answer = session.ask("segments", &request).await;
            if let Some(own) = own.upgrade() {
                let _ = own.send(Input::Opened(Box::new(answer))).await;
            }
        });
    }

    fn form(&mut self, run: RunId, segment: u64, place: Run, width: Width, items: Vec<ItemId>) {
        let pieces: Vec<NewPiece> = items.iter().map(|item| self.pieces[item].piece.clone()).collect();
        let buffers = self.buffers.clone();
        let formed = async move {
            let formed =
                tokio::task::spawn_blocking(move || form(&buffers, segment, place, width, &pieces)).await;
            Arc::new(formed.expect("forming a run does not fail"))
        };
        let formed = formed.boxed().shared();
        // It begins now, whoever waits for it first.
        tokio::spawn(formed.clone());
        self.runs.insert(run, (segment, items, formed));
    }

    fn append(&self, segment: u64, component: u8, at: u64, runs: &[RunId]) {
        let Some(grant) = self.segments.get(&segment).map(|open| Arc::clone(&open.grant)) else { return };
        let (session, own) = (Arc::clone(&self.session), self.own.clone());
        let runs: Vec<_> =
            runs.iter().filter_map(|run| self.runs.get(run)).map(|(_, _, run)| run.clone()).collect();
        tokio::spawn(async move {
            let done = append(&session, &grant, component, at, runs).await;
            if done.is_err() {
                session.suspect(grant.devices[usize::from(component)]);
            }
            if let Some(own) = own.upgrade() {
                let _ = own.send(Input::Appended { segment, component, done }).await;
            }
        });
    }

    fn insert(&mut self, run: RunId) {
        let Some((segment, items, formed)) = self.runs.get(&run) else { return };
        let (session, own, formed) = (Arc::clone(&self.session), self.own.clone(), formed.clone());
        let waiting: Vec<_> = items.iter().filter_map(|item| self.pieces.remove(item)).collect();
        let open = self.segments.get_mut(segment).expect("it is sealed after its entries were inserted");
        open.content += waiting.iter().map(|waiting| waiting.piece.content.len() as u64).sum::<u64>();
        let hold = open.hold.clone();
        tokio::spawn(async move {
            let formed = formed.await;
            let of_piece = |(waiting, piece): (&Waiting, &Piece)| {
                let new = &waiting.piece;
                new.indexed.then(|| {
                    let (stamp, bytes) = (new.stamp, Some(new.whole));
                    let entry = Entry { stamp, moves: 0, bytes, pieces: vec![*piece] };
                    (new.name.clone(), entry.encode())
                })
            };
            let entries: Vec<_> = waiting.iter().zip(&formed.pieces).filter_map(of_piece).collect();
            let inserted = session.insert(&entries, Some(hold.client())).await.map_err(Arc::new);
            if inserted.is_err() {
                hold.doubt();
            }
            for (waiting, piece) in waiting.into_iter().zip(&formed.pieces) {
                let stored = || Stored { piece: *piece, hold: hold.clone() };
                let _ = waiting.placed.send(inserted.clone().map(|()| stored()));
            }
            drop(hold);
            if let Some(own) = own.upgrade() {
                let _ = own.send(Input::Inserted(run)).await;
            }
        });
    }

    fn seal(&mut self, segment: u64, length: u64) {
        let Some(Open { grant, hold, released, content }) = self.segments.remove(&segment) else { return };
        drop(hold);
        let session = Arc::clone(&self.session);
        let mut seals = self.seals.lock();
        while seals.try_join_next().is_some() {}
        // What does not work here, the metadata service does when the client's lease has ended.
        seals.spawn(async move {
            let _ = seal(&session, &grant, (length, content), released).await;
            session.rights.closed(grant.segment);
        });
    }
}

/// Sends the parts of runs to a component. Sent once more if the answer is lost: a device knows a repetition.
async fn append(session: &Session, grant: &Grant, component: u8, at: u64, runs: Vec<FormedRun>) -> Reply<()> {
    let number = usize::from(component);
    let mut parts = Vec::with_capacity(runs.len());
    for run in runs {
        parts.push(run.await.parts[number].clone());
    }
    let body = joined(parts);
    if at == 0 {
        create(session, grant, number).await?;
    }
    let wait = APPEND_MAX + Duration::from_secs(body.len() as u64 / SLOWEST);
    let path = format!("/append?at={at}");
    command(session, grant, number, &path, body, wait).await
}

fn joined(mut parts: Vec<Bytes>) -> Bytes {
    if parts.len() == 1 {
        return parts.remove(0);
    }
    let mut whole = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
    parts.iter().for_each(|part| whole.extend_from_slice(part));
    whole.freeze()
}

async fn create(session: &Session, grant: &Grant, component: usize) -> Reply<()> {
    match command(session, grant, component, "", grant.layout.clone(), APPEND_MAX).await {
        // The answer to an earlier try was lost.
        Err(failure) if failure.word() == Some(Word::Exists) => Ok(()),
        done => done,
    }
}

/// A command on a component; tried again under a newer map, and once after silence.
async fn command(
    session: &Session,
    grant: &Grant,
    component: usize,
    command: &str,
    body: Bytes,
    wait: Duration,
) -> Reply<()> {
    let id = ObjectId { group: session.group(), number: grant.segment };
    let path = format!("objects/{id}{command}");
    let device = grant.devices[component];
    let capability = Some(grant.capabilities[component].as_str());
    let mut tries = 0;
    loop {
        let map = session.map();
        let began = monotonic();
        let request = session.to_device(&map, device, Method::POST, &path, capability);
        let failure = match send(request.body(body.clone()).timeout(wait)).await {
            Ok(_) => return Ok(()),
            Err(failure) => failure,
        };
        tries += 1;
        let again = match &failure {
            // One that was silent for all that time hangs.
            Failure::Unreachable(_) => tries < 2 && monotonic().since(began) < wait / 2,
            refused => wants_renewal(refused) && tries < 4,
        };
        if !again {
            return Err(failure);
        }
        if wants_renewal(&failure) {
            session.renew(map.epoch).await?;
        }
    }
}

async fn seal(
    session: &Session,
    grant: &Grant,
    (length, content): (u64, u64),
    released: Released,
) -> Reply<()> {
    if length > 0 {
        let path = format!("/seal?bytes={length}");
        let seals = (0..grant.devices.len())
            .map(|component| command(session, grant, component, &path, Bytes::new(), APPEND_MAX));
        // A device that does not answer, or has too little, seals its component by itself later.
        futures::future::join_all(seals).await;
    }
    if !released.wait().await {
        // The metadata service takes the segment when this client is gone.
        return Ok(());
    }
    let request = SealRequest { client: grant.client, length, content };
    session.tell(Method::POST, &format!("segments/{}/seal", grant.segment), &request).await
}
