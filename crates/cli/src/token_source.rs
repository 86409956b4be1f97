//! Reads the token of a server: from a file, from standard input, or from the environment.

use std::path::Path;

use net::token::JoinToken;

use crate::args::TokenSource;
use crate::exit::{Exit, Failure, Result};

const VARIABLE: &str = "DISKCAST_TOKEN";
const BYTES_MAX: u64 = 4096;

/// The token that the command line or the environment names.
pub fn read(source: &TokenSource) -> Result<JoinToken> {
    let text = match &source.token_file {
        Some(path) => read_file(path)?,
        None => std::env::var(VARIABLE).map_err(|_| {
            Failure::new(Exit::Usage, "a token of the server is needed").hint(
                "`diskcast serve` prints one, `diskcast token` on the server makes one: give it by --token-file",
            )
        })?,
    };
    text.trim().parse().map_err(Failure::from)
}

fn read_file(path: &Path) -> Result<String> {
    let doing = || format!("read the token in `{}`", path.display());
    let mut text = String::new();
    let mut reader: Box<dyn std::io::Read> = if path == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(path).map_err(|error| Failure::from(error).context(doing()))?)
    };
    std::io::Read::read_to_string(&mut std::io::Read::take(&mut reader, BYTES_MAX), &mut text)
        .map_err(|error| Failure::from(error).context(doing()))?;
    Ok(text)
}
