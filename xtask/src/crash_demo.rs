//! `cargo x crash-demo`: writes keys, kills the server at a random moment, starts the server again,
//! and compares the keys.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use slimio_host::Failure;
use slimio_host::process::{cargo, run, target_dir};
use slimio_host::server::{Server, read_value};

/// The longest time of writing before the kill, in milliseconds. The time itself is drawn at
/// random.
const LIFE_MS_MAX: u64 = 1500;
/// Number of requests in flight, which is large so that the kill interrupts many of them.
const IN_FLIGHT: u64 = 32;
const READS_AT_ONCE: u64 = 512;

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

    let mut first = Server::start(&folder.path, &folder.path.join("volume"), policy)?;
    let (sent, acknowledged) = write_until_killed(&mut first, Duration::from_millis(life_ms))?;
    println!("sent {sent} writes (SET key:1 1, SET key:2 2, …); {acknowledged} were acknowledged");

    let second = Server::start(&folder.path, &folder.path.join("volume"), policy)?;
    let found = count_back(&second, sent)?;
    println!("after the restart the server has key:1 … key:{found}, and no later key");
    if found < acknowledged {
        return Err(format!("{} acknowledged writes are missing", acknowledged - found).into());
    }
    println!(
        "no acknowledged write was lost; {} more writes had reached the log when the process died, \
         before their replies were sent",
        found - acknowledged
    );
    println!(
        "under {policy}, a power cut {}",
        match policy {
            "always" => "would have lost no acknowledged write either",
            "everysec" => "could have lost the writes of at most the last second",
            _ => "could have lost all writes that were not durable yet",
        }
    );
    Ok(())
}

/// Keeps `IN_FLIGHT` numbered writes in flight until the kill. Returns the numbers of sent
/// and of acknowledged writes.
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
            server.kill()?;
        }
        line.clear();
        match replies.read_line(&mut line) {
            Ok(length) if length > 0 && line == "+OK\r\n" => acknowledged += 1,
            Ok(length) if length > 0 => return Err(format!("the server said {line:?}").into()),
            _ => return Ok((sent, acknowledged)),
        }
    }
}

/// Counts how many of the keys `key:1` … `key:sent` the server has. It is an error if the server
/// lacks a key but has a later one.
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
                    return Err(format!(
                        "key:{number} has the wrong value {value:?}, or an earlier key is missing"
                    )
                    .into());
                }
                None => {}
            }
        }
    }
    Ok(found)
}

/// A folder for this process alone. Dropping this value removes the folder.
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

/// A random number, good enough to choose a moment.
fn random() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() as u64 ^ u64::from(std::process::id()).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
