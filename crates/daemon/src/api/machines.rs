//! Machines that boot from the network or run an agent: their calls, and what an administrator sees and changes.
//! formats/api.md, "Machines".

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::HeaderMap;
use image::Manifest;
use net::api::{
    Copies, HostStage, HostStatus, JobProgress, JobRequest, JobStage, JobStatus, JobsMade, MachineAnswer,
    MachineCall, MachineChange, MachineLog, MachineStatus, Machines, Order, ProblemKind, Put, SwitchRequest,
    Switched, Work,
};
use net::token::Secret;
use store::{ImageName, Reference};
use tokio::time::Instant;

use super::access::Access;
use super::app::App;
use super::body;
use crate::auth::authority::{Claims, Right};
use crate::auth::claims::TokenId;
use crate::clock;
use crate::event::Event;
use crate::fleet::suits;
use crate::fleet::{Fleet, News, Task};
use crate::listener::Peer;
use crate::netboot::Boots;
use crate::problem::Failure;

/// How long the token of a job lasts, in seconds; who works on the job renews it.
const JOB_TOKEN_SECONDS: u64 = 3600;
/// The same of the token that an attached disk keeps, which renews it while it runs.
const DISK_TOKEN_SECONDS: u64 = 30 * 86_400;

fn boots(app: &App) -> Result<&Boots, Failure> {
    let text = "no machine asks this server what to do: start it with --netboot, or with --agents";
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
    let (nonce, decision) = boots(app)?.fleet.call(call, peer.ip().to_canonical())?;
    if let Some(News { fingerprint, what }) = decision.news {
        let machine = call.facts.mac.clone();
        (app.log)(&Event::MachineKey { machine, peer, fingerprint, what });
    }
    let order = match decision.task {
        Task::Wait(why) => Order::Wait { why },
        Task::Start => Order::Start,
        Task::Work(status) => {
            let JobStatus { job, work, disk, .. } = *status;
            let secret = secret_for(app, &work, &call.facts.mac)?;
            Order::Work { job, work, disk, again: decision.again, secret }
        }
    };
    // Not what somebody only says who has not shown that it is this machine.
    if let (Some(outcome), Some(work)) = (&call.outcome, decision.ended) {
        let (machine, failure, work) = (call.facts.mac.clone(), outcome.failure.clone(), work.to_string());
        (app.log)(&Event::MachineDone { machine, peer, work, failure });
        if let Some(text) = &outcome.log {
            boots(app)?.fleet.keep_log(&call.facts.mac, outcome.job, text)?;
        }
    }
    let wake = decision.wake.iter().map(ToString::to_string).collect();
    Ok(MachineAnswer { nonce, again_ms: decision.again_ms, name: decision.name, order, wake })
}

/// A token for the image that `work` is about, and for nothing else.
fn secret_for(app: &App, work: &Work, machine: &str) -> Result<Option<Secret>, Failure> {
    let (image, right) = match work {
        Work::Install { reference, .. } | Work::Put(Put { reference, .. }) => {
            (reference.parse::<Reference>()?.image().as_str().to_owned(), Right::Read)
        }
        Work::Capture { image } => (image.clone(), Right::Write),
        Work::Wipe | Work::Shell => return Ok(None),
    };
    let seconds = match work {
        Work::Put(Put { copy: Some(Copies::Attach), .. }) => DISK_TOKEN_SECONDS,
        _ => JOB_TOKEN_SECONDS,
    };
    let now = clock::unix_seconds();
    let claims = Claims {
        images: vec![image],
        right,
        expires: now + seconds,
        lasts: Some(seconds),
        id: Some(TokenId::draw()?),
        brief: seconds == JOB_TOKEN_SECONDS,
    };
    app.authority.record_made(&claims, &format!("machine {machine}"), now)?;
    let secret = app.authority.mint(&claims);
    Ok(Some(secret.ok_or_else(|| Failure::internal("the token of the job could not be made"))?))
}

/// The version that `work` means by `name`, as `image@number`, and what its content is called. `Refused` if it can't
/// become what `work` makes of it.
fn meant(app: &App, name: &str, work: &Work) -> Result<(String, String), Failure> {
    let reference: Reference = name.parse()?;
    let (version, _) = app.repository.signed_manifest(&reference)?;
    let Manifest { number, root, .. } = &version.manifest;
    let name = format!("{}@{number}", reference.image());
    suits::check(&name, &version.manifest.slots(), work)?;
    Ok((name, root.name().to_hex()))
}

