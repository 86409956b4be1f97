//! Machines that boot from the network: their calls, and what an administrator sees and changes. formats/api.md,
//! "Machines".

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use net::api::{
    DeployRequest, Deployment, JobStatus, MachineAnswer, MachineCall, MachineChange, MachineStatus, Machines,
    Order, ProblemKind,
};
use store::Reference;

use super::access::Access;
use super::app::App;
use super::body;
use super::problem::Failure;
use crate::authority::{Claims, Right};
use crate::claims::TokenId;
use crate::clock;
use crate::event::Event;
use crate::fleet::Task;
use crate::listener::Peer;
use crate::netboot::Boots;

/// How long the token of a job lasts, in seconds; the fetch renews it.
const JOB_TOKEN_SECONDS: u64 = 3600;
/// Bytes of a nonce.
const NONCE_BYTES: usize = 32;

fn boots(app: &App) -> Result<&Boots, Failure> {
    let text = "no machine boots from this server: start it with --netboot";
    app.boots.as_ref().ok_or_else(|| Failure::new(ProblemKind::Refused, text))
}

/// `POST machines/call`. Needs no token: a machine that boots has none, and gets one by what an administrator said.
pub(super) async fn call(
    State(app): State<Arc<App>>,
    Extension(Peer(peer)): Extension<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<MachineAnswer>, Failure> {
    let call: MachineCall = body::receive_json(&app, &headers, body).await?;
    let answer = app.blocking(move |app| answer(app, &call, peer)).await?;
    Ok(Json(answer))
}

fn answer(app: &App, call: &MachineCall, peer: std::net::SocketAddr) -> Result<MachineAnswer, Failure> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(|_| Failure::internal("the server has no random numbers"))?;
    let decision = boots(app)?.fleet.call(call, net::hex::encode(&nonce))?;
    let order = match decision.task {
        Task::Wait(why) => Order::Wait { why },
        Task::Start => Order::Start,
        Task::Install(job) => {
            let reference: Reference = job.reference.parse()?;
            let now = clock::unix_seconds();
            let claims = Claims {
                images: vec![reference.image().as_str().to_owned()],
                right: Right::Read,
                expires: now + JOB_TOKEN_SECONDS,
                lasts: Some(JOB_TOKEN_SECONDS),
                id: Some(TokenId::draw()?),
            };
            app.authority.record_made(&claims, &format!("machine {}", call.facts.mac), now)?;
            let secret = app.authority.mint(&claims);
            let secret = secret.ok_or_else(|| Failure::internal("the token of the job could not be made"))?;
            let JobStatus { job, reference, disk, after, .. } = job;
            Order::Install { job, reference, disk, after, secret }
        }
    };
    // Not what somebody only says who has not shown that it is this machine.
    if let Some(outcome) = call.outcome.as_ref().filter(|_| decision.ended) {
        let (machine, failure) = (call.facts.mac.clone(), outcome.failure.clone());
        (app.log)(&Event::MachineDone { machine, peer, failure });
    }
    Ok(MachineAnswer { nonce: decision.nonce, again_ms: decision.again_ms, name: decision.name, order })
}

/// `GET machines`.
pub(super) async fn list(access: Access, State(app): State<Arc<App>>) -> Result<Json<Machines>, Failure> {
    access.manages()?;
    Ok(Json(boots(&app)?.fleet.list()))
}

/// `POST machines/changes`.
pub(super) async fn change(
    access: Access,
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Vec<MachineStatus>>, Failure> {
    access.manages()?;
    let change: MachineChange = body::receive_json(&app, &headers, body).await?;
    app.blocking(move |app| Ok::<_, Failure>(boots(app)?.fleet.apply(&change)?)).await.map(Json)
}

/// `POST deployments`.
pub(super) async fn deploy(
    access: Access,
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Deployment>, Failure> {
    access.manages()?;
    let request: DeployRequest = body::receive_json(&app, &headers, body).await?;
    let deploy = move |app: &App| -> Result<Deployment, Failure> {
        let reference: Reference = request.reference.parse()?;
        // A name that means nothing is told now, not by thirty machines.
        let (version, _) = app.repository.signed_manifest(&reference)?;
        let reference = format!("{}@{}", reference.image(), version.manifest.number);
        let boots = boots(app)?;
        let deployment = boots.fleet.deploy(&request, &reference)?;
        if request.wake {
            deployment.machines.iter().try_for_each(|machine| boots.wake(&machine.mac))?;
        }
        Ok(deployment)
    };
    app.blocking(deploy).await.map(Json)
}
