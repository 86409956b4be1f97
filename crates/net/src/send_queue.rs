//! The queue in which packets wait before an interface sends them: what passed it, and what waits.
//!
//! It is the root queueing discipline of the interface (`man 8 tc`), asked over rtnetlink (a dump of `RTM_GETQDISC`).
//! An interface without one, such as loopback or a bridge, counts nothing.

use std::io;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcStats2};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// Most bytes of a part of an answer: the kernel fills pages, of 32 KiB at most.
const PART_BYTES: usize = 32 << 10;

/// The counters of the queue at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueSample {
    /// Bytes that left the queue since the interface is up, Ethernet's headers included.
    pub(crate) passed_bytes: u64,
    /// Bytes that wait in it.
    pub(crate) waiting_bytes: u32,
}

/// Asks for the queue of one interface, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct SendQueue {
    socket: Socket,
    interface: i32,
    question: Vec<u8>,
    part: Vec<u8>,
}

impl SendQueue {
    /// The queue of the interface with this index.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn open(interface: u32) -> io::Result<Self> {
        let socket = Socket::new(NETLINK_ROUTE)?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // The kernel makes each part of its answer when it is read, so there is nothing to wait for.
        socket.set_non_blocking(true)?;
        let interface = i32::try_from(interface).map_err(|_| io::ErrorKind::InvalidInput)?;
        // To ask for one interface alone would tell the answer to all programs that listen for changes.
        let message = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::with_index(interface));
        let mut packet = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(message));
        packet.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        packet.finalize();
        let mut question = vec![0; packet.buffer_len()];
        packet.serialize(&mut question);
        Ok(Self { socket, interface, question, part: vec![0; PART_BYTES] })
    }

    /// The counters now; `None` if the interface has no queue, or the system does not tell.
    pub(crate) fn sample(&mut self) -> Option<QueueSample> {
        self.socket.send(&self.question, 0).ok()?;
        let mut found = None;
        loop {
            let len = self.socket.recv(&mut &mut self.part[..], 0).ok()?;
            let mut rest = &self.part[..len];
            while !rest.is_empty() {
                let packet = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).ok()?;
                match packet.payload {
                    NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewQueueDiscipline(queue)) => {
                        found = found.or_else(|| self.counters(&queue));
                    }
                    _ => return found,
                }
                rest = rest.get(packet.header.length.next_multiple_of(4) as usize..).unwrap_or_default();
            }
        }
    }

    /// The counters of `queue` if it is the root of the interface.
    fn counters(&self, queue: &TcMessage) -> Option<QueueSample> {
        if queue.header.index != self.interface || queue.header.parent != TcHandle::ROOT {
            return None;
        }
        let is_without =
            |attribute: &TcAttribute| matches!(attribute, TcAttribute::Kind(kind) if kind == "noqueue");
        if queue.attributes.iter().any(is_without) {
            return None;
        }
        let counters = queue.attributes.iter().find_map(|attribute| match attribute {
            TcAttribute::Stats2(counters) => Some(counters),
            _ => None,
        })?;
        let passed_bytes = counters.iter().find_map(|counter| match counter {
            TcStats2::Basic(basic) => Some(basic.bytes),
            _ => None,
        })?;
        let waiting_bytes = counters.iter().find_map(|counter| match counter {
            TcStats2::Queue(queue) => Some(queue.backlog),
            _ => None,
        })?;
        Some(QueueSample { passed_bytes, waiting_bytes })
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::process::Command;

    use super::*;
    use crate::interface;
    use crate::testbed::{Signal, on_a_link};

    const PACKETS: u64 = 20;
    const PACKET_BYTES: usize = 1000;

    #[test]
    fn what_waits_before_a_slow_link_is_seen() {
        let (done, until_done) = std::sync::mpsc::channel::<()>();
        let server = move || {
            let _done = done;
            // One packet passes, the next ones wait for seconds.
            let shaper = "qdisc replace dev eth0 root tbf rate 8kbit burst 1500 limit 100000";
            assert!(Command::new("tc").args(shaper.split(' ')).status().unwrap().success());
            let mut queue = SendQueue::open(interface::choose("eth0").unwrap().index).unwrap();
            let before = queue.sample().unwrap();
            let socket = UdpSocket::bind("10.77.0.1:0").unwrap();
            for _ in 0..PACKETS {
                socket.send_to(&[0; PACKET_BYTES], "10.77.0.2:9").unwrap();
            }
            let after = queue.sample().unwrap();
            let passed = after.passed_bytes - before.passed_bytes;
            let sum = passed + u64::from(after.waiting_bytes);
            assert!(passed < 3000 && sum >= PACKETS * PACKET_BYTES as u64, "{before:?} {after:?}");
        };
        // The link ends with the client's thread.
        let client = move |signal: &Signal| {
            signal.give();
            let _ = until_done.recv();
        };
        on_a_link(server, client);
    }

    #[test]
    fn loopback_has_no_queue() {
        assert_eq!(SendQueue::open(interface::choose("lo").unwrap().index).unwrap().sample(), None);
    }
}
