//! The loop of the command thread: sleep, take events, run requests, log them, send replies.

mod end;
mod load;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, sockopt};
use slimio_device::{LBA_SIZE, Purpose, explain_refused_calls};
use slimio_planted::is_planted;
use slimio_storage::layout::WAL_SLOTS_MAX;
use slimio_storage::{FormatOptions, Pool, Storage, Volume, VolumeId, format};

use crate::clock::WallClock;
use crate::config::{Config, ConfigError};
use crate::connections::Connections;
use crate::engine::{Engine, Facts, Listener, Shutdown};
use crate::explain::{explain, explain_system};
use crate::net::epoll::EpollNet;
use crate::net::uring::UringNet;
use crate::net::{ConnId, Event, Net, Peer, WatchId, listen};
use crate::snapshot::SnapshotThread;
use crate::wal::Wal;

/// The device of the log has finished something.
const LOG: WatchId = WatchId(0);
/// The keeper, the thread that makes room for the log, has finished something.
const KEEPER: WatchId = WatchId(1);
/// The process is asked to end.
const STOP: WatchId = WatchId(2);
/// A job in the background is done.
const BACKGROUND: WatchId = WatchId(3);
/// The snapshot thread has finished something, or can take more.
const SNAPSHOT: WatchId = WatchId(4);

/// When every client waits for the log, the command thread waits only for the log, and for at most
/// this time.
const LOG_WAIT_MAX: Duration = Duration::from_millis(5);

/// A server with open sockets.
pub struct Server {
    engine: Engine,
    connections: Connections,
    net: Box<dyn Net>,
    storage: Option<Storage>,
    stop: Option<OwnedFd>,
    addresses: Vec<SocketAddr>,
    accept_failed: bool,
}

impl Server {
    /// Opens the sockets. If `storage` is `None`, the server has no volume. The server belongs to
    /// the calling thread.
    ///
    /// # Errors
    /// When an address cannot be bound, or when the kernel refuses the socket layer that
    /// `io-backend` demands.
    pub fn new(mut config: Config, mut storage: Option<Storage>) -> Result<Self, ConfigError> {
        let (mut net, net_name, why_not) = open_net(config.choice("io-backend"))?;
        let listeners = listen::open(&config)?;
        let addresses: Vec<SocketAddr> = listeners.iter().filter_map(|l| l.address).collect();
        for listener in listeners {
            net.listen(listener.fd)
                .map_err(|errno| ConfigError(format!("cannot accept connections: {errno}")))?;
        }
        let unix_path = String::from_utf8_lossy(config.bytes("unixsocket"));
        let mut facts = Facts {
            run_id: run_id(),
            port: addresses.first().map_or(0, SocketAddr::port),
            unix_path: (!unix_path.is_empty()).then(|| unix_path.into_owned()),
            net_name,
            net_why_not_better: why_not,
            io_path: "none".into(),
            io_path_why_not_better: String::new(),
            volume: "none".into(),
        };
        if let Some(storage) = &storage {
            if let Some(pool) = storage.media.pool() {
                config.limit_memory(memory_max(pool.usage().total));
            }
            facts.volume.clone_from(&storage.name);
            facts.set_io_path(&storage.io_path, &storage.why_not_better);
        }
        let seed = (u128::from(random()) << 64) | u128::from(random());
        let mut engine = Engine::new(config, seed, facts);
        engine.placement = storage.as_mut().and_then(|storage| storage.placement.take());
        let connections = Connections::default();
        Ok(Self { engine, connections, net, storage, stop: None, addresses, accept_failed: false })
    }

    /// The TCP addresses that the server listens on.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Makes the server shut down as soon as the socket is readable. Before the server ends, it
    /// makes the log durable. The server reads all bytes from the socket. So if the server gives up
    /// the shutdown, the caller must send a byte to ask for a shutdown again.
    pub fn stop_when_readable(&mut self, socket: OwnedFd) {
        self.stop = Some(socket);
    }

    /// Reads all bytes from the stop socket, so that one request for a shutdown is not seen twice.
    fn take_asked(&self) {
        if let Some(socket) = &self.stop
            && !is_planted("asked-for-ever")
        {
            // If a system-call filter refuses this call, the request is seen again in each turn.
            let _ = rustix::net::recv(socket, &mut [0; 64], RecvFlags::DONTWAIT);
        }
    }

    /// Takes the time of day from `clock` instead of the system's clock. Keys expire by this time;
    /// durations are measured by the monotonic clock.
    pub fn set_wall_clock(&mut self, clock: WallClock) {
        self.engine.set_wall_clock(clock);
    }

    /// Lets tests see each event of the data set, with the LSN of its record.
    pub fn set_listener(&mut self, listener: Listener) {
        self.engine.data.listener = Some(listener);
    }

