//! Who knows what other machines read when they started: a repository, which keeps profiles of boots, or a server,
//! through which machines also tell each other what they read while they start. All of it is hints.

use std::sync::Arc;
use std::time::Duration;

use base::limits::PROFILE_CHUNKS_MAX;
use net::client::Client;
use net::profile::{ANSWER_CHUNKS_MAX, BootRequest, Cursor, ExchangeRequest, chunks_of, runs_of};
use store::{Repository, Stamp};

use crate::{Error, ErrorKind, Result};

/// See the module. Calls block; a disk makes one at a time.
pub trait Guide: Send + Sync {
    /// The chunks that a machine which starts from this version is likely to read, in order. `None` if nobody knows.
    fn profile(&self, image: &str, version: u64) -> Result<Option<Vec<u64>>>;

    /// Tells others what this machine has just read, at most `EXCHANGE_CHUNKS_MAX` chunks, and hears what they have
    /// read. `None` if nobody is told.
    fn exchange(&self, image: &str, told: Told<'_>) -> Result<Option<Heard>>;

    /// Keeps the chunks that a boot read, in the order of first reads.
    fn record(&self, image: &str, version: u64, chunks: &[u64]) -> Result<()>;
}

/// What a machine tells.
#[derive(Debug, Clone, Copy)]
pub struct Told<'a> {
    /// The version that it runs.
    pub version: u64,
    /// A random number of its own.
    pub machine: u64,
    /// What it has heard of: as the last answer had it.
    pub cursor: Cursor,
    /// What it read, in the order of first reads.
    pub chunks: &'a [u64],
}

/// What it hears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// For the next exchange.
    pub cursor: Cursor,
    /// What others read, in the order of first reads.
    pub chunks: Vec<u64>,
    /// No other exchange before so long.
    pub pause: Duration,
}

/// A repository as a guide. Nobody is told anything by it while machines start.
pub struct RepositoryGuide {
    /// Where profiles are.
    pub repository: Arc<Repository>,
    /// Who adds boots, and when.
    pub stamp: Stamp,
}

impl RepositoryGuide {
    fn failed(doing: &str, image: &str, error: store::Error) -> Error {
        Error::from_source(ErrorKind::Io, format!("{doing} the profile of `{image}`"), error)
    }
}

impl Guide for RepositoryGuide {
    fn profile(&self, image: &str, version: u64) -> Result<Option<Vec<u64>>> {
        let found = image.parse().and_then(|name| self.repository.profile(&name, version));
        let found = found.map_err(|error| Self::failed("read", image, error))?;
        Ok(found.map(|profile| profile.order()))
    }

    fn exchange(&self, _image: &str, _told: Told<'_>) -> Result<Option<Heard>> {
        Ok(None)
    }

    fn record(&self, image: &str, version: u64, chunks: &[u64]) -> Result<()> {
        let add = |name| self.repository.add_profile(&name, version, chunks, &self.stamp);
        let added = image.parse().and_then(add);
        added.map(drop).map_err(|error| Self::failed("add to", image, error))
    }
}

/// The server of the client as a guide.
impl Guide for Client {
    fn profile(&self, image: &str, version: u64) -> Result<Option<Vec<u64>>> {
        let found = Self::profile(self, image, version).map_err(unreachable)?;
        Ok(found.map(|profile| chunks_of(&profile.runs, PROFILE_CHUNKS_MAX)))
    }

    fn exchange(&self, image: &str, told: Told<'_>) -> Result<Option<Heard>> {
        let Told { version, machine, cursor, chunks } = told;
        let request = ExchangeRequest { version, machine, cursor, runs: runs_of(chunks) };
        match self.exchange_reads(image, &request) {
            // It is an older one, or the version is gone.
            Err(error) if error.kind() == net::ErrorKind::NotFound => Ok(None),
            answer => answer.map_err(unreachable).map(|answer| {
                Some(Heard {
                    cursor: answer.cursor,
                    chunks: chunks_of(&answer.runs, ANSWER_CHUNKS_MAX),
                    pause: Duration::from_millis(u64::from(answer.pause_ms)),
                })
            }),
        }
    }

    fn record(&self, image: &str, version: u64, chunks: &[u64]) -> Result<()> {
        let boot = BootRequest { version, runs: runs_of(chunks) };
        self.add_boot(image, &boot).map(drop).map_err(unreachable)
    }
}

fn unreachable(error: net::Error) -> Error {
    Error::from_source(ErrorKind::Unreachable, "ask the server for what others read", error)
}
