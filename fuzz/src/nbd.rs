//! What NBD clients send: the options of a handshake and the requests after it.

use std::sync::Arc;

use mirror::RawDisk;
use mirror::nbd::{
    Command, Export, ExportTable, Negotiation, OPTION_BYTES_MAX, PAYLOAD_BYTES_MAX, Privacy, REQUEST_BYTES,
    Range, Rules, Step, parse,
};

use crate::Target;

pub(crate) const HANDSHAKE: Target =
    Target { name: "nbd-handshake", seeds: handshakes, take: take_handshake };
pub(crate) const REQUEST: Target = Target { name: "nbd-request", seeds: requests, take: take_request };

const DISK_BYTES: u64 = 1 << 30;
const CLIENT_FLAGS: [u8; 4] = [0, 0, 0, 3];

fn option(number: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("options are short").to_be_bytes();
    [&b"IHAVEOPT"[..], &number.to_be_bytes(), &length, body].concat()
}

fn handshakes() -> Vec<Vec<u8>> {
    let go = b"\0\0\0\x04disk\0\x02\0\x03\0\x01";
    let contexts = b"\0\0\0\x04disk\0\0\0\x02\0\0\0\x0fbase:allocation\0\0\0\x09diskcast:";
    let modern =
        [option(8, &[]), option(9, contexts), option(10, contexts), option(6, go), option(7, go)].concat();
    let ancient = [option(3, &[]), option(1, b"disk")].concat();
    let private = [option(8, &[]), option(5, &[]), option(3, &[]), option(2, &[])].concat();
    [modern, ancient, private].map(|options| [&CLIENT_FLAGS[..], &options].concat()).into()
}

fn disks() -> Arc<ExportTable> {
    thread_local!(static DISKS: Arc<ExportTable> = {
        let file = tempfile::NamedTempFile::new().expect("there is room for a file");
        let disk = RawDisk::open(file.path(), Some(DISK_BYTES)).expect("the file is ours");
        let table = Arc::new(ExportTable::default());
        table.insert("disk", Export { disk: Arc::new(disk), description: "a disk".into() }).expect("it is new");
        table
    });
    DISKS.with(Arc::clone)
}

fn take_handshake(input: &[u8]) {
    let table = disks();
    for privacy in [Privacy::Plain, Privacy::Offered, Privacy::Required] {
        let mut negotiation = Negotiation::new(&*table, privacy);
        let (mut rest, mut output) = (input, Vec::new());
        loop {
            let Ok((taken, step)) = negotiation.advance(rest, &mut output) else { break };
            assert!(taken <= rest.len() && output.len() < 1 << 20, "a handshake of some bytes stays small");
            rest = &rest[taken..];
            match step {
                Step::Receive => {
                    assert!(taken == 0 && rest.len() < OPTION_BYTES_MAX, "waits for more than fits");
                    break;
                }
                Step::Continue => assert!(taken > 0, "goes on without taking anything in"),
                Step::StartTls => assert!(privacy != Privacy::Plain, "starts what is not there"),
                Step::Serve(session) => {
                    assert_eq!(session.disk.geometry().size_bytes, DISK_BYTES);
                    break;
                }
                Step::End => break,
            }
            output.clear();
        }
    }
}

fn requests() -> Vec<Vec<u8>> {
    let request = |kind: u8, flags: u8, offset: u64, bytes: u32| {
        let head = [0x25, 0x60, 0x95, 0x13, 0, flags, 0, kind];
        [&head[..], &[1; 8], &offset.to_be_bytes(), &bytes.to_be_bytes()].concat()
    };
    let mut all: Vec<_> = (0..8).map(|kind| request(kind, 0, 4096, 4096)).collect();
    all.extend([request(6, 0b10011, 0, u32::MAX - 511), request(0, 4, DISK_BYTES - 512, 512)]);
    all
}

fn take_request(input: &[u8]) {
    let Some(bytes) = input.first_chunk::<REQUEST_BYTES>() else { return };
    for (sector_bytes, read_only) in [(512, false), (4096, true)] {
        let rules = Rules {
            size_bytes: DISK_BYTES,
            sector_bytes,
            read_only,
            structured: read_only,
            contexts: true,
            fast_zero: !read_only,
        };
        let Ok(Ok(request)) = parse(bytes, &rules) else { continue };
        check(request.command, &rules);
    }
}

/// What was taken in lies inside the disk, in whole sectors, and is no longer than promised.
fn check(command: Command, rules: &Rules) {
    let (Range { offset, bytes }, writes) = match command {
        Command::Read { range, .. } | Command::Cache { range } | Command::Status { range, .. } => {
            (range, false)
        }
        Command::Write { range, .. }
        | Command::Discard { range, .. }
        | Command::WriteZeroes { range, .. } => (range, true),
        Command::Disconnect | Command::Flush => return,
    };
    assert!(bytes > 0 && offset + u64::from(bytes) <= rules.size_bytes, "behind the end");
    assert!(offset.is_multiple_of(rules.sector_bytes.into()) && bytes.is_multiple_of(rules.sector_bytes));
    assert!(!(writes && rules.read_only), "writes what is read-only");
    if matches!(command, Command::Read { .. } | Command::Write { .. }) {
        assert!(bytes <= PAYLOAD_BYTES_MAX, "longer than promised");
    }
}
