//! Functions that the tests of volumes share.

use std::time::Instant;

use slimio_storage::{
    Chunk, Error, Policy, Record, RecoverOptions, RecoverSink, Storage, Volume, recover,
};

/// Payloads of chunks and records, in the order in which recovery delivered them.
#[derive(Default)]
struct Collector(Vec<Vec<u8>>);

impl RecoverSink for Collector {
    fn chunk(&mut self, chunk: Chunk) -> Result<(), Error> {
        self.0.push(chunk.payload()?.to_vec());
        Ok(())
    }

    fn record(&mut self, record: Record<'_>) -> Result<(), String> {
        self.0.push(record.payload.to_vec());
        Ok(())
    }
}

/// Recovers the volume. Also returns the payloads of the recovered chunks and records.
pub(crate) fn reopen(storage: &mut Storage) -> Result<(Volume, Vec<Vec<u8>>), Error> {
    let options = RecoverOptions::new(Policy::Always, 4, Instant::now());
    let mut collector = Collector::default();
    let volume = recover(&mut *storage.media, &options, &mut collector)?;
    Ok((volume, collector.0))
}

/// Makes all appended records durable, and runs the jobs that are due.
pub(crate) fn settle(volume: &mut Volume) {
    let Volume { log, log_path, keeper, keeper_paths, .. } = volume;
    loop {
        if log.drive(&mut **log_path, Instant::now()) {
            log_path.kick();
        }
        log.wait(&mut **log_path, None);
        log.reap(&mut **log_path, Instant::now());
        if let Some(job) = log.next_job(Instant::now()) {
            let outcome = keeper.run(keeper_paths, job);
            log.job_done(outcome, Instant::now());
        } else if log.durable() == log.appended() {
            return;
        }
    }
}
