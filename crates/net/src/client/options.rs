//! Options of a client.

use std::sync::Arc;
use std::time::Duration;

use image::{Cipher, Trust};

use crate::clock::Stop;

/// How long a client waits, and what it needs besides the server's address and the token.
#[derive(Clone)]
pub struct ClientOptions {
    /// Longest wait for a connection.
    pub connect_timeout: Duration,
    /// Longest wait for a complete answer, per attempt.
    pub request_timeout: Duration,
    /// Longest wait for the first answer of a server, over all attempts.
    pub first_patience: Duration,
    /// Longest wait for a server that has answered before, over all attempts of one request.
    pub patience: Duration,
    /// How the server's repository encrypts objects and manifests: they are sent as they are stored.
    pub cipher: Cipher,
    /// Only versions signed by these keys are used; `None` for all versions. The code that looks for a version checks
    /// this, not the client.
    pub trust: Option<Trust>,
    /// Ends every wait.
    pub stop: Stop,
    /// Called with a text when the client waits for the server, and when the server answers again.
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