    /// Recovers the data and serves until the server is told to stop. `ready` is called after the
    /// recovery, when commands begin to be served.
    ///
    /// # Errors
    /// When the volume cannot be read, when the kernel refuses calls that the server needs, or when
    /// the log failed and the data in memory could not be made durable at the end.
    pub fn run(mut self, ready: impl FnOnce()) -> Result<(), String> {
        let result = self.serve(ready);
        if let Some(path) = &self.engine.facts.unix_path {
            // The socket's file may be gone already.
            let _ = std::fs::remove_file(path);
        }
        if result.is_ok() {
            log::info!("SlimIO is now ready to exit, bye bye...");
        }
        result
    }

    fn serve(&mut self, ready: impl FnOnce()) -> Result<(), String> {
        if let Some(fd) = &self.stop {
            self.net
                .watch(fd.as_fd(), STOP)
                .map_err(|e| explain_system("watch signals", &e.into()))?;
        }
        if let Some(fd) = self.connections.background_jobs.readiness() {
            self.net
                .watch(fd, BACKGROUND)
                .map_err(|e| explain_system("watch a thread", &e.into()))?;
        }
        self.banner();
        if let Some(mut storage) = self.storage.take() {
            let volume = self.load(&mut storage)?;
            // Recovery has opened the paths, so it is now certain which I/O path the log uses.
            if let Some((io_path, why_not)) = storage.media.io_path()
                && self.engine.facts.set_io_path(&io_path, &why_not)
            {
                log::warn!(
                    "the log does not use the I/O path that was asked for, but {io_path}: {why_not}"
                );
            }
            // `storage` is kept because it holds the lock of the volume.
            self.storage = Some(storage);
            let Some(volume) = volume else {
                log::info!("Stopped while loading: the volume is unchanged");
                return Ok(());
            };
            self.start_log(volume)?;
        }
        ready();
        log::info!("Ready to accept connections");
        loop {
            while self.engine.phase.shutdown.is_none() && self.net.broken().is_none() {
                self.turn();
            }
            if let Some(why) = self.net.broken() {
                // No client can be served any more, but executed commands are still made durable.
                log::error!("{why}");
                return self.finish().and(Err(why));
            }
            if self.may_end() {
                break;
            }
        }
        self.finish()
    }

    fn banner(&self) {
        let (config, facts) = (&self.engine.config, &self.engine.facts);
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
        if config.yes("appendonly") {
            // This message has only the first part of the I/O path's description. The debug message
            // below has the whole description.
            let path = facts.io_path.split("; ").next().unwrap_or_default();
            log::info!(
                "volume {}, appendfsync {}; log through {path}, sockets through {}",
                facts.volume,
                config.choice("appendfsync"),
                facts.net_name
            );
            log::debug!("log through {}", facts.io_path);
        } else {
            log::info!(
                "volume {}, appendonly no: only snapshots outlive this process; sockets through {}",
                facts.volume,
                facts.net_name
            );
        }
        let sockets = match &facts.net_why_not_better {
            why if why.is_empty() => String::new(),
            why => format!("sockets do not use io_uring: {why}"),
        };
        let better = [facts.io_path_why_not_better.as_str(), &sockets];
        let better: Vec<&str> = better.into_iter().filter(|why| !why.is_empty()).collect();
        if !better.is_empty() {
            log::info!("better I/O paths are not available: {}", better.join("; "));
        }
        for name in config.without_effect() {
            log::warn!("directive {name} has no effect in SlimIO");
        }
    }

    /// One round: sleeps until an event comes, and handles the events.
    fn turn(&mut self) {
        // Gives the network layer the tasks that were noted since the last call of `grant`, for
        // example to go on reading from a connection. This must happen before the sockets are
        // polled.
        self.connections.grant(&mut *self.net);
        let timeout = self.connections.timeout(&mut self.engine);
        self.connections.end_turn(&mut self.engine);
        // Watches the log's device only if an operation is in flight. Otherwise, a completion that
        // the command thread has already waited for would wake the thread again.
        if self.engine.gate.wal.as_ref().is_some_and(Wal::is_in_flight) {
            self.net.expect(LOG);
        }
        self.net.wait(timeout);
        self.engine.clock.begin_turn();
        // The clients left over from the last turn come first.
        self.connections.serve_behind(&mut self.engine);
        // From now on, received bytes of a large argument go directly into the argument's memory.
        self.connections.grant(&mut *self.net);
        let had_events = self.take_events();
        let now = self.engine.clock.now;
        self.engine.reap_log();
        self.engine.gate.forget_durable();
        self.connections.retry_waiting(&mut self.engine);
        self.connections.resume_yielded(&mut self.engine);
        self.connections.drive_long(&mut self.engine);
        self.connections.run_timers(&mut self.engine);
        self.connections.serve_resumed(&mut self.engine);
        // If there is only one client, its replies are sent before log writes are handed to the
        // device. If `wait_for_log` waits, it also hands the log writes over. Otherwise, the last
        // `kick` does.
        let is_lone = self.connections.clients.len() == 1;
        let only_writers = self.engine.gate.only_writers_wait(self.engine.clock.now);
        self.engine.leave_room_for_snapshot();
        if let Some(wal) = &mut self.engine.gate.wal {
            wal.drive(now);
            let has_written = only_writers && wal.wait_if_quick(now);
            if !is_lone {
                wal.kick();
            }
            if has_written {
                self.engine.gate.forget_durable();
            }
        }
        self.connections.flush(&mut self.engine, &mut *self.net);
        self.wait_for_log();
        if is_lone && let Some(wal) = &mut self.engine.gate.wal {
            wal.kick();
        }
        self.connections.drive_snapshots(&mut self.engine, !had_events);
    }

