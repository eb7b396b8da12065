//! A server with its own volume and thread, and a client that sends and reads raw bytes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use slimio_device::{EngineChoice, PathOptions};
use slimio_server::config::Config;
use slimio_server::{Listener, Server, WallClock};
use slimio_storage::Storage;
use slimio_testing::held::Gate;

/// Both I/O back ends.
pub(crate) const BACK_ENDS: [&str; 2] = ["uring", "plain"];

/// How often [`until`] polls.
pub(crate) const POLL_EVERY: Duration = Duration::from_millis(1);

/// The longest time that a test waits for anything. Usually, it is 20 s. `cargo x planted` sets a
/// shorter time, because with planted bugs most tests time out.
pub(crate) fn patience() -> Duration {
    let seconds = std::env::var("SLIMIO_PATIENCE_SECONDS");
    Duration::from_secs(
        seconds.map_or(20, |text| text.parse().expect("the patience is in seconds")),
    )
}

/// Polls until `is_so` returns true. If that takes longer than [`patience`], panics with the
/// message `what`, which says what is still wrong.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience();
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}; {}", threads());
        // Polling without a pause would take a core from threads that run only on idle cores.
        std::thread::sleep(POLL_EVERY);
    }
}

/// What the kernel is doing for each thread of this process, as far as permissions allow. The text
/// is for the message of a test that timed out.
pub(crate) fn threads() -> String {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let describe = |task: PathBuf| {
        let part = |name| std::fs::read_to_string(task.join(name)).unwrap_or_default();
        format!("thread {}syscall {}{}", part("comm"), part("syscall"), part("stack"))
    };
    tasks.map(|task| describe(task.unwrap().path())).collect()
}

#[derive(Clone, Debug)]
enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

pub(crate) struct Running {
    address: Address,
    /// Writing anything to this socket, or closing it, stops the server as SIGTERM stops the
    /// program.
    stop: UnixStream,
    thread: JoinHandle<Result<(), String>>,
}

/// Starts a server with directives given as `name value` lines. If the kernel refuses the back end,
/// prints a message and returns `None`.
pub(crate) fn start(back_end: &str, volume: &Path, directives: &str) -> Option<Running> {
    start_on(back_end, volume, directives, |storage| storage)
}

/// Like [`start`], but on the volume that `wrap` returns.
pub(crate) fn start_on(
    back_end: &str,
    volume: &Path,
    directives: &str,
    wrap: impl FnOnce(Storage) -> Storage + Send + 'static,
) -> Option<Running> {
    launch(back_end, volume, directives, wrap).map(Starting::serving)
}

/// Like [`start`], but the returned gate can hold back the log. The gate is open at first.
pub(crate) fn start_held(
    back_end: &str,
    volume: &Path,
    directives: &str,
) -> Option<(Running, Gate)> {
    let gate = Gate::default();
    let held = gate.clone();
    let server = start_on(back_end, volume, directives, move |storage| held.hold_log(storage))?;
    Some((server, gate))
}

/// A server whose sockets are open, and which may still be loading.
pub(crate) struct Starting {
    running: Running,
    is_ready: Receiver<()>,
}

impl Starting {
    /// Connects a client, even if the server does not serve commands yet.
    pub(crate) fn connect(&self) -> Client {
        self.running.connect()
    }

    /// Tells the server to stop, as SIGTERM does.
    pub(crate) fn ask_to_stop(&mut self) {
        self.running.stop.write_all(b"stop").unwrap();
    }

    /// Waits until the server serves commands.
    pub(crate) fn serving(self) -> Running {
        match self.is_ready.recv_timeout(patience()) {
            Ok(()) => self.running,
            Err(error) => panic!("the start failed: {error}, {:?}", self.running.thread.join()),
        }
    }

    /// Waits until the server serves commands. If the server ends instead, returns its error.
    pub(crate) fn served(self) -> Result<Running, String> {
        match self.is_ready.recv_timeout(patience()) {
            Ok(()) => Ok(self.running),
            Err(RecvTimeoutError::Disconnected) => {
                Err(self.running.thread.join().unwrap().expect_err("an early end is a failure"))
            }
            Err(RecvTimeoutError::Timeout) => panic!("the server neither serves nor ends"),
        }
    }

