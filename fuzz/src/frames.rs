//! Ethernet frames that an agent on a switch lifts, changes and sends on.

use net::mac::Mac;
use switch::frame::{Datagram, Target as To, read, redirect, settle, write};

use crate::Target;

pub(crate) const FRAME: Target = Target { name: "frame", seeds: frames, take: take_frame };

const PAIRS: [(&str, &str); 2] = [("10.77.0.3:7700", "10.77.0.1:7717"), ("[fd77::3]:7700", "[fd77::1]:7717")];

fn frames() -> Vec<Vec<u8>> {
    let frame = |(from, to): (&str, &str)| {
        let (from, to) = (from.parse().expect("an address"), to.parse().expect("an address"));
        let payload = [&b"DCPE\x01\x03"[..], &[0; 74]].concat();
        let datagram = Datagram { source: Mac([7; 6]), from, to, payload: 0..payload.len() };
        write(&datagram, Mac([1; 6]), &payload).expect("one family")
    };
    PAIRS.map(frame).into()
}

fn take_frame(input: &[u8]) {
    let mut frame = input.to_vec();
    if !settle(&mut frame) {
        return;
    }
    let seen = read(&frame).expect("what is settled can be read");
    for (_, to) in PAIRS {
        let to = To { source: Mac([8; 6]), destination: Mac([9; 6]), to: to.parse().expect("an address") };
        if redirect(&mut frame, &to) {
            let now = read(&frame).expect("it still can be read");
            assert_eq!((now.from, now.to, &now.payload), (seen.from, to.to, &seen.payload));
            assert!(settle(&mut frame), "the checksum is right");
        }
    }
}
