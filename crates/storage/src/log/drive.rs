//! The log and its device: when batches and flushes are submitted, and what a completion means.

use std::time::{Duration, Instant};

use slimio_device::{Buffer, Device, LBA_SIZE, Lba, Op, Token};
use slimio_planted::is_planted;

use super::{Flight, Flush, Log, OpenBatch};
use crate::batch::{Header, Kind, write_closing_half};
use crate::layout::{WAL_IN_FLIGHT_MAX, batch};
use crate::{FLUSH_AFTER, LatchCause, Lifetime, Lsn, Policy, WRITE_AFTER};

/// The token of every flush. One token is enough, because at most one flush is in flight.
const FLUSH_TOKEN: Token = Token(u64::MAX);

/// Records that the log first saw within this time of each other count as equally old.
const MARK_SPAN: Duration = Duration::from_millis(10);

impl Log {
    /// Submits the batches and the flush that are due under the policy. Never blocks and makes no
    /// system call. If this returns true, a [`Device::kick`] or a [`wait`](Self::wait) must follow.
    #[must_use = "the device starts no submitted operation before a kick"]
    pub fn drive(&mut self, device: &mut dyn Device, now: Instant) -> bool {
        if self.latch.is_some() {
            return false;
        }
        self.stamp(now);
        self.aim(now);
        let mut is_queued = self.submit_closed(device, now);
        if self.is_partial_due(now) {
            self.close_batch();
            is_queued |= self.submit_closed(device, now);
        }
        is_queued | self.submit_flush(device, now)
    }

    /// Notes `now` as the time when the log first saw the records that were appended since the last
    /// call.
    fn stamp(&mut self, now: Instant) {
        let stamped = self.marks.back().map_or(self.durable, |&(end, _)| end);
        if self.appended > stamped {
            match self.marks.back_mut() {
                Some((end, seen)) if now.saturating_duration_since(*seen) < MARK_SPAN => {
                    *end = self.appended;
                    if is_planted("age-of-the-newest") {
                        *seen = now;
                    }
                }
                _ => self.marks.push_back((self.appended, now)),
            }
        }
        if let Some(open) = &mut self.open {
            open.opened_at.get_or_insert(now);
        }
    }

    /// Sets how far the log must become durable next. This depends on the policy, on segments that
    /// are to be released, and on snapshots.
    fn aim(&mut self, now: Instant) {
        let is_old = || {
            self.oldest_undurable()
                .is_some_and(|oldest| now.saturating_duration_since(oldest) >= FLUSH_AFTER)
        };
        match self.policy {
            // Batches that were written under another policy become durable only with a flush.
            Policy::Always if self.soft_end > self.durable => {
                self.flush_target = self.flush_target.max(Some(self.soft_end));
            }
            Policy::EverySec if self.flush_target.is_none() && is_old() => {
                self.flush_target = Some(self.appended);
            }
            _ => {}
        }
        // A release of segments waits until `release_to` is durable. Without this target, it would
        // wait forever under a policy that never flushes.
        if self.release_to > self.durable && self.is_release_due() {
            self.flush_target = self.flush_target.max(Some(self.release_to));
        }
        if self.snapshots.needs_durable() > self.durable {
            self.flush_target = self.flush_target.max(Some(self.snapshots.needs_durable()));
        }
    }

    /// Whether the open batch must be submitted now, before it is full.
    fn is_partial_due(&self, now: Instant) -> bool {
        let Some(open) = &self.open else { return false };
        if open.used == batch::SIZE || !self.closed.is_empty() {
            return false;
        }
        if self.flush_target.is_some_and(|target| open.first_lsn < target) {
            return true;
        }
        let flying = self.flight.iter().filter(|flight| !flight.is_done).count();
        let is_next = flying < self.commits_in_flight;
        match self.policy {
            Policy::Always => is_next,
            _ if open.private_from.is_some() => is_next,
            Policy::EverySec => false,
            Policy::No => open
                .opened_at
                .is_some_and(|opened| now.saturating_duration_since(opened) >= WRITE_AFTER),
        }
    }

