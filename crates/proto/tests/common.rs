//! What the tests of servers share.

use base::Duration;
use proto::multicast::{Gathering, RateConfig, ServerConfig, Shape};

/// A server with this rate, and objects of so many bytes each.
pub(crate) fn server_config(shape: Shape, object_bytes: u32, bits_per_second: u64) -> ServerConfig {
    let rate = RateConfig { initial: bits_per_second, floor: bits_per_second, ceiling: bits_per_second };
    ServerConfig {
        shape,
        object_bytes: vec![object_bytes; usize::try_from(shape.objects).unwrap()].into(),
        rate,
        overhead_bytes: 42,
        signature_bytes: 0,
        run_blocks_max: 16,
        cache_bytes: 1 << 20,
        gathering: Gathering::default(),
        receiver_timeout: Duration::from_secs(10),
    }
}
