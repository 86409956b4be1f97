//! Starts what machines boot from: DHCP, TFTP, and the boot files by HTTP.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use base::{Error, ErrorKind, Instant, Result};
use http_body::{Frame, SizeHint};
use net::api::{MachineChange, Power, Switch, SwitchRequest, Switched};
use net::clock::Clock;
use net::interface::{self, Interface};
use net::mac::Mac;
use net::netboot::{
    Asked, Dhcp, FileEvent, Firmware, Leases, Netboot, NetbootEvent, NetbootOptions, is_host, other_dhcp,
};
use net::token::Fingerprint;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::event::{Event, Log};
use crate::fleet::power::{Program, Runs};
use crate::fleet::{Book, Fleet, ServedFiles, Site, Step, Watch};

/// Where firmware that boots by HTTP looks, and loaders of other makers.
const HTTP_PORT: u16 = 80;

/// How long a machine may show nothing while it boots that does not boot from here.
const NEVER: Duration = Duration::MAX;

/// How long the answer of another DHCP server is waited for: some first try for three seconds whether an address is
/// free.
const LISTEN: Duration = Duration::from_secs(5);

/// How machines boot from the network.
#[derive(Debug, Clone)]
pub struct NetbootSettings {
    /// Name of the one interface on which they do.
    pub interface: String,
    /// Folder of a boot image.
    pub folder: PathBuf,
    /// What machines are told by DHCP.
    pub dhcp: DhcpSettings,
    /// Whether addresses are given even if another server on that network does so, too.
    pub second_dhcp: bool,
    /// More words for the kernel.
    pub kernel_parameters: String,
    /// How long a machine may show nothing while it boots.
    pub boot_time: Duration,
    /// A program that switches machines: its words are `on`, `off`, `restart` or `status`, the address of the card, and
    /// the name.
    pub power_program: Option<PathBuf>,
}

/// What machines are told by DHCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DhcpSettings {
    /// Where their boot loader is, beside another server.
    Beside,
    /// An address, too, of this range in a network with so many bits.
    Gives(Ipv4Addr, Ipv4Addr, u8),
    /// Nothing: another server names our files.
    Off,
}

/// What machines must know of the server.
pub(crate) struct Here {
    pub port: u16,
    pub fingerprint: Option<Fingerprint>,
    pub log: Log,
}

/// Machines that ask what to do, and what those are served by that boot from the network, until this is dropped.
pub(crate) struct Boots {
    /// The machines, and their jobs.
    pub fleet: Arc<Fleet>,
    /// On which they boot and are woken.
    interface: Option<String>,
    /// Switches machines on and off, and what it is at.
    program: Option<Program>,
    runs: Runs,
    /// Our address, and the bits of the network in which we give addresses, if we do.
    gives: Option<(Ipv4Addr, u8)>,
    clock: Clock,
    _servers: Option<Netboot>,
}

impl Boots {
    /// Machines whose agents call, and none that boots from the network; their table is in the folder `state`.
    pub(crate) fn of_agents(state: &Path, strict: bool) -> Result<Self> {
        let fleet = Fleet::open(state, Watch { boot_time: NEVER, sees_systems: false, strict })?;
        let runs = Runs::default();
        let clock = Clock::start();
        Ok(Self { fleet, interface: None, program: None, runs, gives: None, clock, _servers: None })
    }

    /// `Refused`, with what to do, if machines can't be got to boot so.
    pub(crate) fn check(&self, power: Power) -> Result<()> {
        let text = match power {
            Power::Restart if self.program.is_none() => {
                "this server can't restart machines: start it with --power-program"
            }
            Power::Wake if self.interface.is_none() && !self.fleet.has_wakers() => {
                "this server can't wake machines: start it with --netboot, or an agent on a host of their network \
                 (diskcast agent)"
            }
            _ => return Ok(()),
        };
        Err(Error::new(ErrorKind::Refused, text))
    }

    /// `Refused`, with what to do, if a machine that is added can't always be given its address.
    pub(crate) fn check_addresses(&self, change: &MachineChange) -> Result<()> {
        let MachineChange::Add { machines } = change else { return Ok(()) };
        let fixed = machines.iter().filter_map(|machine| machine.address);
        let refused = |text: String| Err(Error::new(ErrorKind::Refused, text));
        for address in fixed.filter(|address| !address.is_unspecified()) {
            match self.gives {
                Some((own, bits)) if is_host(address, own, bits) => {}
                Some((own, bits)) => {
                    return refused(format!(
                        "{address} is not an address for a machine in the network {own}/{bits} of this server"
                    ));
                }
                None => {
                    let text = "this server gives no addresses: start it with --netboot INTERFACE --dhcp RANGE, or \
                                fix them at the DHCP server of the site";
                    return refused(text.to_owned());
                }
            }
        }
        Ok(())
    }

    /// Names machines that fell silent, and gets those to boot that are to. Call it about once a second.
    pub(crate) fn sweep(&self, log: &Log) {
        let swept = self.fleet.sweep();
        for (mac, why) in swept.lost {
            log(&Event::MachineLost { machine: mac.to_string(), why });
        }
        for (mac, power) in swept.due {
            self.power(mac, power, log);
        }
    }

