//! Starts and stops the server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use net::token::JoinToken;
use store::Repository;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::api::{self, App};
use crate::auth::identity::Identity;
use crate::auth::join::Join;
use crate::clock;
use crate::event::Log;
use crate::files::{Files, PublicImages};
use crate::netboot::{self, Boots, NetbootSettings};
use crate::sessions::Sessions;
use crate::sessions::groups::MulticastOptions;
use crate::sessions::probes::Probes;
use crate::state::StateFolder;
use crate::swarms::torrents::Torrents;
use crate::swarms::{Places, Swarms};
use crate::{listener, metrics};

/// Time after the end of the listener for work on the repository that cannot be interrupted.
const LAST_WORK_TIME_MAX: Duration = Duration::from_secs(10);

/// How often the server looks for sessions that have ended.
pub(crate) const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Number of sweeps between two log entries about running sessions.
const SWEEPS_PER_REPORT: u32 = 10;

/// Options of [`serve`].
pub struct ServeOptions {
    /// The repository to serve.
    pub repository: Arc<Repository>,
    /// Folder of the server's certificate and secret; created if missing.
    pub state: PathBuf,
    /// Address and TCP port; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Whether to speak TLS. `false` is refused anywhere but on loopback.
    pub tls: bool,
    /// How to multicast; `None` for unicast only.
    pub multicast: Option<MulticastOptions>,
    /// Lifetime of the join token.
    pub token_lifetime: Duration,
    /// File for the join token; the server replaces the token in it before it expires.
    pub token_out: Option<PathBuf>,
    /// Which networks are near each other, for machines that serve each other.
    pub places: Places,
    /// How machines boot from the network; `None` if they do not.
    pub netboot: Option<NetbootSettings>,
    /// Whether agents of hosts that run may ask for jobs.
    pub agents: bool,
    /// Whether machines get jobs only with keys that an administrator has confirmed.
    pub strict: bool,
    /// Images that anybody may read as files.
    pub public: PublicImages,
    /// Where peers of BitTorrent connect; `None` if no version is served to them.
    pub torrent: Option<SocketAddr>,
    /// Receives the events.
    pub log: Log,
}

/// A server that runs until it is shut down or dropped.
pub struct Server {
    address: SocketAddr,
    public_address: Option<SocketAddr>,
    join_token: JoinToken,
    app: Arc<App>,
    stop: watch::Sender<bool>,
    listener: Option<JoinHandle<()>>,
    runtime: Option<Runtime>,
}

/// Starts a server, which answers requests as soon as this returns.
///
/// # Errors
/// `Refused` for an address that is in use or may not be served without TLS, or a secret that others can read;
/// `Malformed` if a file in the state folder is not one that this server wrote; `Io`.
pub fn serve(options: ServeOptions) -> Result<Server> {
    if !options.tls && !options.listen.ip().is_loopback() {
        let context =
            format!("{} is not a loopback address: without TLS anybody could read tokens", options.listen);
        return Err(Error::new(ErrorKind::Refused, context));
    }
    options.public.check(&options.repository)?;
    let state = StateFolder::open(&options.state)?;
    let authority = state.authority()?;
    let identity = if options.tls { Some(state.identity()?) } else { None };
    let fingerprint = identity.as_ref().map(Identity::fingerprint);
    let tls = identity.map(|identity| identity.tls()).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("http")
        .build()
        .map_err(|error| Error::from_source(ErrorKind::Io, "start threads", error))?;
    let listener = runtime.block_on(bind(options.listen))?;
    let address =
        listener.local_addr().map_err(|error| Error::from_source(ErrorKind::Io, "find the port", error))?;
    let probes = Probes::new(options.multicast.clone());
    let sessions =
        Sessions::new(options.repository.clone(), options.multicast, clock::epoch(), options.log.clone());
    let (stop, stopped) = watch::channel(false);
    let mut boots = None;
    if let Some(settings) = &options.netboot {
        let here = netboot::Here { port: address.port(), fingerprint, log: options.log.clone() };
        let (started, http, files) =
            netboot::start(settings, &options.state, options.strict, here, &runtime)?;
        runtime.spawn(listener::serve(http, None, (netboot::router(files), None), stopped.clone()));
        boots = Some(started);
    } else if options.agents {
        boots = Some(Boots::of_agents(&options.state, options.strict)?);
    }
    let public = options.public.http.map(|address| runtime.block_on(bind(address))).transpose()?;
    // Only after the bind: a server that cannot start must not overwrite the token file of the one that already runs.
    let (lifetime, out) = (options.token_lifetime, options.token_out);
    let join = Join::begin(&authority, fingerprint, lifetime, out, clock::unix_seconds())?;
    let join_token = join.token();
    let torrents = options.torrent.map(|listen| {
        let here = (options.places.clone(), runtime.handle().clone());
        Torrents::start(Arc::clone(&options.repository), &options.state, listen, here)
    });
    let torrents = torrents.transpose()?;
    let swarms = Swarms::start(&state.secret()?, address, options.places, sessions.come_together());
    let files = Files::new(&options.public, state.checksums()?);
    let parts = (sessions, swarms, files, torrents);
    let app = App::new(options.repository, authority, join, parts, probes, boots, options.log);
    runtime.spawn(sweep(app.clone()));
    let public_address = public.as_ref().and_then(|public| public.local_addr().ok());
    if let Some(public) = public {
        runtime.spawn(listener::serve(
            public,
            None,
            (api::public_router(app.clone()), None),
            stopped.clone(),
        ));
    }
    let routers = (api::router(app.clone()), app.torrents.is_some().then(|| api::plain_router(app.clone())));
    let listener = runtime.spawn(listener::serve(listener, tls, routers, stopped));
    Ok(Server {
        address,
        public_address,
        join_token,
        app,
        stop,
        listener: Some(listener),
        runtime: Some(runtime),
    })
}

