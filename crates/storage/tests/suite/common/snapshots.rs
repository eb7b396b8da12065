//! What a client does besides appending: it takes snapshots, and turns the log off and on.

use slimio_device::{Device, LBA_SIZE};
use slimio_storage::{
    Error, LogState, SlotSummary, SlotWriter, SnapshotEvent, SnapshotKind, SnapshotPlan,
    WriterOptions,
};

use super::{Client, Disk, Script};

/// An action of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Waits until all appended records are durable and no snapshot is under way.
    Settle,
    Snapshot(SnapshotKind),
    /// `appendonly no`.
    End,
    /// `appendonly yes`. This also takes the snapshot from which the log goes on.
    Resume,
}

/// Options of a writer that keeps several small writes in flight.
pub(crate) const SMALL_WRITES: WriterOptions = WriterOptions {
    write_lbas: 2,
    in_flight: 3,
    grow_lbas: 3,
    flush_lbas: 1000,
    reserve_lbas: 0,
    must_reserve: false,
    leave: 0,
};

/// Number of records in a chunk.
const CHUNK_LEN: usize = 2;

/// A snapshot that is being taken. Each turn of the client takes one step.
pub(crate) struct Taking {
    path: Box<dyn Device + Send>,
    /// `None` once the snapshot is finished.
    writer: Option<SlotWriter>,
    /// Chunks that are not written yet, in reverse order.
    chunks: Vec<Script>,
    /// Number of records that the snapshot covers: those appended before it began or, for a fuzzy
    /// snapshot, those appended before it was complete.
    count: usize,
}

/// Encodes records as the payload of a chunk.
pub(crate) fn encode_records(records: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (db, payload) in records {
        bytes.extend(db.to_le_bytes());
        bytes.extend((payload.len() as u32).to_le_bytes());
        bytes.extend(payload);
    }
    bytes
}

pub(crate) fn decode_records(mut bytes: &[u8]) -> Script {
    let mut records = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<6>() {
        let len = u32::from_le_bytes([head[2], head[3], head[4], head[5]]) as usize;
        records.push((u16::from_le_bytes([head[0], head[1]]), rest[..len].to_vec()));
        bytes = &rest[len..];
    }
    records
}

/// Blocks that a snapshot of these records takes: a header, chunks, an index and a trailer.
pub(super) fn snapshot_lbas(records: &[(u16, Vec<u8>)]) -> u64 {
    let chunks = records.chunks(CHUNK_LEN).map(|chunk| {
        let size: usize = chunk.iter().map(|(_, payload)| payload.len() + 16).sum();
        (size + 64).div_ceil(LBA_SIZE) as u64
    });
    3 + chunks.sum::<u64>()
}

impl<D: Disk> Client<D> {
    /// Performs the actions that are due.
    pub(crate) fn act(&mut self) {
        while let Some(&(at, action)) = self.actions.front()
            && at <= self.appended
            && !self.is_over()
        {
            self.actions.pop_front();
            match action {
                Action::Settle => self.settle(),
                Action::Snapshot(kind) => drop(self.begin(kind)),
                Action::End => self.volume.log.end(),
                Action::Resume => {
                    while self.volume.log.log_state() == LogState::Ending && !self.is_over() {
                        self.turn(true);
                    }
                    self.volume.log.resume();
                    self.begin(SnapshotKind::Wal);
                }
            }
        }
    }

    /// Begins a snapshot of the data set as it is now.
    pub(crate) fn begin(&mut self, kind: SnapshotKind) -> Option<SnapshotPlan> {
        let plan = self.volume.log.begin_snapshot(kind, 1_700_000_000_000)?;
        let mut path = self.disk.open_slot(self.volume.log.pool(), plan.slot);
        match SlotWriter::begin(&mut *path, plan, SMALL_WRITES) {
            Ok(writer) => {
                let chunks = self.history.chunks(CHUNK_LEN).rev().map(<[_]>::to_vec).collect();
                let count = self.appended;
                self.taking = Some(Taking { path, writer: Some(writer), chunks, count });
            }
            Err(_) => self.volume.log.snapshot_failed(),
        }
        Some(plan)
    }

    /// Writes one chunk, or finishes the snapshot, or checks whether it was adopted.
    pub(crate) fn step_snapshot(&mut self) {
        let Some(mut taking) = self.taking.take() else { return };
        let log = &mut self.volume.log;
        let Some(mut writer) = taking.writer.take() else {
            match log.take_snapshot_event() {
                None => self.taking = Some(taking),
                Some(SnapshotEvent::Obsolete(_)) => {}
                Some(SnapshotEvent::Adopted(summary)) => {
                    let is_root = log.snapshots().root() == Some(&summary);
                    if is_root {
                        self.durable = self.durable.max(taking.count);
                        self.acknowledged = self.acknowledged.max(taking.count);
                    }
                }
            }
            return;
        };
        let device = &mut *taking.path;
        let failed = if let Some(records) = taking.chunks.pop() {
            let count = records.len() as u32;
            let written = writer.chunk(device, &encode_records(&records), count);
            taking.writer = Some(writer);
            written.err()
        } else {
            if writer.plan().is_fuzzy {
                // A fuzzy snapshot is read together with the records that were appended while it
                // was written.
                taking.count = self.appended;
            }
            writer.finish(device).map(|summary| log.adopt(summary)).err()
        };
        if failed.is_none() {
            self.taking = Some(taking);
            return;
        }
        if let Some(writer) = taking.writer {
            writer.cancel(&mut *taking.path);
        }
        log.snapshot_failed();
    }

    /// Gives up the snapshot that is being written, if there is one.
    pub(crate) fn cancel(&mut self) {
        let Some(mut taking) = self.taking.take_if(|taking| taking.writer.is_some()) else {
            return;
        };
        if let Some(writer) = taking.writer {
            writer.cancel(&mut *taking.path);
        }
        self.volume.log.snapshot_failed();
    }
}

impl Taking {
    /// Writes the rest of the snapshot, and returns the summary that is to be adopted.
    pub(crate) fn finish(&mut self) -> Result<SlotSummary, Error> {
        let mut writer = self.writer.take().expect("the snapshot is not finished yet");
        for records in self.chunks.drain(..).rev() {
            writer.chunk(&mut *self.path, &encode_records(&records), records.len() as u32)?;
        }
        writer.finish(&mut *self.path)
    }
}