    /// Submits closed batches as long as the device accepts them and the segments have room for
    /// them.
    fn submit_closed(&mut self, device: &mut dyn Device, now: Instant) -> bool {
        let mut is_queued = false;
        // One entry of the device's queue is kept free for a flush.
        let in_flight_max = WAL_IN_FLIGHT_MAX.min(device.geometry().in_flight_max as usize - 1);
        while device.in_flight() < in_flight_max.max(1) {
            let Some(batch) = self.closed.pop_front() else { break };
            if let Err(batch) = self.submit_batch(device, batch, now) {
                self.closed.push_front(batch);
                break;
            }
            is_queued = true;
        }
        is_queued
    }

    fn submit_batch(
        &mut self,
        device: &mut dyn Device,
        mut batch: OpenBatch,
        now: Instant,
    ) -> Result<(), OpenBatch> {
        assert_eq!(
            batch.first_lsn,
            self.submitted(),
            "the batch does not begin where the last submitted batch ends"
        );
        if self.is_lone(&batch) {
            self.lone_commits += 1;
            if let Some(tail) = self.take_tail(&batch) {
                self.submit_tail(device, tail, batch, now);
                return Ok(());
            }
        } else {
            self.lone_commits = 0;
        }
        self.tail = None;
        let lbas = batch.lbas();
        let Some(lba) = self.segments.take(lbas as u64, batch.first_lsn, self.parent) else {
            return Err(batch);
        };
        let records_size = (batch.used - batch::SIZE) as u32;
        let header = self.header(Kind::Plain, batch.first_lsn, records_size, self.parent);
        let flight = self.flight_of(&batch, now);
        self.parent =
            write_closing_half(&mut batch.buffer, self.salt, &header, batch.records_chain);
        if !self.may_be_written(&batch.buffer, &batch.buffer) {
            return Err(batch);
        }
        self.submit_write(device, lba, batch.buffer, flight);
        self.stats.log_bytes += (lbas * LBA_SIZE) as u64;
        Ok(())
    }

    /// End of the last batch that was submitted.
    pub(super) fn submitted(&self) -> Lsn {
        self.flight.back().map_or(self.written, |flight| flight.end)
    }

    /// The header of a batch that is about to be submitted. The checksum is still missing.
    pub(super) fn header(
        &self,
        kind: Kind,
        first_lsn: Lsn,
        records_size: u32,
        parent: u64,
    ) -> Header {
        Header {
            epoch: self.epoch,
            first_lsn,
            records_size,
            kind,
            durable: self.durable,
            parent,
            superblock_sequence: self.superblock_sequence,
            checksum: 0,
        }
    }

    pub(super) fn flight_of(&self, batch: &OpenBatch, now: Instant) -> Flight {
        Flight {
            end: batch.end(),
            private_from: batch.private_from,
            is_extra: batch.is_extra,
            is_durable: self.policy == Policy::Always || self.are_writes_stable,
            is_done: false,
            submitted_at: now,
            buffer: None,
            is_tail: false,
        }
    }

    pub(super) fn submit_write(
        &mut self,
        device: &mut dyn Device,
        lba: Lba,
        buffer: Buffer,
        flight: Flight,
    ) {
        self.stats.batches += 1;
        self.stats.device_bytes += buffer.len() as u64;
        let durable = self.policy == Policy::Always && !is_planted("ack-before-flush");
        let token = Token(self.first_token + self.flight.len() as u64);
        let placement = Lifetime::Wal.placement();
        let submitted = device.submit(token, Op::Write { lba, buffer, placement, durable });
        assert!(submitted.is_ok(), "the path must have room for this operation");
        self.flight.push_back(flight);
    }

