//! Starts what machines boot from: DHCP, TFTP, and the boot files by HTTP.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use base::{Error, ErrorKind, Result};
use net::interface;
use net::netboot::{Asked, BootFiles, FileEvent, Leases, Netboot, NetbootEvent, NetbootOptions};
use net::token::Fingerprint;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::event::{Event, Log};
use crate::fleet::{Fleet, ServedFiles, Site, Step};

/// Where firmware that boots by HTTP looks, and loaders of other makers.
const HTTP_PORT: u16 = 80;

/// How machines boot from the network.
#[derive(Debug, Clone)]
pub struct NetbootSettings {
    /// Name of the one interface on which they do.
    pub interface: String,
    /// Folder of a boot image.
    pub folder: PathBuf,
    /// The addresses that machines get: first, last, and bits of the network; `None` beside another DHCP server.
    pub addresses: Option<(Ipv4Addr, Ipv4Addr, u8)>,
    /// More words for the kernel.
    pub kernel_parameters: String,
}

/// What machines must know of the server.
pub(crate) struct Here {
    pub port: u16,
    pub fingerprint: Option<Fingerprint>,
    pub log: Log,
}

/// Machines that boot from the network, and what they are served by until this is dropped.
pub(crate) struct Boots {
    /// The machines, and their jobs.
    pub fleet: Arc<Fleet>,
    interface: String,
    _servers: Netboot,
}

impl Boots {
    /// Wakes the machine with the network card `mac`.
    pub(crate) fn wake(&self, mac: &str) -> Result<()> {
        net::netboot::wake(&self.interface, mac.parse()?)
    }
}

/// Starts all servers; the table of machines is in the folder `state`. Returns also the listener for [`router`], and
/// what it serves.
pub(crate) fn start(
    settings: &NetbootSettings,
    state: &Path,
    here: Here,
    runtime: &Runtime,
) -> Result<(Boots, TcpListener, Arc<dyn BootFiles>)> {
    let interface = interface::choose(&settings.interface)?;
    let address = interface.ipv4().ok_or_else(|| {
        let text = format!("interface `{}` has no IPv4 address, by which machines boot", settings.interface);
        Error::new(ErrorKind::Invalid, text)
    })?;
    let fleet = Fleet::open(state)?;
    let scheme = if here.fingerprint.is_some() { "https" } else { "http" };
    let site = Site {
        url: format!("{scheme}://{address}:{}", here.port),
        fingerprint: here.fingerprint,
        kernel_parameters: settings.kernel_parameters.clone(),
    };
    let files: Arc<dyn BootFiles> = Arc::new(ServedFiles::read(&settings.folder, site, fleet.clone())?);
    let leases =
        settings.addresses.map(|(first, last, bits)| Leases::of(first, last, address, bits)).transpose()?;
    let http =
        runtime.block_on(TcpListener::bind(SocketAddr::from((address, HTTP_PORT)))).map_err(|error| {
            let kind = if error.kind() == std::io::ErrorKind::AddrInUse {
                ErrorKind::Refused
            } else {
                ErrorKind::Io
            };
            Error::from_source(
                kind,
                format!("listen on {address}:{HTTP_PORT}, where boot files are fetched"),
                error,
            )
        })?;
    let (seen, name) = (fleet.clone(), interface.name.clone());
    let tell = Arc::new(move |event: NetbootEvent| told(&event, &seen, &here.log));
    let options = NetbootOptions { interface, address, leases, files: files.clone(), tell };
    let boots = Boots { fleet, interface: name, _servers: Netboot::start(options)? };
    Ok((boots, http, files))
}

/// Keeps in mind what machines do, and logs it.
fn told(event: &NetbootEvent, fleet: &Fleet, log: &Log) {
    let (machine, what) = match event {
        NetbootEvent::Asked(Asked { mac, is_firmware: false, .. }, _) => {
            return fleet.seen(*mac, Step::System);
        }
        NetbootEvent::Asked(Asked { mac, firmware, .. }, answered) => {
            fleet.seen(*mac, Step::Firmware);
            let what = match (answered, firmware) {
                (true, Some(firmware)) => format!("asks where to boot from: {}", firmware.loader()),
                (_, None) => {
                    "asks where to boot from, and has firmware for which there is no boot loader".to_owned()
                }
                (false, Some(_)) => return,
            };
            (mac.to_string(), what)
        }
        NetbootEvent::File(FileEvent::Begins(address, name, bytes)) => {
            (address.to_string(), format!("reads {name} of {bytes} bytes"))
        }
        NetbootEvent::File(FileEvent::Silent(address, name)) => {
            (address.to_string(), format!("fell silent while it read {name}"))
        }
        NetbootEvent::Failed(error) => return log(&Event::NetbootFailed { error: error.clone() }),
        NetbootEvent::File(FileEvent::Ends(..) | FileEvent::Missing(..)) => return,
    };
    log(&Event::MachineBoots { machine, what });
}

/// The boot files by HTTP.
pub(crate) fn router(files: Arc<dyn BootFiles>) -> Router {
    Router::new().fallback(get(file)).with_state(files)
}

async fn file(State(files): State<Arc<dyn BootFiles>>, uri: Uri) -> Response {
    match files.open(uri.path().trim_start_matches('/')) {
        Some(content) => content.into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}
