//! `cargo x crash-demo`: writes, kills the server at a random moment, starts it again, compares.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::Failure;
use crate::process::{cargo, command, run, target_dir};

/// The kill comes at a moment drawn up to here.
const LIFE_MS_MAX: u64 = 1500;
/// A server that does not answer by then is given up.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Requests that may be unanswered: enough that the kill hits many in flight.
const IN_FLIGHT: u64 = 32;
const READS_AT_ONCE: u64 = 512;
/// What the server says goes here, beside its volume.
const LOG: &str = "server.log";

/// `cargo x crash-demo [always|everysec|no]`.
pub(crate) fn verb(args: &[String]) -> Result<(), Failure> {
    let policy = args.first().map_or("everysec", String::as_str);
    if !matches!(policy, "always" | "everysec" | "no") {
        return Err("the policy is one of always, everysec, no".into());
    }
    run(&mut cargo(["build", "--quiet", "--package", "slimio-cli"]))?;
    let folder = Folder::new()?;
    let life_ms = 100 + random() % (LIFE_MS_MAX - 100);
    println!(
        "appendfsync {policy}; the server will be killed (SIGKILL) after {life_ms} ms of writing"
    );

    let mut first = Server::start(&folder.path, policy)?;
    let (sent, acknowledged) = write_until_killed(&mut first, Duration::from_millis(life_ms))?;
    println!("sent {sent} writes (SET key:1 1, SET key:2 2, …); {acknowledged} were acknowledged");

    let second = Server::start(&folder.path, policy)?;
    let found = count_back(&second, sent)?;
    println!("after the restart the server has key:1 … key:{found}, and none behind it");
    if found < acknowledged {
        return Err(format!("{} acknowledged writes are missing", acknowledged - found).into());
    }
    println!(
        "nothing acknowledged was lost; {} more had reached the log when the process died, \
         their replies had not left",
        found - acknowledged
    );
    println!(
        "under {policy}, a power cut instead {}",
        match policy {
            "always" => "would have lost nothing acknowledged either",
            "everysec" => "could have lost at most the last second",
            _ => "could have lost what the kernel and the device had not yet kept",
        }
    );
    Ok(())
}

/// Keeps `IN_FLIGHT` numbered writes on their way until the kill. Returns (sent, acknowledged).
fn write_until_killed(server: &mut Server, life: Duration) -> Result<(u64, u64), Failure> {
    let stream = server.connect()?;
    let mut writer = stream.try_clone().map_err(|error| error.to_string())?;
    let mut replies = BufReader::new(stream);
    let (mut sent, mut acknowledged) = (0, 0);
    let started = Instant::now();
    let mut line = String::new();
    loop {
        let mut requests = Vec::new();
        while sent - acknowledged < IN_FLIGHT {
            sent += 1;
            write!(requests, "SET key:{sent} {sent}\r\n").map_err(|error| error.to_string())?;
        }
        if writer.write_all(&requests).is_err() {
            return Ok((sent, acknowledged));
        }
        if started.elapsed() >= life {
            server.child.kill().map_err(|error| error.to_string())?;
        }
        line.clear();
        match replies.read_line(&mut line) {
            Ok(length) if length > 0 && line == "+OK\r\n" => acknowledged += 1,
            Ok(length) if length > 0 => return Err(format!("the server said {line:?}").into()),
            _ => return Ok((sent, acknowledged)),
        }
    }
}

/// How many of `key:1` … `key:sent` are there, which must be the first ones.
fn count_back(server: &Server, sent: u64) -> Result<u64, Failure> {
    let mut stream = BufReader::new(server.connect()?);
    let mut found = 0;
    let mut next = 1;
    while next <= sent {
        let numbers = next..(next + READS_AT_ONCE).min(sent + 1);
        next = numbers.end;
        let mut requests = Vec::new();
        for number in numbers.clone() {
            write!(requests, "GET key:{number}\r\n").map_err(|error| error.to_string())?;
        }
        stream.get_mut().write_all(&requests).map_err(|error| error.to_string())?;
        for number in numbers {
            match read_value(&mut stream)? {
                Some(value) if value == number.to_string() && found == number - 1 => found = number,
                Some(value) => {
                    return Err(format!("key:{number} is {value:?}: wrong, or behind a gap").into());
                }
                None => {}
            }
        }
    }
    Ok(found)
}

fn read_value(stream: &mut impl BufRead) -> Result<Option<String>, Failure> {
    let header = read_line(stream)?;
    match header.as_str() {
        "$-1" => Ok(None),
        header if header.starts_with('$') => read_line(stream).map(Some),
        other => Err(format!("to GET the server said {other:?}").into()),
    }
}

fn read_line(stream: &mut impl BufRead) -> Result<String, Failure> {
    let mut line = String::new();
    stream.read_line(&mut line).map_err(|error| error.to_string())?;
    Ok(line.trim_end_matches("\r\n").to_owned())
}

struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(folder: &Path, policy: &str) -> Result<Self, Failure> {
        let port = free_port()?;
        let mut serve: Command = command(target_dir().join("debug/slimio"));
        serve.args(["serve", "--port", &port.to_string(), "--appendfsync", policy, "--volume"]);
        let log = File::options().create(true).append(true).open(folder.join(LOG));
        let log = log.map_err(|error| format!("{}: {error}", folder.display()))?;
        serve.arg(folder.join("volume")).stdout(Stdio::null()).stderr(log);
        let child = serve.spawn().map_err(|error| format!("slimio did not start: {error}"))?;
        let mut server = Self { child, port };
        let deadline = Instant::now() + START_TIMEOUT;
        while !server.answers() {
            if let Ok(Some(status)) = server.child.try_wait() {
                let said = std::fs::read_to_string(folder.join(LOG)).unwrap_or_default();
                return Err(format!("slimio ended instead of serving: {status}\n{said}").into());
            }
            if Instant::now() > deadline {
                return Err("slimio does not answer".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    fn connect(&self) -> Result<TcpStream, Failure> {
        TcpStream::connect(("127.0.0.1", self.port)).map_err(|error| error.to_string().into())
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
        // Already dead is as good.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A folder of this process's own, removed at the end.
struct Folder {
    path: PathBuf,
}

impl Folder {
    fn new() -> Result<Self, Failure> {
        let path = target_dir().join(format!("crash-demo-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self { path })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.path));
    }
}

fn free_port() -> Result<u16, Failure> {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    address.map(|address| address.port()).map_err(|error| error.to_string().into())
}

/// Good enough to choose a moment.
fn random() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() as u64 ^ u64::from(std::process::id()).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
