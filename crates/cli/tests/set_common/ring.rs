//! Writers on three disks that pass messages: host after host writes that it got message number n, and passes it on
//! when its disk has acknowledged that. So at each moment the disks have all messages up to some number, and none above
//! it.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use serde_json::Value;

use crate::attach_common::Attached;

/// Chains of messages that are on their way at the same time.
const CHAINS: u64 = 3;
/// Bytes of a disk for one chain: a sector for each message.
const CHAIN_BYTES: u64 = 16 << 20;
const SECTOR: usize = 512;
/// What a sector has whose message has come.
const MARK: u8 = 0xa5;

/// The writers.
pub(crate) struct Ring {
    stop: Arc<AtomicBool>,
    steps: Arc<AtomicU64>,
    chains: Vec<JoinHandle<()>>,
}

impl Ring {
    pub(crate) fn start(disks: &[Attached]) -> Self {
        Self::on(&disks.iter().map(|disk| disk.uri.clone()).collect::<Vec<_>>())
    }

    /// On disks that go on where a set was.
    pub(crate) fn resume(disks: &[Value]) -> Self {
        Self::on(
            &disks.iter().map(|status| status["nbd"][0].as_str().unwrap().to_owned()).collect::<Vec<_>>(),
        )
    }

    fn on(uris: &[String]) -> Self {
        let (stop, steps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let chain = |chain: u64| {
            let (stop, steps, uris) = (Arc::clone(&stop), Arc::clone(&steps), uris.to_vec());
            std::thread::spawn(move || {
                let mut disks: Vec<_> = uris.iter().map(|uri| Client::connect(uri)).collect();
                let mut number = first_missing(&mut disks, chain);
                while !stop.load(Ordering::Relaxed) {
                    let host = usize::try_from(number % 3).unwrap();
                    // A disk that is lost ends the chain.
                    if !disks[host].write(place(chain, number)) {
                        return;
                    }
                    number += 1;
                    // So that the disks do not become full while the test runs.
                    std::thread::park_timeout(std::time::Duration::from_millis(1));
                    steps.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let chains = (0..CHAINS).map(chain).collect();
        Self { stop, steps, chains }
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Waits until so many more messages have come.
    pub(crate) fn wait_for_steps(&self, more: u64) {
        let until = self.steps() + more;
        while self.steps() < until {
            assert!(self.chains.iter().any(|chain| !chain.is_finished()), "all writers have ended");
            std::thread::yield_now();
        }
    }

    pub(crate) fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.chains.into_iter().for_each(|chain| chain.join().unwrap());
    }
}

/// Where message `number` stands on its disk.
fn place(chain: u64, number: u64) -> u64 {
    assert!(number / 3 < CHAIN_BYTES / SECTOR as u64, "the chain has come to its end");
    chain * CHAIN_BYTES + number / 3 * SECTOR as u64
}

/// The number after those that are there.
fn first_missing(disks: &mut [Client], chain: u64) -> u64 {
    (0..).find(|number| !disks[usize::try_from(number % 3).unwrap()].has(place(chain, *number))).unwrap()
}

/// How many messages the three disks have, if they have the same prefix of each chain.
pub(super) fn count(disks: &[Vec<u8>]) -> Result<u64, String> {
    let mut all = 0;
    for chain in 0..CHAINS {
        let has = |number: u64| {
            let at = usize::try_from(place(chain, number)).unwrap();
            disks[usize::try_from(number % 3).unwrap()][at..at + SECTOR].iter().all(|byte| *byte == MARK)
        };
        let last = CHAIN_BYTES / SECTOR as u64 * 3;
        let count = (0..last).take_while(|number| has(*number)).count() as u64;
        let late: Vec<_> = (count..last).filter(|number| has(*number)).collect();
        if !late.is_empty() {
            return Err(format!("chain {chain} has {count} messages, and then {late:?}"));
        }
        all += count;
    }
    Ok(all)
}

/// A client of NBD with one request at a time.
struct Client(UnixStream);

impl Client {
    fn connect(uri: &str) -> Self {
        let (place, socket) = uri.trim_start_matches("nbd+unix:///").split_once("?socket=").unwrap();
        let mut stream = UnixStream::connect(socket).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        // Fixed newstyle without zeros, then NBD_OPT_EXPORT_NAME.
        let mut hello = 3_u32.to_be_bytes().to_vec();
        hello.extend_from_slice(b"IHAVEOPT");
        hello.extend_from_slice(&1_u32.to_be_bytes());
        hello.extend_from_slice(&u32::try_from(place.len()).unwrap().to_be_bytes());
        hello.extend_from_slice(place.as_bytes());
        stream.write_all(&hello).unwrap();
        let mut export = [0; 10];
        stream.read_exact(&mut export).unwrap();
        Self(stream)
    }

    fn request(&mut self, kind: u16, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
        request.extend_from_slice(&[0; 2]);
        request.extend_from_slice(&kind.to_be_bytes());
        request.extend_from_slice(&7_u64.to_be_bytes());
        request.extend_from_slice(&offset.to_be_bytes());
        request.extend_from_slice(&512_u32.to_be_bytes());
        request.extend_from_slice(bytes);
        self.0.write_all(&request)?;
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply)?;
        assert_eq!(reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
        Ok(())
    }

    /// Writes a mark. False if the disk has gone.
    fn write(&mut self, offset: u64) -> bool {
        self.request(1, offset, &[MARK; SECTOR]).is_ok()
    }

    fn has(&mut self, offset: u64) -> bool {
        self.request(0, offset, &[]).unwrap();
        let mut sector = [0; SECTOR];
        self.0.read_exact(&mut sector).unwrap();
        sector == [MARK; SECTOR]
    }
}
