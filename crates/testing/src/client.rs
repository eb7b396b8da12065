//! A blocking connection for requests whose time is not measured, such as `INFO` and the requests
//! of the lab's ledger. The ledger is a test that kills the server and looks for missing
//! acknowledged writes.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::address::Address;
use crate::error::{Doing, Result, ServerError};

const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
/// Length of the largest string or array that the client accepts, in bytes or elements.
const LENGTH_MAX: usize = 1 << 30;

/// One complete reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A status, which begins with `+`.
    Status(String),
    /// An error, which begins with `-`.
    Error(String),
    /// An integer, which begins with `:`.
    Integer(i64),
    /// A string, which begins with `$`.
    Bulk(Vec<u8>),
    /// The null string or the null array.
    Nil,
    /// An array of replies, which begins with `*`.
    Array(Vec<Reply>),
}

/// A blocking connection to a server.
#[derive(Debug)]
pub struct Client {
    reader: BufReader<TcpStream>,
}

impl Client {
    /// Connects to a server.
    pub fn connect(address: &Address) -> Result<Self> {
        // Any stream socket can be held as a `TcpStream`, because reading, writing and timeouts
        // work the same on Unix sockets.
        let socket = TcpStream::from(address.connect()?);
        socket.set_read_timeout(Some(REPLY_TIMEOUT)).doing("setting a timeout")?;
        Ok(Self { reader: BufReader::with_capacity(64 * 1024, socket) })
    }

    /// Sends one command and waits for its reply, which may be an error reply.
    pub fn call(&mut self, words: &[&[u8]]) -> Result<Reply> {
        let mut request = Vec::new();
        encode(words, &mut request);
        self.send(&request)?;
        self.receive()
    }

    /// Like [`Client::call`], but an error reply is returned as an error.
    pub fn expect(&mut self, words: &[&str]) -> Result<Reply> {
        let bytes: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        match self.call(&bytes)? {
            Reply::Error(text) => Err(ServerError::Reply(format!("{}: {text}", words.join(" ")))),
            reply => Ok(reply),
        }
    }

    /// Sends requests that are encoded already.
    pub fn send(&mut self, requests: &[u8]) -> Result<()> {
        self.reader.get_mut().write_all(requests).doing("sending a request")
    }

    /// Waits for one reply.
    pub fn receive(&mut self) -> Result<Reply> {
        let line = self.line()?;
        let (kind, rest) = line.split_at_checked(1).unwrap_or(("", ""));
        Ok(match kind {
            "+" => Reply::Status(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(rest.parse().map_err(|_| not_a_reply(&line))?),
            "$" => match length(rest, &line)? {
                None => Reply::Nil,
                Some(len) => {
                    let mut bytes = vec![0; len + 2];
                    self.reader.read_exact(&mut bytes).doing("receiving a reply")?;
                    bytes.truncate(len);
                    Reply::Bulk(bytes)
                }
            },
            "*" => match length(rest, &line)? {
                None => Reply::Nil,
                Some(len) => Reply::Array((0..len).map(|_| self.receive()).collect::<Result<_>>()?),
            },
            _ => return Err(not_a_reply(&line)),
        })
    }

    /// Runs `INFO` with `section`, and returns the fields of the reply.
    pub fn info(&mut self, section: &str) -> Result<BTreeMap<String, String>> {
        let Reply::Bulk(bytes) = self.expect(&["INFO", section])? else {
            return Err(ServerError::Reply("the reply to INFO is not a string".into()));
        };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        Ok(fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    fn line(&mut self) -> Result<String> {
        let mut bytes = Vec::new();
        self.reader.read_until(b'\n', &mut bytes).doing("receiving a reply")?;
        match bytes.strip_suffix(b"\r\n") {
            Some(line) => Ok(String::from_utf8_lossy(line).into_owned()),
            None => Err(ServerError::Server("the server closed the connection".into())),
        }
    }
}

/// Appends a command to `out`, encoded as RESP.
pub fn encode(words: &[&[u8]], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

fn length(digits: &str, line: &str) -> Result<Option<usize>> {
    if digits == "-1" {
        return Ok(None);
    }
    let length = digits.parse().ok().filter(|&length| length <= LENGTH_MAX);
    length.map(Some).ok_or_else(|| not_a_reply(line))
}

fn not_a_reply(line: &str) -> ServerError {
    ServerError::Reply(format!("not a reply: {line:?}"))
}