    /// Submits a flush when everything up to the flush target is written, but not yet durable.
    fn submit_flush(&mut self, device: &mut dyn Device, now: Instant) -> bool {
        let Some(target) = self.flush_target else { return false };
        if self.durable >= target {
            self.flush_target = None;
            return false;
        }
        if self.flush.is_some() || self.written < target {
            return false;
        }
        if device.submit(FLUSH_TOKEN, Op::Flush).is_err() {
            return false;
        }
        self.flush = Some(Flush { covers: self.written, submitted_at: now });
        true
    }

    /// Handles the device's completions. Never blocks. A [`drive`](Self::drive) must follow,
    /// because a completion may have made room for another submission.
    pub fn reap(&mut self, device: &mut dyn Device, now: Instant) {
        device.poll(&mut self.completions);
        let mut completions = std::mem::take(&mut self.completions);
        for completion in completions.drain(..) {
            let failed = completion.result.err();
            let submitted_at = if completion.token == FLUSH_TOKEN {
                let flush = self.flush.take().expect("only a flush in flight completes");
                match failed {
                    Some(error) => self.latch(LatchCause::LogFlush, error),
                    None if self.latch.is_none() => {
                        self.stats.flushes += 1;
                        self.durable = self.durable.max(flush.covers);
                    }
                    None => {}
                }
                flush.submitted_at
            } else {
                let index = (completion.token.0 - self.first_token) as usize;
                let flight = &mut self.flight[index];
                let submitted_at = flight.submitted_at;
                if flight.is_tail {
                    let image = completion.buffer;
                    if let Some(tail) = &mut self.tail {
                        tail.image = image;
                    }
                } else {
                    flight.buffer = completion.buffer;
                }
                match failed {
                    Some(error) => self.latch(LatchCause::LogWrite, error),
                    None => flight.is_done = true,
                }
                if is_planted("buffer-freed-early") {
                    self.free.extend(self.flight[index].buffer.take());
                }
                submitted_at
            };
            let latency = now.saturating_duration_since(submitted_at);
            self.stats.latency_max = self.stats.latency_max.max(latency);
        }
        self.completions = completions;
        if self.latch.is_none() {
            self.advance();
        }
        // A mark says when the log first saw some records. The marks of durable records are dropped
        // even if a write has failed, because a flush before the failure may have made records
        // durable.
        let durable = self.durable;
        self.marks.retain(|&(end, _)| end > durable);
    }

    /// Advances the written and the durable LSN over the unbroken prefix of completed batches.
    fn advance(&mut self) {
        while self.flight.front().is_some_and(|flight| flight.is_done) {
            let Some(flight) = self.flight.pop_front() else { break };
            self.first_token += 1;
            assert!(flight.end > self.written, "the written prefix must grow");
            self.written = flight.end;
            if !flight.is_durable {
                self.soft_end = flight.end;
            }
            if flight.private_from.is_some() && !is_planted("private-still-counted") {
                assert!(
                    self.private_count > 0,
                    "a batch with records that die with the process was not counted"
                );
                self.private_count -= 1;
            }
            self.free.extend(flight.buffer.filter(|_| !flight.is_extra));
        }
        if self.durable >= self.soft_end {
            self.durable = self.durable.max(self.written);
        }
        assert!(
            self.durable <= self.written && self.written <= self.appended,
            "durable records must be written, and written records must be appended"
        );
        self.tell_durable();
    }

    /// Sleeps until the device has finished something or `timeout` has passed. A
    /// [`reap`](Self::reap) must follow. Returns at once when nothing is in flight. Without a
    /// timeout, a lone operation may run on the calling thread.
    pub fn wait(&mut self, device: &mut dyn Device, timeout: Option<Duration>) {
        device.wait(timeout, &mut self.completions);
    }

    /// End of the longest unbroken prefix of batches that the device has completed.
    pub fn written(&self) -> Lsn {
        self.written
    }
}