/// Regular work of a running server. It ends with the runtime.
async fn sweep(app: Arc<App>) {
    tokio::spawn(keep_readings(app.clone()));
    let mut interval = tokio::time::interval(SWEEP_INTERVAL);
    for sweeps in 1u32.. {
        interval.tick().await;
        let app = app.clone();
        let work = move || {
            app.sessions.sweep();
            app.probes.sweep();
            app.hosts.sweep(tokio::time::Instant::now());
            if sweeps.is_multiple_of(SWEEPS_PER_REPORT) {
                app.sessions.log_running();
            }
            app.boots.iter().for_each(|boots| boots.sweep(&app.log));
            let event = app.join.tend(&app.authority, clock::unix_seconds());
            event.iter().for_each(|event| (app.log)(event));
        };
        let _ = tokio::task::spawn_blocking(work).await;
    }
}

/// Keeps what machines fetch. It has a loop of its own, since it waits for the repository.
async fn keep_readings(app: Arc<App>) {
    let mut interval = tokio::time::interval(SWEEP_INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let app = app.clone();
        let work = move || app.readings.sweep(&app.hosts.fetched(), &app.sessions.fetched());
        let _ = tokio::task::spawn_blocking(work).await;
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let kind = match error.kind() {
            std::io::ErrorKind::AddrInUse | std::io::ErrorKind::AddrNotAvailable => ErrorKind::Refused,
            _ => ErrorKind::Io,
        };
        Error::from_source(kind, format!("listen on {address}"), error)
    })
}

impl Server {
    /// The address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where images that are for everybody are served in plain, if they are.
    #[must_use]
    pub fn public_address(&self) -> Option<SocketAddr> {
        self.public_address
    }

    /// Where peers of BitTorrent connect, if versions are served to them.
    #[must_use]
    pub fn torrent_address(&self) -> Option<SocketAddr> {
        self.app.torrents.as_ref().map(Torrents::address)
    }

    /// The first join token, which grants reading all images for the requested lifetime.
    #[must_use]
    pub fn join_token(&self) -> &JoinToken {
        &self.join_token
    }

    /// Sums over all sessions so far.
    #[must_use]
    pub fn totals(&self) -> metrics::SessionTotals {
        self.app.sessions.totals()
    }

    /// Stops the server: it accepts no more requests, gives the running ones a few seconds, ends all sessions, and
    /// returns when everything that it confirmed to clients is durable.
    pub fn shutdown(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        self.stop.send_replace(true);
        self.app.sessions.end();
        self.app.probes.end();
        self.app.files.checksums.end();
        if let Some(listener) = self.listener.take() {
            let _ = runtime.block_on(listener);
        }
        self.app.readings.end_all();
        runtime.shutdown_timeout(LAST_WORK_TIME_MAX);
        // Objects of unfinished uploads become durable too, so that their clients can resume.
        let _ = self.app.repository.flush();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}