    /// Waits until the server has ended, and checks that it never served commands.
    pub(crate) fn ended(self) -> Result<(), String> {
        let result = self.running.thread.join().unwrap();
        assert!(self.is_ready.try_recv().is_err(), "commands were served");
        result
    }
}

/// Like [`start_on`], but does not wait until commands are served.
pub(crate) fn launch(
    back_end: &str,
    volume: &Path,
    directives: &str,
    wrap: impl FnOnce(Storage) -> Storage + Send + 'static,
) -> Option<Starting> {
    if back_end == "uring"
        && let Err(refused) = slimio_ring::probe()
    {
        eprintln!("SKIPPED with io_uring: {refused}");
        return None;
    }
    let config = config(back_end, volume, directives);
    let engine = if back_end == "plain" { EngineChoice::Plain } else { EngineChoice::Best };
    Some(launch_with(config, move |config| {
        let volume = Path::new(config.text("volume"));
        if !config.yes("appendonly") && !volume.exists() {
            return Ok(None);
        }
        let size_max = config.int("log-size-max") as u64;
        let options = PathOptions { engine, ..PathOptions::default() };
        let storage = slimio_volume::open(volume, options, true, size_max);
        Ok(Some(wrap(storage.map_err(|e| e.to_string())?)))
    }))
}

/// Like [`launch`], but on the volume that `open` returns. If `open` returns `None`, the server has
/// no volume.
pub(crate) fn launch_with(
    config: Config,
    open: impl FnOnce(&Config) -> Result<Option<Storage>, String> + Send + 'static,
) -> Starting {
    launch_at(config, WallClock::System, open)
}

/// Like [`launch_with`], but with the given clock.
pub(crate) fn launch_at(
    config: Config,
    clock: WallClock,
    open: impl FnOnce(&Config) -> Result<Option<Storage>, String> + Send + 'static,
) -> Starting {
    launch_heard(config, clock, None, open)
}

/// Like [`launch_at`], and reports each event to a listener.
pub(crate) fn launch_heard(
    config: Config,
    clock: WallClock,
    listener: Option<Listener>,
    open: impl FnOnce(&Config) -> Result<Option<Storage>, String> + Send + 'static,
) -> Starting {
    let socket = config.path("unixsocket").to_owned();
    let (address_sender, address) = channel();
    let (ready_sender, is_ready) = channel();
    let (stop, stopped) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || {
        let storage = open(&config)?;
        let mut server = Server::new(config, storage).map_err(|e| e.to_string())?;
        server.stop_when_readable(stopped.into());
        server.set_wall_clock(clock);
        if let Some(listener) = listener {
            server.set_listener(listener);
        }
        let address = match server.addresses().first() {
            Some(&address) => Address::Tcp(address),
            None => Address::Unix(socket),
        };
        address_sender.send(address).unwrap();
        server.run(|| ready_sender.send(()).unwrap())
    });
    match address.recv_timeout(patience()) {
        Ok(address) => Starting { running: Running { address, stop, thread }, is_ready },
        Err(error) => panic!("the server's sockets did not open: {error}, {:?}", thread.join()),
    }
}

pub(crate) fn config(back_end: &str, volume: &Path, directives: &str) -> Config {
    let mut config = Config::default();
    for (name, value) in [
        ("port", "0"),
        ("bind", "127.0.0.1"),
        ("io-backend", back_end),
        ("volume", volume.to_str().unwrap()),
        ("log-segment-size", "1mb"),
        ("log-buffers", "8"),
    ] {
        config.set(name, value).unwrap();
    }
    for line in directives.lines() {
        let (name, value) = line.trim().split_once(' ').unwrap();
        config.set(name, value).unwrap();
    }
    config
}

impl Running {
    pub(crate) fn connect(&self) -> Client {
        Client::connect(&self.address)
    }

    /// Ends the server by `SHUTDOWN`.
    pub(crate) fn stop(self) {
        let mut client = self.connect();
        client.send(&["SHUTDOWN"]);
        assert_eq!(client.read_to_end(), b"");
        self.ended().unwrap();
    }

    /// Asks the server to end, as a signal does.
    pub(crate) fn ask_to_stop(&mut self) {
        self.stop.write_all(b"x").unwrap();
    }

