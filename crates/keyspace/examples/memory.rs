//! Prints what a key costs, beside what it costs in stock `redis-server`.
//!
//! `cargo run --release -p slimio-keyspace --example memory [COUNT]`: so many keys of 16 bytes,
//! with values of some sizes; one size after the other, each in a process of its own.

#![expect(clippy::print_stdout, reason = "what it measures is printed")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use slimio_keyspace::{Config, Context, DbIndex, Effects, Keyspace, Mode, Outcome, command_table};
use slimio_resp::{OwnedRequest, ReplyBuf};

const VALUE_SIZES: [usize; 6] = [16, 64, 512, 1024, 4096, 5000];

const KEY_COUNT: usize = 1_000_000;

/// Bytes of values that one size may take.
const TOTAL_SIZE_MAX: usize = 1 << 30;

fn main() {
    let mut args = std::env::args().skip(1);
    let first = args.next();
    if first.as_deref() == Some("--fill") {
        let mut number = || args.next().and_then(|arg| arg.parse().ok()).expect("a number");
        let (count, size, expiring) = (number(), number(), number() == 1);
        let (requested, resident) = fill(count, size, expiring);
        println!("{requested} {resident}");
        return;
    }
    let count = first.and_then(|arg| arg.parse().ok()).unwrap_or(KEY_COUNT);
    println!(
        "| value | expires | keys | requested B/key | resident B/key | redis used_memory B/key |"
    );
    println!("|---|---|---|---|---|---|");
    for size in VALUE_SIZES {
        for expiring in [false, true] {
            let count = count.min(TOTAL_SIZE_MAX / size);
            let program = std::env::current_exe().expect("this program");
            let output = Command::new(program)
                .args(["--fill", &count.to_string(), &size.to_string()])
                .arg(u8::from(expiring).to_string())
                .output()
                .expect("it runs");
            let ours = String::from_utf8_lossy(&output.stdout).trim().replace(' ', " | ");
            let redis = redis(count, size, expiring)
                .map_or("not installed".to_owned(), |bytes| bytes.to_string());
            println!("| {size} | {expiring} | {count} | {ours} | {redis} |");
        }
    }
}

/// Arguments that set key `index`.
fn set(index: usize, size: usize, expiring: bool) -> Vec<Vec<u8>> {
    // Not the same as a small number, which Redis keeps in another form.
    let value = (0..size).map(|i| b'a' + ((i + index) % 26) as u8).collect();
    let mut args = vec![b"SET".to_vec(), format!("key:{index:012}").into_bytes(), value];
    if expiring {
        args.extend([b"EX".to_vec(), b"100000".to_vec()]);
    }
    args
}

/// Fills a keyspace: bytes that were asked for, and resident bytes, per key.
fn fill(count: usize, size: usize, expiring: bool) -> (usize, usize) {
    let mut keyspace = Keyspace::new(Config::default(), 0x5eed);
    let (mut reply, mut effects) = (ReplyBuf::default(), Effects::new());
    let command = command_table().lookup(b"set").expect("a command");
    let before = resident_size();
    let info = allocation_counter::measure(|| {
        for index in 0..count {
            let request = OwnedRequest::from_args(set(index, size, expiring));
            reply.clear();
            effects.clear();
            let outcome = (command.run)(&mut Context {
                keyspace: &mut keyspace,
                db: DbIndex(0),
                args: request.args(),
                now_ms: 1,
                reply: &mut reply,
                effects: &mut effects,
                mode: Mode::Client,
            });
            assert!(matches!(outcome, Outcome::Reply));
        }
    });
    assert_eq!(keyspace.dbsize(DbIndex(0)), count);
    (info.bytes_current as usize / count, (resident_size() - before) / count)
}

fn resident_size() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS")).expect("a line of it");
    let digits: String = line.chars().filter(char::is_ascii_digit).collect();
    digits.parse::<usize>().expect("a number") * 1024
}

/// What `used_memory` of a stock server grows by per key; `None` if there is none.
fn redis(count: usize, size: usize, expiring: bool) -> Option<usize> {
    let folder = std::env::temp_dir().join(format!("slimio-memory-{}", std::process::id()));
    std::fs::create_dir_all(&folder).ok()?;
    let mut server = Command::new("redis-server")
        .args(["--port", "0", "--save", "", "--unixsocket", "socket"])
        .current_dir(&folder)
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let mut log = BufReader::new(server.stdout.take()?);
    let mut line = String::new();
    while log.read_line(&mut line).is_ok_and(|size| size > 0) && !line.contains("ready to accept") {
        line.clear();
    }
    let mut stream = UnixStream::connect(folder.join("socket")).ok()?;
    let before = used_memory(&mut stream);
    let mut index = 0;
    while index < count {
        let mut batch = Vec::new();
        let end = count.min(index + 100);
        for index in index..end {
            let args = set(index, size, expiring);
            batch.extend(format!("*{}\r\n", args.len()).bytes());
            for arg in args {
                batch.extend(format!("${}\r\n", arg.len()).bytes());
                batch.extend(arg);
                batch.extend(b"\r\n");
            }
        }
        stream.write_all(&batch).ok()?;
        stream.read_exact(&mut vec![0; (end - index) * "+OK\r\n".len()]).ok()?;
        index = end;
    }
    let used = used_memory(&mut stream) - before;
    server.kill().ok()?;
    server.wait().ok()?;
    std::fs::remove_dir_all(&folder).ok()?;
    Some(used / count)
}

fn used_memory(stream: &mut UnixStream) -> usize {
    stream.write_all(b"INFO memory\r\n").expect("sent");
    let mut reply = String::new();
    let mut chunk = [0; 4096];
    loop {
        let size = stream.read(&mut chunk).expect("received");
        reply.push_str(&String::from_utf8_lossy(&chunk[..size]));
        let used = reply.lines().find_map(|line| line.strip_prefix("used_memory:"));
        if let Some(used) = used
            && reply.ends_with("\r\n\r\n")
        {
            return used.parse().expect("a number");
        }
    }
}
