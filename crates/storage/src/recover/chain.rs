//! Follows the log from batch to batch, and from record to record.

use slimio_device::LBA_SIZE;
use slimio_planted::is_planted;

use crate::batch::{Header, Kind, RecordView, Records, is_foreign, is_whole, read_header};
use crate::checksum::Salt;
use crate::log::UsedSegment;
use crate::recover::ahead::ReadAhead;
use crate::superblock::{Superblock, VolumeGeometry};
use crate::{Error, Lsn, Phase, Progress, Record, RecoverSink};

use slimio_device::Device;

/// A place in the log where a batch may start, and the checksum of the batch before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) segment: u64,
    pub(crate) lba: u64,
    pub(crate) parent: u64,
}

/// The part of the log that was found whole.
#[derive(Debug)]
pub(crate) struct Chain {
    /// End of the last fragment.
    pub(crate) next: Lsn,
    /// End of the last complete record.
    pub(crate) complete: Lsn,
    /// The place after the last batch.
    pub(crate) place: Place,
    /// The place after the batch in which the last complete record ended.
    pub(crate) complete_place: Place,
    /// Epoch of the last batch. An epoch is the log between two recoveries.
    pub(crate) epoch: u64,
    /// The segments that batches were found in.
    pub(crate) used: Vec<UsedSegment>,
    /// Fragments of a record that is not complete yet.
    pending: Option<Pending>,
    joined: Vec<u8>,
    /// Recovery does not need the records up to this LSN.
    start: Lsn,
    /// Whether the log was followed up to the cut of the last recovery, or starts after this cut. A
    /// recovery's cut is the place where the recovery ended the log.
    pub(crate) has_reached_cut: bool,
    pub(crate) records: u64,
    pub(crate) batches: u64,
}

#[derive(Debug)]
struct Pending {
    db: u16,
}

/// What the headers of valid batches say about the log. When [`Chain::follow`] returns, `durable`
/// and `batches` are only about batches after the log's end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Claims {
    /// Highest durable LSN in a batch of the epoch in force.
    pub(crate) durable: Lsn,
    /// Highest superblock sequence in a batch.
    pub(crate) superblock_sequence: u64,
    /// Batches of the epoch in force that were found after the log's end.
    pub(crate) batches: u64,
    /// Whether the place where the log starts holds a batch of another volume.
    pub(crate) is_foreign: bool,
}

impl Claims {
    pub(crate) fn note(&mut self, header: &Header, epoch: u64) {
        if header.epoch == epoch {
            self.durable = self.durable.max(header.durable);
            self.batches += 1;
        }
        self.superblock_sequence = self.superblock_sequence.max(header.superblock_sequence);
    }
}

impl Chain {
    pub(crate) fn new(superblock: &Superblock) -> Self {
        let start = superblock.start;
        let place = Place { segment: start.segment, lba: start.lba, parent: start.parent };
        Self {
            next: start.batch_lsn,
            complete: start.batch_lsn,
            place,
            complete_place: place,
            epoch: 0,
            used: Vec::new(),
            pending: None,
            joined: Vec::new(),
            start: start.lsn,
            has_reached_cut: start.batch_lsn > superblock.cut.lsn,
            records: 0,
            batches: 0,
        }
    }