    /// Ends a server that may have lost its volume, and returns its result.
    pub(crate) fn abandon(mut self) -> Result<(), String> {
        drop(std::mem::replace(&mut self.stop, UnixStream::pair().unwrap().0));
        self.ended()
    }

    pub(crate) fn ended(self) -> Result<(), String> {
        until("the server does not end", || self.thread.is_finished());
        self.thread.join().unwrap()
    }
}

pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    fn connect(address: &Address) -> Self {
        let stream = match address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address).unwrap();
                stream.set_nodelay(true).unwrap();
                stream
            }
            // The calls that this file makes on a `TcpStream` work on any socket.
            Address::Unix(path) => OwnedFd::from(UnixStream::connect(path).unwrap()).into(),
        };
        stream.set_read_timeout(Some(patience())).unwrap();
        stream.set_write_timeout(Some(patience())).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.stream.get_ref().set_read_timeout(Some(patience)).unwrap();
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        assert!(self.try_send_bytes(bytes), "the server closed the connection, or does not read");
    }

    /// Sends bytes. Returns false if the server has closed the connection, or does not read for the
    /// whole [`patience`].
    pub(crate) fn try_send_bytes(&mut self, bytes: &[u8]) -> bool {
        self.stream.get_mut().write_all(bytes).is_ok()
    }

    /// Shuts down the sending side; replies can still be read.
    pub(crate) fn end_sending(&mut self) {
        self.stream.get_ref().shutdown(Shutdown::Write).unwrap();
    }

    pub(crate) fn send(&mut self, args: &[&str]) {
        let args: Vec<&[u8]> = args.iter().map(|arg| arg.as_bytes()).collect();
        self.send_bytes(&encode(&args));
    }

    /// The next reply, with everything nested in it, as bytes.
    pub(crate) fn read(&mut self) -> Vec<u8> {
        self.try_read().expect("the server closed the connection, or sent no reply")
    }

    /// Like [`read`](Self::read); `None` when the server has closed or reset the connection, or
    /// sends nothing in time.
    pub(crate) fn try_read(&mut self) -> Option<Vec<u8>> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).ok()?;
        if !line.ends_with(b"\n") {
            return None;
        }
        let number = || std::str::from_utf8(&line[1..line.len() - 2]).unwrap().parse::<i64>();
        match line.first() {
            Some(b'$' | b'=') => {
                let size = number().unwrap();
                if size >= 0 {
                    let mut rest = vec![0; size as usize + 2];
                    self.stream.read_exact(&mut rest).ok()?;
                    line.extend(rest);
                }
            }
            Some(kind @ (b'*' | b'%' | b'~')) => {
                let count = number().unwrap() * if *kind == b'%' { 2 } else { 1 };
                for _ in 0..count {
                    let item = self.try_read()?;
                    line.extend(item);
                }
            }
            _ => {}
        }
        Some(line)
    }

    /// Sends a request and reads its reply.
    pub(crate) fn call(&mut self, args: &[&str]) -> String {
        self.send(args);
        String::from_utf8_lossy(&self.read()).into_owned()
    }

    /// Whether nothing has arrived.
    pub(crate) fn is_silent(&mut self) -> bool {
        let stream = self.stream.get_ref();
        stream.set_nonblocking(true).unwrap();
        let peeked = stream.peek(&mut [0]);
        stream.set_nonblocking(false).unwrap();
        let nothing = |error: std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
        self.stream.buffer().is_empty() && peeked.is_err_and(nothing)
    }

    /// Whether these bytes are among those that have arrived and were not read.
    pub(crate) fn has_received(&mut self, bytes: &[u8]) -> bool {
        let mut arrived = [0; 4096];
        let stream = self.stream.get_ref();
        stream.set_nonblocking(true).unwrap();
        let count = stream.peek(&mut arrived).unwrap_or(0);
        stream.set_nonblocking(false).unwrap();
        let all = [self.stream.buffer(), &arrived[..count]].concat();
        all.windows(bytes.len()).any(|window| window == bytes)
    }

    /// How many bytes arrive before the server closes or resets the connection.
    pub(crate) fn try_read_to_end(&mut self) -> usize {
        let mut all = Vec::new();
        // A reset also counts as the end.
        drop(self.stream.read_to_end(&mut all));
        all.len()
    }

    /// Everything until the server closes the connection.
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
