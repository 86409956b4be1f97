//! `diskcast serve`: serves all images of a repository to the network.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use daemon::{DhcpSettings, MulticastOptions, NetbootSettings, Places, PublicImages, ServeOptions, Server};
use net::token::JoinToken;
use net::{api, interface};
use serde_json::json;

use super::Context;
use crate::args::StateFolder;
use crate::args::parse::{parse_dhcp, parse_lifetime, parse_rate};
use crate::exit::{Exit, Failure, Result};
use crate::{clock, interrupt, notify, repository};

/// Serve all images of a repository to the network
///
/// One process serves every image: HTTPS for lists, manifests and chunks, and a multicast session per image that
/// starts with its first client and ends after its last. Creates a certificate and a secret on first start and prints
/// a token with which machines join. Ends on SIGINT or SIGTERM.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast serve
  diskcast serve --listen 10.0.0.1:7717 --interface eth1 --rate 800M
  diskcast serve --token-out join.token --repo /srv/images
  diskcast serve --public 'debian-*' --public-http 10.0.0.1:8080
  diskcast serve --torrent
  diskcast serve --netboot eth1
  diskcast serve --agents")]
pub(crate) struct Args {
    #[command(flatten)]
    pub serving: Serving,
    /// Let machines on this network interface boot from the network, as `diskcast netboot` does
    #[arg(long, value_name = "INTERFACE")]
    pub netboot: Option<String>,
    #[command(flatten)]
    pub boot: Boot,
    /// Let agents of hosts that run ask for jobs (`diskcast agent --server`); --netboot does, too
    #[arg(long)]
    pub agents: bool,
}

/// How a repository is served.
#[derive(Debug, clap::Args)]
pub(crate) struct Serving {
    /// Address and TCP port of the API [default: port 7717 at all addresses of this machine]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    #[command(flatten)]
    pub state: StateFolder,
    /// Network interface for multicast, by name or address [default: that of the client's route, but not loopback]
    #[arg(long, value_name = "INTERFACE")]
    pub interface: Option<String>,
    /// Maximum rate of all multicast sessions together, in bits per second on the wire [default: set by congestion
    /// control]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub rate: Option<u64>,
    /// Minimum rate of a session that has data to send, even if the network is congested
    #[arg(long, value_name = "RATE", value_parser = parse_rate, default_value = "1M")]
    pub rate_floor: u64,
    /// Number of routers that multicast may pass, plus one: 1 keeps it in the local network
    #[arg(long, value_name = "HOPS", default_value_t = 1)]
    pub ttl: u8,
    /// Do not encrypt what is multicast: every machine on the network can read it
    #[arg(long, conflicts_with = "no_multicast")]
    pub plain_multicast: bool,
    /// Serve by unicast only
    #[arg(long)]
    pub no_multicast: bool,
    /// Serve versions to any client of BitTorrent, too; peers connect to this TCP port. Nothing that they are sent is
    /// encrypted
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "6881")]
    pub torrent: Option<u16>,
    /// Serve plain HTTP; allowed on a loopback address only
    #[arg(long)]
    pub no_tls: bool,
    /// Let anybody read the images of this name as files, without a token; `*` stands for any characters
    #[arg(long, value_name = "IMAGE")]
    pub public: Vec<String>,
    /// Serve the files of these images by plain HTTP, too, for clients that know no certificate of this server
    #[arg(long, value_name = "ADDRESS:PORT", requires = "public")]
    pub public_http: Option<std::net::SocketAddr>,
    /// Also write the join token to this file (mode 0600), and replace it there before it expires
    #[arg(long, value_name = "FILE")]
    pub token_out: Option<PathBuf>,
    /// File that says which machines are near each other, for machines that serve each other: lines of `NETWORK/BITS
    /// NAME`, one name for each switch or rack
    #[arg(long, value_name = "FILE")]
    pub places: Option<PathBuf>,
    /// Lifetime of the printed join token
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime, default_value = "30d")]
    pub token_expires: std::time::Duration,
}

