//! Delay of a link: frames of every kind arrive later, in both directions and in order.
//!
//! A link with delay is a pair of TAP devices (`Documentation/networking/tuntap.rst` of the kernel) in place of a veth
//! pair. A thread of the lab reads the frames that either end sends, keeps them, and writes them to the other end when
//! their delay has passed. A super-frame passes whole, with its `struct virtio_net_hdr` (`linux/virtio_net.h`) in front
//! of it. All kernels have TAP devices; the queueing disciplines that could delay frames, netem and fq, are often
//! missing.

use std::collections::VecDeque;
use std::io::{PipeReader, PipeWriter};
use std::os::fd::AsFd as _;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use crate::host::run_in;
use crate::link::{End, Link};

/// More than a super-frame of 64 KiB with its headers.
const FRAME_BYTES_MAX: usize = 128 << 10;
/// Most bytes that are under way in one direction: 10 Gbit/s for 50 ms. Frames beyond are lost.
const UNDER_WAY_BYTES_MAX: usize = 64 << 20;
/// Frames that an end keeps for the thread to read. Frames beyond are lost.
const QUEUE_FRAMES_MAX: u32 = 16384;
/// Frames that are read from one end before due frames are written again.
const READS_MAX: usize = 512;

/// A thread that carries the frames of one link. Dropping it ends the thread and removes the link.
#[derive(Debug)]
pub(crate) struct Delay {
    /// The thread ends when this is closed.
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Delay {
    /// Makes a link with its delay. Both devices are still down. `Unsupported` without TAP devices.
    pub(crate) fn connect(link: &Link, mtu_bytes: u32) -> Result<Self> {
        let mtu_bytes = u16::try_from(mtu_bytes).expect("an MTU is at most 9000 bytes");
        let ends = [tap(&link.port, mtu_bytes)?, tap(&link.far, mtu_bytes)?];
        let (stopped, stop) =
            std::io::pipe().map_err(|e| Error::from_source(ErrorKind::Io, "make a pipe", e))?;
        let one_way = link.delay;
        let thread = std::thread::spawn(move || carry(&ends, one_way, &stopped));
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Delay {
    fn drop(&mut self) {
        drop(self.stop.take());
        // `drop` cannot report that the thread has panicked.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A TAP device that hands out super-frames, without blocking.
fn tap(end: &End, mtu_bytes: u16) -> Result<SyncDevice> {
    let device = end.device.clone();
    let make = move || {
        let builder = DeviceBuilder::new().name(device).layer(Layer::L2).offload(true).mtu(mtu_bytes);
        let tap = builder.tx_queue_len(QUEUE_FRAMES_MAX).enable(false).build_sync()?;
        tap.set_nonblocking(true).map(|()| tap)
    };
    let made = run_in(&end.namespace, make)?.join().expect("making a device does not panic");
    let what = || format!("make the TAP device `{}` in `{}`", end.device, end.namespace);
    made.map_err(|e| Error::from_source(ErrorKind::Unsupported, what(), e))
}

#[expect(clippy::disallowed_methods, reason = "frames take real time")]
fn now() -> Instant {
    Instant::now()
}

/// Frames under way in one direction, oldest first.
#[derive(Default)]
struct Direction {
    frames: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
}

impl Direction {
    fn push(&mut self, due: Instant, frame: &[u8]) {
        if self.bytes + frame.len() <= UNDER_WAY_BYTES_MAX {
            self.bytes += frame.len();
            self.frames.push_back((due, frame.to_vec()));
        }
    }

    fn due(&self) -> Option<Instant> {
        self.frames.front().map(|(due, _)| *due)
    }

    fn pop(&mut self, now: Instant) -> Option<Vec<u8>> {
        let (_, frame) = self.frames.pop_front_if(|(due, _)| *due <= now)?;
        self.bytes -= frame.len();
        Some(frame)
    }
}

/// Carries frames between two devices until `stopped` is closed or a device is removed.
fn carry(ends: &[SyncDevice; 2], one_way: Duration, stopped: &PipeReader) {
    let [near, far] = ends;
    let mut ways = [(near, far, Direction::default()), (far, near, Direction::default())];
    let mut buffer = vec![0; FRAME_BYTES_MAX];
    loop {
        let next = ways.iter().filter_map(|(_, _, direction)| direction.due()).min();
        let wait = next.map(|due| due.saturating_duration_since(now()));
        let wait = wait.map(|wait| Timespec::try_from(wait).expect("a delay is short"));
        let mut events = [stopped.as_fd(), near.as_fd(), far.as_fd()]
            .map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN));
        // Only an interruption can fail, and the next round asks again.
        let _ = poll(&mut events, wait.as_ref());
        if events.iter().any(|event| event.revents().intersects(PollFlags::HUP | PollFlags::ERR)) {
            return;
        }
        for (from, to, direction) in &mut ways {
            for _ in 0..READS_MAX {
                let Ok(count) = rustix::io::read(from.as_fd(), &mut buffer[..]) else { break };
                direction.push(now() + one_way, &buffer[..count]);
            }
            while let Some(frame) = direction.pop(now()) {
                // A device that is down takes no frames: they are lost.
                let _ = rustix::io::write(to.as_fd(), &frame);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_leave_in_order_when_they_are_due() {
        let (begin, ms, mut direction) = (now(), Duration::from_millis, Direction::default());
        direction.push(begin + ms(2), b"one");
        direction.push(begin + ms(3), b"two");
        assert_eq!((direction.due(), direction.pop(begin + ms(1))), (Some(begin + ms(2)), None));
        assert_eq!(direction.pop(begin + ms(2)), Some(b"one".to_vec()));
        assert_eq!(
            (direction.pop(begin + ms(2)), direction.pop(begin + ms(9))),
            (None, Some(b"two".to_vec()))
        );
        assert_eq!((direction.bytes, direction.due()), (0, None));
    }

    #[test]
    fn what_does_not_fit_is_lost() {
        let (begin, mut direction) = (now(), Direction::default());
        let frame = vec![0; FRAME_BYTES_MAX];
        (0..UNDER_WAY_BYTES_MAX / FRAME_BYTES_MAX + 5).for_each(|_| direction.push(begin, &frame));
        assert_eq!(direction.bytes, UNDER_WAY_BYTES_MAX);
        assert!(direction.pop(begin).is_some());
        direction.push(begin, b"fits");
        assert_eq!(direction.bytes, UNDER_WAY_BYTES_MAX - FRAME_BYTES_MAX + 4);
    }
}
