//! Starts and kills a server of the debug build, for a run of `cargo x`.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::Failure;
use crate::process::{command, target_dir};

/// A server that does not answer within this time has failed to start.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Name of the file for the server's log.
const LOG: &str = "server.log";

/// A running server, killed on drop.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Path of the Unix socket that the server listens on. A port would not be safe, because
    /// another process might take the port before the server binds it.
    socket: PathBuf,
}

impl Server {
    /// Starts a server on a volume, and waits until the server answers. The volume may be a copy
    /// from another device. The server's log goes to a file in `folder`.
    pub fn start(folder: &Path, volume: &Path, policy: &str) -> Result<Self, Failure> {
        let socket = free_socket();
        let mut serve: Command = command(target_dir().join("debug/slimio"));
        serve.args(["serve", "--port", "0", "--appendfsync", policy, "--unixsocket"]).arg(&socket);
        serve.args(["--volume-identity", "accept", "--volume"]);
        let log = File::options().create(true).append(true).open(folder.join(LOG));
        let log = log.map_err(|error| format!("{}: {error}", folder.display()))?;
        serve.arg(volume).stdout(Stdio::null()).stderr(log);
        let child = serve.spawn().map_err(|error| format!("slimio did not start: {error}"))?;
        let mut server = Self { child, socket };
        let deadline = Instant::now() + START_TIMEOUT;
        while !server.answers() {
            if let Ok(Some(status)) = server.child.try_wait() {
                let said = std::fs::read_to_string(folder.join(LOG)).unwrap_or_default();
                return Err(format!("slimio ended during its start: {status}\n{said}").into());
            }
            if Instant::now() > deadline {
                return Err("slimio does not answer in time after its start".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Connects to the server.
    pub fn connect(&self) -> Result<UnixStream, Failure> {
        UnixStream::connect(&self.socket).map_err(|error| error.to_string().into())
    }

    /// The value of the string at `key`; `None` if there is no such key.
    pub fn get(&self, key: &str) -> Result<Option<String>, Failure> {
        let mut stream = BufReader::new(self.connect()?);
        let request = format!("GET {key}\r\n");
        stream.get_mut().write_all(request.as_bytes()).map_err(|error| error.to_string())?;
        read_value(&mut stream)
    }

    /// Sends SIGKILL; does not wait for the process to end.
    pub fn kill(&mut self) -> Result<(), Failure> {
        self.child.kill().map_err(|error| error.to_string().into())
    }

    /// Whether the server is up and has recovered.
    fn answers(&self) -> bool {
        let Ok(mut stream) = self.connect() else { return false };
        stream.write_all(b"PING\r\n").is_ok()
            && read_line(&mut BufReader::new(stream)).is_ok_and(|line| line == "+PONG")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server may be dead already.
        drop(self.child.kill());
        drop(self.child.wait());
        drop(std::fs::remove_file(&self.socket));
    }
}

/// Reads a bulk string or null.
pub fn read_value(stream: &mut impl BufRead) -> Result<Option<String>, Failure> {
    let header = read_line(stream)?;
    match header.as_str() {
        "$-1" => Ok(None),
        header if header.starts_with('$') => read_line(stream).map(Some),
        other => Err(format!("the server answered GET with {other:?}").into()),
    }
}

fn read_line(stream: &mut impl BufRead) -> Result<String, Failure> {
    let mut line = String::new();
    stream.read_line(&mut line).map_err(|error| error.to_string())?;
    Ok(line.trim_end_matches("\r\n").to_owned())
}

/// A path for a new socket. The path is not in the target folder, because the target folder's path
/// may be too long for a socket.
fn free_socket() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("slimio-server-{}-{number}", std::process::id()))
}
