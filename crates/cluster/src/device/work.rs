//! Where commands wait for the disk.

use std::sync::Arc;

use super::Device;
use crate::problem::{Answer, Problem};

/// Runs what waits for the disk where it holds nobody up.
pub(super) async fn blocking<T: Send + 'static>(
    device: &Arc<Device>,
    work: impl FnOnce(&Device) -> Answer<T> + Send + 'static,
) -> Answer<T> {
    let device = Arc::clone(device);
    let done = tokio::task::spawn_blocking(move || work(&device)).await;
    done.map_err(|error| Problem::failed("run a command", error))?
}