/// `GET machines`.
pub(super) async fn list(access: Access, State(app): State<Arc<App>>) -> Result<Json<Machines>, Failure> {
    access.manages()?;
    let mut all = boots(&app)?.fleet.list();
    add_progress(&mut all.machines, &app.hosts.list(|_| true, Instant::now()));
    Ok(Json(all))
}

/// Adds how far installs are, as the fetches of these machines report it. Of several fetches behind one address nobody
/// knows whose is which.
fn add_progress(machines: &mut [MachineStatus], fetches: &[HostStatus]) {
    let mut known: HashMap<(IpAddr, &str), Option<&HostStatus>> = HashMap::new();
    for fetch in fetches.iter().filter(|fetch| !fetch.ended) {
        let of = (fetch.address.to_canonical(), fetch.reference.as_str());
        known.entry(of).and_modify(|of| *of = None).or_insert(Some(fetch));
    }
    for machine in machines.iter_mut().filter(|machine| machine.progress.is_none()) {
        let Some(JobStatus { work: Work::Install { reference, .. }, stage: JobStage::Taken, .. }) =
            &machine.job
        else {
            continue;
        };
        let address = machine.key.as_ref().and_then(|key| key.address);
        let fetch = address.and_then(|address| known.get(&(address, reference)).copied().flatten());
        machine.progress = fetch.and_then(|fetch| {
            let step = match fetch.stage {
                HostStage::Comparing => "compare",
                HostStage::Receiving => "install",
                HostStage::Written => "verify",
                _ => return None,
            };
            let (done_bytes, total_bytes) = (fetch.done_bytes, fetch.total_bytes);
            Some(JobProgress { step: step.to_owned(), done_bytes, total_bytes })
        });
    }
}

