//! A stock `redis-server` that an example starts to measure beside it.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use slimio_resp::reply_size;

/// A running server with one connection.
pub(crate) struct Stock {
    child: Child,
    folder: PathBuf,
    stream: UnixStream,
    buffer: Vec<u8>,
}

impl Stock {
    /// Starts a server; `None` if it is not installed.
    pub(crate) fn start() -> Option<Self> {
        let folder = std::env::temp_dir().join(format!("slimio-stock-{}", std::process::id()));
        std::fs::create_dir_all(&folder).ok()?;
        let mut child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--unixsocket", "socket"])
            .current_dir(&folder)
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let mut log = BufReader::new(child.stdout.take()?);
        let mut line = String::new();
        while log.read_line(&mut line).is_ok_and(|size| size > 0)
            && !line.contains("ready to accept")
        {
            line.clear();
        }
        // The rest of the log must go somewhere, or the server waits for it to be read.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        let stream = UnixStream::connect(folder.join("socket")).ok()?;
        Some(Self { child, folder, stream, buffer: Vec::new() })
    }

    /// Sends requests in one go, and returns their replies.
    pub(crate) fn run<T: AsRef<[u8]>>(&mut self, requests: &[Vec<T>]) -> Vec<Vec<u8>> {
        let mut bytes = Vec::new();
        for args in requests {
            bytes.extend(format!("*{}\r\n", args.len()).bytes());
            for arg in args {
                let arg = arg.as_ref();
                bytes.extend(format!("${}\r\n", arg.len()).bytes());
                bytes.extend_from_slice(arg);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        self.stream.write_all(&bytes).expect("sent");
        requests.iter().map(|_| self.reply()).collect()
    }

    fn reply(&mut self) -> Vec<u8> {
        loop {
            if let Some(size) = reply_size(&self.buffer).expect("a reply") {
                return self.buffer.drain(..size).collect();
            }
            let mut chunk = [0; 16384];
            let size = self.stream.read(&mut chunk).expect("received");
            assert!(size > 0, "redis-server closed the connection");
            self.buffer.extend_from_slice(&chunk[..size]);
        }
    }

    /// A numeric field of `INFO`.
    pub(crate) fn info(&mut self, field: &str) -> usize {
        let replies = self.run(&[vec!["INFO"]]);
        let text = String::from_utf8_lossy(&replies[0]).into_owned();
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.and_then(|value| value.parse().ok()).expect("a number")
    }
}

impl Drop for Stock {
    fn drop(&mut self) {
        // Errors don't matter here.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
