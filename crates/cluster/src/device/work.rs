//! Where commands wait for the disk, and where their bodies come into memory.

use std::sync::Arc;

use axum::body::{Body, HttpBody as _};
use bytes::Bytes;
use futures::StreamExt as _;

use super::Device;
use crate::buffers::Buffers;
use crate::problem::{Answer, Problem, Word};

/// Runs what waits for the disk where it holds nobody up.
pub(super) async fn blocking<T: Send + 'static>(
    device: &Arc<Device>,
    work: impl FnOnce(&Device) -> Answer<T> + Send + 'static,
) -> Answer<T> {
    let device = Arc::clone(device);
    let done = tokio::task::spawn_blocking(move || work(&device)).await;
    done.map_err(|error| Problem::failed("run a command", error))?
}

/// The body of a request, in a buffer that disks can take it from.
pub(super) async fn collect(buffers: &Buffers, body: Body, bytes_max: usize) -> Answer<Bytes> {
    let invalid = |why: String| Problem::new(Word::Invalid, why);
    let told = body.size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
    let bytes = told.unwrap_or(bytes_max);
    let too_long = || invalid(format!("a body has at most {bytes_max} bytes"));
    if bytes > bytes_max {
        return Err(too_long());
    }
    let (mut parts, mut whole) = (body.into_data_stream(), buffers.fill(bytes));
    while let Some(part) = parts.next().await {
        let part = part.map_err(|error| invalid(format!("the body broke off: {error}")))?;
        whole.push(&part).ok_or_else(too_long)?;
    }
    Ok(whole.freeze())
}