    /// Follows the log until no batch continues it. Then looks for whole batches after the log's
    /// end, and returns the [`Claims`].
    pub(crate) fn follow(
        &mut self,
        device: &mut dyn Device,
        superblock: &Superblock,
        segments: &[(u64, u32)],
        sink: &mut dyn RecoverSink,
    ) -> Result<Claims, Error> {
        let segment_lbas = superblock.geometry.segment_lbas;
        let slots = segments.iter().map(|&(_, wal_slot)| wal_slot).collect();
        let start = self.place.lba;
        let mut at = start;
        let mut ahead = ReadAhead::new(device, slots, segment_lbas, at);
        let mut reported = None;
        let mut progress = Progress::default();
        let mut claims = Claims::default();
        let mut is_broken = false;
        let result = loop {
            if at >= ahead.end() {
                break Ok(claims);
            }
            if reported != Some(ahead.reached()) {
                reported = Some(ahead.reached());
                let bytes_total = ahead.end() * LBA_SIZE as u64;
                let bytes_done = at * LBA_SIZE as u64;
                let (phase, lsn) = (Phase::Log, self.complete);
                progress = Progress { phase, bytes_done, bytes_total, lsn };
                sink.progress(progress);
            }
            let mut idle = || sink.progress(progress);
            let (index, lba) = ((at / segment_lbas) as usize, at % segment_lbas);
            let (segment, wal_slot) = segments[index];
            // If a batch does not fit into the rest of this segment, the log goes on in the next
            // segment.
            let may_chain = !is_broken || (lba == 0 && segment == self.place.segment + 1);
            let found = match find(&mut ahead, device, superblock, at, &mut idle) {
                Ok(found) => found,
                Err(error) => break Err(error),
            };
            for (header, _) in found.iter().flatten() {
                claims.note(header, superblock.epoch);
            }
            self.check_cut(superblock);
            let mut candidates: Vec<_> = found
                .into_iter()
                .flatten()
                .filter(|(header, _)| may_chain && self.is_next(header, superblock))
                .collect();
            candidates.sort_by_key(|(header, _)| header.records_size);
            let chosen =
                match self.choose(&mut ahead, device, superblock, at, candidates, &mut idle) {
                    Ok(chosen) => chosen,
                    Err(error) => break Err(error),
                };
            let Some((header, batch_at)) = chosen else {
                if at == start {
                    match ahead.view(device, at, 1, &mut idle) {
                        Ok(first) => claims.is_foreign = is_foreign(first, superblock.volume_id),
                        Err(error) => break Err(error),
                    }
                }
                is_broken = true;
                at += 1;
                continue;
            };
            if self.used.last().is_none_or(|used| used.segment != segment) {
                let (first_lsn, parent) = (header.first_lsn, self.place.parent);
                self.used.push(UsedSegment { segment, wal_slot, first_lsn, parent });
            }
            let lbas = if header.kind == Kind::Plain { header.lbas() } else { 2 };
            self.place = Place { segment, lba: lba + lbas, parent: header.checksum };
            let bytes = match ahead.view(device, batch_at, header.lbas(), &mut idle) {
                Ok(bytes) => bytes,
                Err(error) => break Err(error),
            };
            if let Err(error) = self.take(bytes, &header, superblock, sink) {
                break Err(error);
            }
            is_broken = false;
            claims = Claims { durable: Lsn(0), batches: 0, ..claims };
            at += lbas;
        };
        self.check_cut(superblock);
        ahead.finish(device);
        result
    }

    /// Sets `has_reached_cut` if the log was followed up to the cut of the last recovery. The
    /// parent checksum identifies the cut: each batch's checksum covers its parent's checksum, so
    /// the chain of checksums covers everything before the cut.
    fn check_cut(&mut self, superblock: &Superblock) {
        self.has_reached_cut |= self.place.parent == superblock.cut.parent;
    }

    /// Returns the batch that continues the log. `candidates` are the batches that start at `at`
    /// and could continue the log, sorted by the size of their records, the largest last. Some
    /// candidates may be dead. A dead batch was submitted by a process that died. It reached the
    /// device only after a later epoch had continued the log without this batch.
    fn choose(
        &self,
        ahead: &mut ReadAhead,
        device: &mut dyn Device,
        superblock: &Superblock,
        at: u64,
        mut candidates: Vec<(Header, u64)>,
        idle: &mut dyn FnMut(),
    ) -> Result<Option<(Header, u64)>, Error> {
        while let Some((header, batch_at)) = candidates.pop() {
            let is_dead = match candidates.last() {
                // This candidate and `other` are the two blocks of a tail pair, which small commits
                // are written to alternately.
                Some((other, _)) => {
                    let pair = Pair { at, newer: &header, older: other };
                    is_left_behind(ahead, device, superblock, &pair, idle)?
                }
                None => false,
            };
            if !is_dead && !self.is_passed_over(ahead, device, superblock, at, &header, idle)? {
                return Ok(Some((header, batch_at)));
            }
        }
        Ok(None)
    }