/// `POST machines/changes`.
pub(super) async fn change(
    access: Access,
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Vec<MachineStatus>>, Failure> {
    changed(access, app, headers, body, Fleet::apply).await
}

/// `POST machines/changes/plan`.
pub(super) async fn plan_change(
    access: Access,
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Vec<MachineStatus>>, Failure> {
    changed(access, app, headers, body, Fleet::plan_change).await
}

async fn changed(
    access: Access,
    app: Arc<App>,
    headers: HeaderMap,
    body: Body,
    apply: fn(&Fleet, &MachineChange) -> base::Result<Vec<MachineStatus>>,
) -> Result<Json<Vec<MachineStatus>>, Failure> {
    access.manages()?;
    let change: MachineChange = body::receive_json(&app, &headers, body).await?;
    let apply = move |app: &App| -> Result<Vec<MachineStatus>, Failure> {
        let boots = boots(app)?;
        boots.check_addresses(&change)?;
        Ok(apply(&boots.fleet, &change)?)
    };
    app.blocking(apply).await.map(Json)
}

/// The name of a request to switch machines.
fn switch_id(text: &str) -> Result<u128, Failure> {
    let id = Some(text).filter(|id| id.len() == 32).and_then(|id| u128::from_str_radix(id, 16).ok());
    id.ok_or_else(|| Failure::new(ProblemKind::Invalid, "the id of a request has 32 hexadecimal digits"))
}

/// `PUT machines/power/{id}`.
pub(super) async fn switch(
    access: Access,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Vec<Switched>>, Failure> {
    access.manages()?;
    let id = switch_id(&id)?;
    let request: SwitchRequest = body::receive_json(&app, &headers, body).await?;
    let switch = move |app: &App| Ok::<_, Failure>(boots(app)?.switch(id, &request, &app.log)?);
    app.blocking(switch).await.map(Json)
}

/// `GET machines/power/{id}`.
pub(super) async fn switched(
    access: Access,
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Vec<Switched>>, Failure> {
    access.manages()?;
    Ok(Json(boots(&app)?.switched(switch_id(&id)?)?))
}

/// `GET machines/{mac}/log`.
pub(super) async fn log(
    access: Access,
    State(app): State<Arc<App>>,
    Path(mac): Path<String>,
) -> Result<Json<MachineLog>, Failure> {
    access.manages()?;
    app.blocking(move |app| Ok::<_, Failure>(boots(app)?.fleet.log(&mac)?)).await.map(Json)
}

/// `POST jobs`.
pub(super) async fn give(
    access: Access,
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<JobsMade>, Failure> {
    given(access, app, headers, body, Fleet::give).await
}

/// `POST jobs/plan`.
pub(super) async fn plan_job(
    access: Access,
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<JobsMade>, Failure> {
    given(access, app, headers, body, Fleet::plan_job).await
}

async fn given(
    access: Access,
    app: Arc<App>,
    headers: HeaderMap,
    body: Body,
    give: fn(&Fleet, &JobRequest, &Work) -> base::Result<JobsMade>,
) -> Result<Json<JobsMade>, Failure> {
    access.manages()?;
    let request: JobRequest = body::receive_json(&app, &headers, body).await?;
    let give = move |app: &App| -> Result<JobsMade, Failure> {
        Ok(give(&boots(app)?.fleet, &request, &checked(app, &request)?)?)
    };
    app.blocking(give).await.map(Json)
}

/// The work of a request, with the version that is meant: a name that means nothing, and what its image can't become,
/// are told now, not by thirty machines.
fn checked(app: &App, request: &JobRequest) -> Result<Work, Failure> {
    let work = match &request.work {
        Work::Install { reference, after } => {
            Work::Install { reference: meant(app, reference, &request.work)?.0, after: *after }
        }
        Work::Put(put) if request.disk.is_some() => {
            let (reference, root) = meant(app, &put.reference, &request.work)?;
            Work::Put(Put { reference, root, ..put.clone() })
        }
        Work::Put(_) => {
            let text = "nothing says where hosts get the image (`disk`)";
            return Err(Failure::new(ProblemKind::Invalid, text));
        }
        Work::Capture { image } => Work::Capture { image: image.parse::<ImageName>()?.as_str().to_owned() },
        Work::Wipe | Work::Shell => request.work.clone(),
    };
    boots(app)?.check(request.power)?;
    Ok(work)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_install_is_as_far_as_the_fetch_of_its_machine() {
        let machine = |mac: u8, address: &str, stage: &str| -> MachineStatus {
            let key = json!({ "fingerprint": "", "since": 1, "address": address, "confirmed": true });
            let job = json!({ "job": 1, "work": "install", "reference": "web@3", "stage": stage });
            let machine = json!({ "mac": mac.to_string(), "admitted": true, "key": key, "job": job });
            serde_json::from_value(machine).unwrap()
        };
        let fetch = |address: &str, reference: &str, stage: &str, ended: bool| -> HostStatus {
            let status = json!({
                "host": "a", "address": address, "reference": reference, "stage": stage, "ended": ended,
                "done_bytes": 30, "total_bytes": 120, "runtime_seconds": 1, "quiet_seconds": 0,
                "multicast_bytes": 0, "unicast_bytes": 0,
            });
            serde_json::from_value(status).unwrap()
        };
        let fetches = [
            fetch("::ffff:10.0.0.1", "web@3", "receiving", false),
            fetch("10.0.0.2", "web@2", "receiving", false),
            fetch("10.0.0.3", "web@3", "receiving", true),
            fetch("10.0.0.4", "web@3", "receiving", false),
            fetch("10.0.0.5", "web@3", "written", false),
            fetch("10.0.0.5", "web@3", "receiving", false),
        ];
        let mut machines = [
            machine(1, "10.0.0.1", "taken"),
            machine(2, "10.0.0.2", "taken"),
            machine(3, "10.0.0.3", "taken"),
            machine(4, "10.0.0.4", "queued"),
            machine(5, "10.0.0.5", "taken"),
        ];
        add_progress(&mut machines, &fetches);
        let expected = JobProgress { step: "install".to_owned(), done_bytes: 30, total_bytes: 120 };
        assert_eq!(machines[0].progress, Some(expected));
        // Of another version, at an end, of a job that waits, and of two machines behind one address.
        assert!(machines[1..].iter().all(|machine| machine.progress.is_none()), "{machines:?}");
    }
}
