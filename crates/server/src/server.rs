//! The loop of the command thread: sleep, take what came, run it, log it, let replies leave.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt;
use slimio_device::LBA_SIZE;
use slimio_storage::layout::WAL_SLOTS_MAX;
use slimio_storage::{
    Error, FormatOptions, Media, Progress, RecoverOptions, Volume, VolumeId, format, recover,
};

use crate::config::{Config, ConfigError};
use crate::core::{Core, Facts, Loading, policy};
use crate::net::epoll::EpollNet;
use crate::net::uring::UringNet;
use crate::net::{ConnId, Event, Net, Peer, WatchId, listen};
use crate::wal::Wal;

/// The device of the log has finished something.
const LOG: WatchId = WatchId(0);
/// The keeper has finished something.
const KEEPER: WatchId = WatchId(1);
/// The process is asked to end.
const STOP: WatchId = WatchId(2);

/// How long replies may take to leave when the server ends.
const GOODBYE_MAX: Duration = Duration::from_secs(1);
/// How long one wait for the log alone may take, while no client can have anything new to say.
const LOG_WAIT_MAX: Duration = Duration::from_millis(5);
/// Batches under way at once under `always` before records gather for the next one.
const COMMITS_IN_FLIGHT: usize = 2;
/// Time between two rounds of serving sockets while the log is read.
const LOADING_TURN_EVERY: Duration = Duration::from_millis(10);

/// A volume to serve from, and how it is reached.
pub struct Storage {
    /// Where the data are.
    pub media: Box<dyn Media>,
    /// Whether there is a volume; if not, one is made.
    pub exists: bool,
    /// Where it is, for people.
    pub name: String,
    /// How it is reached, for people.
    pub io_path: String,
    /// Why not in a better way; empty when there is none.
    pub why_not_better: String,
}

/// A server with open sockets.
pub struct Server {
    core: Core,
    net: Box<dyn Net>,
    storage: Option<Storage>,
    stop: Option<OwnedFd>,
    addresses: Vec<SocketAddr>,
    accept_failed: bool,
}

impl Server {
    /// Opens the sockets. `storage` is used when `appendonly` is on. The server belongs to the
    /// calling thread.
    ///
    /// # Errors
    /// When an address cannot be bound, or the kernel refuses what `io-backend` demands.
    pub fn new(config: Config, storage: Option<Storage>) -> Result<Self, ConfigError> {
        let (mut net, net_name, why_not) = open_net(config.choice("io-backend"))?;
        let listeners = listen::open(&config)?;
        let addresses: Vec<SocketAddr> = listeners.iter().filter_map(|l| l.address).collect();
        for listener in listeners {
            net.listen(listener.fd)
                .map_err(|errno| ConfigError(format!("cannot accept connections: {errno}")))?;
        }
        let unix_path = config.text("unixsocket");
        let mut facts = Facts {
            run_id: run_id(),
            port: addresses.first().map_or(0, SocketAddr::port),
            unix_path: (!unix_path.is_empty()).then(|| unix_path.to_owned()),
            net_name,
            io_path: "none".into(),
            io_path_why_not_better: why_not,
            volume: "none".into(),
        };
        if let Some(storage) = &storage {
            facts.volume.clone_from(&storage.name);
            facts.io_path.clone_from(&storage.io_path);
            if !storage.why_not_better.is_empty() {
                facts.io_path_why_not_better.clone_from(&storage.why_not_better);
            }
        }
        let seed = (u128::from(random()) << 64) | u128::from(random());
        let core = Core::new(config, seed, facts);
        Ok(Self { core, net, storage, stop: None, addresses, accept_failed: false })
    }

    /// The TCP addresses that the server listens on.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Ends the server, with the log made durable, as soon as the descriptor is readable.
    pub fn stop_when_readable(&mut self, fd: OwnedFd) {
        self.stop = Some(fd);
    }

