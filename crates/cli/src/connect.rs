//! Makes clients of servers, with a token from a file, standard input or the environment.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::{Error, ErrorKind};
use daemon::auth::authority::{Claims, Right};
use daemon::auth::tokens::{Given, Keeper, Place};
use image::Cipher;
use mirror::Images;
use net::client::{Client, ClientOptions, Credential};
use net::clock::Stop;
use net::token::JoinToken;

use crate::args::{Keys, ServerAccess, StateFolder, There};
use crate::commands::Context;
use crate::exit::{Exit, Failure, Result};
use crate::ui::output::Output;
use crate::{clock, keys, repository};

/// Has the token itself.
pub(crate) const VARIABLE: &str = "DISKCAST_TOKEN";
const BYTES_MAX: u64 = 4096;
/// How long a token lasts that a command makes for itself.
const MANAGING_SECONDS: u64 = 300;

/// A client of `server` for commands. It waits for the server up to `access.wait` and tells the user so.
pub(crate) fn client(
    server: &str,
    access: &ServerAccess,
    keys: &Keys,
    stop: Stop,
    output: Output,
) -> Result<Client> {
    let credential = place(access, None)?.credential()?;
    client_by(server, credential, access.wait, keys, stop, output)
}

/// Like [`client`], with a credential that it shares with other clients.
pub(crate) fn client_by(
    server: &str,
    credential: Arc<Credential>,
    wait: Duration,
    keys: &Keys,
    stop: Stop,
    output: Output,
) -> Result<Client> {
    let options = ClientOptions {
        cipher: keys::encryption_key(keys)?.map_or(Cipher::None, Cipher::Key),
        trust: keys::required_trust(keys)?,
        first_patience: wait,
        stop,
        tell: Arc::new(move |words| output.note(words)),
        ..ClientOptions::default()
    };
    Ok(Client::connect_by(server, credential, options)?)
}

/// A client of `server` with short timeouts, for callers that can use another source instead.
pub(crate) fn quick_by(server: &str, credential: Arc<Credential>, keys: &Keys, stop: Stop) -> Result<Client> {
    let cipher = keys::encryption_key(keys)?.map_or(Cipher::None, Cipher::Key);
    let options =
        ClientOptions { trust: keys::required_trust(keys)?, ..mirror::Source::client_options(cipher, stop) };
    Ok(Client::connect_by(server, credential, options)?)
}

/// A client of `server` that may make versions there. `seals` says whether this program encrypts what it sends, which
/// needs the key of an encrypted repository.
pub(crate) fn writer(server: &str, access: &ServerAccess, context: &Context, seals: bool) -> Result<Client> {
    let keys = &context.global.keys;
    if keys.sign_key.is_some() {
        return Err(Failure::new(
            Exit::Usage,
            "a version that goes to a server is numbered, and so signed, there",
        )
        .hint("give --sign-key to `diskcast serve`, not here"));
    }
    let client = client(server, access, keys, Stop::new(), context.output)?;
    may_write(&client)?;
    // A user who gives a key expects encryption, so an unencrypted server is refused too.
    if seals || keys.encryption_key.is_some() {
        keys::check_server(keys, &client)?;
    }
    Ok(client)
}

/// Renews the token of `client` in time while this is held: what the command does may take longer than the token lasts.
/// `None` for a dry run, which changes nothing.
pub(crate) fn keep_token(context: &Context, client: &Client) -> Result<Option<Keeper>> {
    match context.global.dry_run {
        true => Ok(None),
        false => keep_credential(client.url(), client.credential()).map(Some),
    }
}

/// The same for the `credential` that clients of `server` share. The renewal stays in memory.
pub(crate) fn keep_credential(server: &str, credential: &Arc<Credential>) -> Result<Keeper> {
    let first = credential.token();
    let place = Place { given: Arc::new(move || Ok(first.clone())), kept: None };
    let options = mirror::Source::client_options(Cipher::None, Stop::new());
    let client = Client::connect_by(server, Arc::clone(credential), options)?;
    // Requests that need the token tell what is wrong with it.
    let tell = Box::new(|_: &str, _| {});
    Ok(Keeper::start(vec![(server.to_owned(), Arc::new(client), place)], tell)?)
}

