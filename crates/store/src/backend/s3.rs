//! Opens a bucket of an S3-compatible store as an `ObjectStore`.

use std::sync::Arc;
use std::time::Duration;

use base::Result;
use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::prefix::PrefixStore;
use object_store::{BackoffConfig, ObjectStore, RetryConfig};

use crate::backend::access::S3Access;
use crate::backend::http::Connector;
use crate::backend::location::Bucket;
use crate::error::from_store;

/// How often a request is retried after throttling, a server error or a lost connection, and for how long in total.
/// Each wait is random, below a bound that doubles from `RETRY_WAIT_MIN` to `RETRY_WAIT_MAX`.
const RETRIES_MAX: usize = 8;
const RETRY_TIME_MAX: Duration = Duration::from_secs(60);
const RETRY_WAIT_MIN: Duration = Duration::from_millis(50);
const RETRY_WAIT_MAX: Duration = Duration::from_secs(5);

/// The name of the store in records. The same bucket name at another endpoint is another store.
pub(crate) fn place(bucket: &Bucket, access: &S3Access) -> String {
    match &access.endpoint {
        Some(endpoint) => format!("{bucket} at {endpoint}"),
        None => format!("{bucket} at Amazon S3, {}", access.region),
    }
}

/// Opens `bucket`. Sends no request yet.
pub(crate) fn connect(bucket: &Bucket, access: &S3Access) -> Result<Arc<dyn ObjectStore>> {
    let uses_tls = access.endpoint.as_ref().is_none_or(|url| url.starts_with("https:"));
    let retry = RetryConfig {
        backoff: BackoffConfig { init_backoff: RETRY_WAIT_MIN, max_backoff: RETRY_WAIT_MAX, base: 2.0 },
        max_retries: RETRIES_MAX,
        retry_timeout: RETRY_TIME_MAX,
    };
    let mut builder = AmazonS3Builder::new()
        .with_http_connector(Connector::new(uses_tls, access.ca_bundle.as_deref())?)
        .with_bucket_name(&bucket.name)
        .with_region(&access.region)
        .with_access_key_id(&access.credentials.key_id)
        .with_secret_access_key(&access.credentials.secret)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_unsigned_payload(!access.sign_payload)
        .with_allow_http(access.allow_http)
        .with_retry(retry);
    if let Some(token) = &access.credentials.token {
        builder = builder.with_token(token);
    }
    builder = match &access.endpoint {
        // Path-style requests: the DNS of a small store rarely has a name for each bucket.
        Some(endpoint) => builder.with_endpoint(endpoint),
        // Amazon's wildcard certificate covers one DNS label, so a bucket name with dots needs path-style requests.
        None => builder.with_virtual_hosted_style_request(!bucket.name.contains('.')),
    };
    let store = builder.build().map_err(|error| from_store(format!("open `{bucket}`"), error))?;
    Ok(match bucket.prefix.as_str() {
        "" => Arc::new(store),
        prefix => Arc::new(PrefixStore::new(store, prefix)),
    })
}
