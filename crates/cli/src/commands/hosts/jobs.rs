//! Jobs for machines.

use std::time::Duration;

use net::api::{JobRequest, JobsMade, Power, Work};
use net::client::Client;
use serde_json::json;

use super::names::names;
use super::plan;
use crate::args::parse::parse_moment;
use crate::clock;
use crate::commands::Context;
use crate::exit::Result;

/// On which disk, and when.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Terms {
    /// Which disk, if a machine has several: `disk:serial=S1`
    #[arg(long, value_name = "RULE")]
    pub disk: Option<String>,
    /// Not before this time: `2026-12-01T22:30:00+01:00`, or in `2h`
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    pub at: Option<u64>,
    /// Wake the machines then: by the network, and by the server's power program
    #[arg(long)]
    pub wake: bool,
    /// Restart the machines then, by the server's power program
    #[arg(long, conflicts_with = "wake")]
    pub restart: bool,
}

impl Terms {
    /// How machines are got to start.
    pub(crate) fn power(&self) -> Power {
        match (self.restart, self.wake) {
            (true, _) => Power::Restart,
            (false, true) => Power::Wake,
            (false, false) => Power::Leave,
        }
    }
}

/// Gives `machines` the job to do `work`. Shows its plan and asks first if that overwrites disks; with `--dry-run` it
/// ends there: `None`.
pub(crate) fn give(
    context: &Context,
    client: &Client,
    work: Work,
    machines: &[String],
    terms: &Terms,
    window: Duration,
) -> Result<Option<JobsMade>> {
    if !work.is_for_agents() {
        terms.disk.as_deref().map(crate::target::check_rule).transpose()?;
    }
    let mut request = JobRequest {
        work,
        machines: machines.to_vec(),
        disk: terms.disk.clone(),
        begins: terms.at.unwrap_or_default(),
        power: terms.power(),
        window: window.as_secs(),
    };
    if context.global.dry_run {
        return plan::show(context, client, &client.plan_job(&request)?).map(|()| None);
    }
    if plan::overwrites(&request.work) && !context.global.yes {
        let planned = client.plan_job(&request)?;
        plan::confirm(context, client, &planned)?;
        // What was shown, and nothing that got that name meanwhile.
        request.machines = planned.machines.into_iter().map(|machine| machine.mac).collect();
        request.work = planned.work;
    }
    let made = client.give_job(&request)?;
    let work = serde_json::to_value(&made.work).expect("work is plain data");
    let record = json!({ "type": "job", "job": work, "begins": request.begins, "machines": made.machines });
    context.output.result(&record, || {
        let (names, when) = (names(&made.machines), when(&request));
        format!("job for {names}, {when}: {}; see `diskcast hosts`\n", made.work)
    })?;
    Ok(Some(made))
}

/// When machines do it.
fn when(request: &JobRequest) -> String {
    let asks = if request.work.is_for_agents() { "when its agent asks" } else { "when it boots" };
    match request.begins.saturating_sub(clock::unix_seconds()) {
        0 => asks.to_owned(),
        seconds => {
            format!("{asks} in {} or later", base::units::show_duration(Duration::from_secs(seconds)))
        }
    }
}
