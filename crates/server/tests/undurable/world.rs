//! A server with `appendfsync always`, whose log can be held back, and an observer, a client that
//! sees which commands the server has run.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use slimio_device::{EngineChoice, PathOptions};
use slimio_server::WallClock;
use slimio_testing::held::Gate;

use crate::common::{Client, Running, config, launch_at, until};

/// The time on the server's clock until a test moves the clock, in milliseconds since 1970.
const BEGIN_MS: i64 = 1_700_000_000_000;

/// Directives that the server of each [`World`] gets.
const BASE: &str = "appendfsync always\nenable-debug-command local\n";

pub(crate) struct World {
    server: Running,
    gate: Gate,
    clock: Arc<AtomicI64>,
    /// A client that always gets its replies, because they never wait for the log.
    pub(crate) observer: Client,
}

impl World {
    /// Starts a server with [`BASE`] and these further directives. If the kernel refuses the back
    /// end, prints a message and returns `None`.
    pub(crate) fn start(back_end: &str, volume: &Path, directives: &str) -> Option<Self> {
        if back_end == "uring"
            && let Err(refused) = slimio_ring::probe()
        {
            eprintln!("SKIPPED with io_uring: {refused}");
            return None;
        }
        let gate = Gate::default();
        let clock = Arc::new(AtomicI64::new(BEGIN_MS));
        let engine = if back_end == "plain" { EngineChoice::Plain } else { EngineChoice::Best };
        let options = PathOptions { engine, ..PathOptions::default() };
        let config = config(back_end, volume, &format!("{BASE}{directives}"));
        let (held, volume) = (gate.clone(), volume.to_owned());
        let starting = launch_at(config, WallClock::Given(Arc::clone(&clock)), move |config| {
            let size_max = config.int("log-size-max") as u64;
            let storage = slimio_volume::open(&volume, options, true, size_max);
            Ok(Some(held.hold_log(storage.map_err(|error| error.to_string())?)))
        });
        let server = starting.serving();
        let observer = server.connect();
        Some(Self { server, gate, clock, observer })
    }

    /// Holds back all completions from the log. So to the server, nothing becomes durable from now
    /// on.
    pub(crate) fn shut(&self) {
        self.gate.shut();
    }

    /// Releases the completions that [`shut`](Self::shut) has held back. So the server learns what
    /// has become durable.
    pub(crate) fn open(&mut self) {
        self.gate.open();
        // Opening the gate does not wake the server. But in every turn, the server polls its path
        // to the log.
        self.settle();
    }

    /// Lets this much time pass on the server's clock.
    pub(crate) fn pass_ms(&self, ms: i64) {
        self.clock.fetch_add(ms, Ordering::SeqCst);
    }

    /// Lets time pass until the next second begins.
    pub(crate) fn pass_to_second(&self) {
        let now = self.clock.load(Ordering::SeqCst);
        self.pass_ms(1000 - now % 1000);
    }

    pub(crate) fn connect_unnamed(&self) -> Client {
        self.server.connect()
    }

    /// A connection that is called `name` in `CLIENT LIST`.
    pub(crate) fn connect(&self, name: &str) -> Client {
        let mut client = self.connect_unnamed();
        assert_eq!(client.call(&["CLIENT", "SETNAME", name]), "+OK\r\n");
        client
    }

    /// Waits until the server has run `command` for the client with this name, and has sent every
    /// reply that it does not hold back.
    pub(crate) fn wait_until_run(&mut self, name: &str, command: &str) {
        self.wait_for_command(&format!(" name={name} "), command, &format!("{name}: {command}"));
    }

    /// Like [`wait_until_run`](Self::wait_until_run), for the client whose line of `CLIENT LIST`
    /// has `mark`. Also returns if there is no such client. `what` is the request, for the message.
    pub(crate) fn wait_for_command(&mut self, mark: &str, command: &str, what: &str) {
        let command = format!(" cmd={command} ");
        until(&format!("the command has not run: {what}"), || {
            self.client_line(mark).is_none_or(|line| line.contains(&command))
        });
        self.settle();
    }

    pub(crate) fn wait_for_name(&mut self, name: &str) {
        until(&format!("no client has the name {name}"), || {
            self.client_line(&format!(" name={name} ")).is_some()
        });
    }

    /// The line of `CLIENT LIST` that has `mark`.
    pub(crate) fn client_line(&mut self, mark: &str) -> Option<String> {
        let list = self.observer.call(&["CLIENT", "LIST"]);
        list.lines().find(|line| format!("{line} ").contains(mark)).map(str::to_owned)
    }

    /// How many keys have expired.
    pub(crate) fn expired_keys(&mut self) -> u64 {
        let stats = self.observer.call(&["INFO", "stats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix("expired_keys:"));
        line.unwrap().trim().parse().unwrap()
    }

    /// Makes the server run another turn. Then the kernel has everything that the server had to
    /// send in the previous turn.
    fn settle(&mut self) {
        assert_eq!(self.observer.call(&["PING"]), "+PONG\r\n");
    }

    pub(crate) fn stop(self) {
        self.server.stop();
    }
}
