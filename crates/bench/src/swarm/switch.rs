//! Figures of the agent on a switch: requests that it redirects in a second, and what its program costs at a port.
//!
//! All runs on this machine: the asker that floods, the switch and the holders share its cores, so the rates are lower
//! bounds. A switch's own processor is slower, and does nothing else.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use lab::{Star, StarOptions};
use proto::multicast::Key;
use proto::peer::{AVOIDED_MAX, MemberId, Packet, Part, Report, Request, SwarmId, Window, seal_packet};
use serde_json::json;
use switch::{Choice, SwitchAgent, SwitchOptions, SwitchStatus};

use super::RUNS;
use crate::context::Context;
#[cfg(feature = "ebpf")]
use crate::figure::median;
use crate::figure::{Bar, Figure};
use crate::{Group, Result};

const SWARM: SwarmId = SwarmId(7);
const OBJECTS: u32 = 1024;
const HOLDERS: u32 = 4;
const PORT: u16 = 7717;
const FLOOD: Duration = Duration::from_secs(3);
/// Longer than the agent takes to publish what it did.
const SETTLES: Duration = Duration::from_millis(1200);

pub(super) const USERSPACE: Group = Group {
    figures: &[(
        "switch.userspace_rate",
        "requests per second that the agent's process redirects; at least 20,000",
    )],
    measure: userspace,
};

#[cfg(feature = "ebpf")]
pub(super) const KERNEL: Group = Group {
    figures: &[
        (
            "switch.ebpf_rate",
            "requests per second that the agent's program in the kernel redirects; at least 150,000",
        ),
        ("switch.ebpf_ns", "time of that program for a request, clock included; at most 500 ns"),
        ("switch.data_ns", "time of that program for a packet of data; at most 50 ns"),
    ],
    measure: kernel,
};

fn seal(member: u64, packet: &Packet) -> Vec<u8> {
    seal_packet(&Key([1; 16]), SWARM, MemberId(member), 1, packet)
}

fn request() -> Vec<u8> {
    let part = Part { batch: 3, mask: u32::MAX };
    let request =
        Request { part, avoided: [MemberId(0); AVOIDED_MAX], blamed: 0, direct: false, scouts: false };
    seal(99, &Packet::Request(request))
}

fn redirected(status: &SwitchStatus) -> u64 {
    status.counters.redirected + status.counters.redirected_in_kernel
}

/// Redirected requests per second while a host sends as many as it can, and how many it sent.
fn flood(in_kernel: bool) -> Result<(f64, serde_json::Value)> {
    let star = Star::build(&StarOptions { hosts: HOLDERS + 2, ..StarOptions::default() })?;
    let server = SocketAddr::new(star.host(0).ipv4().into(), PORT);
    let socket = |host: u32| -> Result<UdpSocket> {
        let at = SocketAddr::new(star.host(host).ipv4().into(), PORT);
        let bound =
            star.host(host).run(move || UdpSocket::bind(at))?.join().map_err(|_| "a thread panicked")??;
        bound.connect(server).map(|()| bound).map_err(Into::into)
    };
    // Nobody reads what arrives: it is dropped at a full socket, which costs little.
    let holders = (1..=HOLDERS).map(socket).collect::<Result<Vec<_>>>()?;
    let (asker, _server) = (socket(HOLDERS + 1)?, {
        let bound = star.host(0).run(move || UdpSocket::bind(server))?.join();
        bound.map_err(|_| "a thread panicked")??
    });
    let options = SwitchOptions { ports: Choice::Bridge("br0".into()), server, in_kernel };
    let started = star.run_on_switch(0, || SwitchAgent::start(options))?.join();
    let agent = started.map_err(|_| "a thread panicked")??;
    let report = || -> Result<()> {
        for (member, holder) in (1..).zip(&holders) {
            let window = Window { objects: 0..OBJECTS, held: std::iter::once(0..OBJECTS).collect() };
            let report = Report { port: 7700, uploads: 0, place: 0, objects: OBJECTS, window };
            holder.send(&seal(member, &Packet::Report(report)))?;
        }
        Ok(())
    };
    report()?;
    std::thread::park_timeout(SETTLES);
    report()?;
    let (before, bytes, mut sent) = (agent.status(), request(), 0_u64);
    let begin = now();
    while begin.elapsed() < FLOOD {
        for _ in 0..256 {
            sent += u64::from(asker.send(&bytes).is_ok());
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    std::thread::park_timeout(SETTLES);
    let after = agent.status();
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let rate = (redirected(&after) - redirected(&before)) as f64 / seconds;
    Ok((rate, json!({ "sent": sent, "seconds": seconds, "lost in the agent's queue": after.counters.lost })))
}

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn now() -> Instant {
    Instant::now()
}

fn rate(name: &str, in_kernel: bool, bar: f64) -> Result<Figure> {
    let (mut rates, mut rows) = (vec![], vec![]);
    for _ in 0..RUNS {
        let (rate, row) = flood(in_kernel)?;
        rates.push(rate);
        rows.push(row);
    }
    let figure = Figure::new(name, &rates, "requests/s", Bar::AtLeast(bar));
    Ok(figure.on("one host asks, 4 hold everything", "veth, no reader").with(json!(rows)))
}

fn userspace(_: &Context) -> Result<Vec<Figure>> {
    Ok(vec![rate("switch.userspace_rate", false, 20_000.0)?])
}

#[cfg(feature = "ebpf")]
fn kernel(_: &Context) -> Result<Vec<Figure>> {
    use net::mac::Mac;
    use switch::frame::{Datagram, write};

    let address = |text: &str| -> Result<SocketAddr> { Ok(text.parse()?) };
    let (from, server) = (address("10.77.0.9:7700")?, address("10.77.0.1:7717")?);
    let frame = |payload: &[u8]| {
        let datagram = Datagram { source: Mac([9; 6]), from, to: server, payload: 0..payload.len() };
        write(&datagram, Mac([1; 6]), payload).ok_or("one family, and short")
    };
    let nanoseconds = |frame: &[u8], runs, repeat, is_request: bool| -> Result<Vec<f64>> {
        let times = switch::measure(server, SWARM, frame, (runs, repeat))?;
        let right = times.iter().all(|(_, redirected)| *redirected == is_request);
        let times = times.iter().map(|(time, _)| time.as_secs_f64() * 1e9).collect();
        if right { Ok(times) } else { Err("the program redirects requests, and nothing else".into()) }
    };
    // A redirected request is changed and cannot run twice; its time includes reading the clock.
    let asked = nanoseconds(&frame(&request())?, 2000, 1, true)?;
    let asked: Vec<f64> = asked.chunks(400).map(median).collect();
    let data = nanoseconds(&frame(&[0; 1472])?, 5, 1_000_000, false)?;
    let on = |figure: Figure| figure.on("48 members hold 1024 objects", "BPF_PROG_TEST_RUN");
    Ok(vec![
        rate("switch.ebpf_rate", true, 150_000.0)?,
        on(Figure::new("switch.ebpf_ns", &asked, "ns", Bar::AtMost(500.0))),
        on(Figure::new("switch.data_ns", &data, "ns", Bar::AtMost(50.0))),
    ])
}
