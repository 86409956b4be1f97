//! A TCP proxy that adds delay in user space: data arrives later in both directions, in order and at full rate.
//!
//! Run as a program of its own in a host of the lab, in front of a server there (`diskcast-bench --far`).

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use lab::Host;

use crate::Result;
use crate::programs::Program;

/// Maximum number of pieces in flight in one direction of a connection: at 64 KiB each, more than 1 Gbit/s needs for
/// 10 ms.
const PIECES_MAX: usize = 256;
const PIECE_BYTES: usize = 64 << 10;

/// Adds delay between `to` and the clients of `listen`, both in `host`, until the program is dropped.
pub(crate) fn between(host: &Host, listen: SocketAddr, to: SocketAddr, one_way: Duration) -> Result<Program> {
    let program = std::env::current_exe()?;
    let mut command: Command = host.command(&program.to_string_lossy());
    command.args(["--far", &listen.to_string(), &to.to_string(), &one_way.as_micros().to_string()]);
    Program::start(&mut command)?.until_port(host, listen)
}

/// Runs the proxy.
pub(crate) fn run(listen: &str, to: &str, micros: &str) -> Result<()> {
    let (listener, to) = (TcpListener::bind(listen)?, to.parse::<SocketAddr>()?);
    let one_way = Duration::from_micros(micros.parse()?);
    for near in listener.incoming() {
        let near = near?;
        // A client that only tested the port has already disconnected.
        let Ok(far) = TcpStream::connect(to) else { continue };
        near.set_nodelay(true)?;
        far.set_nodelay(true)?;
        carry(near.try_clone()?, far.try_clone()?, one_way);
        carry(far, near, one_way);
    }
    Ok(())
}

/// Forwards one direction of a connection until its end.
fn carry(mut from: TcpStream, into: TcpStream, one_way: Duration) {
    let (sender, receiver): (SyncSender<(Instant, Vec<u8>)>, _) = sync_channel(PIECES_MAX);
    std::thread::spawn(move || deliver(&receiver, into));
    std::thread::spawn(move || {
        let mut piece = vec![0; PIECE_BYTES];
        while let Ok(count @ 1..) = from.read(&mut piece) {
            if sender.send((Instant::now() + one_way, piece[..count].to_vec())).is_err() {
                return;
            }
        }
    });
}

fn deliver(pieces: &Receiver<(Instant, Vec<u8>)>, mut into: TcpStream) {
    for (due, piece) in pieces {
        while let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            std::thread::sleep(left);
        }
        if into.write_all(&piece).is_err() {
            break;
        }
    }
    let _ = into.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_through_arrives_whole_and_later() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let (near, door) = {
            let door = TcpListener::bind("127.0.0.1:0").unwrap();
            (TcpStream::connect(door.local_addr().unwrap()).unwrap(), door.accept().unwrap().0)
        };
        let far = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        let mut end = server.accept().unwrap().0;
        let one_way = Duration::from_millis(20);
        carry(door, far, one_way);
        let sent: Vec<u8> = (0..300_000u32).map(|at| at.to_le_bytes()[0]).collect();
        let (begin, expected) = (Instant::now(), sent.clone());
        let writer = std::thread::spawn(move || {
            let mut near = near;
            near.write_all(&sent).unwrap();
            near.shutdown(Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        end.read_to_end(&mut received).unwrap();
        assert!(received == expected && begin.elapsed() >= one_way);
        writer.join().unwrap();
    }
}
