//! Runs an S3 store on loopback for tests and measurements: versitygw or MinIO, which `tools/versitygw.sh` builds. The
//! store keeps its objects in a temporary folder.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base::{Error, ErrorKind, Result};

use crate::tool;

/// How long a store may take to start before it counts as failed.
const START_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Credentials of this store. No other store knows them.
const KEY_ID: &str = "diskcast-lab";
const SECRET: &str = "no-secret-at-all";

/// The programs that provide an S3 store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// versitygw: stores objects as files of a folder, with metadata in extended attributes.
    VersityGw,
    /// MinIO with one drive, in the last version before its project was archived.
    MinIo,
    /// The same with ten drives, any two of which may fail (EC:2): folders on the same disk.
    MinIoEc2,
}

/// Drives of [`Engine::MinIoEc2`].
const DRIVES: usize = 10;

impl Engine {
    fn program(self) -> PathBuf {
        tool::built(match self {
            Self::VersityGw => "versitygw-1.8.0",
            Self::MinIo | Self::MinIoEc2 => "minio-2026-02-12",
        })
    }

    /// Whether the program was built.
    #[must_use]
    pub fn is_built(self) -> bool {
        self.program().exists()
    }

    /// The folders of its drives in `folder`.
    fn drives(self, folder: &Path) -> Vec<PathBuf> {
        match self {
            Self::VersityGw | Self::MinIo => vec![folder.to_owned()],
            Self::MinIoEc2 => (1..=DRIVES).map(|drive| folder.join(format!("drive-{drive}"))).collect(),
        }
    }

    fn command(self, address: SocketAddr, folder: &Path, tls: Option<&Path>) -> Command {
        // The shell kills the store when its own standard input ends. That happens even if this process is killed.
        let mut command = Command::new("sh");
        command.args(["-c", "\"$@\" & store=$!; cat >/dev/null; kill $store; wait $store", "store"]);
        command.arg(self.program());
        if self == Self::VersityGw {
            if let Some(certificates) = tls {
                command.arg("--cert").arg(certificates.join(Gateway::CERTIFICATE));
                command.arg("--key").arg(certificates.join(Gateway::KEY));
            }
            command.args(["--port", &address.to_string(), "--keep-alive", "--quiet", "posix"]).arg(folder);
            command.env("ROOT_ACCESS_KEY", KEY_ID).env("ROOT_SECRET_KEY", SECRET);
            return command;
        }
        command.args(["server", "--quiet", "--address", &address.to_string()]);
        if let Some(certificates) = tls {
            command.arg("--certs-dir").arg(certificates);
        }
        // Without its web pages, which would listen everywhere.
        command.args(self.drives(folder)).env("MINIO_CI_CD", "1").env("MINIO_BROWSER", "off");
        if self == Self::MinIoEc2 {
            command.env("MINIO_STORAGE_CLASS_STANDARD", "EC:2");
        }
        command.env("MINIO_ROOT_USER", KEY_ID).env("MINIO_ROOT_PASSWORD", SECRET);
        command
    }
}

/// A running S3 store. Dropping it stops the store and deletes its folder.
#[derive(Debug)]
pub struct Gateway {
    child: Child,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl Gateway {
    /// Names of the certificate and its key in a folder, in PEM, as MinIO has them.
    pub const CERTIFICATE: &str = "public.crt";
    /// See there.
    pub const KEY: &str = "private.key";

    /// Starts `engine` on a free port of loopback, with a new folder below `parent` and one bucket, `images`.
    ///
    /// # Errors
    /// `Unsupported` if the program was not built; `Unreachable` or `Io` if it does not start.
    pub fn start(engine: Engine, parent: &Path) -> Result<Self> {
        Self::launch(engine, parent, None)
    }

    /// Like [`Self::start`], with TLS. `certificates` has [`Self::CERTIFICATE`] and [`Self::KEY`].
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with_tls(engine: Engine, parent: &Path, certificates: &Path) -> Result<Self> {
        Self::launch(engine, parent, Some(certificates))
    }

    fn launch(engine: Engine, parent: &Path, tls: Option<&Path>) -> Result<Self> {
        if !engine.is_built() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("there is no `{}`: tools/versitygw.sh builds it", engine.program().display()),
            ));
        }
        let io = |what: &str| {
            let what = format!("{what} for an S3 store");
            move |error: std::io::Error| Error::from_source(ErrorKind::Io, what, error)
        };
        let folder = tempfile::tempdir_in(parent).map_err(io("make a folder"))?;
        for drive in engine.drives(folder.path()) {
            std::fs::create_dir_all(drive.join("images")).map_err(io("make a bucket"))?;
        }
        // The listener is closed at once: the port is free, unless another process takes it before the store does.
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = free.map_err(io("find a port"))?;
        let child = engine
            .command(address, folder.path(), tls)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(io("start a shell"))?;
        let mut gateway = Self { child, address, folder };
        gateway.wait_until_it_answers()?;
        Ok(gateway)
    }

    /// For tests: starts a store. If the program was not built, prints the reason on stderr and returns `None`.
    ///
    /// # Panics
    /// If the program was not built and `CI` is set, and if the store does not start.
    #[must_use]
    #[expect(clippy::print_stderr, reason = "a test that leaves something out says so")]
    pub fn start_or_skip(engine: Engine) -> Option<Self> {
        match Self::start(engine, &std::env::temp_dir()) {
            Ok(gateway) => Some(gateway),
            Err(why) if why.kind() == ErrorKind::Unsupported && std::env::var_os("CI").is_none() => {
                eprintln!("left out: {why}");
                None
            }
            Err(why) => panic!("{}", base::chain(&why)),
        }
    }

    /// The address and port of the store.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The environment variables with which diskcast finds the store. `address` is that of the store or of a proxy in
    /// front of it.
    #[must_use]
    pub fn variables(address: SocketAddr) -> [(&'static str, String); 3] {
        [
            ("AWS_ENDPOINT_URL", format!("http://{address}")),
            ("AWS_ACCESS_KEY_ID", KEY_ID.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
        ]
    }

    /// The folder with the buckets.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn wait_until_it_answers(&mut self) -> Result<()> {
        for _ in 0..START_MAX.as_millis() / LOOK_EVERY.as_millis() {
            if TcpStream::connect(self.address).is_ok() {
                return Ok(());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(Error::new(
                    ErrorKind::Io,
                    format!("the S3 store ended when it started: {status}"),
                ));
            }
            std::thread::park_timeout(LOOK_EVERY);
        }
        Err(Error::new(ErrorKind::Unreachable, "the S3 store does not answer"))
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // `drop` cannot report an error.
        let _ = self.child.wait();
    }
}
