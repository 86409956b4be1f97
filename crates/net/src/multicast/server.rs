//! Sessions of a server: starts them, admits receivers, returns statistics, and ends them. `driver` drives each.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use base::limits;
use base::{Error, ErrorKind, Result};
use crossbeam_channel::{bounded, unbounded};
use image::{ObjectRef, ObjectSource};
use parking_lot::Mutex;
pub use proto::multicast::block_bytes_for;
use proto::multicast::{Gathering, SIGNATURE_BYTES, Server, ServerConfig, Shape, TAG_BYTES};
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::KeyPair;

use super::bundle::Packing;
use super::driver::Driver;
use super::readahead::ReadAhead;
use super::session::{Command, Shared, rate_of, signer_of, unscoped};
pub use super::session::{RATE_FLOOR, SessionConfig};
use super::{overhead_bytes, receiver_key};
use crate::api::{Key, PublicKey, SessionGrant, SessionId, SessionRequest, SessionStatistics};
use crate::clock::Clock;
use crate::udp::GroupSender;
use crate::waker::Waker;

/// How long to wait for an answer of the driving thread.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// Machines that are switched on together request an image within some milliseconds of each other.
const GATHERING: Gathering = Gathering {
    quiet_heads: Duration::from_millis(4),
    quiet: Duration::from_millis(12),
    most: Duration::from_millis(200),
};

/// A running session. Dropping it ends the session.
pub struct SessionServer {
    shared: Arc<Shared>,
    driver: Option<JoinHandle<()>>,
}

impl SessionServer {
    /// Starts a session of `objects`, the first `heads` of which are sent first; `source` has their bytes.
    ///
    /// # Errors
    /// `Invalid` for no objects, too many of them, or blocks that do not fit the interface; `Io` if sockets or
    /// threads fail.
    pub fn start(
        config: SessionConfig,
        objects: Vec<ObjectRef>,
        heads: u64,
        source: Arc<dyn ObjectSource>,
    ) -> Result<Self> {
        let clock = Clock::start();
        let socket = GroupSender::open(config.group, &config.send)?;
        let Secrets { session, group_key, payload_key, secret, signing_seed } = Secrets::draw()?;
        let server_key = signer_of(&signing_seed).public_key().as_ref().try_into();
        let server_key = PublicKey(server_key.expect("a public key of ed25519 has 32 bytes"));
        let payload_key = config.encrypted.then_some(payload_key);
        let lengths: Vec<u32> = objects.iter().map(|object| object.len).collect();
        let (shape, packing) = shape_of(&config, session, lengths, heads)?;
        let object_bytes: Arc<[u32]> = (0..shape.objects).map(|object| packing.bytes(object)).collect();
        let packet_bytes = usize::from(shape.block_bytes) + proto::multicast::BLOCK_HEADER_BYTES + TAG_BYTES;
        let machine = Server::new(
            clock.now(),
            ServerConfig {
                shape,
                object_bytes,
                rate: rate_of(&config),
                signature_bytes: u16::try_from(SIGNATURE_BYTES).expect("64"),
                overhead_bytes: overhead_bytes(config.group.is_ipv4()),
                run_blocks_max: u16::try_from(socket.run_max(packet_bytes)).unwrap_or(1),
                cache_bytes: config.cache_bytes,
                gathering: GATHERING,
                receiver_timeout: config.receiver_timeout,
            },
        );
        let (commands, orders) = unbounded();
        let waker = Waker::new().map_err(|error| Error::from_source(ErrorKind::Io, "make a waker", error))?;
        let shared = Arc::new(Shared {
            source: socket.local()?,
            config,
            session,
            shape,
            packing: Arc::clone(&packing),
            group_key,
            payload_key,
            secret,
            signing_seed,
            server_key,
            admitted: Mutex::default(),
            commands,
            waker: Arc::new(waker),
            over: AtomicBool::new(false),
            last: Mutex::default(),
            read: Arc::default(),
        });
        let (read, waker) = (Arc::clone(&shared.read), Arc::clone(&shared.waker));
        let readers = ReadAhead::start(shared.config.readers, packing, objects, source, read, waker)?;
        let driver = Driver::new(Arc::clone(&shared), clock, machine, socket, readers);
        let run = move || driver.run(&orders);
        let spawned = std::thread::Builder::new().name("multicast-server".into()).spawn(run);
        let driver =
            spawned.map_err(|error| Error::from_source(ErrorKind::Io, "start a session's thread", error))?;
        Ok(Self { shared, driver: Some(driver) })
    }

