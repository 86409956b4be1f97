//! Opens a bucket of an S3-compatible store as an `ObjectStore`.

use std::sync::Arc;
use std::time::Duration;

use base::Result;
use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::client::HttpConnector;
use object_store::prefix::PrefixStore;
use object_store::{BackoffConfig, ObjectStore, RetryConfig};

use crate::backend::access::S3Access;
use crate::backend::http::Connector;
use crate::backend::location::Bucket;
use crate::error::from_store;

/// Each wait is random, from `RETRY_WAIT_MIN` to at most `RETRY_GROWTH` times the one before and `RETRY_WAIT_MAX`. Up
/// to a growth of e (2.7) waits would stay as short as the first one on average.
const RETRY_WAIT_MIN: Duration = Duration::from_millis(50);
const RETRY_WAIT_MAX: Duration = Duration::from_secs(5);
const RETRY_GROWTH: f64 = 4.0;

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
    let connector = Connector::new(uses_tls, access.ca_bundle.as_deref())?;
    connect_by(bucket, access, connector, retry(access.retry, RETRY_WAIT_MIN, RETRY_WAIT_MAX))
}

/// How requests are retried for `time`, with waits from `min` to `max`.
fn retry(time: Duration, min: Duration, max: Duration) -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig { init_backoff: min, max_backoff: max, base: RETRY_GROWTH },
        // The time alone says when it is enough.
        max_retries: usize::MAX,
        retry_timeout: time,
    }
}

fn connect_by(
    bucket: &Bucket,
    access: &S3Access,
    connector: impl HttpConnector,
    retry: RetryConfig,
) -> Result<Arc<dyn ObjectStore>> {
    let mut builder = AmazonS3Builder::new()
        .with_http_connector(connector)
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use object_store::client::{HttpClient, HttpError, HttpRequest, HttpResponse, HttpService};
    use object_store::{ClientOptions, ObjectStoreExt as _};

    use super::*;
    use crate::Location;

    /// A store that is overloaded for so many requests.
    #[derive(Debug, Clone)]
    struct Busy(Arc<AtomicU64>);

    impl HttpConnector for Busy {
        fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
            Ok(HttpClient::new(self.clone()))
        }
    }

    #[async_trait::async_trait]
    impl HttpService for Busy {
        async fn call(&self, _: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
            let left = |left: u64| left.checked_sub(1);
            let busy = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok();
            let status = if busy { 503 } else { 200 };
            Ok(http::Response::builder().status(status).body(bytes::Bytes::new().into()).unwrap())
        }
    }

    #[test]
    fn a_store_is_retried_for_a_time_and_not_a_number_of_times() {
        let variables = [("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b"), ("AWS_REGION", "c")];
        let variable =
            |asked: &str| variables.iter().find(|(name, _)| *name == asked).map(|(_, value)| (*value).into());
        let access = S3Access::from_variables(&variable).unwrap();
        let Location::S3(bucket) = "s3://images".parse().unwrap() else { panic!("it is a bucket") };
        let left = Arc::new(AtomicU64::new(200));
        let wait = Duration::from_micros(50);
        let store =
            connect_by(&bucket, &access, Busy(Arc::clone(&left)), retry(access.retry, wait, wait * 4))
                .unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let put = async { store.put(&"a".into(), "content".into()).await };
        // Its answer has no tag, which is not the point.
        let told = runtime.block_on(put).map_or_else(|error| error.to_string(), |_| String::new());
        assert!(!told.contains("503"), "{told}");
        assert_eq!(left.load(Ordering::Relaxed), 0, "{told}");
    }
}