/// How machines boot from the network.
#[derive(Debug, clap::Args)]
pub(crate) struct Boot {
    /// Folder that `diskcast boot-image` made [default: one in diskcast's data folder; made now if it
    /// is missing]
    #[arg(long, value_name = "FOLDER", requires = "netboot")]
    pub boot_image: Option<PathBuf>,
    /// What DHCP tells machines. `beside`: where their boot loader is, on a network with another DHCP server.
    /// FIRST-LAST/BITS: also an address of this range, on a network without another one. `off`: nothing, because
    /// another server names our files
    #[arg(long, value_name = "beside|RANGE|off", value_parser = parse_dhcp, default_value = "beside",
        requires = "netboot")]
    pub dhcp: DhcpSettings,
    /// Give addresses by --dhcp RANGE even if another DHCP server on this network gives some, too
    #[arg(long, requires = "netboot")]
    pub second_dhcp: bool,
    /// More words for the kernel of machines that boot, such as `console=ttyS0`
    #[arg(long, value_name = "WORDS", default_value = "", requires = "netboot")]
    pub kernel_parameters: String,
    /// How long a machine may be silent while it boots before it is reported as lost
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime, default_value = "10m", requires = "netboot")]
    pub boot_time: std::time::Duration,
    /// Program that switches machines: called as `PROGRAM on|off|restart|status CARD NAME`, as by ipmitool
    #[arg(long, value_name = "PROGRAM", requires = "netboot")]
    pub power_program: Option<PathBuf>,
    /// Let machines wait with each job until an administrator has confirmed their keys (`diskcast hosts admit
    /// FINGERPRINT`): a machine that boots from the network has a new one each time
    #[arg(long)]
    pub strict: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    if args.boot.strict && args.netboot.is_none() && !args.agents {
        let text = "`--strict` is for machines that ask for jobs";
        return Err(Failure::new(Exit::Usage, text).hint("say --agents or --netboot INTERFACE, too"));
    }
    let netboot = args.netboot.as_deref().map(|interface| (interface, &args.boot));
    serve(context, &args.serving, netboot, (args.agents, args.boot.strict))
}

/// Serves until a signal comes; `netboot` is the interface on which machines boot, and how; `agents` may ask for jobs,
/// and if it is `strict`, get none before an administrator has confirmed their keys.
pub(crate) fn serve(
    context: &Context,
    args: &Serving,
    netboot: Option<(&str, &Boot)>,
    (agents, strict): (bool, bool),
) -> Result<()> {
    args.interface.as_deref().map(interface::choose).transpose()?;
    let netboot = netboot.map(|(interface, boot)| boot.settings(context, interface)).transpose()?;
    let boots = netboot.as_ref().map(Boots::of).transpose()?;
    let repository = Arc::new(repository::open_or_create(&context.global)?);
    let state = repository::state_folder(&args.state)?;
    let output = context.output;
    let images = repository.images()?.len();
    let name = repository.name().to_owned();
    let multicast = (!args.no_multicast).then(|| MulticastOptions {
        interface: args.interface.clone(),
        rate_bits_per_second: args.rate,
        rate_floor_bits_per_second: args.rate_floor,
        encrypted: !args.plain_multicast,
        ttl: args.ttl,
        together: false,
    });
    let server = daemon::serve(ServeOptions {
        repository,
        state,
        listen: args.address(),
        tls: !args.no_tls,
        multicast,
        token_lifetime: args.token_expires,
        token_out: args.token_out.clone(),
        places: places(args.places.as_deref())?,
        netboot,
        agents,
        strict,
        public: PublicImages { images: args.public.clone(), http: args.public_http },
        torrent: args.torrent.map(|port| SocketAddr::new(args.torrent_address(), port)),
        log: Arc::new(move |event| output.event(event)),
    })?;
    interrupt::hold();
    announce(context, args, &server, (&name, images), (agents, boots.as_ref()))?;
    notify::ready(&format!("serves {name}"));
    interrupt::wait();
    notify::stopping();
    output.note("stopping: running requests may finish, sessions end");
    server.shutdown();
    Ok(())
}

impl Boot {
    /// What the server must know. The boot image is made now if nobody named one, and there is none yet.
    fn settings(&self, context: &Context, interface: &str) -> Result<NetbootSettings> {
        interface::choose(interface)?;
        let folder = match &self.boot_image {
            Some(folder) => folder.clone(),
            None => super::boot_image::of_default_folder(context)?,
        };
        Ok(NetbootSettings {
            interface: interface.to_owned(),
            folder,
            dhcp: self.dhcp,
            second_dhcp: self.second_dhcp,
            kernel_parameters: self.kernel_parameters.clone(),
            boot_time: self.boot_time,
            power_program: self.power_program.clone(),
        })
    }
}

/// Reads the file of `--places`.
fn places(path: Option<&Path>) -> Result<Places> {
    let Some(path) = path else { return Ok(Places::default()) };
    let context = || format!("read `{}`", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| base::Error::from_io(context(), error))?;
    Ok(Places::parse(&text).map_err(|error| error.within(context()))?)
}