    /// Admits one more receiver, which runs on the machine at `address`, and returns its grant. Receivers of one
    /// machine count as one for the rate, and share what may be sent again for them.
    ///
    /// # Errors
    /// `Refused` if the session has ended or is full, if it has had too many receivers at `address`, or if its packets
    /// do not fit the receiver's MTU.
    pub fn admit(&self, request: &SessionRequest, address: IpAddr) -> Result<SessionGrant> {
        let shared = &self.shared;
        let refused = |why: String| Err(Error::new(ErrorKind::Refused, why));
        if self.is_over() {
            return refused(format!("session {} is over", shared.session));
        }
        if request.multicast != proto::multicast::VERSION {
            let (server, receiver) = (proto::multicast::VERSION, request.multicast);
            return refused(format!(
                "this server speaks version {server} of multicast, the receiver {receiver}"
            ));
        }
        let block_bytes_max = block_bytes_for(request.mtu, shared.config.group.is_ipv6()).unwrap_or(0);
        if block_bytes_max < shared.shape.block_bytes {
            return refused(format!("the session's packets do not fit an MTU of {} bytes", request.mtu));
        }
        let admitted = shared.admitted.lock().admit(&request.receiver, address);
        let (receiver, machine) = match admitted {
            Ok(admitted) => admitted,
            Err(why) => return refused(why),
        };
        // The driver must know at once, or it could end the session while this receiver is about to join.
        let _ = shared.commands.send(Command::Admit(receiver, machine));
        shared.waker.wake();
        let receiver = receiver.0;
        let source = shared.source.ip();
        let report = SocketAddr::new(shared.config.report_address.unwrap_or(source), shared.source.port());
        Ok(SessionGrant {
            multicast: proto::multicast::VERSION,
            session: shared.session,
            epoch: shared.shape.epoch,
            group: unscoped(shared.config.group),
            source,
            report,
            receiver,
            group_key: shared.group_key,
            receiver_key: receiver_key(&shared.secret, receiver),
            payload_key: shared.payload_key,
            server_key: shared.server_key,
            block_bytes: shared.shape.block_bytes,
            objects: shared.shape.objects,
            heads: shared.shape.heads,
            stored_objects: shared.packing.stored_objects(),
            bundle_blocks: shared.config.bundle_blocks,
            receivers: receiver + 1,
            order: shared.config.order.clone(),
            elsewhere: Vec::new(),
        })
    }

    /// Runs of stored objects, `(first, count)`, that a new receiver should get from other machines, whose reports
    /// say that they hold `held` together: nobody waits for them here, and they went out already, or others hold them.
    #[must_use]
    pub fn elsewhere(&self, held: Vec<Range<u32>>) -> Vec<(u64, u64)> {
        // A session for attached disks has an order of its own.
        if self.shared.config.order.is_some() {
            return Vec::new();
        }
        let (reply, answer) = bounded(1);
        let _ = self.shared.commands.send(Command::Elsewhere(held, reply));
        self.shared.waker.wake();
        answer.recv_timeout(ANSWER_PATIENCE).unwrap_or_default()
    }

    /// The session's id.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.shared.session
    }

    /// The session's statistics so far.
    #[must_use]
    pub fn statistics(&self) -> SessionStatistics {
        let (reply, answer) = bounded(1);
        if self.shared.commands.send(Command::Statistics(reply)).is_ok() {
            self.shared.waker.wake();
            if let Ok(statistics) = answer.recv_timeout(ANSWER_PATIENCE) {
                return statistics;
            }
        }
        self.shared.last.lock().clone().unwrap_or_else(|| self.shared.empty_statistics())
    }

    /// Whether it has ended, so that no receiver can join any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.shared.over.load(Ordering::Acquire) || self.driver.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the session with BYE to its receivers, and returns its last statistics.
    pub fn stop(mut self) -> SessionStatistics {
        self.end();
        self.statistics()
    }

    fn end(&mut self) {
        let _ = self.shared.commands.send(Command::Stop);
        self.shared.waker.wake();
        if let Some(driver) = self.driver.take() {
            let _ = driver.join();
        }
    }
}

impl Drop for SessionServer {
    fn drop(&mut self) {
        self.end();
    }
}

/// What no other session, and no other start of a server, has.
struct Secrets {
    session: SessionId,
    group_key: Key,
    payload_key: Key,
    /// See [`receiver_key`].
    secret: [u8; 32],
    signing_seed: [u8; 32],
}

impl Secrets {
    fn draw() -> Result<Self> {
        let mut all = [[0; 16]; 7];
        let drawn = SystemRandom::new().fill(all.as_flattened_mut());
        drawn.map_err(|_| Error::new(ErrorKind::Io, "draw random keys from the system"))?;
        let [session, group, payload, ref long @ ..] = all;
        let both = |at: usize| long[at..at + 2].as_flattened().try_into().expect("twice 16 bytes");
        let (secret, signing_seed) = (both(0), both(2));
        let session = SessionId(u128::from_be_bytes(session));
        Ok(Self { session, group_key: Key(group), payload_key: Key(payload), secret, signing_seed })
    }
}

fn shape_of(
    config: &SessionConfig,
    session: SessionId,
    lengths: Vec<u32>,
    heads: u64,
) -> Result<(Shape, Arc<Packing>)> {
    let invalid = |why: String| Err(Error::new(ErrorKind::Invalid, why));
    let mtu = config.send.interface.mtu();
    let fits = block_bytes_for(mtu, config.group.is_ipv6()).unwrap_or(0);
    let block_bytes = config.block_bytes.unwrap_or(fits);
    if !block_bytes.is_multiple_of(2) || block_bytes < limits::BLOCK_BYTES_MIN || block_bytes > fits {
        let name = &config.send.interface.name;
        return invalid(format!(
            "blocks of {block_bytes} bytes do not fit interface `{name}` with an MTU of {mtu}"
        ));
    }
    let objects = lengths.len() as u64;
    if objects == 0 || objects > limits::SESSION_OBJECTS_MAX || heads > objects {
        return invalid(format!("a session of {objects} objects with {heads} heads"));
    }
    let low = u64::try_from(session.0 & u128::from(u64::MAX)).expect("64 bits");
    let packing = Packing::new(lengths, heads, block_bytes, config.bundle_blocks);
    let shape = Shape { session: low, epoch: config.epoch, objects: packing.objects(), heads, block_bytes };
    Ok((shape, Arc::new(packing)))
}
