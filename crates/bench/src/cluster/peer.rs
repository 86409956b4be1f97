//! An S3 store with TLS that keeps the same objects, read by processes of curl.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use bytes::Bytes;
use lab::{Engine, Gateway};

use crate::Result;
use crate::context::{Context, said};

/// A running store, and what its certificate lies in.
pub(super) struct Peer {
    gateway: Gateway,
    certificate: PathBuf,
}

impl Peer {
    pub(super) fn start(context: &Context, engine: Engine) -> Result<Self> {
        let folder = context.folder()?;
        let certificate = folder.join(Gateway::CERTIFICATE);
        let words = "req -x509 -newkey ed25519 -nodes -subj /CN=peer -addext subjectAltName=IP:127.0.0.1";
        let mut openssl = Command::new("openssl");
        openssl.args(words.split(' ')).arg("-keyout").arg(folder.join(Gateway::KEY));
        said(openssl.arg("-out").arg(&certificate))?;
        Ok(Self { gateway: Gateway::start_with_tls(engine, &context.scratch, &folder)?, certificate })
    }

    fn url(&self, number: usize) -> String {
        format!("https://{}/images/get/{number}", self.gateway.address())
    }

    fn curl(&self) -> Command {
        let [_, (_, key), (_, secret)] = Gateway::variables(self.gateway.address());
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--fail", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user"])
            .arg(format!("{key}:{secret}"))
            .args(["--header", "x-amz-content-sha256: UNSIGNED-PAYLOAD"])
            .arg("--cacert")
            .arg(&self.certificate);
        curl
    }

    /// Stores `count` objects, all with this content. A store that has just started may refuse the first.
    pub(super) fn put(&self, content: &Bytes, count: usize) -> Result<()> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(&file, content)?;
        for number in 0..count {
            let mut curl = self.curl();
            curl.args(["--retry", "10", "--upload-file"]).arg(file.path()).arg(self.url(number));
            said(&mut curl)?;
        }
        Ok(())
    }

    /// Seconds in which so many processes of curl read these objects, each its share over one connection.
    pub(super) fn get(&self, count: usize, readers: usize) -> Result<f64> {
        let start = Instant::now();
        let mut reading = Vec::new();
        for reader in 0..readers {
            let mut command = self.curl();
            for number in (reader..count).step_by(readers) {
                command.args(["--output", "/dev/null"]).arg(self.url(number));
            }
            reading.push(command.stdin(Stdio::null()).spawn()?);
        }
        for mut reader in reading {
            if !reader.wait()?.success() {
                return Err("curl failed".into());
            }
        }
        Ok(start.elapsed().as_secs_f64())
    }
}
