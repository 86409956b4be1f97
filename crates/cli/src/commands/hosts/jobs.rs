//! Jobs for machines.

use std::time::Duration;

use net::api::{JobRequest, JobsMade, Power, Work};
use net::client::Client;
use serde_json::json;

use super::names::names;
use crate::args::parse::parse_moment;
use crate::clock;
use crate::commands::Context;
use crate::exit::Result;
use crate::ui::prompt;

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

/// Gives `machines` the job to do `work`.
pub(crate) fn give(
    context: &Context,
    client: &Client,
    work: Work,
    machines: &[String],
    terms: &Terms,
    window: Duration,
) -> Result<JobsMade> {
    if !work.is_for_agents() {
        terms.disk.as_deref().map(crate::target::check_rule).transpose()?;
    }
    if work == Work::Wipe && !context.global.yes {
        let question = format!("the disks of {} will be erased", machines.join(", "));
        prompt::confirm(&question, "say --yes if you are sure")?;
    }
    let request = JobRequest {
        work,
        machines: machines.to_vec(),
        disk: terms.disk.clone(),
        begins: terms.at.unwrap_or_default(),
        power: terms.power(),
        window: window.as_secs(),
    };
    let made = client.give_job(&request)?;
    let work = serde_json::to_value(&made.work).expect("work is plain data");
    let record = json!({ "type": "job", "job": work, "begins": request.begins, "machines": made.machines });
    let asks = if made.work.is_for_agents() { "when its agent asks" } else { "when it boots" };
    let when = match request.begins.saturating_sub(clock::unix_seconds()) {
        0 => asks.to_owned(),
        seconds => {
            format!("{asks} in {} or later", base::units::show_duration(Duration::from_secs(seconds)))
        }
    };
    context.output.result(&record, || {
        format!("job for {}, {when}: {}; see `diskcast hosts`\n", names(&made.machines), made.work)
    })?;
    Ok(made)
}
