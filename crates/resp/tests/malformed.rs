//! Sends malformed input to the parser and to stock `redis-server`. Both must reply the same before
//! they close the connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use slimio_resp::{Limits, Parser, ReplyBuf, Step};

struct Stock {
    child: Child,
    folder: PathBuf,
}

impl Stock {
    /// Starts a stock server for the test, with a password or without. Returns `None` if no stock
    /// server is installed.
    fn start(password: &str) -> Option<Self> {
        let name = format!("slimio-malformed-{}-{}", password.len(), std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("the folder for the socket can be made");
        let spawned = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--unixsocket", "socket"])
            .args(["--requirepass", password, "--dir"])
            .arg(&folder)
            .current_dir(&folder)
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut child) = spawned else {
            // The test does not use `eprintln!`, because the test runner shows the output of
            // `eprintln!` only if the test fails.
            let text = b"SKIPPED: redis-server is not installed, so nothing was compared with it\n";
            std::io::stderr().write_all(text).expect("standard error can be written");
            std::fs::remove_dir_all(&folder).expect("the test can remove its folder");
            return None;
        };
        let log = child.stdout.take().expect("the server's output is a pipe");
        let mut lines = BufReader::new(log).lines();
        while let Some(Ok(line)) = lines.next() {
            if line.contains("ready to accept connections") {
                // The rest of the log is read and dropped. Otherwise, the pipe would fill up and
                // block the server.
                std::thread::spawn(move || lines.for_each(drop));
                return Some(Self { child, folder });
            }
        }
        panic!("redis-server did not start");
    }

    /// Everything that the server replies to these bytes until one side closes the connection.
    fn answer(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream =
            UnixStream::connect(self.folder.join("socket")).expect("the server listens");
        // The server may close the connection before it has read everything.
        if stream.write_all(bytes).is_ok() {
            let _ = stream.shutdown(Shutdown::Write);
        }
        let mut answer = Vec::new();
        let mut chunk = [0; 4096];
        while let Ok(count) = stream.read(&mut chunk) {
            if count == 0 {
                break;
            }
            answer.extend_from_slice(&chunk[..count]);
        }
        answer
    }
}

impl Drop for Stock {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The replies of a server that uses our parser and has only the command `PING`.
fn answer(bytes: &[u8], unauthenticated: bool) -> Vec<u8> {
    let limits = Limits { unauthenticated, ..Limits::default() };
    let mut parser = Parser::new();
    let mut answer = Vec::new();
    let mut rest = bytes;
    loop {
        match parser.step(rest, &limits) {
            Step::Complete { consumed } => {
                if let Some(name) = parser.request().args(rest).iter().next() {
                    let name = name.to_bytes();
                    let name = String::from_utf8_lossy(&name);
                    answer.extend(run(&name, unauthenticated).bytes());
                }
                rest = &rest[consumed..];
            }
            Step::NeedMore | Step::Large { .. } => return answer,
            Step::Error(error) => {
                let mut reply = ReplyBuf::default();
                error.write(&mut reply);
                return reply
                    .segments(0..reply.len())
                    .fold(answer, |answer, segment| [&answer[..], segment].concat());
            }
        }
    }
}

/// The reply to a command without arguments.
fn run(name: &str, unauthenticated: bool) -> String {
    if !name.eq_ignore_ascii_case("ping") {
        return format!("-ERR unknown command '{name}', with args beginning with: \r\n");
    }
    if unauthenticated { "-NOAUTH Authentication required.\r\n" } else { "+PONG\r\n" }.to_owned()
}

/// The inputs. No line in them contains a zero byte, because Redis waits forever for the end of a
/// line that contains a zero byte.
fn inputs() -> Vec<Vec<u8>> {
    let mut inputs: Vec<Vec<u8>> = [
        &b"PING\r\n"[..],
        b"ping\n",
        b"\r\n\r\nPING\r\n",
        b"*0\r\nPING\r\n",
        b"*-1\r\nPING\r\n",
        b"*-5\r\nPING\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"*1\r\n$4\r\nPINGxx*1\r\n$4\r\nPING\r\n",
        b"*1\r\n$4\r\nPING\r\n*x\r\n",
        b"*\r\n",
        b"*x\r\n",
        b"*01\r\n",
        b"*+1\r\n",
        b"* 1\r\n",
        b"*1 \r\n",
        b"*-0\r\n",
        b"*2147483647\r\n",
        b"*2147483648\r\n",
        b"*99999999999999999999\r\n",
        b"*1\r\n\r\n",
        b"*1\r\nPING\r\n",
        b"*1\r\n:4\r\nPING\r\n",
        b"*1\r\n*1\r\n",
        b"*1\r\n\n4\r\n",
        b"*1\r\n$\r\n",
        b"*1\r\n$x\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$04\r\nPING\r\n",
        b"*1\r\n$+4\r\nPING\r\n",
        b"*1\r\n$536870912\r\n",
        b"*1\r\n$536870913\r\n",
        b"*1\r\n$99999999999999999999\r\n",
        b"*3\r\n$4\r\nPING\r\n$2\r\nab\r\nx\r\n",
        b"*10\r\n",
        b"*11\r\n",
        b"*1\r\n$16384\r\n",
        b"*1\r\n$16385\r\n",
        b"PING \"unbalanced\r\n",
        b"PING 'unbalanced\r\n",
        b"PING\"x\"y\r\n",
        b"\"PING\"\r\n",
        b"'ping'\r\n",
        b"\"p\\x69ng\"\r\n",
        b"PING\r",
        b"*1\r",
        b"*1\n",
        b"$4\r\n\"\r\n",
    ]
    .iter()
    .map(|input| input.to_vec())
    .collect();
    for byte in 1..=u8::MAX {
        if !b"$\r\n".contains(&byte) {
            inputs.push([b"*1\r\n", &[byte][..], b"4\r\n"].concat());
        }
    }
    let long = vec![b'1'; 70_000];
    inputs.push(long.clone());
    inputs.push([b"*", &long[..]].concat());
    inputs.push([b"*", &long[..], b"\r\n"].concat());
    inputs.push([b"*1\r\n$", &long[..]].concat());
    inputs.push([b"*1\r\n$", &long[..], b"\r\n"].concat());
    inputs.push([b"\"", &long[..], b"\r\n"].concat());
    inputs
}

#[test]
fn broken_input_is_answered_as_redis_does() {
    for password in ["", "secret"] {
        let Some(stock) = Stock::start(password) else { return };
        for input in inputs() {
            let shown = String::from_utf8_lossy(&input[..input.len().min(60)]).into_owned();
            let ours = answer(&input, !password.is_empty());
            let theirs = stock.answer(&input);
            let (ours, theirs) = (ours.escape_ascii(), theirs.escape_ascii());
            assert_eq!(ours.to_string(), theirs.to_string(), "{shown:?}, password {password:?}");
        }
    }
}
