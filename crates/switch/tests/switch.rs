//! Tests an agent on the switch of a lab: real frames, real sockets of the kernel behind every port.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use lab::{Star, StarOptions, SwitchOptions};
use proto::multicast::Key;
use proto::peer::{AVOIDED_MAX, MemberId, Packet, Part, Report, Request, SwarmId, Window, peek, seal_packet};
use switch::{Choice, SwitchAgent, SwitchOptions as AgentOptions};

const SWARM: SwarmId = SwarmId(7);
const OBJECTS: u32 = 64;
const PORT: u16 = 7717;
const PATIENCE: Duration = Duration::from_secs(20);

/// A host with a socket, and what arrives there.
struct Machine {
    id: u64,
    socket: UdpSocket,
    server: SocketAddr,
}

/// Number and hops of each REQUEST that arrived anywhere, with the host at which it did; and REPORTs at the server.
type Arrivals = Receiver<(u32, Arrival)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arrival {
    Request { number: u32, hops: u8 },
    Report { number: u32 },
}

impl Machine {
    fn say(&self, number: u32, packet: &Packet) {
        let bytes = seal_packet(&Key([1; 16]), SWARM, MemberId(self.id), number, packet);
        self.socket.send_to(&bytes, self.server).unwrap();
    }

    fn report(&self, number: u32, held: std::ops::Range<u32>) {
        let held = if held.is_empty() { vec![] } else { vec![held] };
        let window = Window { objects: 0..OBJECTS, held };
        let report = Report { port: 7700, uploads: 0, place: 0, objects: OBJECTS, window };
        self.say(number, &Packet::Report(report));
    }

    fn ask(&self, number: u32, direct: bool) {
        let part = Part { batch: 0, mask: 3 };
        let request = Request { part, avoided: [MemberId(0); AVOIDED_MAX], blamed: 0, direct, scouts: false };
        self.say(number, &Packet::Request(request));
    }
}

/// The machines of a star, the server first, and what arrives at them.
fn machines(star: &Star, is_v4: bool) -> (Vec<Machine>, Arrivals) {
    let (arrived, arrivals) = channel();
    let address =
        |host: &lab::Host| -> IpAddr { if is_v4 { host.ipv4().into() } else { host.ipv6().into() } };
    let server = SocketAddr::new(address(star.host(0)), PORT);
    let mut machines = Vec::new();
    for host in star.hosts() {
        let at = SocketAddr::new(address(host), PORT);
        let socket = host.run(move || UdpSocket::bind(at).unwrap()).unwrap().join().unwrap();
        let (ear, arrived, index) = (socket.try_clone().unwrap(), arrived.clone(), host.index());
        // Ends with the process: the socket is never closed.
        std::thread::spawn(move || {
            let mut buffer = [0; 1500];
            while let Ok((length, _)) = ear.recv_from(&mut buffer) {
                let Ok(head) = peek(&buffer[..length]) else { continue };
                let arrival = match buffer[5] {
                    1 => Arrival::Report { number: head.number },
                    3 => Arrival::Request { number: head.number, hops: head.hops },
                    _ => continue,
                };
                if arrived.send((index, arrival)).is_err() {
                    break;
                }
            }
        });
        machines.push(Machine { id: u64::from(index) + 100, socket, server });
    }
    (machines, arrivals)
}

fn agent(star: &Star, switch: u32, server: SocketAddr) -> SwitchAgent {
    start(star, switch, server, false)
}

fn start(star: &Star, switch: u32, server: SocketAddr, in_kernel: bool) -> SwitchAgent {
    let options = AgentOptions { ports: Choice::Bridge("br0".into()), server, in_kernel };
    star.run_on_switch(switch, || SwitchAgent::start(options)).unwrap().join().unwrap().unwrap()
}

/// Waits for something that arrives at host `index`; whatever else arrives meanwhile is kept.
fn next(arrivals: &Arrivals) -> (u32, Arrival) {
    arrivals.recv_timeout(PATIENCE).expect("every packet arrives somewhere")
}

/// Repeats `say` until `is_done`, with whatever arrives in between.
fn until(arrivals: &Arrivals, mut say: impl FnMut(u32), mut is_done: impl FnMut(u32, Arrival) -> bool) {
    for number in 1000..100_000 {
        say(number);
        while let Ok((host, arrival)) = arrivals.recv_timeout(Duration::from_millis(20)) {
            if is_done(host, arrival) {
                return;
            }
        }
    }
    panic!("it never happened");
}

