//! A server on a volume of its own, on a thread of its own, and a client that talks bytes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use slimio_device::EngineChoice;
use slimio_server::config::Config;
use slimio_server::{Server, Storage};

/// Both ways to the kernel.
pub(crate) const BACK_ENDS: [&str; 2] = ["uring", "plain"];

/// Longest time that anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A running server.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    thread: JoinHandle<Result<(), String>>,
}

/// Starts a server with directives given as `name value` lines. `None`, loudly, where the kernel
/// refuses the back end.
pub(crate) fn start(back_end: &str, volume: &Path, directives: &str) -> Option<Running> {
    start_on(back_end, volume, directives, |storage| storage)
}

/// As [`start`], on what `wrap` makes of the volume.
pub(crate) fn start_on(
    back_end: &str,
    volume: &Path,
    directives: &str,
    wrap: impl FnOnce(Storage) -> Storage + Send + 'static,
) -> Option<Running> {
    if back_end == "uring"
        && let Err(refused) = slimio_ring::probe()
    {
        eprintln!("SKIPPED with io_uring: {refused}");
        return None;
    }
    let mut config = Config::default();
    let volume = volume.to_str().unwrap().to_owned();
    for (name, value) in [
        ("port", "0"),
        ("bind", "127.0.0.1"),
        ("io-backend", back_end),
        ("volume", &volume),
        ("log-segment-size", "1mb"),
        ("log-buffers", "8"),
    ] {
        config.set(name, value).unwrap();
    }
    for line in directives.lines() {
        let (name, value) = line.trim().split_once(' ').unwrap();
        config.set(name, value).unwrap();
    }
    let (sender, receiver) = channel();
    let engine = if back_end == "plain" { EngineChoice::Plain } else { EngineChoice::Best };
    let thread = std::thread::spawn(move || {
        let storage = if config.yes("appendonly") {
            let size_max = config.int("log-size-max") as u64;
            Some(wrap(crate::volume::open(&volume, engine, true, size_max)?))
        } else {
            None
        };
        let server = Server::new(config, storage).map_err(|e| e.to_string())?;
        let address = server.addresses()[0];
        server.run(|| sender.send(address).unwrap())
    });
    match receiver.recv_timeout(PATIENCE) {
        Ok(address) => Some(Running { address, thread }),
        Err(error) => panic!("the server did not start: {error}, {:?}", thread.join()),
    }
}

impl Running {
    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// Ends the server by `SHUTDOWN`.
    pub(crate) fn stop(self) {
        let mut client = self.connect();
        client.send(&["SHUTDOWN"]);
        assert_eq!(client.read_to_end(), b"");
        self.thread.join().unwrap().unwrap();
    }
}

/// A connection.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    pub(crate) fn send(&mut self, args: &[&str]) {
        let args: Vec<&[u8]> = args.iter().map(|arg| arg.as_bytes()).collect();
        self.send_bytes(&encode(&args));
    }

    /// The next reply, with everything nested in it, as bytes.
    pub(crate) fn read(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).unwrap();
        let number = || std::str::from_utf8(&line[1..line.len() - 2]).unwrap().parse::<i64>();
        match line.first() {
            Some(b'$' | b'=') => {
                let size = number().unwrap();
                if size >= 0 {
                    let mut rest = vec![0; size as usize + 2];
                    self.stream.read_exact(&mut rest).unwrap();
                    line.extend(rest);
                }
            }
            Some(kind @ (b'*' | b'%' | b'~')) => {
                let count = number().unwrap() * if *kind == b'%' { 2 } else { 1 };
                for _ in 0..count {
                    let item = self.read();
                    line.extend(item);
                }
            }
            Some(_) => {}
            None => panic!("the server closed the connection"),
        }
        line
    }

    /// Sends a request and reads its reply.
    pub(crate) fn call(&mut self, args: &[&str]) -> String {
        self.send(args);
        String::from_utf8_lossy(&self.read()).into_owned()
    }

    /// Whether nothing has come.
    pub(crate) fn is_silent(&mut self) -> bool {
        let stream = self.stream.get_ref();
        stream.set_nonblocking(true).unwrap();
        let peeked = stream.peek(&mut [0]);
        stream.set_nonblocking(false).unwrap();
        let nothing = |error: std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
        self.stream.buffer().is_empty() && peeked.is_err_and(nothing)
    }

    /// How many bytes come until the server closes or breaks the connection.
    pub(crate) fn try_read_to_end(&mut self) -> usize {
        let mut all = Vec::new();
        // A reset is an end, too.
        drop(self.stream.read_to_end(&mut all));
        all.len()
    }

    /// Everything until the server closes.
    pub(crate) fn read_to_end(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        self.stream.read_to_end(&mut all).unwrap();
        all
    }
}

/// A request as clients send it.
pub(crate) fn encode(args: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend(format!("${}\r\n", arg.len()).into_bytes());
        bytes.extend_from_slice(arg);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
