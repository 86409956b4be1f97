//! A machine between a server without TLS and its clients.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

/// Passes requests on to the server at `url`, and answers back. `change` sees the head of each request and may change
/// the body of its answer, or keep it back. Returns the URL for clients.
pub(crate) fn between(url: &str, change: impl Fn(&str, &mut Vec<u8>) + Send + Sync + 'static) -> String {
    let (server, change) = (url.trim_start_matches("http://").to_owned(), Arc::new(change));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (server, change) = (TcpStream::connect(&server).unwrap(), Arc::clone(&change));
            std::thread::spawn(move || pass_on(&client.unwrap(), &server, &*change));
        }
    });
    url
}

fn pass_on(client: &TcpStream, server: &TcpStream, change: &dyn Fn(&str, &mut Vec<u8>)) -> Option<()> {
    let (mut requests, mut answers) = (BufReader::new(client), BufReader::new(server));
    let (mut to_client, mut to_server) = (client, server);
    loop {
        let request = head(&mut requests)?;
        let sent = body(&mut requests, &request)?;
        to_server.write_all(&[request.as_bytes(), &sent].concat()).ok()?;
        let answer = head(&mut answers)?;
        let mut body = if request.starts_with("HEAD ") { Vec::new() } else { body(&mut answers, &answer)? };
        change(&request, &mut body);
        to_client.write_all(answer.as_bytes()).ok()?;
        to_client.write_all(&body).ok()?;
    }
}

/// As many bytes as `head` says.
fn body(from: &mut impl Read, head: &str) -> Option<Vec<u8>> {
    let bytes = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; bytes.map_or(0, |bytes| bytes.parse().unwrap())];
    from.read_exact(&mut body).ok()?;
    Some(body)
}

/// The lines up to the empty one; `None` at the end of the connection.
fn head(from: &mut impl BufRead) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if from.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    Some(head)
}