#[test]
fn each_request_arrives_once_at_a_holder_with_a_right_checksum() {
    if !lab::available_or_skip() {
        return;
    }
    for is_v4 in [true, false] {
        let star = Star::build(&StarOptions { hosts: 4, ..StarOptions::default() }).unwrap();
        let (machines, arrivals) = machines(&star, is_v4);
        let [_, one, two, asker] = &machines[..] else { panic!("four hosts") };
        let agent = agent(&star, 0, asker.server);
        one.report(1, 0..40);
        two.report(2, 0..40);
        asker.ask(3, true);
        let mut seen: Vec<_> = (0..3).map(|_| next(&arrivals)).collect();
        seen.sort_by_key(|(_, arrival)| format!("{arrival:?}"));
        let at_server = [
            (0, Arrival::Report { number: 1 }),
            (0, Arrival::Report { number: 2 }),
            (0, Arrival::Request { number: 3, hops: 0 }),
        ];
        assert_eq!(seen, at_server, "reports and direct requests flow on untouched, once");
        // The reports reached the agent before the server: it took its copies at the port.
        let mut counts = [0; 4];
        for number in 10..30 {
            asker.ask(number, false);
            let (host, arrival) = next(&arrivals);
            assert_eq!(arrival, Arrival::Request { number, hops: u8::from(host != 0) });
            counts[host as usize] += 1;
        }
        assert!(counts[1] >= 8 && counts[2] >= 8 && counts[3] == 0, "in turn: {counts:?}");
        // Somebody at another port reports in a member's name; and two leave, the second one in another's name.
        let forger = Machine { id: one.id, socket: asker.socket.try_clone().unwrap(), server: asker.server };
        forger.report(40, 63..64);
        forger.say(41, &Packet::Leave);
        two.say(42, &Packet::Leave);
        assert_eq!(next(&arrivals), (0, Arrival::Report { number: 40 }));
        for number in 50..60 {
            asker.ask(number, false);
            assert_eq!(next(&arrivals), (1, Arrival::Request { number, hops: 1 }));
        }
        // Nothing was left out, and nothing came twice.
        drop(agent);
        asker.ask(70, false);
        assert_eq!(next(&arrivals), (0, Arrival::Request { number: 70, hops: 0 }), "without the agent");
        assert!(arrivals.try_recv().is_err());
    }
}

#[test]
fn an_agent_that_starts_again_knows_everybody_after_their_next_reports() {
    if !lab::available_or_skip() {
        return;
    }
    let star = Star::build(&StarOptions { hosts: 3, ..StarOptions::default() }).unwrap();
    let (machines, arrivals) = machines(&star, true);
    let [_, holder, asker] = &machines[..] else { panic!("three hosts") };
    for round in 0..3 {
        let agent = agent(&star, 0, asker.server);
        let number = 100 * round;
        asker.ask(number, false);
        assert_eq!(next(&arrivals), (0, Arrival::Request { number, hops: 0 }), "nobody is known");
        holder.report(number + 1, 0..40);
        assert_eq!(next(&arrivals), (0, Arrival::Report { number: number + 1 }));
        asker.ask(number + 2, false);
        assert_eq!(next(&arrivals), (1, Arrival::Request { number: number + 2, hops: 1 }));
        drop(agent);
    }
    let taken = agent(&star, 0, asker.server);
    let options =
        AgentOptions { ports: Choice::Bridge("br0".into()), server: asker.server, in_kernel: false };
    let second = star.run_on_switch(0, || SwitchAgent::start(options)).unwrap().join().unwrap();
    assert_eq!(second.unwrap_err().kind(), base::ErrorKind::Refused, "one agent for a server");
    drop(taken);
}

#[test]
fn without_its_rules_an_agent_sends_nothing_and_puts_them_back() {
    if !lab::available_or_skip() {
        return;
    }
    let star = Star::build(&StarOptions { hosts: 3, ..StarOptions::default() }).unwrap();
    let (machines, arrivals) = machines(&star, true);
    let [_, holder, asker] = &machines[..] else { panic!("three hosts") };
    let agent = agent(&star, 0, asker.server);
    let redirected = |host, arrival| (host, matches!(arrival, Arrival::Request { .. })) == (1, true);
    let ask = |number| {
        holder.report(number, 0..40);
        asker.ask(number, false);
    };
    until(&arrivals, ask, redirected);
    // Whoever may remove the table of another process: the one that ends it.
    let pids = star.run_on_switch(0, children_named_nft).unwrap().join().unwrap();
    for pid in &pids {
        assert!(std::process::Command::new("kill").args(["-KILL", pid]).status().unwrap().success());
    }
    assert_eq!(pids.len(), 1, "this test's own child holds the table");
    until(&arrivals, ask, |host, arrival| host == 0 && matches!(arrival, Arrival::Request { .. }));
    until(&arrivals, ask, redirected);
    assert!(agent.status().holds);
}

/// The children of this process that run `nft` in this thread's network.
fn children_named_nft() -> Vec<String> {
    let own = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let children = std::fs::read_dir("/proc/self/task").unwrap().flatten().flat_map(|task| {
        let listed = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        listed.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    });
    let is_ours = |pid: &String| {
        std::fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|network| network == own)
            && std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "nft")
    };
    children.filter(is_ours).collect()
}

