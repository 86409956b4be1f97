//! Other servers that run during a measurement, on a host of the lab or locally, and end with it.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lab::Host;

use crate::Result;

/// Time limit for a program to listen.
const START_TIME_MAX: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(5);

/// A program that is ended when this is dropped.
pub(crate) struct Program(Child);

impl Program {
    /// Starts it.
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Ok(Self(child.map_err(|error| format!("{command:?}: {error}"))?))
    }

    /// Waits until it listens on the Unix socket `socket`.
    pub(crate) fn until_socket(mut self, socket: &Path) -> Result<Self> {
        self.until(|| socket.exists())?;
        Ok(self)
    }

    /// Waits until it can be reached at `address` from `host`.
    pub(crate) fn until_port(mut self, host: &Host, address: SocketAddr) -> Result<Self> {
        self.until(|| {
            let connect = move || TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok();
            host.run(connect).is_ok_and(|thread| thread.join().unwrap_or(false))
        })?;
        Ok(self)
    }

    fn until(&mut self, ready: impl Fn() -> bool) -> Result<()> {
        let clock = Instant::now();
        while !ready() {
            if let Some(status) = self.0.try_wait()? {
                return Err(format!("a program that should serve ended: {status}").into());
            }
            if clock.elapsed() > START_TIME_MAX {
                return Err("a program that should serve does not listen".into());
            }
            std::thread::park_timeout(LOOK);
        }
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Fails if the program has already ended.
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}
