//! How a client goes about its requests.

use std::sync::Arc;
use std::time::Duration;

use image::{Cipher, Trust};

use crate::clock::Stop;

/// How long a client waits for what.
#[derive(Clone)]
pub struct ClientOptions {
    /// For a connection.
    pub connect_timeout: Duration,
    /// For an answer, all of it.
    pub request_timeout: Duration,
    /// For the first answer of a server, over all attempts.
    pub first_patience: Duration,
    /// For a server that has answered before and does not any more, over all attempts of one request.
    pub patience: Duration,
    /// How the server's repository keeps objects and manifests: they travel as they are kept.
    pub cipher: Cipher,
    /// Keys whose versions are used; `None` for all versions. Whoever looks for a version checks it.
    pub trust: Option<Trust>,
    /// Ends every wait.
    pub stop: Stop,
    /// Hears, in words, that the server is waited for, and that it answers again.
    pub tell: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(60),
            first_patience: Duration::from_secs(20),
            patience: Duration::from_secs(120),
            cipher: Cipher::None,
            trust: None,
            stop: Stop::new(),
            tell: Arc::new(|_| {}),
        }
    }
}