#[test]
fn each_switch_of_a_tree_answers_for_what_is_below_it() {
    if !lab::available_or_skip() {
        return;
    }
    let room = |hosts: &[u32]| SwitchOptions { hosts: hosts.to_vec(), ..SwitchOptions::default() };
    let switches = vec![room(&[1, 2]), room(&[3, 4])];
    let star = Star::build(&StarOptions { hosts: 6, switches, ..StarOptions::default() }).unwrap();
    let (machines, arrivals) = machines(&star, true);
    let [_, one, two, three, four, five] = &machines[..] else { panic!("six hosts") };
    let agents = [0, 1, 2].map(|switch| agent(&star, switch, one.server));
    let asks = |asker: &Machine, number| {
        asker.ask(number, false);
        let (host, Arrival::Request { number: found, hops }) = next(&arrivals) else { panic!("a request") };
        assert_eq!((found, hops), (number, u8::from(host != 0)), "passed on once");
        host
    };
    let tells = |machine: &Machine, number| {
        machine.report(number, 0..40);
        assert_eq!(next(&arrivals), (0, Arrival::Report { number }));
    };
    for (number, machine) in (100..).zip([two, three, four, five]) {
        machine.report(number, 0..0);
        assert_eq!(next(&arrivals), (0, Arrival::Report { number }));
    }
    assert_eq!(asks(three, 1), 0, "nobody has it");
    tells(one, 2);
    assert_eq!(asks(two, 3), 1, "the neighbour, by their own switch");
    assert_eq!(asks(three, 4), 1, "by the root");
    four.ask(40, false);
    let waits = Arrival::Request { number: 40, hops: 1 };
    assert_eq!(next(&arrivals), (0, waits), "three is about to have it, the root says to the server");
    tells(three, 5);
    assert_eq!(asks(four, 6), 3, "nearer than the one in the other room");
    assert_eq!(asks(five, 7) % 2, 1, "one of the two, from the root itself");
    // The switches still know where everybody is: what passes them goes on as before.
    assert_eq!(asks(two, 8), 1);
    let counted = |agent: &SwitchAgent| {
        for _ in 0..1000 {
            let found = agent.status().counters;
            if found.requests > 0 {
                return found;
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
        panic!("the agent counts nothing");
    };
    for agent in &agents {
        let found = counted(agent);
        assert_eq!((found.lost, found.invalid, found.unsent), (0, 0, 0));
    }
}

#[cfg(feature = "ebpf")]
#[test]
fn the_kernel_redirects_by_itself_what_the_agent_told_it() {
    if !lab::available_or_skip() {
        return;
    }
    for (is_v4, is_offloaded) in [(true, true), (true, false), (false, true), (false, false)] {
        let star = Star::build(&StarOptions { hosts: 4, ..StarOptions::default() }).unwrap();
        for host in star.hosts().iter().filter(|_| !is_offloaded) {
            // The senders compute checksums, and the receivers verify them.
            let mut ethtool = host.command("ethtool");
            assert!(
                ethtool.args(["-K", "eth0", "tx", "off", "rx", "off"]).output().unwrap().status.success()
            );
        }
        let (machines, arrivals) = machines(&star, is_v4);
        let [_, one, two, asker] = &machines[..] else { panic!("four hosts") };
        let agent = start(&star, 0, asker.server, true);
        let mut seen = [false; 4];
        let report_and_ask = |number| {
            one.report(number, 0..40);
            two.report(number, 0..40);
            asker.ask(number, false);
        };
        until(&arrivals, report_and_ask, |host, arrival| {
            seen[host as usize] |= matches!(arrival, Arrival::Request { hops: 1, .. });
            seen[1] && seen[2]
        });
        while arrivals.recv_timeout(Duration::from_millis(50)).is_ok() {}
        let mut counts = [0; 4];
        for number in 10..30 {
            asker.ask(number, false);
            let (host, arrival) = next(&arrivals);
            assert_eq!(arrival, Arrival::Request { number, hops: 1 });
            counts[host as usize] += 1;
        }
        assert_eq!(counts, [0, 10, 10, 0], "in turn");
        asker.ask(30, true);
        assert_eq!(next(&arrivals), (0, Arrival::Request { number: 30, hops: 0 }), "direct");
        one.ask(31, false);
        assert_eq!(next(&arrivals), (2, Arrival::Request { number: 31, hops: 1 }), "not the asker itself");
        two.say(32, &Packet::Leave);
        until(&arrivals, |number| two.ask(number, false), |host, _| host == 1);
        until(&arrivals, |number| one.ask(number, false), |host, _| host == 0);
        drop(agent);
        while arrivals.recv_timeout(Duration::from_millis(50)).is_ok() {}
        asker.ask(40, false);
        assert_eq!(next(&arrivals), (0, Arrival::Request { number: 40, hops: 0 }), "without the agent");
    }
}