    /// Gets a machine to boot. What comes of it is logged.
    fn power(&self, mac: Mac, power: Power, log: &Log) {
        let switch = match power {
            Power::Leave => return,
            Power::Wake => Switch::On,
            Power::Restart => Switch::Restart,
        };
        let machine = mac.to_string();
        let wakes = self.interface.as_ref().filter(|_| power == Power::Wake);
        if let Some(Err(error)) = wakes.map(|name| net::netboot::wake(name, mac)) {
            return log(&Event::MachinePower { machine, switch, failure: Some(error.to_string()) });
        }
        let Some(program) = self.program.clone() else {
            return log(&Event::MachinePower { machine, switch, failure: None });
        };
        let (name, log) = (self.fleet.name(mac).unwrap_or_default(), Arc::clone(log));
        // A board may take its time to answer, and others are to be woken.
        std::thread::spawn(move || {
            let failure = program.switch(switch, mac, &name).err();
            log(&Event::MachinePower { machine, switch, failure });
        });
    }

    /// Begins to switch machines, once for each `id`, and tells how far that is. `Refused` without a program;
    /// `NotFound` if a word means no machine.
    pub(crate) fn switch(&self, id: u128, request: &SwitchRequest, log: &Log) -> Result<Vec<Switched>> {
        let no_program = || {
            let text = "this server can't switch machines: start it with --power-program";
            Error::new(ErrorKind::Refused, text)
        };
        let program = self.program.as_ref().ok_or_else(no_program)?;
        let machines = self.fleet.named(&request.machines)?;
        self.runs.begin(id, program, request.switch, machines, (self.clock.now(), log))?;
        self.runs.look(id)
    }

    /// How far that is. `NotFound`.
    pub(crate) fn switched(&self, id: u128) -> Result<Vec<Switched>> {
        self.runs.look(id)
    }
}

/// Starts all servers; the table of machines is in the folder `state`. Returns also the listener for [`router`], and
/// what it serves.
pub(crate) fn start(
    settings: &NetbootSettings,
    state: &Path,
    strict: bool,
    here: Here,
    runtime: &Runtime,
) -> Result<(Boots, TcpListener, Arc<ServedFiles>)> {
    let interface = interface::choose(&settings.interface)?;
    let address = interface.ipv4().ok_or_else(|| {
        let text = format!("interface `{}` has no IPv4 address, by which machines boot", settings.interface);
        Error::new(ErrorKind::Invalid, text)
    })?;
    if matches!(settings.dhcp, DhcpSettings::Gives(..)) {
        refuse_second(&interface, settings, &here.log)?;
    }
    let sees_systems = settings.dhcp != DhcpSettings::Off;
    let fleet = Fleet::open(state, Watch { boot_time: settings.boot_time, sees_systems, strict })?;
    let scheme = if here.fingerprint.is_some() { "https" } else { "http" };
    let site = Site {
        url: format!("{scheme}://{address}:{}", here.port),
        fingerprint: here.fingerprint,
        kernel_parameters: settings.kernel_parameters.clone(),
    };
    let files = Arc::new(ServedFiles::read(&settings.folder, site, fleet.clone())?);
    let dhcp = match settings.dhcp {
        DhcpSettings::Beside => Dhcp::Loader,
        DhcpSettings::Gives(first, last, bits) => {
            // The time of these servers begins with them.
            let book = Box::new(Book(fleet.clone()));
            Dhcp::Address(Leases::of((first, last), address, bits, book, Instant::ZERO)?)
        }
        DhcpSettings::Off => Dhcp::Nothing,
    };
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
    let options = NetbootOptions { interface, address, dhcp, files: files.clone(), tell };
    let gives = match settings.dhcp {
        DhcpSettings::Gives(_, _, bits) => Some((address, bits)),
        DhcpSettings::Beside | DhcpSettings::Off => None,
    };
    let program = settings.power_program.clone().map(Program);
    let (servers, runs, clock) = (Some(Netboot::start(options)?), Runs::default(), Clock::start());
    let boots = Boots { fleet, interface: Some(name), program, runs, gives, clock, _servers: servers };
    Ok((boots, http, files))
}

/// `Refused`, with what to do, if another server gives addresses on this network; only named if that is wanted.
fn refuse_second(interface: &Interface, settings: &NetbootSettings, log: &Log) -> Result<()> {
    let Some(other) = other_dhcp(interface, LISTEN)? else { return Ok(()) };
    if settings.second_dhcp {
        log(&Event::OtherDhcp { interface: interface.name.clone(), address: other });
        return Ok(());
    }
    let text = format!(
        "another DHCP server, {other}, gives addresses on `{}`: leave --dhcp out, which only adds the boot loader to \
         its answers; or say --second-dhcp if both are to give addresses",
        interface.name
    );
    Err(Error::new(ErrorKind::Refused, text))
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
                (true, Some(firmware)) => format!("asks where to boot from: {}", firmware_name(*firmware)),
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

fn firmware_name(firmware: Firmware) -> &'static str {
    match firmware {
        Firmware::Bios => "BIOS",
        Firmware::Uefi => "UEFI",
        Firmware::UefiHttp => "UEFI by HTTP",
        Firmware::Ipxe => "iPXE",
    }
}

/// The boot files by HTTP.
pub(crate) fn router(files: Arc<ServedFiles>) -> Router {
    Router::new().fallback(get(file)).with_state(files)
}

async fn file(State(files): State<Arc<ServedFiles>>, uri: Uri) -> Response {
    // So iPXE writes the colons of a card's address.
    let path = uri.path().replace("%3A", ":");
    let Some(parts) = files.parts(path.trim_start_matches('/')) else {
        // UEFI waits for the end of an answer without content until the connection ends.
        return (StatusCode::NOT_FOUND, [(header::CONNECTION, "close")], "there is no such file\n")
            .into_response();
    };
    Body::new(Parts(parts.into())).into_response()
}

/// The parts of a file. Firmware asks first how long it is, and reserves memory for it.
struct Parts(VecDeque<Bytes>);

impl http_body::Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut task::Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|part| Ok(Frame::data(part))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|part| part.len() as u64).sum())
    }
}
