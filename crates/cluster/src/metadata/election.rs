//! One of several instances of the metadata service: it leads, or says who does. Who takes the seat loads all anew, and
//! gives devices and clients a whole lease to be heard. formats/cluster.md, section 7.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use base::{Error, ErrorKind, Result};
use parking_lot::RwLock;
use tokio::sync::watch;
use tower::ServiceExt as _;

use super::cluster::{ClusterSetting, Metadata};
use super::engine::Engine;
use super::etcd::{Election, Etcd, Term};
use super::routes::check;
use crate::problem::{Problem, Word};
use crate::token::ClusterToken;

/// An instance of the metadata service.
#[derive(Debug)]
pub struct Instance {
    etcd: Arc<Etcd>,
    address: String,
    token: ClusterToken,
    setting: ClusterSetting,
    role: RwLock<Role>,
}

#[derive(Debug)]
enum Role {
    Leads(Router),
    /// The address of the leader; empty if there is none.
    Follows(String),
}

impl Instance {
    /// An instance that serves at `address`, and keeps what must survive in `etcd`.
    ///
    /// # Errors
    /// `Invalid` as [`Metadata::open`].
    pub fn new(
        etcd: Arc<Etcd>,
        address: String,
        token: ClusterToken,
        setting: ClusterSetting,
    ) -> Result<Arc<Self>> {
        setting.check()?;
        let role = RwLock::new(Role::Follows(String::new()));
        Ok(Arc::new(Self { etcd, address, token, setting, role }))
    }

    /// All commands of the service; while another instance leads, each is refused.
    pub fn router(self: &Arc<Self>) -> Router {
        Router::new().fallback(answer).with_state(Arc::clone(self))
    }

    /// Leads whenever nobody else does, until `stop` becomes true. `event` is told what an operator should know.
    pub async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>, event: impl Fn(&str)) {
        let mut told = false;
        while !*stop.borrow() {
            let (etcd, own) = (Arc::clone(&self.etcd), self.address.clone());
            let election = tokio::select! {
                election = blocking(move || etcd.campaign(&own)) => election,
                _ = stop.wait_for(|&stop| stop) => return,
            };
            let leader = match election {
                Ok(Election::Won(term)) => {
                    self.lead(&term, stop.clone(), &event).await;
                    // Whoever leads now shows at once.
                    continue;
                }
                Ok(Election::Lost(leader)) => leader,
                Err(error) => {
                    if !std::mem::replace(&mut told, true) {
                        event(&base::chain(&error.within("ask which instance leads")));
                    }
                    String::new()
                }
            };
            told &= leader.is_empty();
            *self.role.write() = Role::Follows(leader);
            tokio::select! {
                () = tokio::time::sleep(self.etcd.look_every()) => {}
                _ = stop.wait_for(|&stop| stop) => {}
            }
        }
    }

    async fn lead(&self, term: &Arc<Term>, mut stop: watch::Receiver<bool>, event: &impl Fn(&str)) {
        let engine: Arc<dyn Engine> = Arc::<Term>::clone(term);
        let (token, setting) = (self.token.clone(), self.setting.clone());
        let begun = blocking(move || {
            let metadata = Metadata::open(engine, token, &setting)?;
            metadata.begin_epoch()?;
            Ok(metadata)
        });
        match begun.await {
            Ok(metadata) => {
                *self.role.write() = Role::Leads(metadata.router());
                event("this instance of the metadata service leads");
                let (_end, ended) = watch::channel(false);
                tokio::select! {
                    () = metadata.run(ended, event) => {}
                    () = keep(term, event) => event("this instance of the metadata service leads no more"),
                    _ = stop.wait_for(|&stop| stop) => {}
                }
                *self.role.write() = Role::Follows(String::new());
            }
            Err(error) => event(&base::chain(&error.within("take over the metadata service"))),
        }
        let term = Arc::clone(term);
        // If it can't be given back now, it ends with its lease.
        let _ = blocking(move || term.resign()).await;
    }
}

/// Keeps the seat as long as it can.
async fn keep(term: &Arc<Term>, event: &impl Fn(&str)) {
    let mut told = false;
    loop {
        let own = Arc::clone(term);
        match blocking(move || own.keep()).await {
            Ok(true) => told = false,
            Ok(false) => return,
            Err(error) if !std::mem::replace(&mut told, true) => {
                event(&base::chain(&error.within("go on leading")));
            }
            Err(_) => {}
        }
        tokio::select! {
            () = tokio::time::sleep(term.keep_every()) => {}
            () = term.ended() => return,
        }
    }
}

/// Waits for etcd where it holds nobody up.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let failed = |error| Error::from_source(ErrorKind::Io, "wait for etcd", error);
    tokio::task::spawn_blocking(work).await.map_err(failed)?
}

async fn answer(State(instance): State<Arc<Instance>>, request: Request) -> Response {
    let leader = match &*instance.role.read() {
        Role::Leads(router) => Ok(router.clone()),
        Role::Follows(leader) => Err(leader.clone()),
    };
    let leader = match leader {
        Ok(router) => return router.oneshot(request).await.into_response(),
        Err(leader) => leader,
    };
    if let Err(refused) = check(&instance.token, &request) {
        return refused.into_response();
    }
    let detail = if leader.is_empty() {
        "no instance of the metadata service leads at the moment".to_owned()
    } else {
        format!("the instance of the metadata service at {leader} leads")
    };
    Problem::new(Word::NotLeader, detail).into_response()
}
