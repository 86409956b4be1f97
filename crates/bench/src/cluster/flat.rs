//! A reader with one flat stripe over many devices, as Panasas had before its layout of two levels (seed 002, section
//! 4): it asks all devices for their parts of a block at the same time, and for the next block when it has all of them.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// The group of a cluster's first repository.
const GROUP: u32 = 1;
/// What a single request waits at most; a stalled connection retries for seconds.
const ANSWER_MAX: Duration = Duration::from_secs(30);

type Result<T> = std::result::Result<T, String>;

/// An object on one device, and what opens it.
#[derive(Debug, Clone)]
pub(super) struct Component {
    address: SocketAddr,
    path: String,
    headers: String,
    length: u64,
}

/// How a flat reader fared.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fared {
    pub(super) bytes: u64,
    pub(super) seconds: f64,
}

/// The longest object of each device. For a thread in the network of a client.
pub(super) fn components(metadata: SocketAddr, token: &str) -> Result<Vec<Component>> {
    let mut service = Connection::open(metadata)?;
    let headers = format!("Authorization: Bearer {token}\r\nContent-Type: application/json\r\n");
    let body = json!({ "group": GROUP }).to_string();
    let joined = service.ask("POST /metadata/v1/clients", &headers, &body)?;
    let joined: Value = serde_json::from_slice(&joined).map_err(|error| error.to_string())?;
    let map = &joined["map"];
    let devices = map["devices"].as_array().ok_or("a map without devices")?;
    devices.iter().map(|device| longest(device, map, &joined["capabilities"])).collect()
}

fn longest(device: &Value, map: &Value, capabilities: &Value) -> Result<Component> {
    let number = device["device"].to_string();
    let address = device["address"].as_str().and_then(|url| url.strip_prefix("http://")?.parse().ok());
    let address = address.ok_or_else(|| format!("device {number} has no address"))?;
    let capability = capabilities[&number].as_str().unwrap_or_default();
    let headers = format!("diskcast-capability: {capability}\r\ndiskcast-epoch: {}\r\n", map["epoch"]);
    let list = format!("GET /device/v1/objects?group={GROUP}");
    let listed = Connection::open(address)?.ask(&list, &headers, "")?;
    let listed: Value = serde_json::from_slice(&listed).map_err(|error| error.to_string())?;
    let objects = listed["objects"].as_array().ok_or_else(|| format!("no objects in {listed}"))?;
    let sizes =
        objects.iter().filter_map(|object| Some((object["length"].as_u64()?, object["id"].as_str()?)));
    let (length, id) = sizes.max().ok_or_else(|| format!("device {number} has nothing"))?;
    Ok(Component { address, path: format!("/device/v1/objects/{id}"), headers, length })
}

/// Reads blocks of `block_bytes` that are striped over `components`, for this time. For a thread in the network of a
/// client.
pub(super) fn read(components: &[Component], block_bytes: u64, time: Duration) -> Result<Fared> {
    let part = block_bytes / components.len() as u64;
    let (all, ends) = (Barrier::new(components.len()), AtomicBool::new(false));
    let mut connections =
        components.iter().map(|component| Connection::open(component.address)).collect::<Result<Vec<_>>>()?;
    let began = Instant::now();
    let blocks = std::thread::scope(|scope| {
        let readers: Vec<_> = components
            .iter()
            .zip(&mut connections)
            .map(|(component, connection)| {
                let (all, ends) = (&all, &ends);
                scope.spawn(move || {
                    let mut blocks = 0;
                    let mut failed = None;
                    // A reader that failed goes on waiting, or the others would never pass.
                    while !ends.load(Ordering::Acquire) {
                        if failed.is_none() {
                            failed = connection.part(component, blocks * part, part).err();
                        }
                        blocks += 1;
                        if all.wait().is_leader() {
                            ends.store(began.elapsed() >= time, Ordering::Release);
                        }
                        all.wait();
                    }
                    failed.map_or(Ok(blocks), Err)
                })
            })
            .collect();
        readers
            .into_iter()
            .map(|reader| reader.join().expect("no reader panics"))
            .collect::<Result<Vec<u64>>>()
    })?;
    let bytes = blocks.iter().sum::<u64>() * part;
    Ok(Fared { bytes, seconds: began.elapsed().as_secs_f64() })
}

/// A connection that is kept open, with one request at a time.
struct Connection {
    stream: BufReader<TcpStream>,
    host: SocketAddr,
    scratch: Vec<u8>,
}

impl Connection {
    fn open(address: SocketAddr) -> Result<Self> {
        let open = || -> std::io::Result<TcpStream> {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(ANSWER_MAX))?;
            Ok(stream)
        };
        let stream = open().map_err(|error| format!("{address}: {error}"))?;
        Ok(Self {
            stream: BufReader::with_capacity(1 << 16, stream),
            host: address,
            scratch: vec![0; 1 << 16],
        })
    }

    /// Sends a request, and takes the answer's body.
    fn ask(&mut self, request: &str, headers: &str, body: &str) -> Result<Vec<u8>> {
        let length = self.send(request, headers, body)?;
        let mut answer = vec![0; usize::try_from(length).map_err(|error| error.to_string())?];
        self.stream.read_exact(&mut answer).map_err(|error| self.failed(&error))?;
        Ok(answer)
    }

    /// Reads a part of a component, and forgets it. Later parts begin at its beginning again.
    fn part(&mut self, component: &Component, from: u64, bytes: u64) -> Result<()> {
        let from = from % component.length.saturating_sub(bytes).max(1);
        let headers = format!("{}Range: bytes={from}-{}\r\n", component.headers, from + bytes - 1);
        let mut left = self.send(&format!("GET {}", component.path), &headers, "")?;
        if left != bytes {
            return Err(format!("{}: {left} instead of {bytes} bytes", self.host));
        }
        while left > 0 {
            let wanted = self.scratch.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let read = self.stream.read(&mut self.scratch[..wanted]).map_err(|error| self.failed(&error))?;
            if read == 0 {
                return Err(format!("{}: the answer broke off", self.host));
            }
            left -= read as u64;
        }
        Ok(())
    }

    /// Sends a request; returns the length of the answer's body.
    fn send(&mut self, request: &str, headers: &str, body: &str) -> Result<u64> {
        let (host, length) = (self.host, body.len());
        let text =
            format!("{request} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n{headers}\r\n{body}");
        self.stream.get_mut().write_all(text.as_bytes()).map_err(|error| self.failed(&error))?;
        let mut line = String::new();
        let (mut status, mut bytes) = (String::new(), None);
        loop {
            line.clear();
            self.stream.read_line(&mut line).map_err(|error| self.failed(&error))?;
            let text = line.trim_end();
            if status.is_empty() {
                text.clone_into(&mut status);
            }
            if let Some(length) = text.to_ascii_lowercase().strip_prefix("content-length:") {
                bytes = length.trim().parse().ok();
            }
            if text.is_empty() {
                break;
            }
        }
        match bytes {
            Some(bytes) if status.starts_with("HTTP/1.1 2") => Ok(bytes),
            _ => Err(format!("{host}: {status}")),
        }
    }

    fn failed(&self, error: &std::io::Error) -> String {
        format!("{}: {error}", self.host)
    }
}
