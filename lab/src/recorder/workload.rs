//! The clients' workload of a recording: the SlimIO paper's benchmark on a drive of any size.
//!
//! ```text
//!  keys set once ─ BGREWRITEAOF ─┬─ BGSAVE, and SETs without a pause ─┬─ the same again ─ … ─ end
//!                                │  BGREWRITEAOF when the log is full │
//! ```
//!
//! All sizes are shares of the drive's size. The paper's drive has 180 GiB, and its data set has
//! 5.3 million keys with values of 4 KiB. Five times, an on-demand snapshot (`BGSAVE`) is taken,
//! and 50 clients send 28 million SETs, which add about 115 GB to the log. A WAL-snapshot
//! (`BGREWRITEAOF`) is taken whenever the log has 50 to 55 GB. An on-demand snapshot is kept until
//! the next one, so it outlives two generations of the log.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use slimio_ssd::workload::PaperRun;

use super::interrupt;
use crate::client::{Client, Reply};
use crate::error::{BenchError, Result};
use crate::keys::KeyDistribution;
use crate::load::{Arrival, Generator, LATENCY_NS_MAX, LoadConfig, PhaseReport, Until};
use crate::mix::Mix;
use crate::persistence::Persistence;
use crate::proc::deleted_files;
use crate::request::RequestWriter;
use crate::run::{preload, without_errors};
use crate::server::{Server, ServerKind};
use crate::snapshot::{Kind, take};
use crate::values::ValuePool;

/// Time between two looks at the log's length.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Number of parts of a repetition. Between two parts, clients may be held back.
const PARTS: u64 = 64;
/// A snapshot that takes longer than this ends the run.
const SNAPSHOT_MAX: Duration = Duration::from_secs(600);

/// The amounts of the workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Keys, each set once before the first repetition.
    pub key_count: u64,
    /// Size of a value, in bytes.
    pub value_size: usize,
    /// Number of times that an on-demand snapshot is taken while clients write.
    pub repetitions: u32,
    /// Number of SETs in each repetition. Their keys are drawn uniformly.
    pub requests: u64,
    /// The log is rewritten when it has this many bytes more than the data set. Changes that were
    /// made during the previous rewrite count as log.
    pub log_bytes: u64,
    /// Clients are held back while the log has more than this many bytes, because a snapshot can
    /// take so long that the log would fill the drive meanwhile.
    pub hold_back_bytes: u64,
    /// Connections.
    pub clients: usize,
    /// Seed of every random choice.
    pub seed: u64,
}

/// The marks that are set when clients are held back, and when clients may go on.
pub(crate) const HELD_BACK: &str = "clients held back";
pub(crate) const GO_ON: &str = "clients go on";

/// A function that is called with the name of the clients' next step.
pub type Mark<'a> = dyn Fn(&str) -> Result<()> + Sync + 'a;

/// The clients' measurements, from the first repetition on.
#[derive(Clone, Debug)]
pub struct Driven {
    /// SETs that were answered.
    pub requests: u64,
    /// How long the SETs took, without the times in which clients were held back.
    pub elapsed: Duration,
    /// Latencies in nanoseconds.
    pub latency: Histogram<u64>,
}

impl Driven {
    fn add(&mut self, report: &PhaseReport) {
        self.requests += report.requests;
        self.elapsed += report.elapsed;
        self.latency.add(&report.latency).expect("all histograms have the same range");
    }
}

impl Workload {
    /// The paper's workload on a drive of `device_bytes` bytes.
    pub fn scaled(device_bytes: u64) -> Self {
        let PaperRun { key_count, value_size, repetitions, requests, log_bytes, clients } =
            PaperRun::scaled(device_bytes);
        let hold_back_bytes = log_bytes / 2 * 3;
        Self {
            key_count,
            value_size,
            repetitions,
            requests,
            log_bytes,
            hold_back_bytes,
            clients,
            seed: 1,
        }
    }

    /// The same workload for a server on a file system, with clients held back earlier. The file
    /// system must not become full, but it frees deleted files only some time later. XFS also
    /// allocates up to one and a half times the size of a file that grows.
    #[must_use]
    pub fn on_file_system(self) -> Self {
        Self { hold_back_bytes: self.log_bytes / 4 * 5, ..self }
    }

    /// The lines about the workload in a trace's header.
    pub fn about(&self) -> Vec<(String, String)> {
        let load = format!(
            "{} keys, {} times {} SETs of {} incompressible bytes, {} clients, closed loop, seed {}",
            self.key_count,
            self.repetitions,
            self.requests,
            self.value_size,
            self.clients,
            self.seed
        );
        let snapshots = format!(
            "BGREWRITEAOF at {} bytes of log beside the data set, clients held back at {}, BGSAVE at the \
             beginning of each repetition",
            self.log_bytes, self.hold_back_bytes
        );
        vec![("workload".into(), load), ("snapshots".into(), snapshots)]
    }

    /// Runs the workload on a server that has no keys yet.
    ///
    /// # Errors
    /// When the server fails, or a signal ends the run. Unless there was a signal, the error ends
    /// with the last lines of the server's log.
    pub fn drive(&self, server: &Server, mark: &Mark) -> Result<Driven> {
        self.drive_until_error(server, mark).map_err(|error| {
            if interrupt::check().is_err() {
                return error;
            }
            BenchError::Server(format!("{error}; the server's log ends:\n{}", server.log_tail()))
        })
    }

