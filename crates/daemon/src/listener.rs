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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tower_service::Service;

/// Maximum number of connections at the same time; further ones wait in the kernel.
pub(crate) const CONNECTIONS_MAX: usize = 4096;
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum time to receive the headers; also the time after which an idle connection is closed.
const HEADER_TIME_MAX: Duration = Duration::from_secs(60);
/// Maximum time that sent data may stay unacknowledged.
const SILENCE_MAX: Duration = Duration::from_secs(30);
const HEADER_BYTES_MAX: usize = 16 << 10;
/// Time for running requests to finish after the order to stop.
const GRACE: Duration = Duration::from_secs(5);
/// Pause after a failed `accept`, mostly for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// TLS and the routes, for each connection.
#[derive(Clone)]
struct Door {
    tls: Option<TlsAcceptor>,
    router: Router,
}

/// Serves `router` on `listener` until `stop` becomes true and the running requests have ended, or `GRACE` is over.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    router: Router,
    mut stop: watch::Receiver<bool>,
) {
    net::tcp::retransmit_soon(&listener);
    let door = Door { tls: tls.map(TlsAcceptor::from), router };
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let graceful = GracefulShutdown::new();
    loop {
        let (stream, place) = tokio::select! {
            accepted = accept(&listener, &places) => accepted,
            _ = stop.wait_for(|&stop| stop) => break,
        };
        tokio::spawn(handle(door.clone(), stream, graceful.watcher(), place));
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
async fn handle(door: Door, stream: TcpStream, watcher: Watcher, _place: OwnedSemaphorePermit) {
    let peer = stream.peer_addr().ok();
    let socket = socket2::SockRef::from(&stream);
    if stream.set_nodelay(true).and_then(|()| socket.set_tcp_user_timeout(Some(SILENCE_MAX))).is_err() {
        return;
    }
    match door.tls {
        None => exchange(stream, door.router, peer, watcher).await,
        Some(acceptor) => {
            if let Ok(Ok(stream)) = timeout(HANDSHAKE_TIME_MAX, acceptor.accept(stream)).await {
                exchange(stream, door.router, peer, watcher).await;
            }
        }
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    peer: Option<SocketAddr>,
    watcher: Watcher,
) {
    let Some(peer) = peer else { return };
    let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        router.clone().call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME_MAX)
        .max_buf_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let _ = watcher.watch(connection).await;
}

/// The address of the client that sent a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub SocketAddr);