    /// If every client waits for the log, waits only for the log and not for sockets. So with one
    /// client under `appendfsync always`, a write costs only one sleep.
    fn wait_for_log(&mut self) {
        if !self.connections.all_are_holding() {
            return;
        }
        let only_writers = self.engine.gate.only_writers_wait(self.engine.clock.now);
        if let Some(wal) = &mut self.engine.gate.wal
            && wal.is_in_flight()
        {
            wal.wait_for_write(LOG_WAIT_MAX, only_writers, self.engine.clock.now);
            self.engine.gate.forget_durable();
            self.connections.flush(&mut self.engine, &mut *self.net);
        }
    }

    /// Handles all events; returns whether there were any.
    fn take_events(&mut self) -> bool {
        let mut had_events = false;
        let db_of = |conn| self.connections.clients.get(conn).map(|client| client.db);
        self.engine.data.bring_in_received(&*self.net, db_of);
        while let Some(event) = self.net.next() {
            had_events = true;
            match event {
                Event::Received(conn, bytes) => {
                    self.connections.received(&mut self.engine, conn, bytes);
                }
                Event::Sent(conn, outgoing) => self.connections.sent(conn, outgoing),
                Event::Filled(conn, filling) => {
                    self.connections.filled(&mut self.engine, conn, filling);
                }
                Event::Ended(conn) => self.connections.at_end(&mut self.engine, conn),
                Event::HungUp(conn) => self.connections.hung_up(&mut self.engine, conn),
                Event::Broken(conn) => self.connections.ended(&mut self.engine, conn),
                Event::Accepted(conn, _) => self.accepted(conn),
                Event::AcceptFailed(errno) => {
                    self.accept_failed = true;
                    let remedy = match errno {
                        Errno::PERM | Errno::NOSYS => {
                            "a filter (seccomp) refuses the call: allow accept4 in its profile"
                        }
                        _ => {
                            "new clients wait until others disconnect. Raise the limit of open \
                             files (ulimit -n), or lower maxclients"
                        }
                    };
                    log::warn!("cannot accept connections: {errno}; {remedy}");
                }
                Event::Ready(STOP) => {
                    self.take_asked();
                    if self.engine.phase.shutdown.is_none() {
                        log::info!("Asked to stop");
                        self.engine.phase.shutdown = Some(Shutdown::default());
                    }
                }
                Event::Ready(SNAPSHOT) => {
                    if let Some(thread) = &self.engine.snapshots.thread {
                        thread.woken();
                    }
                }
                Event::Ready(BACKGROUND) => self.connections.end_background_jobs(&mut self.engine),
                // The results of the log's device and of the keeper are taken once per turn.
                Event::Ready(_) => {}
            }
            if !self.connections.net_requests.is_empty() {
                self.connections.grant(&mut *self.net);
            }
        }
        had_events
    }

    fn accepted(&mut self, conn: ConnId) {
        if std::mem::take(&mut self.accept_failed) {
            log::info!("accepting connections again");
        }
        let Some(socket) = self.net.socket(conn) else { return };
        let peer = Peer::of(socket);
        if peer.remote.is_some() {
            // A client whose socket refuses an option is served all the same.
            let _ = sockopt::set_tcp_nodelay(socket, true);
            let seconds = self.engine.settings.tcp_keepalive;
            if seconds > 0 {
                let idle = Duration::from_secs(seconds as u64);
                let _ = sockopt::set_socket_keepalive(socket, true);
                let _ = sockopt::set_tcp_keepidle(socket, idle);
                let _ = sockopt::set_tcp_keepintvl(socket, (idle / 3).max(Duration::from_secs(1)));
                let _ = sockopt::set_tcp_keepcnt(socket, 3);
            }
        }
        self.connections.accepted(&mut self.engine, conn, peer);
    }