    /// Whether a later epoch has continued the log in the next segment, without this batch. Each
    /// epoch goes on from a cut. If its first batch does not fit between the cut and the end of the
    /// segment, the batch goes to the next segment. The old data after the cut then stays in place.
    /// The superblock can't tell which data is old, because it has only the cut of the last
    /// recovery.
    fn is_passed_over(
        &self,
        ahead: &mut ReadAhead,
        device: &mut dyn Device,
        superblock: &Superblock,
        at: u64,
        header: &Header,
        idle: &mut dyn FnMut(),
    ) -> Result<bool, Error> {
        let VolumeGeometry { segment_lbas, batch_lbas_max, .. } = superblock.geometry;
        let rest = segment_lbas - at % segment_lbas;
        let next_at = at + rest;
        let longest = if is_planted("passed-over-by-one") { 2 } else { u64::from(batch_lbas_max) };
        if rest >= longest || next_at >= ahead.end() || is_planted("passed-over") {
            return Ok(false);
        }
        let bytes = &ahead.view(device, at, rest + 1, idle)?[rest as usize * LBA_SIZE..];
        let batch_size = superblock.geometry.batch_size();
        let Some(later) = read_header(bytes, superblock.volume_id, batch_size) else {
            return Ok(false);
        };
        // The first LSNs of the two batches may differ, because the batch of `header` may begin
        // with the rest of a record that was cut off.
        let is_elsewhere =
            later.first_lsn != header.first_lsn && is_planted("passed-over-by-whole-records");
        if later.epoch <= header.epoch || is_elsewhere || !self.is_next(&later, superblock) {
            return Ok(false);
        }
        let bytes = ahead.view(device, at, rest + later.lbas(), idle)?;
        Ok(is_whole(&bytes[rest as usize * LBA_SIZE..], superblock.volume_id, &later))
    }

    /// Whether the batch with this header continues the log. The caller has checked that the batch
    /// is whole.
    fn is_next(&self, header: &Header, superblock: &Superblock) -> bool {
        let cut = superblock.cut.lsn;
        // A later commit of a tail pair repeats the records of the pair's earlier commits. So it
        // may start before the cut even though it was written after the cut.
        let is_grown = match header.kind {
            Kind::Plain => false,
            Kind::TailFirst => !is_planted("tail-first-forgotten"),
            Kind::TailSecond => !is_planted("tail-kind-forgotten"),
        };
        let is_behind_cut = header.first_lsn >= cut || header.end() > cut && is_grown;
        let is_orphan = is_behind_cut && header.epoch != superblock.epoch && !is_planted("no-cut");
        let is_new_epoch = header.epoch > self.epoch;
        let ends_before = superblock
            .snapshots
            .log_end()
            .is_some_and(|end| header.first_lsn >= end && !is_planted("log-end-ignored"));
        let continues =
            header.first_lsn == self.next || is_new_epoch && header.first_lsn == self.complete;
        continues
            && !is_orphan
            && !ends_before
            && header.epoch >= self.epoch
            && header.epoch <= superblock.epoch
            && (header.parent == self.place.parent || is_planted("no-parent"))
    }

    /// Adds a batch that continues the log, with its records.
    fn take(
        &mut self,
        bytes: &[u8],
        header: &Header,
        superblock: &Superblock,
        sink: &mut dyn RecoverSink,
    ) -> Result<(), Error> {
        if header.first_lsn != self.next {
            // The new epoch continues after the last complete record. The old epoch may have left
            // fragments of one more record. Such fragments are not part of the log.
            self.pending = None;
            self.next = header.first_lsn;
        }
        self.epoch = header.epoch;
        self.batches += 1;
        let salt = Salt::new(superblock.volume_id, header.epoch);
        for view in Records::of_whole(bytes, salt, header) {
            self.take_record(&view, sink)?;
        }
        Ok(())
    }

    /// Adds one record or fragment, which starts where the last one ended.
    pub(crate) fn take_record(
        &mut self,
        view: &RecordView<'_>,
        sink: &mut dyn RecoverSink,
    ) -> Result<(), Error> {
        assert_eq!(view.start, self.next, "a fragment must start where the last one ended");
        self.next = view.end;
        if view.end > self.start {
            self.join(view, sink)?;
        }
        if view.is_last {
            self.complete = view.end;
            self.complete_place = self.place;
        }
        Ok(())
    }

    fn join(&mut self, view: &RecordView<'_>, sink: &mut dyn RecoverSink) -> Result<(), Error> {
        if view.is_first == self.pending.is_some() {
            let what = "a record's fragments do not fit together".to_owned();
            return Err(Error::Damaged { lsn: self.complete, what });
        }
        let payload = if view.is_first && view.is_last {
            view.payload
        } else {
            let db = view.db;
            if self.pending.get_or_insert(Pending { db }).db != db {
                let what = "a record's fragments have different databases".to_owned();
                return Err(Error::Damaged { lsn: self.complete, what });
            }
            if view.is_first {
                self.joined.clear();
            }
            self.joined.extend_from_slice(view.payload);
            if !view.is_last && !is_planted("half-record") {
                return Ok(());
            }
            self.pending = None;
            &self.joined
        };
        self.records += 1;
        let record = Record { db: view.db, lsn: view.end, payload };
        sink.record(record).map_err(|why| Error::Refused { lsn: view.end, why })
    }

