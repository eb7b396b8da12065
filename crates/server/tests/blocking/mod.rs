//! Clients that wait for keys: which of them are served, with which elements, and in which order.

mod ends;
mod keys;
mod many;
mod promises;
mod room;
mod turns;

use crate::common::{Client, Running, until};
use crate::info;
use crate::undurable::send_all;

/// The reply to a request that has found nothing.
const NOTHING: &str = "*-1\r\n";

/// The reply of `BLPOP`: a key, and an element of the key's list.
fn popped(key: &str, element: &str) -> String {
    format!("*2\r\n${}\r\n{key}\r\n${}\r\n{element}\r\n", key.len(), element.len())
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn integer(number: i64) -> String {
    format!(":{number}\r\n")
}

/// The clients that wait at a server, seen by an observer.
struct Waiters<'a> {
    server: &'a Running,
    observer: Client,
    count: usize,
}

impl<'a> Waiters<'a> {
    fn of(server: &'a Running) -> Self {
        Self { server, observer: server.connect(), count: 0 }
    }

    /// A new client, which sends this request and waits in it.
    fn join(&mut self, request: &[&str]) -> Client {
        let mut client = self.server.connect();
        self.wait(&mut client, request);
        client
    }

    /// Sends a request, and returns when the client waits in it.
    fn wait(&mut self, client: &mut Client, request: &[&str]) {
        client.send(request);
        self.one_more_waits();
    }

    fn one_more_waits(&mut self) {
        self.count += 1;
        self.see("the client does not wait");
    }

    /// Waits until `count` of the clients have stopped waiting.
    fn leave(&mut self, count: usize) {
        self.count -= count;
        self.see("a client still waits");
    }

    fn see(&mut self, what: &str) {
        let count = self.count.to_string();
        until(what, || info(&mut self.observer, "blocked_clients") == count);
    }

    fn call(&mut self, request: &[&str]) -> String {
        self.observer.call(request)
    }

    /// Runs requests as one transaction. Returns the reply of `EXEC`.
    fn exec(&mut self, requests: &[&[&str]]) -> String {
        assert_eq!(self.call(&["MULTI"]), "+OK\r\n");
        for request in requests {
            assert_eq!(self.call(request), "+QUEUED\r\n", "{request:?}");
        }
        self.call(&["EXEC"])
    }

    /// Checks the reply of a client that has waited.
    fn served(&mut self, client: &mut Client, reply: &str) {
        assert_eq!(String::from_utf8_lossy(&client.read()), reply);
        self.count -= 1;
    }
}

fn id_of(client: &mut Client) -> String {
    client.call(&["CLIENT", "ID"])[1..].trim().to_owned()
}