    fn start_log(&mut self, volume: Volume) -> Result<(), String> {
        let (wal, slot_paths) =
            Wal::new(volume).map_err(|e| explain_system("start the keeper", &e))?;
        let snapshots = SnapshotThread::start(slot_paths)
            .map_err(|e| explain_system("start the snapshot thread", &e))?;
        let (device, keeper) = wal.readiness();
        let watched = device.map_or(Ok(()), |fd| self.net.watch_on_demand(fd, LOG));
        watched
            .and_then(|()| self.net.watch(keeper, KEEPER))
            .and_then(|()| self.net.watch(snapshots.readiness(), SNAPSHOT))
            .map_err(|e| explain_system("watch the volume", &e.into()))?;
        self.engine.snapshots.thread = Some(snapshots);
        self.engine.gate.wal = Some(wal);
        self.engine.note_if_empty();
        // Directives may have changed during recovery. They could not take effect then, because
        // there was no log and the keyspace was only a placeholder.
        let of_volume = ["appendfsync", "snapshot-check-rate"];
        let may_differ =
            ["appendonly", "proto-max-bulk-len", "maxmemory", "hash-max-listpack-entries"];
        self.engine.configured(&of_volume, 0);
        if !is_planted("changed-while-loading") {
            self.engine.configured(&may_differ, 0);
        }
        self.engine.shorten_reserves();
        Ok(())
    }
}

/// Makes an empty volume, laid out as the configuration says. With `replace`, the new volume
/// replaces an existing volume.
///
/// # Errors
/// If the volume cannot be made; the message says why.
pub fn make_volume(storage: &mut Storage, config: &Config, replace: bool) -> Result<(), String> {
    let failed = |what: &str| format!("cannot make a volume in {}: {what}", storage.name);
    if storage.exists && !replace {
        // A volume is kept even if no copy of its superblock can be read, because the rest of the
        // volume may still be of value.
        return Err(failed(
            "there is one already, or the remains of an old volume; use --force to replace it",
        ));
    }
    let lba = LBA_SIZE as u64;
    let batch_size = config.int("log-buffer-size") as u64;
    let wanted = config.int("log-segment-size") as u64;
    let segment_size = segment_size(storage.media.pool(), wanted, batch_size);
    let options = FormatOptions {
        volume_id: VolumeId((u128::from(random()) << 64) | u128::from(random())),
        segment_lbas: segment_size / lba,
        batch_lbas_max: (batch_size / lba) as u32,
        wal_slots_max: WAL_SLOTS_MAX,
        replace,
    };
    format(&mut *storage.media, &options).map_err(|error| failed(&explain(&error)))
}

/// Default limit of the data set's memory, in tenths of the device's extents. With three tenths, a
/// WAL-snapshot, an on-demand snapshot and the next snapshot fit on the device together, and a
/// tenth is left for the log.
const MEMORY_TENTHS: u64 = 3;

/// Default of `maxmemory` on a device with this many LBAs in its extents, in bytes.
fn memory_max(extent_lbas: u64) -> u64 {
    extent_lbas / 10 * MEMORY_TENTHS * LBA_SIZE as u64
}

/// A device has room for at least this many log segments.
const SEGMENTS_OF_DEVICE: u64 = 64;

/// Size of a segment of the log, in bytes. On a device, the segment size and the extent size are
/// powers of two, so one of them divides the other. On a device, the segment size is also small
/// enough that many segments fit.
fn segment_size(pool: Option<&Pool>, wanted: u64, batch_size: u64) -> u64 {
    let Some(pool) = pool else { return wanted.max(2 * batch_size) };
    let room = pool.usage().total * LBA_SIZE as u64 / SEGMENTS_OF_DEVICE;
    let size = 1 << wanted.min(room).max(1).ilog2();
    (2 * batch_size).next_power_of_two().max(size)
}

/// Opens the socket layer that `io-backend` asks for. Returns the layer, its name, and the reason
/// why the layer is not io_uring. If it is io_uring, the reason is empty.
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
    if let Some(refused) = explain_refused_calls(&[Purpose::Epoll]) {
        // Without this test, some refusals would show only when the first client connects.
        return Err(ConfigError(format!("cannot serve sockets: {refused}")));
    }
    let net = EpollNet::new().map_err(|errno: Errno| {
        ConfigError(explain_system("make an event queue", &errno.into()))
    })?;
    Ok((Box::new(net), "epoll", why_not))
}

/// An unpredictable number, which is taken from the standard library's seeds of hash maps.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A random identifier of 40 hexadecimal digits.
fn run_id() -> String {
    format!("{:016x}{:016x}{:08x}", random(), random(), random() as u32)
}
