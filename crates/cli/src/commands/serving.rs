//! What a machine that has its image says and does while it serves others.

use std::time::Duration;

use base::ErrorKind;
use base::units::{show_bytes, show_duration};
use net::client::{Client, ClientOptions};
use net::clock::{Clock, Stop};
use serde_json::json;

use super::Context;
use crate::exit::Result;

/// How often it is looked whether the server is there.
const LOOK: Duration = Duration::from_secs(15);
/// For how long it may be away.
const AWAY: Duration = Duration::from_secs(60);

/// Serves others for `time`; `sent_bytes` says at the end how much they got.
pub(super) fn serve(
    context: &Context,
    (client, stop): (&Client, &Stop),
    time: Duration,
    sent_bytes: &dyn Fn() -> u64,
) -> Result<()> {
    serving(context, time)?;
    while_there(client, time, stop);
    served(context, sent_bytes())
}

/// Says that other machines are served for `time` from now on: all else is done.
pub(super) fn serving(context: &Context, time: Duration) -> Result<()> {
    let record = json!({ "type": "serving", "seconds": time.as_secs_f64() });
    let text = format!("serving other machines for {}; Ctrl-C ends it\n", show_duration(time));
    context.output.result(&record, || text)
}

/// Says that this is over.
pub(super) fn served(context: &Context, bytes: u64) -> Result<()> {
    let record = json!({ "type": "served", "served_bytes": bytes });
    context.output.result(&record, || format!("served {} to other machines\n", show_bytes(bytes)))
}

/// Waits for `time`, until it is called off, or until the server is gone, without which nobody finds this machine.
pub(super) fn while_there(client: &Client, time: Duration, stop: &Stop) {
    let options = client.options().clone();
    let client = client.with_options(ClientOptions {
        first_patience: AWAY,
        patience: AWAY,
        stop: stop.clone(),
        ..options
    });
    let clock = Clock::start();
    loop {
        let left = time.saturating_sub(clock.elapsed());
        if left.is_zero() || !stop.pause(left.min(LOOK)) {
            return;
        }
        // Whatever it answers, it is there.
        if client.token_grant().is_err_and(|error| error.kind() == ErrorKind::Unreachable) {
            return;
        }
    }
}
