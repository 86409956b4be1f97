//! `diskcast serve`: offers all images of a repository to the network.

use std::net::SocketAddr;
use std::sync::Arc;

use daemon::{MulticastOptions, ServeOptions, Server};
use serde_json::json;

use super::Context;
use crate::args::Serve;
use crate::exit::Result;
use crate::{clock, interrupt, notify, repository};

pub fn run(context: &Context, args: &Serve) -> Result<()> {
    let repository = Arc::new(repository::open_or_create(&context.global)?);
    let state = match &args.state.state {
        Some(path) => path.clone(),
        None => repository::default_state_folder()?,
    };
    let output = context.output;
    let images = repository.images()?.len();
    let name = repository.name().to_owned();
    let multicast = (!args.no_multicast).then(|| MulticastOptions {
        interface: args.interface.clone(),
        rate_bits_per_second: args.rate,
        rate_floor_bits_per_second: args.rate_floor,
        ttl: args.ttl,
    });
    let server = daemon::serve(ServeOptions {
        repository,
        state,
        listen: args.listen,
        tls: !args.no_tls,
        multicast,
        token_lifetime: args.token_expires,
        token_out: args.token_out.clone(),
        log: Arc::new(move |event| output.event(event)),
    })?;
    announce(context, args, &server, &name, images)?;
    notify::ready(&format!("serves {name}"));
    interrupt::wait();
    notify::stopping();
    output.note("stopping: running requests may finish, sessions end");
    server.shutdown();
    Ok(())
}

fn announce(context: &Context, args: &Serve, server: &Server, repository: &str, images: usize) -> Result<()> {
    let url = url(server.address(), !args.no_tls);
    let token = server.join_token();
    let expires = clock::show_unix(clock::unix_seconds() + args.token_expires.as_secs());
    let record = json!({
        "type": "serving", "url": url, "repository": repository, "images": images, "token": token.to_string(),
        "token_expires": expires, "multicast": !args.no_multicast,
    });
    context.output.answer(&record, || {
        let plural = if images == 1 { "" } else { "s" };
        let port = server.address().port();
        let host =
            if server.address().ip().is_unspecified() { format!("SERVER:{port}") } else { url.clone() };
        format!(
            "serving {images} image{plural} of {repository} at {url}\n\
             join token, for reading all images until {expires}:\n\n  {token}\n\n\
             on a client: diskcast fetch {host} NAME TARGET --token-file FILE\n"
        )
    })
}

fn url(address: SocketAddr, tls: bool) -> String {
    format!("{}://{address}", if tls { "https" } else { "http" })
}