fn announce(
    context: &Context,
    args: &Serving,
    server: &Server,
    (repository, images): (&str, usize),
    (agents, boots): (bool, Option<&Boots>),
) -> Result<()> {
    let public_url = server.public_address().map(|address| format!("{}/images/", url(address, false)));
    let url = url(server.address(), !args.no_tls);
    let token = server.join_token();
    let expires = clock::show_unix(clock::unix_seconds() + args.token_expires.as_secs());
    let record = json!({
        "type": "serving", "url": url, "repository": repository, "images": images, "token": token.to_string(),
        "token_expires": expires, "multicast": reaches_a_network(args),
        "public_url": public_url,
        "torrent_port": server.torrent_address().map(|address| address.port()),
        "netboot": boots.map(Boots::record),
    });
    if !args.no_multicast && !reaches_a_network(args) {
        context
            .output
            .note("no machine can be reached by multicast here, only loopback: fetches are by unicast");
    }
    context.output.answer(&record, || {
        let plural = if images == 1 { "" } else { "s" };
        let port = server.address().port();
        let host =
            if server.address().ip().is_unspecified() { format!("SERVER:{port}") } else { url.clone() };
        let files = public_url.map_or_else(String::new, |url| format!("files for everybody: {url}\n"));
        format!(
            "serving {images} image{plural} of {repository} at {url}\n\
             {files}\
             join token, for reading all images until {expires}:\n\n  {token}\n\n\
             on a client: diskcast fetch {host} NAME TARGET --token-file FILE\n{}{}{}",
            boots.map(Boots::hint).unwrap_or_default(),
            torrent_hint(server, &url),
            if agents { agent_hint(token, &host) } else { String::new() }
        )
    })
}

/// Where machines boot, and what they are told there.
struct Boots {
    interface: String,
    address: Option<Ipv4Addr>,
    dhcp: DhcpSettings,
}

impl Boots {
    fn of(settings: &NetbootSettings) -> Result<Self> {
        let interface = interface::choose(&settings.interface)?;
        Ok(Self { address: interface.ipv4(), interface: interface.name, dhcp: settings.dhcp })
    }

    fn record(&self) -> serde_json::Value {
        let range = match self.dhcp {
            DhcpSettings::Gives(first, last, bits) => Some(format!("{first}-{last}/{bits}")),
            DhcpSettings::Beside | DhcpSettings::Off => None,
        };
        let mode = match self.dhcp {
            DhcpSettings::Beside => "beside",
            DhcpSettings::Gives(..) => "gives",
            DhcpSettings::Off => "off",
        };
        json!({ "interface": self.interface, "address": self.address, "dhcp": mode, "range": range })
    }

    fn hint(&self) -> String {
        let dhcp = match self.dhcp {
            DhcpSettings::Beside => "beside a DHCP server, which gives addresses".to_owned(),
            DhcpSettings::Gives(first, last, bits) => {
                format!("with addresses of {first}-{last}/{bits} by DHCP")
            }
            DhcpSettings::Off => "without DHCP: another server names the boot files".to_owned(),
        };
        let address = self.address.map(|address| format!(" ({address})")).unwrap_or_default();
        format!("machines boot on {}{address}, {dhcp}\n", self.interface)
    }
}

/// What hosts run that are to take jobs.
fn agent_hint(token: &JoinToken, host: &str) -> String {
    let pin = token.fingerprint.map(|pin| format!(" --pin {pin}")).unwrap_or_default();
    format!("on a host that takes jobs: diskcast agent --server {host}{pin}\n")
}

/// Where torrents are, if versions are served so.
fn torrent_hint(server: &Server, url: &str) -> String {
    let Some(address) = server.torrent_address() else { return String::new() };
    format!(
        "torrents: {url}/api/v1/torrents/NAME, with the token's secret as a bearer; peers on port {}\n",
        address.port()
    )
}

impl Serving {
    fn address(&self) -> SocketAddr {
        self.listen.unwrap_or_else(|| SocketAddr::new(interface::any_address(), api::PORT_DEFAULT))
    }

    /// Clients of BitTorrent are told addresses of IPv4.
    fn torrent_address(&self) -> IpAddr {
        self.listen.map_or(Ipv4Addr::UNSPECIFIED.into(), |listen| listen.ip())
    }
}

/// Whether multicast can reach a machine.
fn reaches_a_network(args: &Serving) -> bool {
    let by_route =
        || !args.address().ip().is_loopback() && interface::preferred().is_ok_and(|one| !one.loopback);
    !args.no_multicast && (args.interface.is_some() || by_route())
}

fn url(address: SocketAddr, tls: bool) -> String {
    format!("{}://{address}", if tls { "https" } else { "http" })
}
