//! Starts and stops the servers under test. Invariant: no server outlives its [`Server`].

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::address::{Address, free_port};
use crate::client::{Client, Reply};
use crate::error::{Doing, Result, ServerError};

/// How long a server may take to answer PING, loading included.
const READY_MAX: Duration = Duration::from_secs(600);
/// How long a server may take to stop before it is killed.
const STOP_MAX: Duration = Duration::from_secs(60);
/// Time between two checks of a server that starts or stops.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
const PORT_TRIES_MAX: usize = 8;
/// Number of lines that an error quotes from the end of a server's log.
const LOG_TAIL_LEN: usize = 12;

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServerKind {
    /// Stock `redis-server`.
    Stock,
    /// `slimio serve`.
    SlimIO,
}

impl fmt::Display for ServerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Stock => "stock",
            Self::SlimIO => "slimio",
        })
    }
}

/// The value of `appendfsync`, or no log at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Policy {
    /// `appendfsync always`.
    Always,
    /// `appendfsync everysec`.
    EverySec,
    /// `appendfsync no`.
    No,
    /// `appendonly no`.
    Off,
}

impl Policy {
    /// Reads the word that `appendfsync` takes, or `off`.
    ///
    /// # Errors
    /// When no policy has this name. The error is a sentence that lists the names.
    pub fn named(name: &str) -> std::result::Result<Self, String> {
        match name {
            "always" => Ok(Self::Always),
            "everysec" => Ok(Self::EverySec),
            "no" => Ok(Self::No),
            "off" => Ok(Self::Off),
            _ => Err(format!("unknown policy {name}; the policies are always, everysec, no, off")),
        }
    }

    fn flags(self) -> [&'static str; 4] {
        let (log, fsync) = match self {
            Self::Always => ("yes", "always"),
            Self::EverySec => ("yes", "everysec"),
            Self::No => ("yes", "no"),
            Self::Off => ("no", "everysec"),
        };
        ["--appendonly", log, "--appendfsync", fsync]
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Always => "always",
            Self::EverySec => "everysec",
            Self::No => "no",
            Self::Off => "off",
        })
    }
}

/// How to start a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The server's kind.
    pub kind: ServerKind,
    /// The server's program.
    pub program: PathBuf,
    /// The directory for the server's data and log output. A missing directory is made.
    pub directory: PathBuf,
    /// When the server makes writes durable.
    pub policy: Policy,
    /// Further flags, verbatim.
    pub extra: Vec<String>,
    /// A program and its arguments, to which the server's command line is appended. Empty if the
    /// server is started directly.
    pub under: Vec<String>,
}

impl ServerConfig {
    /// Where the server keeps its data.
    pub fn data_directory(&self) -> PathBuf {
        match self.kind {
            ServerKind::Stock => self.directory.join("data"),
            ServerKind::SlimIO => self.directory.join("volume"),
        }
    }

    fn command(&self, port: u16) -> Result<Command> {
        let data = self.data_directory();
        let mut command = match self.under.split_first() {
            None => bound_to_our_life(&self.program),
            Some((first, rest)) => {
                let mut command = bound_to_our_life(first.as_ref());
                command.args(rest).arg(&self.program);
                command
            }
        };
        if self.kind == ServerKind::SlimIO {
            command.arg("serve");
        }
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
        command.args(self.policy.flags());
        match self.kind {
            ServerKind::SlimIO => {
                command.arg("--volume").arg(&data);
            }
            ServerKind::Stock => {
                fs::create_dir_all(&data).doing(format!("making {}", data.display()))?;
                command.arg("--dir").arg(&data);
            }
        }
        // With these flags, the server makes snapshots and rewrites its log only when a test asks
        // for that.
        command.args(["--save", "", "--auto-aof-rewrite-percentage", "0"]);
        command.args(&self.extra);
        Ok(command)
    }

    fn log_path(&self) -> PathBuf {
        self.directory.join("server.log")
    }
}

/// A server that has answered PING. Dropping this value kills the server.
#[derive(Debug)]
pub struct Server {
    child: Child,
    config: ServerConfig,
    address: Address,
    ready_after: Duration,
}

impl Server {
    /// Starts a server on a free port and waits until it answers PING with PONG.
    pub fn start(config: &ServerConfig) -> Result<Self> {
        for _ in 0..PORT_TRIES_MAX {
            if let Some(server) = Self::start_on(config, free_port()?)? {
                return Ok(server);
            }
        }
        Err(ServerError::Server(format!("no port stayed free in {PORT_TRIES_MAX} tries")))
    }

