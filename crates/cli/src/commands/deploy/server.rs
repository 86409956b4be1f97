//! Where hosts get the image: from a server that is there, or from this program, which serves its repository meanwhile.

use std::net::SocketAddr;
use std::sync::Arc;

use base::Digest;
use daemon::auth::authority::Right;
use daemon::state::StateFolder;
use daemon::{MulticastOptions, Places, PublicImages, ServeOptions, Server};
use image::SignedManifest;
use net::api::FROM_HERE;
use net::clock::Stop;
use net::interface;
use store::Repository;
use tempfile::TempDir;

use super::args::Args;
use crate::commands::Context;
use crate::exit::Result;
use crate::{connect, repository, version};

/// How long the token of a deployment is good, in seconds. It ends with the server of the deployment.
const TOKEN_SECONDS: u64 = 7 * 86_400;
/// Lowest rate of a multicast, in bits per second.
const RATE_FLOOR: u64 = 1_000_000;

/// Where the version is.
pub(super) enum Source {
    Here { repository: Arc<Repository>, version: SignedManifest },
    There { url: String, token: String, version: SignedManifest },
}

/// A server that has it, and a token for it.
pub(super) struct Serving {
    pub url: String,
    pub token: String,
    /// Serves until this is dropped; its folder goes after it.
    _own: Option<(Server, TempDir)>,
}

impl Serving {
    /// The server at `url`, which gives agents tokens of their own.
    pub(super) fn of_agents(url: &str) -> Self {
        Self { url: url.to_owned(), token: String::new(), _own: None }
    }
}

impl Source {
    /// Finds the version that hosts get, or the set.
    pub(super) fn open(context: &Context, args: &Args) -> Result<Self> {
        let (reference, at) = (repository::reference(&args.name)?, &args.server);
        let find = if args.by_ssh.resume { version::sight } else { version::find };
        let Some(server) = &at.server else {
            let repository = Arc::new(repository::open(&context.global)?);
            let place = repository::place(&context.global)?;
            let version = find(context, &*repository, &place, &reference)?;
            return Ok(Self::Here { repository, version });
        };
        let given = connect::token(&at.access)?.to_string();
        let client = connect::client(server, &at.access, &context.global.keys, Stop::new(), context.output)?;
        let version = find(context, &client, client.url(), &reference)?;
        Ok(Self::There { url: client.url().to_owned(), token: given, version })
    }

    fn manifest(&self) -> &image::Manifest {
        match self {
            Self::Here { version, .. } | Self::There { version, .. } => &version.manifest,
        }
    }

    /// The name of what is in the version, by which hosts say that they have it.
    pub(super) fn version(&self) -> Digest {
        self.manifest().root.name()
    }

    /// The version with its number.
    pub(super) fn reference(&self) -> String {
        format!("{}@{}", self.manifest().image, self.manifest().number)
    }

    /// Whether its server stays when this program has ended.
    pub(super) fn stays(&self) -> bool {
        matches!(self, Self::There { .. })
    }

    /// Serves it to this many hosts. `address`: this machine, for them.
    pub(super) fn serve(self, address: Option<&str>, hosts: usize) -> Result<Serving> {
        let (repository, version) = match self {
            Self::Here { repository, version } => (repository, version),
            Self::There { url, token, .. } => return Ok(Serving { url, token, _own: None }),
        };
        // A secret of its own: its tokens end with it.
        let folder = disk::private_folder(None)?;
        let state = folder.path().join("state");
        let server = daemon::serve(ServeOptions {
            repository,
            state: state.clone(),
            listen: SocketAddr::new(interface::any_address(), 0),
            tls: true,
            multicast: Some(MulticastOptions {
                interface: None,
                rate_bits_per_second: None,
                rate_floor_bits_per_second: RATE_FLOOR,
                encrypted: true,
                ttl: 1,
                // Logins take their time, and all wait for the last host.
                together: hosts > 1,
            }),
            token_lifetime: std::time::Duration::from_secs(TOKEN_SECONDS),
            token_out: None,
            places: Places::default(),
            netboot: None,
            agents: false,
            strict: false,
            public: PublicImages::default(),
            torrent: None,
            log: Arc::new(|_| {}),
        })?;
        let folder_of = StateFolder::of_server(&state)?;
        let token = connect::own_token(&folder_of, &version.manifest.image, Right::Read, TOKEN_SECONDS)?;
        let url = format!("https://{}:{}", address.unwrap_or(FROM_HERE), server.address().port());
        Ok(Serving { url, token: token.to_string(), _own: Some((server, folder)) })
    }
}