/// A client that manages the machines of a server: by the token that was given, else by one that this machine's own
/// server accepts, which only its user can make.
pub(crate) fn manager(
    context: &Context,
    server: Option<&str>,
    access: &ServerAccess,
    state: &StateFolder,
) -> Result<Client> {
    let (keys, output) = (&context.global.keys, context.output);
    let server = server.unwrap_or("localhost");
    if access.token_file.is_some() || std::env::var_os(VARIABLE).is_some() {
        return client(server, access, keys, Stop::new(), output);
    }
    let explain =
        |error| Failure::from(error).hint("run this on the server, as its user, or give --token-file");
    let folder = daemon::state::StateFolder::of_server(&repository::state_folder(state)?).map_err(explain)?;
    let make = move || own_token(&folder, "*", Right::Manage, MANAGING_SECONDS);
    // A command that follows its jobs runs longer than a token lasts, and makes the next one.
    let credential = Credential::from_place(make()?, Box::new(move || make().ok()));
    client_by(server, credential, access.wait, keys, Stop::new(), output)
}

/// A token that a command makes for itself, of the server whose `folder` this is: it grants `right` for the images that
/// the pattern `images` means, for some seconds.
pub(crate) fn own_token(
    folder: &daemon::state::StateFolder,
    images: &str,
    right: Right,
    seconds: u64,
) -> Result<JoinToken> {
    let expires = clock::unix_seconds() + seconds;
    let claims = Claims::plain(vec![images.to_owned()], right, expires);
    let secret = folder.authority()?.mint(&claims);
    let secret = secret.ok_or_else(|| Failure::new(Exit::Failed, "a token could not be made"))?;
    Ok(JoinToken { fingerprint: Some(folder.identity()?.fingerprint()), secret })
}

/// Succeeds if the client's token grants writing, so that nothing is read and prepared for a server that refuses it.
fn may_write(client: &Client) -> Result<()> {
    match client.token_grant() {
        Ok(grant) if ["write", "manage"].contains(&&*grant.right) => Ok(()),
        Ok(_) => Err(Failure::new(Exit::Unauthorized, "the token grants reading only")
            .hint("`diskcast token --write` on the server makes one that may write")),
        // A server that is too old for this request refuses later.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The images that a command changes: on the server if one is named, else in the local repository.
pub(crate) fn images(context: &Context, there: &There) -> Result<Box<dyn Images>> {
    images_at(context, there).map(|(images, _)| images)
}

/// [`images`], and where they are.
pub(crate) fn images_at(context: &Context, there: &There) -> Result<(Box<dyn Images>, String)> {
    Ok(match &there.to {
        Some(server) => {
            let client = writer(server, &there.access, context, false)?;
            let url = client.url().to_owned();
            (Box::new(client), url)
        }
        None => (Box::new(repository::open(&context.global)?), repository::place(&context.global)?),
    })
}

/// The place of the token that the command line or the environment names. Its renewal is stored in the file `kept`.
pub(crate) fn place(access: &ServerAccess, kept: Option<PathBuf>) -> Result<Place> {
    let first = token(access)?;
    let file = access.token_file.clone().filter(|path| path != Path::new("-"));
    let given: Given = match file {
        // Standard input cannot be read again, and the environment does not change.
        None => Arc::new(move || Ok(first.clone())),
        Some(_) => {
            let access = access.clone();
            Arc::new(move || token(&access).map_err(|failure| Error::new(ErrorKind::Io, failure.message)))
        }
    };
    Ok(Place { given, kept })
}

/// Reads the token now.
pub(crate) fn token(access: &ServerAccess) -> Result<JoinToken> {
    let text = match &access.token_file {
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
    if path != Path::new("-") {
        let bytes = daemon::private_file::read_private(path).map_err(|error| {
            let refused = error.kind() == base::ErrorKind::Refused;
            let failure = Failure::from(error).context(doing());
            let hint = format!("everybody who can read a token can use it: chmod 600 {}", path.display());
            if refused { failure.hint(hint) } else { failure }
        })?;
        return Ok(String::from_utf8_lossy(&bytes).into_owned());
    }
    let mut text = String::new();
    std::io::Read::read_to_string(&mut std::io::Read::take(std::io::stdin(), BYTES_MAX), &mut text)
        .map_err(|error| Failure::from(error).context(doing()))?;
    Ok(text)
}
