//! TCP connections of the API: TLS and HTTP/1.1, limits on their number and duration, and a shutdown that lets
//! running requests finish.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tower_service::Service;

use crate::limits::paced::{Paced, SendRate};
use crate::limits::per_address::{PerAddress, Seat};
use crate::limits::write_timeout::WriteTimeout;

/// Maximum number of connections at the same time; further ones wait in the kernel.
pub(crate) const CONNECTIONS_MAX: usize = 4096;
/// Maximum number of connections of one address: a machine that fetches uses ten.
const CONNECTIONS_PER_ADDRESS_MAX: u32 = 1024;
/// When fewer places than this are left, idle connections are closed sooner.
const PLACES_SHORT: usize = 1024;
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum time to receive the headers; also the time after which an idle connection is closed.
const HEADER_TIME_MAX: Duration = Duration::from_secs(60);
/// The same while places are short.
const HEADER_TIME_SHORT: Duration = Duration::from_secs(5);
/// Maximum time that sent data may stay unacknowledged.
const SILENCE_MAX: Duration = Duration::from_secs(30);
const HEADER_BYTES_MAX: usize = 16 << 10;
/// Time for running requests to finish after the order to stop.
const GRACE: Duration = Duration::from_secs(5);
/// The first byte of TLS: a record of a handshake (RFC 8446, section 5.1).
const HANDSHAKE_RECORD: u8 = 22;
/// Pause after a failed `accept`, mostly for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// TLS and the routes, for each connection.
#[derive(Clone)]
struct Door {
    tls: Option<TlsAcceptor>,
    router: Router,
    plain: Option<Router>,
}

/// Serves `router` on `listener` until `stop` becomes true and the running requests have ended, or `GRACE` is over.
/// With TLS, clients without it are served `plain`, if there is one.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    (router, plain): (Router, Option<Router>),
    mut stop: watch::Receiver<bool>,
) {
    net::tcp::retransmit_soon(&listener);
    let door = Door { tls: tls.map(TlsAcceptor::from), router, plain };
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let connections = PerAddress::default();
    let graceful = GracefulShutdown::new();
    loop {
        let (stream, place) = tokio::select! {
            accepted = accept(&listener, &places) => accepted,
            _ = stop.wait_for(|&stop| stop) => break,
        };
        let (Ok(peer), Ok(here)) = (stream.peer_addr(), stream.local_addr()) else { continue };
        // A socket of IPv6 takes connections by IPv4, too, whose addresses look different there.
        let (peer, here) = (canonical(peer), canonical(here));
        // A connection too many is closed at once.
        let Some(seat) = connections.enter(peer.ip(), CONNECTIONS_PER_ADDRESS_MAX) else { continue };
        let header_time =
            if places.available_permits() < PLACES_SHORT { HEADER_TIME_SHORT } else { HEADER_TIME_MAX };
        tokio::spawn(handle(
            door.clone(),
            stream,
            Caller { peer, here, header_time },
            graceful.watcher(),
            (place, seat),
        ));
    }
    drop(listener);
    let _ = timeout(GRACE, graceful.shutdown()).await;
}

async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> (TcpStream, OwnedSemaphorePermit) {
    // The place first: without one, the connection stays in the kernel's queue.
    let place = places.clone().acquire_owned().await.expect("the semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, place),
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Handles one connection from its handshake to its end. Errors concern only this client and are dropped.
async fn handle(
    mut door: Door,
    stream: TcpStream,
    caller: Caller,
    watcher: Watcher,
    _place: (OwnedSemaphorePermit, Seat),
) {
    let socket = socket2::SockRef::from(&stream);
    if stream.set_nodelay(true).and_then(|()| socket.set_tcp_user_timeout(Some(SILENCE_MAX))).is_err() {
        return;
    }
    if door.tls.is_some() {
        let Ok(Ok(first)) = timeout(HANDSHAKE_TIME_MAX, first_byte(&stream)).await else { return };
        if first != HANDSHAKE_RECORD {
            let Some(plain) = door.plain else {
                let _ = timeout(HANDSHAKE_TIME_MAX, refuse_plain(stream)).await;
                return;
            };
            (door.tls, door.router, door.plain) = (None, plain, None);
        }
    }
    let stream = Paced::new(stream);
    let rate = stream.send_rate();
    let stream = WriteTimeout::new(stream);
    match door.tls {
        None => exchange(stream, door.router, (caller, rate), watcher).await,
        Some(acceptor) => {
            if let Ok(Ok(stream)) = timeout(HANDSHAKE_TIME_MAX, acceptor.accept(stream)).await {
                exchange(stream, door.router, (caller, rate), watcher).await;
            }
        }
    }
}

/// What comes first, which stays to be read; 0 at the end.
async fn first_byte(stream: &TcpStream) -> std::io::Result<u8> {
    let mut first = [0];
    stream.peek(&mut first).await.map(|_| first[0])
}

/// Tells a client in plain HTTP that this port speaks TLS; else it could not know what is wrong. Clients of the API
/// read the type, parts of a cluster the problem.
async fn refuse_plain(mut stream: TcpStream) -> std::io::Result<()> {
    let problem = json!({
        "type": "invalid", "title": "Bad Request", "status": 400, "detail": "this port speaks TLS", "problem": "tls",
    });
    let body = problem.to_string();
    let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\nconnection: close\r\n";
    stream.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await?;
    stream.shutdown().await?;
    // A connection that is closed with unread data is reset, and the answer may be lost with it.
    tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.map(drop)
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    (Caller { peer, here, header_time }, rate): (Caller, SendRate),
    watcher: Watcher,
) {
    let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        request.extensions_mut().insert(Here(here));
        request.extensions_mut().insert(rate.clone());
        router.clone().call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_time)
        .max_buf_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let _ = watcher.watch(connection).await;
}

/// The address as it is called where it has its own family.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The client of a connection, and how long it may take for the headers of a request.
#[derive(Clone, Copy)]
struct Caller {
    peer: SocketAddr,
    here: SocketAddr,
    header_time: Duration,
}

/// The address of the client that sent a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub SocketAddr);

/// The address to which the client connected.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Here(pub SocketAddr);
