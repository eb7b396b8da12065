//! A connection whose replies are compared byte by byte.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use slimio_resp::reply_size;

use crate::address::Address;
use crate::client::encode;
use crate::error::Result;

/// The most bytes that one read receives.
const CHUNK_SIZE: usize = 16_384;

/// A connection that returns each reply as the bytes that were received.
#[derive(Debug)]
pub struct RawConnection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl RawConnection {
    /// Connects to a server.
    ///
    /// # Errors
    /// When the connection can't be made.
    pub fn connect(address: &Address) -> Result<Self> {
        // A `TcpStream` can hold any stream socket, also a Unix socket.
        Ok(Self { stream: TcpStream::from(address.connect()?), buffer: Vec::new() })
    }

    /// Sends a request, and returns its reply.
    ///
    /// # Panics
    /// When the connection ends, or when the received bytes are no reply.
    pub fn run<T: AsRef<[u8]>>(&mut self, words: &[T]) -> Vec<u8> {
        self.run_all(&[words]).swap_remove(0)
    }

    /// Sends requests in one go, and returns their replies.
    ///
    /// # Panics
    /// When the connection ends, or when the received bytes are no reply.
    pub fn run_all<T: AsRef<[u8]>>(&mut self, requests: &[impl AsRef<[T]>]) -> Vec<Vec<u8>> {
        let mut bytes = Vec::new();
        for request in requests {
            let words: Vec<&[u8]> = request.as_ref().iter().map(AsRef::as_ref).collect();
            encode(&words, &mut bytes);
        }
        self.stream.write_all(&bytes).expect("the requests can be sent");
        requests.iter().map(|_| self.reply()).collect()
    }

    fn reply(&mut self) -> Vec<u8> {
        loop {
            if let Some(size) = reply_size(&self.buffer).expect("the received bytes are a reply") {
                return self.buffer.drain(..size).collect();
            }
            let mut chunk = [0; CHUNK_SIZE];
            let size = self.stream.read(&mut chunk).expect("the socket can be read");
            assert!(size > 0, "the server closed the connection");
            self.buffer.extend_from_slice(&chunk[..size]);
        }
    }
}
