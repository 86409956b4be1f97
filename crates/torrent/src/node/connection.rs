//! One connection: the handshake, and two tasks that read and write.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::link::{Link, Next};
use super::torrent::Torrent;
use crate::swarm::{Key, Nearness};
use crate::wire::{Block, HANDSHAKE_BYTES, Handshake, Message, piece_header};

/// Time for a handshake.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// After this time without a message, one is sent that says nothing (BEP 3: two minutes).
const KEEP_ALIVE: Duration = Duration::from_secs(90);
/// A peer that says nothing for this time is gone.
const SILENCE_MAX: Duration = Duration::from_secs(180);
/// Time for a peer to take what is sent to it.
const SEND_TIME_MAX: Duration = Duration::from_secs(30);
/// Most blocks in one write.
const BLOCKS_AT_ONCE: usize = 8;
const READ_BYTES: usize = 256 << 10;

/// The first byte of the names of diskcast's peers, and what follows: who the peer is, and its place.
pub(super) const CLIENT: &[u8; 8] = b"-DC0100-";
/// The server of a torrent.
pub(super) const ORIGIN: u8 = b's';
/// Any other peer.
pub(super) const MEMBER: u8 = b'm';

/// This side's name: who it is, its place, and chance.
pub(super) fn name(is_origin: bool, place: u32, random: [u8; 7]) -> [u8; 20] {
    let mut name = [0; 20];
    name[..8].copy_from_slice(CLIENT);
    name[8] = if is_origin { ORIGIN } else { MEMBER };
    name[9..13].copy_from_slice(&place.to_be_bytes());
    name[13..].copy_from_slice(&random);
    name
}

/// Whether the peer `name` at `address` is near a machine at `place` that has the address `own`.
pub(super) fn nearness(name: &[u8; 20], address: IpAddr, own: IpAddr, place: u32) -> Nearness {
    let is_ours = name[..8] == CLIENT[..];
    let its_place = u32::from_be_bytes([name[9], name[10], name[11], name[12]]);
    let is_near = match is_ours {
        true if name[8] == ORIGIN => false,
        true if its_place != 0 && place != 0 => its_place == place,
        _ => crate::tracker::is_same_network(address, own),
    };
    if is_near { Nearness::Near } else { Nearness::Far }
}

/// Opens a connection.
pub(super) async fn open(address: SocketAddr) -> Result<TcpStream> {
    let context = || format!("connect to the peer {address}");
    match timeout(HANDSHAKE_TIME_MAX, TcpStream::connect(address)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(Error::from_io(context(), error)),
        Err(_) => Err(Error::new(ErrorKind::Unreachable, context())),
    }
}

/// Sends this side's handshake.
pub(super) async fn greet(stream: &mut TcpStream, handshake: &Handshake) -> Result<()> {
    let sent = timeout(HANDSHAKE_TIME_MAX, stream.write_all(&handshake.encode())).await;
    sent.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
        .map_err(|error| Error::from_io("greet a peer", error))
}

/// Reads the other side's handshake.
///
/// # Errors
/// `Malformed` for something else; `Io`.
pub(super) async fn greeting(stream: &mut TcpStream) -> Result<Handshake> {
    let mut bytes = [0; HANDSHAKE_BYTES];
    let read = timeout(HANDSHAKE_TIME_MAX, stream.read_exact(&mut bytes)).await;
    read.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
        .map_err(|error| Error::from_io("read a peer's handshake", error))?;
    Handshake::decode(&bytes)
        .ok_or_else(|| Error::new(ErrorKind::Malformed, "a peer does not begin with a handshake"))
}

/// Runs a connection, whose handshakes are done, until it ends.
pub(super) async fn run(stream: TcpStream, torrent: Arc<Torrent>, key: Key, link: Arc<Link>) {
    let (input, output) = stream.into_split();
    let (reader, writer) = (read_all(input, &torrent, key), write_all(output, &torrent, &link));
    // An error concerns this peer alone.
    tokio::select! {
        _ = reader => {}
        _ = writer => {}
    }
}

async fn read_all(mut input: OwnedReadHalf, torrent: &Arc<Torrent>, key: Key) -> Result<()> {
    let pieces = torrent.metainfo().piece_count();
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(READ_BYTES);
        let read = timeout(SILENCE_MAX, input.read_buf(&mut buffer)).await;
        let read = read.unwrap_or(Ok(0)).map_err(|error| Error::from_io("read from a peer", error))?;
        if read == 0 {
            return Ok(());
        }
        torrent.with(|swarm, now| -> Result<()> {
            while let Some(message) = Message::decode(&mut buffer, pieces)? {
                if let Message::Piece(_, _, bytes) = &message {
                    torrent.received(bytes.len());
                }
                swarm.heard(key, message, now)?;
            }
            Ok(())
        })?;
    }
}

async fn write_all(mut output: OwnedWriteHalf, torrent: &Arc<Torrent>, link: &Link) -> Result<()> {
    loop {
        let bytes = match timeout(KEEP_ALIVE, link.next(BLOCKS_AT_ONCE)).await {
            Ok(Next::Messages(bytes)) => bytes,
            Ok(Next::Blocks(blocks)) => blocks_of(torrent, blocks).await?,
            Ok(Next::End) => return Ok(()),
            Err(_) => {
                let mut bytes = BytesMut::new();
                Message::Other.encode(&mut bytes);
                bytes
            }
        };
        let sent = timeout(SEND_TIME_MAX, output.write_all(&bytes)).await;
        sent.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
            .map_err(|error| Error::from_io("send to a peer", error))?;
    }
}

/// The messages that carry these blocks.
async fn blocks_of(torrent: &Arc<Torrent>, blocks: Vec<Block>) -> Result<BytesMut> {
    let mut out = BytesMut::new();
    for block in blocks {
        let bytes: Bytes = torrent.block(block).await?;
        out.put_slice(&piece_header(block.piece, block.begin, bytes.len()));
        out.put_slice(&bytes);
        torrent.sent(bytes.len());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearness_is_that_of_places_then_of_networks() {
        let (own, near, far) = ("10.1.2.3", "10.1.2.9", "10.1.3.9");
        let near_by = |name: [u8; 20], address: &str, place: u32| {
            nearness(&name, address.parse().unwrap(), own.parse().unwrap(), place) == Nearness::Near
        };
        let member = |place: u32| name(false, place, [b'a'; 7]);
        assert!(near_by(member(0), near, 7) && near_by(member(7), near, 0) && !near_by(member(0), far, 7));
        assert!(near_by(member(7), far, 7) && !near_by(member(8), near, 7));
        assert!(!near_by(name(true, 7, [b'a'; 7]), near, 7), "all share the server's link");
        assert!(near_by(*b"-TR4000-abcdefghijkl", near, 7));
    }
}
