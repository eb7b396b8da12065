//! Recovery in the server: loads the data, and meanwhile serves sockets.

use std::time::{Duration, Instant};

use slimio_keyspace::{ChunkError, Keyspace};
use slimio_storage::{
    Area, Chunk, Error, Progress, Record, RecoverOptions, RecoverSink, Storage, Volume, recover,
};

use super::{Server, make_volume};
use crate::engine::{Engine, Loading, policy};
use crate::explain::{explain, explain_system};
use crate::snapshot::Decoders;

/// Largest number of batches in flight under `appendfsync always`. While that many batches are in
/// flight, further records gather for the next batch.
const COMMITS_IN_FLIGHT: usize = 2;
/// Time between two rounds of serving sockets during recovery.
const LOADING_TURN_EVERY: Duration = Duration::from_millis(10);

impl Server {
    /// Recovers the data set, and meanwhile serves sockets. Returns `None` if the server was told
    /// to stop during the recovery.
    pub(super) fn load(&mut self, storage: &mut Storage) -> Result<Option<Volume>, String> {
        let config = &self.engine.config;
        if !storage.exists {
            make_volume(storage, config, false)?;
            log::info!("made a new volume in {}", storage.name);
        }
        let policy = policy(config.choice("appendfsync"));
        let buffer_count = config.int("log-buffers") as usize;
        let options = RecoverOptions {
            commits_in_flight: COMMITS_IN_FLIGHT,
            salvage: config.yes("salvage"),
            accept_device: config.choice("volume-identity") == "accept",
            is_log_on: config.yes("appendonly"),
            ..RecoverOptions::new(policy, buffer_count, Instant::now())
        };
        let began = Instant::now();
        let empty = Engine::empty_keyspace(&self.engine.config, 0);
        let mut keyspace = std::mem::replace(&mut self.engine.data.keyspace, empty);
        self.engine.phase.loading = Some(Loading {
            since: began,
            since_ms: self.engine.clock.now_ms,
            progress: Progress::default(),
        });
        keyspace.set_replay_time(self.engine.clock.now_ms);
        let decoders = Decoders::start(keyspace.decode_context(self.engine.clock.now_ms))
            .map_err(|e| explain_system("start the threads that decode snapshots", &e))?;
        let mut recovery =
            Recovery { server: self, keyspace, decoders, next_turn: began, said_percent: 0 };
        let result = recover(&mut *storage.media, &options, &mut recovery);
        let keyspace = recovery.keyspace;
        let is_stopping = self.engine.phase.shutdown.is_some();
        self.engine.data.keyspace = keyspace;
        self.engine.phase.loading = None;
        let volume = match result {
            Ok(volume) => volume,
            Err(_) if is_stopping => return Ok(None),
            Err(e) => {
                return Err(format!("cannot open the volume {}: {}", storage.name, explain(&e)));
            }
        };
        for (slot, held) in &volume.report.missing_slots {
            let name = Area::Snapshot(*slot).name();
            match held {
                Some(held) => {
                    log::warn!("the {} is lost: its file {name} is missing", held.kind.name());
                }
                None => log::warn!("the file {name} of a reserve was missing: it is created again"),
            }
        }
        if options.accept_device && volume.report.other_device.is_none() {
            log::warn!(
                "volume-identity accept was not needed: the volume was not last written on \
                 another device. Leave the directive out, or the next copy of a volume is accepted \
                 without a check"
            );
        }
        let keys: usize =
            self.engine.data.dbs().map(|db| self.engine.data.keyspace.dbsize(db)).sum();
        log::info!("{} ({keys} keys, {:.1} s)", volume.report, began.elapsed().as_secs_f64());
        Ok(Some(volume))
    }

    /// Answers the requests that can be answered during recovery.
    fn loading_turn(&mut self) {
        self.net.wait(Some(Duration::ZERO));
        self.engine.clock.begin_turn();
        self.connections.serve_behind(&mut self.engine);
        self.connections.grant(&mut *self.net);
        self.take_events();
        self.connections.serve_resumed(&mut self.engine);
        self.connections.flush(&mut self.engine, &mut *self.net);
    }
}

/// Receives the chunks and records that recovery reads, and meanwhile serves sockets.
struct Recovery<'a> {
    server: &'a mut Server,
    keyspace: Keyspace,
    decoders: Decoders,
    next_turn: Instant,
    said_percent: u64,
}

const STOPPED: &str = "the server was told to stop";

fn refused(error: &ChunkError) -> Error {
    Error::ChunkRefused { index: None, why: error.to_string() }
}

impl Recovery<'_> {
    /// Loads the next decoded chunk into the keyspace; returns whether there was such a chunk.
    fn take_decoded(&mut self) -> Result<bool, Error> {
        let Some(decoded) = self.decoders.take() else { return Ok(false) };
        self.keyspace.load(decoded?).map_err(|error| refused(&error))?;
        Ok(true)
    }
}

impl RecoverSink for Recovery<'_> {
    fn chunk(&mut self, chunk: Chunk) -> Result<(), Error> {
        if self.server.engine.phase.shutdown.is_some() {
            return Err(Error::ChunkRefused { index: Some(chunk.index()), why: STOPPED.into() });
        }
        while self.decoders.are_full() {
            self.take_decoded()?;
        }
        self.decoders.give(chunk);
        Ok(())
    }

    fn chunks_end(&mut self) -> Result<(), Error> {
        while self.take_decoded()? {}
        let dbs = self.server.engine.data.dbs();
        self.server.engine.snapshots.loaded_keys = dbs.map(|db| self.keyspace.dbsize(db)).sum();
        self.decoders.finish()
    }

    fn record(&mut self, record: Record<'_>) -> Result<(), String> {
        if self.server.engine.phase.shutdown.is_some() {
            return Err(STOPPED.into());
        }
        let db = slimio_keyspace::DbIndex(record.db);
        let changes = self.keyspace.apply(db, record.payload).map_err(|e| e.to_string())?;
        self.server.engine.count_replayed(changes);
        Ok(())
    }

    fn progress(&mut self, progress: Progress) {
        if let Some(loading) = &mut self.server.engine.phase.loading {
            loading.progress = progress;
        }
        let percent = progress.bytes_done * 100 / progress.bytes_total.max(1);
        if percent >= self.said_percent + 10 && progress.bytes_total > 64 << 20 {
            self.said_percent = percent;
            log::info!("loading: {percent} % of {} MB", progress.bytes_total >> 20);
        }
        if Instant::now() >= self.next_turn {
            self.server.loading_turn();
            self.next_turn = Instant::now() + LOADING_TURN_EVERY;
        }
    }
}
