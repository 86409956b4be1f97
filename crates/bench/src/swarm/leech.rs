//! Members that get what others hold, and hold nothing themselves.

use std::sync::Arc;
use std::time::Duration;

use base::{Error, ErrorKind};
use bytes::Bytes;
use crossbeam_channel::{Sender, after, select, unbounded};
use image::{ObjectRef, ObjectSource};
use net::client::Client;
use net::clock::Stop;
use net::peer::{Demand, Node, Taker, Want};

use super::member::Version;

/// Objects that a leech wants at a time.
const AT_ONCE: usize = 24;
/// What nobody had is wanted again after this time.
const AGAIN_AFTER: Duration = Duration::from_millis(20);

/// Throws away what is right.
struct Leech {
    version: Arc<Version>,
    /// The object, and whether it came.
    came: Sender<(u64, bool)>,
}

impl Taker for Leech {
    fn object(&self, id: u64) -> Option<ObjectRef> {
        self.version.object(id)
    }

    fn take(&self, id: u64, bytes: Bytes) -> base::Result<bool> {
        let right = self.object(id).is_some_and(|object| object.verify(&bytes).is_ok());
        if right {
            // The loop ends before the pull.
            let _ = self.came.send((id, true));
        }
        Ok(right)
    }

    fn failed(&self, id: u64, _: Error) -> Option<Error> {
        let _ = self.came.send((id, false));
        None
    }
}

/// In the place of the server: it has nothing.
struct Nothing;

impl ObjectSource for Nothing {
    fn fetch(&self, _: &ObjectRef) -> base::Result<Bytes> {
        Err(Error::new(ErrorKind::NotFound, "nobody holds it yet"))
    }
}

/// Gets whatever others hold, in the order of objects from `first` on, until `over`.
pub(super) fn leech(
    version: Arc<Version>,
    (_client, node): (Client, Node),
    first: u64,
    over: &Stop,
) -> base::Result<()> {
    let objects = version.catalogue.objects().len() as u64;
    let ((demands, demanded), (came, coming)) = (unbounded(), unbounded());
    let taker = Leech { version, came };
    std::thread::scope(|scope| {
        let pull = scope.spawn(|| {
            node.pull(&Want {
                objects: Vec::new(),
                taker: &taker,
                server: &Nothing,
                at_once: 4,
                object_bytes: 256 << 10,
                stop: over,
                alone: false,
                limit: None,
                demands: Some(demanded),
                arrived: &|_| {},
            })
        });
        let want = |object| {
            // The pull ends only when all is over.
            let _ = demands.send(Demand::Want(object));
        };
        let mut order = (0..objects).map(|object| (first + object) % objects);
        let mut lacking: Vec<u64> = order.by_ref().take(AT_ONCE).collect();
        while !over.is_stopped() {
            lacking.drain(..).for_each(want);
            // What was not there yet is wanted again together.
            let pause = after(AGAIN_AFTER);
            loop {
                select! {
                    recv(coming) -> event => match event {
                        Ok((object, false)) => lacking.push(object),
                        Ok((_, true)) => order.next().into_iter().for_each(want),
                        Err(_) => break,
                    },
                    recv(pause) -> _ => break,
                }
            }
        }
        match pull.join().expect("a pull does not panic") {
            Err(error) if error.kind() != ErrorKind::Stopped => Err(error),
            _ => Ok(()),
        }
    })
}
