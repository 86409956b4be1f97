//! A bad network between a repository and its S3 store: a proxy that forwards HTTP request by request, and adds the
//! faults that the test asks for.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

/// The fate of a request or its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The proxy answers 503 SlowDown; nothing is done.
    Throttled,
    /// The connection closes before the store gets the request.
    Dropped,
    /// The request is done, but the connection closes instead of an answer.
    ReplyLost,
    /// The connection closes after half of the answer.
    CutShort,
    /// One bit of the answer's body is flipped.
    WrongByte,
    /// The answer arrives slowly, in small pieces.
    Slow,
    /// A list request gets the previous answer to such a request; the first one gets an empty list.
    Lagging,
}

/// A request line: `GET`, `/images/chunks/…?…`.
pub(crate) struct Asked<'a> {
    pub method: &'a str,
    pub target: &'a str,
}

impl Asked<'_> {
    pub(crate) fn is_list(&self) -> bool {
        self.target.contains("list-type=2")
    }
}

/// Chooses the fate of a request from the request line and the number of requests before.
pub(crate) type Plan = Box<dyn FnMut(&Asked<'_>, u64) -> Option<Fate> + Send>;

pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    store: SocketAddr,
    plan: Mutex<Plan>,
    count: AtomicU64,
    /// The last list answer of each kind.
    listings: Mutex<HashMap<String, Message>>,
    ends: AtomicBool,
}

/// The head of a message with its empty line, and the body.
#[derive(Debug, Clone)]
struct Message {
    head: String,
    body: Vec<u8>,
}

impl Proxy {
    pub(crate) fn before(store: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            store,
            plan: Mutex::new(Box::new(|_, _| None)),
            count: AtomicU64::new(0),
            listings: Mutex::default(),
            ends: AtomicBool::new(false),
        });
        let ours = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if ours.ends.load(Relaxed) {
                    break;
                }
                let (Ok(client), ours) = (client, Arc::clone(&ours)) else { continue };
                // A failed connection is just another network fault.
                std::thread::spawn(move || ours.serve(client).unwrap_or_default());
            }
        });
        Self { address, shared }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the fate of all later requests.
    pub(crate) fn set(&self, plan: Plan) {
        *self.shared.plan.lock() = plan;
        self.shared.count.store(0, Relaxed);
    }

    /// Number of requests since the plan was set.
    pub(crate) fn count(&self) -> u64 {
        self.shared.count.load(Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ends.store(true, Relaxed);
        // Wakes the listener thread.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn serve(&self, client: TcpStream) -> std::io::Result<()> {
        client.set_nodelay(true)?;
        let mut requests = BufReader::new(client.try_clone()?);
        let store = TcpStream::connect(self.store)?;
        store.set_nodelay(true)?;
        let mut answers = BufReader::new(store.try_clone()?);
        while let Some(request) = read(&mut requests, true)? {
            let mut words = request.head.split(' ');
            let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            let asked = Asked { method, target };
            let fate = (self.plan.lock())(&asked, self.count.fetch_add(1, Relaxed));
            let answer = match fate {
                Some(Fate::Throttled) => slow_down(),
                Some(Fate::Dropped) => return client.shutdown(Shutdown::Both),
                _ => {
                    write(&store, &request)?;
                    let Some(answer) = read(&mut answers, method != "HEAD")? else { break };
                    if asked.is_list() { self.listing(target, answer, fate) } else { answer }
                }
            };
            match fate {
                Some(Fate::ReplyLost) => return client.shutdown(Shutdown::Both),
                Some(Fate::CutShort) => {
                    (&client).write_all(answer.head.as_bytes())?;
                    (&client).write_all(&answer.body[..answer.body.len() / 2])?;
                    return client.shutdown(Shutdown::Both);
                }
                Some(Fate::WrongByte) if !answer.body.is_empty() => {
                    let mut answer = answer;
                    let middle = answer.body.len() / 2;
                    answer.body[middle] ^= 1;
                    write(&client, &answer)?;
                }
                Some(Fate::Slow) => {
                    (&client).write_all(answer.head.as_bytes())?;
                    for drop in answer.body.chunks((answer.body.len() / 5).max(1)) {
                        std::thread::park_timeout(std::time::Duration::from_millis(3));
                        (&client).write_all(drop)?;
                    }
                }
                _ => write(&client, &answer)?,
            }
        }
        Ok(())
    }

    /// Returns the list answer for the client, and stores the present one for the next time.
    fn listing(&self, target: &str, now: Message, fate: Option<Fate>) -> Message {
        let before = self.listings.lock().insert(target.to_owned(), now.clone());
        match (fate, before) {
            (Some(Fate::Lagging), Some(before)) => before,
            (Some(Fate::Lagging), None) => {
                let text = String::from_utf8(now.body).unwrap();
                let end = text.find("<Contents>").or(text.find("<CommonPrefixes>"));
                let body = end.map_or(text.clone(), |end| format!("{}</ListBucketResult>", &text[..end]));
                answer("200 OK", &body)
            }
            _ => now,
        }
    }
}

fn slow_down() -> Message {
    answer(
        "503 Service Unavailable",
        "<?xml version=\"1.0\"?><Error><Code>SlowDown</Code>\
         <Message>Please reduce your request rate.</Message></Error>",
    )
}

fn answer(status: &str, body: &str) -> Message {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    Message { head, body: body.as_bytes().to_vec() }
}

fn write(mut to: &TcpStream, message: &Message) -> std::io::Result<()> {
    to.write_all(message.head.as_bytes())?;
    to.write_all(&message.body)
}

/// Reads the next message; `None` at the end of the connection.
fn read(from: &mut BufReader<TcpStream>, has_body: bool) -> std::io::Result<Option<Message>> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if from.read_line(&mut head)? == 0 {
            return Ok(None);
        }
    }
    let field = |name: &str| {
        let lines = head.lines().filter_map(|line| line.split_once(':'));
        lines
            .into_iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim().to_owned())
    };
    assert_eq!(field("transfer-encoding"), None, "nobody here sends in pieces of unknown length");
    let length = field("content-length").filter(|_| has_body).map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    Ok(Some(Message { head, body }))
}