    /// Recovers the data and serves until the server is told to stop. `ready` is called when
    /// commands are served.
    ///
    /// # Errors
    /// When the volume cannot be read, or the log failed so that what is in memory could not be
    /// made durable at the end.
    pub fn run(mut self, ready: impl FnOnce()) -> Result<(), String> {
        if let Some(fd) = &self.stop {
            self.net.watch(fd.as_fd(), STOP).map_err(|errno| format!("cannot watch: {errno}"))?;
        }
        self.banner();
        if self.core.config.yes("appendonly")
            && let Some(mut storage) = self.storage.take()
        {
            let volume = self.load(&mut storage)?;
            // It holds the lock of the volume.
            self.storage = Some(storage);
            let Some(volume) = volume else { return Ok(()) };
            self.start_log(volume)?;
        }
        ready();
        log::info!("Ready to accept connections");
        while self.core.shutdown.is_none() {
            self.turn();
        }
        self.finish()
    }

    fn banner(&self) {
        let (core, facts) = (&self.core, &self.core.facts);
        log::info!(
            "SlimIO {} (as Redis {}), pid {}, port {}",
            env!("CARGO_PKG_VERSION"),
            crate::REDIS_VERSION,
            std::process::id(),
            facts.port
        );
        for address in &self.addresses {
            log::debug!("listening on {address}");
        }
        if core.config.yes("appendonly") {
            log::info!(
                "volume {}, appendfsync {}; log through {}, sockets through {}",
                facts.volume,
                core.config.choice("appendfsync"),
                facts.io_path,
                facts.net_name
            );
        } else {
            log::info!(
                "appendonly no: nothing outlives this process; sockets through {}",
                facts.net_name
            );
        }
        if !facts.io_path_why_not_better.is_empty() {
            log::info!("no better I/O path: {}", facts.io_path_why_not_better);
        }
        for name in core.config.without_effect() {
            log::warn!("directive {name} has no effect here");
        }
    }

    /// One round: sleeps until something happens, and deals with it.
    fn turn(&mut self) {
        let timeout = self.core.timeout();
        self.net.wait(timeout);
        self.core.tick();
        self.take_events();
        let now = self.core.now;
        if let Some(wal) = &mut self.core.wal {
            wal.reap(now);
        }
        self.core.forget_durable();
        self.core.retry_parked();
        self.core.resume_yielded();
        self.core.run_timers();
        // With one client, it is seen first whether there is anything to do but wait.
        let is_lone = self.core.clients.len() == 1;
        if let Some(wal) = &mut self.core.wal {
            wal.drive(now);
            if !is_lone {
                wal.kick();
            }
        }
        self.core.flush(&mut *self.net);
        self.wait_for_log();
        if is_lone && let Some(wal) = &mut self.core.wal {
            wal.kick();
        }
    }