    /// Starts a server on `port`. Returns `None` if another process took the port first.
    fn start_on(config: &ServerConfig, port: u16) -> Result<Option<Self>> {
        let directory = &config.directory;
        fs::create_dir_all(directory).doing(format!("making {}", directory.display()))?;
        let log = File::create(config.log_path()).doing("making the server's log")?;
        let log_again = log.try_clone().doing("making the server's log")?;
        let mut command = config.command(port)?;
        command.stdin(Stdio::null()).stdout(log).stderr(log_again);
        let started = Instant::now();
        let child = command.spawn().doing(format!("starting {}", config.program.display()))?;
        let mut server = Self {
            child,
            config: config.clone(),
            address: Address::local(port),
            ready_after: Duration::ZERO,
        };
        while !server.answers() {
            if server.child.try_wait().doing("checking whether the server still runs")?.is_some() {
                let tail = server.log_tail();
                if tail.contains("Address already in use") {
                    return Ok(None);
                }
                return Err(ServerError::Server(format!("{} ended:\n{tail}", config.kind)));
            }
            if started.elapsed() > READY_MAX {
                let tail = server.log_tail();
                return Err(ServerError::Server(format!("{} is not ready:\n{tail}", config.kind)));
            }
            thread::sleep(POLL_INTERVAL);
        }
        server.ready_after = started.elapsed();
        let info = server.client()?.info("server")?;
        let answering = info.get("process_id").and_then(|text| text.trim().parse::<u32>().ok());
        if config.under.is_empty() && answering.is_some_and(|pid| pid != server.pid()) {
            return Ok(None);
        }
        Ok(Some(server))
    }

    fn answers(&self) -> bool {
        let reply = Client::connect(&self.address).and_then(|mut client| client.call(&[b"PING"]));
        matches!(reply, Ok(Reply::Status(text)) if text == "PONG")
    }

    /// Where the server listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// How the server was started.
    pub fn config(&self) -> &ServerConfig {
        &self.config
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Time from start to the first PONG.
    pub fn ready_after(&self) -> Duration {
        self.ready_after
    }

    /// A new connection.
    pub fn client(&self) -> Result<Client> {
        Client::connect(&self.address)
    }

    /// Stops the server with SHUTDOWN NOSAVE. If the server replies with an error to this command,
    /// stops the server with SIGTERM.
    pub fn stop(mut self) -> Result<()> {
        // A server that obeys closes the connection instead of replying, so `call` fails.
        let obeyed = self
            .client()
            .and_then(|mut client| client.call(&[b"SHUTDOWN", b"NOSAVE"]))
            .map_or(true, |reply| !matches!(reply, Reply::Error(_)));
        if !obeyed {
            self.signal(Signal::TERM)?;
        }
        self.wait()
    }

    /// Stops the server with SIGTERM.
    pub fn terminate(mut self) -> Result<()> {
        self.signal(Signal::TERM)?;
        self.wait()
    }

    fn wait(&mut self) -> Result<()> {
        let begun = Instant::now();
        while self.child.try_wait().doing("waiting for the server to stop")?.is_none() {
            if begun.elapsed() > STOP_MAX {
                let tail = self.log_tail();
                return Err(ServerError::Server(format!("the server does not stop:\n{tail}")));
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Kills the server with SIGKILL and waits until it is gone.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill().doing("killing the server")?;
        self.child.wait().doing("waiting for the killed server").map(|_| ())
    }

    /// The last lines that the server printed.
    pub fn log_tail(&self) -> String {
        let text = fs::read_to_string(self.config.log_path()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LEN)..].join("\n")
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.pid() as i32).expect("the process id is not zero");
        kill_process(pid, signal).doing("signalling the server")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A `drop` can report no error. If the process has ended already, both calls succeed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command for `program`. When our own process dies, for whatever reason, the kernel kills the
/// command's process. Without the program `setpriv`, the command's process lives on.
fn bound_to_our_life(program: &Path) -> Command {
    const SETPRIV: &str = "/usr/bin/setpriv";
    if !Path::new(SETPRIV).exists() {
        return Command::new(program);
    }
    let mut command = Command::new(SETPRIV);
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// The path of the program with this name, from the first directory of `PATH` that has the program.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|path| path.is_file())
}
