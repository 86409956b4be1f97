//! Programs of others, and files in memory.

#![allow(dead_code, reason = "every test program uses its own part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::process::{Command, Stdio};
use std::sync::Arc;

use base::{Chance, Result};
use parking_lot::Mutex;
use torrent::Content;

/// A file in memory.
pub(crate) struct Memory(pub(crate) Mutex<Vec<u8>>);

impl Memory {
    pub(crate) fn of(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(bytes)))
    }

    /// Random bytes, with zeros in the middle.
    pub(crate) fn random(len: usize, seed: u64) -> Arc<Self> {
        let mut bytes = vec![0; len];
        Chance::from_seed(seed).fill(&mut bytes);
        bytes[len / 3..len / 2].fill(0);
        Self::of(bytes)
    }
}

impl Content for Memory {
    fn len(&self) -> u64 {
        self.0.lock().len() as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let at = usize::try_from(offset).unwrap();
        into.copy_from_slice(&self.0.lock()[at..at + into.len()]);
        Ok(())
    }

    fn keep(&self, offset: u64, piece: &[u8]) -> Result<()> {
        let at = usize::try_from(offset).unwrap();
        self.0.lock()[at..at + piece.len()].copy_from_slice(piece);
        Ok(())
    }
}

/// Whether all of `programs` are here. If not, says so; where `CI` is set they must be.
#[expect(clippy::print_stderr, reason = "a test that leaves something out says so")]
pub(crate) fn are_here(programs: &[&[&str]]) -> bool {
    let is_here = |program: &&&[&str]| {
        let mut command = Command::new(program[0]);
        let done = command.args(&program[1..]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        done.is_ok_and(|status| status.success())
    };
    let Some(lacks) = programs.iter().find(|program| !is_here(program)) else { return true };
    assert!(std::env::var_os("CI").is_none(), "CI needs {lacks:?}");
    eprintln!("left out: {} is not here", lacks[0]);
    false
}

/// How to ask whether these are here.
pub(crate) const ARIA2: &[&str] = &["aria2c", "--version"];
pub(crate) const TRANSMISSION: &[&str] = &["transmission-show", "--version"];
/// Debian's Python has Debian's libtorrent.
pub(crate) const LIBTORRENT: &[&str] = &["/usr/bin/python3", "-c", "import libtorrent"];

/// What a program prints, which must succeed.
pub(crate) fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}{errors}");
    text
}