    /// While every client waits for the log, waits for nothing else: with one client under
    /// `always`, a write costs one sleep.
    fn wait_for_log(&mut self) {
        if !self.core.all_are_holding() {
            return;
        }
        if let Some(wal) = &mut self.core.wal
            && wal.is_in_flight()
        {
            wal.wait(LOG_WAIT_MAX, self.core.now);
            self.core.forget_durable();
            self.core.flush(&mut *self.net);
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.net.next() {
            match event {
                Event::Received(conn, bytes) => self.core.received(conn, bytes),
                Event::Sent(conn, outgoing) => self.core.sent(conn, outgoing),
                Event::Filled(conn, filling) => self.core.filled(conn, filling),
                Event::Ended(conn) => self.core.ended(conn),
                Event::Accepted(conn, _) => self.accepted(conn),
                Event::AcceptFailed(errno) => {
                    self.accept_failed = true;
                    log::warn!(
                        "cannot accept connections: {errno}; clients wait until some close. Raise \
                         the limit of open files (ulimit -n), or lower maxclients"
                    );
                }
                Event::Ready(STOP) => {
                    if self.core.shutdown.is_none() {
                        log::info!("Asked to stop");
                        self.core.shutdown = Some(crate::core::Shutdown::Asked);
                    }
                }
                // What they tell of is taken in once per turn.
                Event::Ready(_) => {}
            }
            if !self.core.wishes.is_empty() {
                self.core.grant(&mut *self.net);
            }
        }
    }

    fn accepted(&mut self, conn: ConnId) {
        if std::mem::take(&mut self.accept_failed) {
            log::info!("accepting connections again");
        }
        let Some(socket) = self.net.socket(conn) else { return };
        let peer = Peer::of(socket);
        if peer.remote.is_some() {
            // A socket that refuses an option serves all the same.
            let _ = sockopt::set_tcp_nodelay(socket, true);
            let seconds = self.core.settings.tcp_keepalive;
            if seconds > 0 {
                let idle = Duration::from_secs(seconds as u64);
                let _ = sockopt::set_socket_keepalive(socket, true);
                let _ = sockopt::set_tcp_keepidle(socket, idle);
                let _ = sockopt::set_tcp_keepintvl(socket, (idle / 3).max(Duration::from_secs(1)));
                let _ = sockopt::set_tcp_keepcnt(socket, 3);
            }
        }
        self.core.accepted(conn, peer);
    }

    /// Recovers the data set, serving sockets in between. `None` when told to stop meanwhile.
    fn load(&mut self, storage: &mut Storage) -> Result<Option<Volume>, String> {
        let config = &self.core.config;
        if !storage.exists {
            make_volume(storage, config, false)?;
            log::info!("made a new volume in {}", storage.name);
        }
        let options = RecoverOptions {
            policy: policy(config.choice("appendfsync")),
            buffer_count: config.int("log-buffers") as usize,
            commits_in_flight: COMMITS_IN_FLIGHT,
            salvage: config.yes("salvage"),
            now: Instant::now(),
        };
        let began = Instant::now();
        let mut next_turn = began;
        let mut said_percent = 0;
        let is_stopping = std::cell::Cell::new(false);
        let mut keyspace =
            std::mem::replace(&mut self.core.keyspace, Core::empty_keyspace(&self.core.config, 0));
        self.core.loading = Some(Loading {
            since: began,
            since_ms: self.core.now_ms,
            progress: Progress::default(),
        });
        let result = recover(
            &mut *storage.media,
            &options,
            &mut |record| {
                if is_stopping.get() {
                    return Err("the server was told to stop".into());
                }
                let db = slimio_keyspace::DbIndex(record.db);
                keyspace.apply(db, record.payload).map_err(|e| e.to_string())
            },
            &mut |progress| {
                if let Some(loading) = &mut self.core.loading {
                    loading.progress = progress;
                }
                let percent = progress.bytes_done * 100 / progress.bytes_total.max(1);
                if percent >= said_percent + 10 && progress.bytes_total > 64 << 20 {
                    said_percent = percent;
                    log::info!("loading: {percent} % of {} MB", progress.bytes_total >> 20);
                }
                if Instant::now() >= next_turn {
                    self.loading_turn();
                    is_stopping.set(self.core.shutdown.is_some());
                    next_turn = Instant::now() + LOADING_TURN_EVERY;
                }
            },
        );
        self.core.keyspace = keyspace;
        self.core.loading = None;
        let volume = match result {
            Ok(volume) => volume,
            Err(_) if is_stopping.get() => return Ok(None),
            Err(e) => {
                return Err(format!("cannot open the volume {}: {}", storage.name, explain(&e)));
            }
        };
        let keys: usize = self.core.dbs().map(|db| self.core.keyspace.dbsize(db)).sum();
        log::info!("{} ({keys} keys, {:.1} s)", volume.report, began.elapsed().as_secs_f64());
        Ok(Some(volume))
    }

    /// Answers what can be answered while the log is read.
    fn loading_turn(&mut self) {
        self.net.wait(Some(Duration::ZERO));
        self.core.tick();
        self.take_events();
        self.core.flush(&mut *self.net);
    }

    fn start_log(&mut self, volume: Volume) -> Result<(), String> {
        let wal = Wal::new(volume).map_err(|e| format!("cannot start the keeper: {e}"))?;
        let (device, keeper) = wal.readiness();
        let watched = device.map_or(Ok(()), |fd| self.net.watch(fd, LOG));
        watched
            .and_then(|()| self.net.watch(keeper, KEEPER))
            .map_err(|errno| format!("cannot watch the log: {errno}"))?;
        self.core.wal = Some(wal);
        self.core.policy_changed();
        Ok(())
    }

    /// Makes the log durable and lets the last replies leave.
    fn finish(mut self) -> Result<(), String> {
        let mut result = Ok(());
        if let Some(wal) = &mut self.core.wal {
            wal.request_durable();
            loop {
                let now = Instant::now();
                wal.reap(now);
                if let Some(latch) = wal.log().latched() {
                    result = Err(format!("the log could not be made durable: {latch}"));
                    break;
                }
                if wal.log().durable() >= wal.log().appended() {
                    break;
                }
                wal.drive(now);
                wal.kick();
                if wal.is_in_flight() {
                    wal.wait(LOG_WAIT_MAX, now);
                } else {
                    // The keeper is making room: there is nothing of the device's to wait for.
                    std::thread::sleep(LOG_WAIT_MAX);
                }
            }
        }
        let deadline = Instant::now() + GOODBYE_MAX;
        self.core.tick();
        self.core.forget_durable();
        self.core.flush(&mut *self.net);
        while self.core.has_output() && Instant::now() < deadline {
            self.net.wait(Some(deadline.saturating_duration_since(Instant::now())));
            self.core.tick();
            while let Some(event) = self.net.next() {
                match event {
                    Event::Sent(conn, outgoing) => self.core.sent(conn, outgoing),
                    Event::Ended(conn) => self.core.ended(conn),
                    _ => {}
                }
            }
            self.core.flush(&mut *self.net);
        }
        if let Some(path) = &self.core.facts.unix_path {
            // It may be gone already.
            let _ = std::fs::remove_file(path);
        }
        if result.is_ok() {
            log::info!("SlimIO is now ready to exit, bye bye...");
        }
        result
    }
}

/// Makes an empty volume, laid out as the configuration says; with `replace`, also where there is
/// one.
///
/// # Errors
/// A sentence with a remedy.
pub fn make_volume(storage: &mut Storage, config: &Config, replace: bool) -> Result<(), String> {
    let lba = LBA_SIZE as u64;
    let batch_size = config.int("log-buffer-size") as u64;
    let segment_size = (config.int("log-segment-size") as u64).max(2 * batch_size);
    let options = FormatOptions {
        volume_id: VolumeId((u128::from(random()) << 64) | u128::from(random())),
        segment_lbas: segment_size / lba,
        batch_lbas_max: (batch_size / lba) as u32,
        wal_slots_max: WAL_SLOTS_MAX,
        replace,
    };
    format(&mut *storage.media, &options)
        .map_err(|error| format!("cannot make a volume in {}: {}", storage.name, explain(&error)))
}

/// What is wrong with a volume, and what can be done about it.
pub fn explain(error: &Error) -> String {
    let remedy = match error {
        Error::Open(_) => "check that nothing else uses it, its permissions and its device",
        Error::NoVolume => "make one with slimio format, or check --volume",
        Error::AlreadyFormatted => "use --force to replace it",
        Error::OtherVersion { .. } => "use the version of SlimIO that made it",
        Error::SuperblocksDamaged { .. } => "restore the volume from a backup",
        Error::Truncated { .. } => "restore the missing end of its file, or a backup",
        Error::Damaged { .. } => {
            "restore a backup, or accept the loss of everything behind that point with --salvage yes"
        }
        Error::Refused { .. } => "use the version of SlimIO that wrote it, with as many databases",
        Error::Device { .. } => "check the device and the kernel's messages",
        Error::TooSmall { .. } => "make room, or choose a smaller log-segment-size",
    };
    format!("{error}; {remedy}")
}

/// The socket layer that `io-backend` asks for: its name, and why not the better one.
fn open_net(choice: &str) -> Result<(Box<dyn Net>, &'static str, String), ConfigError> {
    let mut why_not = "io-backend is plain".to_owned();
    if choice != "plain" {
        match UringNet::new() {
            Ok(net) => return Ok((Box::new(net), "io_uring", String::new())),
            Err(why) if choice == "uring" => {
                return Err(ConfigError(format!(
                    "io-backend uring is not possible: {why}; use io-backend auto"
                )));
            }
            Err(why) => why_not = why,
        }
    }
    let net = EpollNet::new()
        .map_err(|errno: Errno| ConfigError(format!("cannot make an event queue: {errno}")))?;
    Ok((Box::new(net), "epoll", why_not))
}

/// A number that nobody outside can know: the standard library seeds its hash maps so.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// 40 hexadecimal digits.
fn run_id() -> String {
    format!("{:016x}{:016x}{:08x}", random(), random(), random() as u32)
}