    /// Drops the fragments of an incomplete record, so that the log ends before them.
    pub(crate) fn drop_pending(&mut self) {
        self.pending = None;
        self.next = self.complete;
        self.place = self.complete_place;
    }
}

/// The two commits of the tail pair that starts at `at`. Both are whole.
struct Pair<'a> {
    at: u64,
    newer: &'a Header,
    older: &'a Header,
}

/// Whether a later epoch has continued the log after the older commit of a tail pair. If so, the
/// recovery that began the later epoch did not find the newer commit, and the newer commit was
/// never acknowledged. If the later epoch wrote nothing after the pair, `is_next` refuses the newer
/// commit, because the newer commit ends after the cut of the last recovery.
fn is_left_behind(
    ahead: &mut ReadAhead,
    device: &mut dyn Device,
    superblock: &Superblock,
    pair: &Pair<'_>,
    idle: &mut dyn FnMut(),
) -> Result<bool, Error> {
    let &Pair { at, newer, older } = pair;
    if newer.epoch == superblock.epoch || is_planted("tail-left-behind") {
        return Ok(false);
    }
    let VolumeGeometry { segment_lbas, batch_lbas_max, .. } = superblock.geometry;
    let behind = at + 2;
    let next_segment = (at / segment_lbas + 1) * segment_lbas;
    // If the next batch does not fit after the pair, it is at the start of the next segment. The
    // start of the next segment is read only if the pair is near the end of its segment, because
    // reading it for every pair would make the work quadratic.
    let may_not_fit =
        next_segment - behind < u64::from(batch_lbas_max) && !is_planted("pair-beside-only");
    let places = [Some(behind), (may_not_fit && next_segment > behind).then_some(next_segment)];
    for place in places.into_iter().flatten() {
        if place >= ahead.end() {
            break;
        }
        let found = find_from(ahead, device, superblock, at, place, idle)?;
        let goes_on = |header: &Header| {
            header.epoch > newer.epoch
                && header.parent == older.checksum
                && header.first_lsn == older.end()
        };
        if found.iter().flatten().any(|(header, _)| goes_on(header)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The whole batches that start at a position, each with its place. If there are any, they are a
/// plain batch, or one or both blocks of a tail pair.
fn find(
    ahead: &mut ReadAhead,
    device: &mut dyn Device,
    superblock: &Superblock,
    at: u64,
    idle: &mut dyn FnMut(),
) -> Result<[Option<(Header, u64)>; 2], Error> {
    find_from(ahead, device, superblock, at, at, idle)
}

/// Like [`find`], for the position `at`, which is not before `from`. The blocks from `from` on can
/// still be viewed afterwards.
fn find_from(
    ahead: &mut ReadAhead,
    device: &mut dyn Device,
    superblock: &Superblock,
    from: u64,
    at: u64,
    idle: &mut dyn FnMut(),
) -> Result<[Option<(Header, u64)>; 2], Error> {
    let segment_lbas = superblock.geometry.segment_lbas;
    let left = segment_lbas - at % segment_lbas;
    let skip = (at - from) as usize * LBA_SIZE;
    let bytes = &ahead.view(device, from, at - from + left.min(2), idle)?[skip..];
    let batch_size = superblock.geometry.batch_size();
    let first = read_header(bytes, superblock.volume_id, batch_size)
        .filter(|header| header.kind != Kind::TailSecond && header.lbas() <= left);
    let second = bytes
        .get(LBA_SIZE..)
        .filter(|bytes| !bytes.is_empty())
        .and_then(|bytes| read_header(bytes, superblock.volume_id, batch_size))
        .filter(|header| header.kind == Kind::TailSecond);
    let mut found = [None, None];
    for (index, header) in [first, second].into_iter().enumerate() {
        let Some(header) = header else { continue };
        let batch_at = at + index as u64;
        // The view starts at `from`, because blocks before the start of a view can't be viewed
        // again, and the blocks from `from` on may be needed again.
        let lbas = batch_at - from + header.lbas();
        let bytes = ahead.view(device, from, lbas, idle)?;
        let bytes = &bytes[(batch_at - from) as usize * LBA_SIZE..];
        if is_whole(bytes, superblock.volume_id, &header) {
            found[index] = Some((header, batch_at));
        }
    }
    Ok(found)
}
