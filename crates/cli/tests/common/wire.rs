//! What passes between two programs.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, OnceLock};

/// Passes on to a program, and keeps all that goes by in both directions.
pub(crate) struct Wire {
    pub(crate) place: String,
    port: Arc<OnceLock<u16>>,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Wire {
    pub(crate) fn new(seen: &Arc<Mutex<Vec<u8>>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = listener.local_addr().unwrap().to_string();
        let wire = Self { place, port: Arc::default(), seen: Arc::clone(seen) };
        let (port, seen) = (Arc::clone(&wire.port), Arc::clone(seen));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, port) = (client.unwrap(), *port.wait());
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let ways = [(client.try_clone(), server.try_clone()), (Ok(server), Ok(client))];
                for (from, to) in ways {
                    let (mut from, mut to, seen) = (from.unwrap(), to.unwrap(), Arc::clone(&seen));
                    std::thread::spawn(move || {
                        let mut some = [0; 1 << 16];
                        while let Ok(bytes @ 1..) = from.read(&mut some) {
                            seen.lock().unwrap().extend_from_slice(&some[..bytes]);
                            if to.write_all(&some[..bytes]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(std::net::Shutdown::Write);
                    });
                }
            }
        });
        wire
    }

    /// From now on it passes on to this port of the machine.
    pub(crate) fn lead_to(&self, port: u16) {
        self.port.set(port).unwrap();
    }

    /// All that went by, here and on the other wires that share `seen` with it.
    pub(crate) fn take_seen(&self) -> Vec<u8> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}