    fn drive_until_error(&self, server: &Server, mark: &Mark) -> Result<Driven> {
        let writer = RequestWriter::new(ValuePool::new(self.value_size, 0.0, self.seed));
        mark("set every key once")?;
        preload(server.address(), self.key_count, &writer, self.seed)?;
        let mut client = server.client()?;
        mark("BGREWRITEAOF")?;
        take(&mut client, Kind::Rewrite)?;
        let is_over = AtomicBool::new(false);
        let driven = thread::scope(|scope| {
            let watching = scope.spawn(|| self.rewrite_when_full(server.client()?, &is_over, mark));
            let ending = SetOnDrop(&is_over);
            let load = self.load(server, &mut client, writer, mark);
            drop(ending);
            watching.join().expect("looking at a log does not panic").and(load)
        })?;
        wait_until(&mut client, |state| !state.is_saving && !state.is_rewriting)?;
        Ok(driven)
    }

    fn load(
        &self,
        server: &Server,
        client: &mut Client,
        writer: RequestWriter,
        mark: &Mark,
    ) -> Result<Driven> {
        let config = LoadConfig {
            address: server.address().clone(),
            clients: self.clients,
            pipeline: 1,
            arrival: Arrival::Closed,
            check_values: true,
            seed: self.seed,
        };
        let mix = Mix::named("set", self.key_count, Some(KeyDistribution::Uniform))?;
        let mut generator = Generator::connect(config, mix, writer)?;
        let latency =
            Histogram::new_with_max(LATENCY_NS_MAX, 3).expect("three digits are a valid precision");
        let mut driven = Driven { requests: 0, elapsed: Duration::ZERO, latency };
        for repetition in 1..=self.repetitions {
            wait_until(client, |state| !state.is_saving)?;
            self.wait_for_rewrite(server, client)?;
            mark(&format!("repetition {repetition}: BGSAVE"))?;
            client.expect(&["BGSAVE", "SCHEDULE"])?;
            let mut left = self.requests;
            while left > 0 {
                interrupt::check()?;
                let count = left.min(self.requests.div_ceil(PARTS));
                driven.add(&without_errors(generator.run(Until::Requests(count))?)?);
                left -= count;
                let has_room = |state: &ServerState| self.log_of(state) < self.hold_back_bytes;
                if !has_room(&ServerState::of(client)?) {
                    mark(HELD_BACK)?;
                    wait_until(client, has_room)?;
                    mark(GO_ON)?;
                }
            }
        }
        mark("the last SET")?;
        Ok(driven)
    }

    /// Bytes of log in addition to the data set. The server's `aof_base_size` is not used, because
    /// stock Redis counts what was logged during a rewrite as part of the base.
    fn log_of(&self, state: &ServerState) -> u64 {
        state.aof_bytes.saturating_sub(self.key_count * self.value_size as u64)
    }

    /// With stock Redis, waits until no rewrite runs and none is due, because Redis would postpone
    /// `BGSAVE` until then. Then waits until Redis has closed the files that it deleted. If
    /// `BGSAVE` came earlier, its child process would keep these files open. As long as the child
    /// saved, the file system would lack the space of a whole log.
    fn wait_for_rewrite(&self, server: &Server, client: &mut Client) -> Result<()> {
        if server.config().kind != ServerKind::Stock {
            return Ok(());
        }
        wait_until(client, |state| !state.is_rewriting && self.log_of(state) < self.log_bytes)?;
        wait_for(|| Ok(deleted_files(server.pid())?.is_empty()))
    }

    fn rewrite_when_full(&self, mut client: Client, over: &AtomicBool, mark: &Mark) -> Result<()> {
        while !over.load(Ordering::Relaxed) {
            let state = ServerState::of(&mut client)?;
            if self.log_of(&state) >= self.log_bytes && !state.is_rewriting {
                mark("BGREWRITEAOF")?;
                if let Reply::Error(text) = client.call(&[b"BGREWRITEAOF"])? {
                    return Err(BenchError::Reply(format!("BGREWRITEAOF: {text}")));
                }
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

/// Sets the flag when dropped, even during a panic, so that no thread waits for the flag forever.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until `is_fit` accepts the server's state.
fn wait_until(client: &mut Client, is_fit: impl Fn(&ServerState) -> bool) -> Result<()> {
    wait_for(|| Ok(is_fit(&ServerState::of(client)?)))
}

/// Polls until `is_so` is true, for no longer than a snapshot may take.
fn wait_for(mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    while !is_so()? {
        interrupt::check()?;
        if began.elapsed() > SNAPSHOT_MAX {
            let text = format!("a snapshot or rewrite takes longer than {SNAPSHOT_MAX:?}");
            return Err(BenchError::Server(text));
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// The server's report about its log and snapshots.
struct ServerState {
    /// Size in bytes of the log's file, together with what the server has yet to write to that
    /// file. The file begins with a copy of the data set. Stock Redis keeps up to two seconds of
    /// writes in memory while an `fsync` of the file takes long.
    aof_bytes: u64,
    /// Whether a rewrite is under way or scheduled.
    is_rewriting: bool,
    is_saving: bool,
}

impl ServerState {
    /// # Errors
    /// When the report can't be read, or says that a snapshot failed. After such a failure, the log
    /// would grow until the drive is full.
    fn of(client: &mut Client) -> Result<Self> {
        let said = Persistence::of(client)?;
        said.check(Kind::Save)?;
        said.check(Kind::Rewrite)?;
        let is = |name| said.number(name).map(|value| value != 0);
        Ok(Self {
            aof_bytes: said.number("aof_current_size")? + said.number("aof_buffer_length")?,
            is_rewriting: is("aof_rewrite_in_progress")? || is("aof_rewrite_scheduled")?,
            is_saving: is("rdb_bgsave_in_progress")?,
        })
    }
}
