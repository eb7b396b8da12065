//! A drive with a clock for each die and each channel. The clock says when the die or channel is
//! free again.
//!
//! Every die does one operation at a time, and every channel transfers one page at a time. A
//! request of the host waits until its die has done all earlier work, including the collector's.
//! This is how garbage collection slows hosts down.
//!
//! ```text
//! write    channel |transfer|            read   die     |read|
//!          die               |program|          channel      |transfer|
//! ```
//!
//! Source of the model: MoatLab/FEMU, `hw/femu/bbssd/ftl.c`. In that model, each die has a time at
//! which it is free, and the latency of a request is that of its slowest page.

use std::time::Duration;

use crate::{Config, ConfigError, Ftl, FtlError, Geometry, NandPage, Observer, Timing};

/// An [`Ftl`] whose work takes time. All times are durations since the drive was made. Requests
/// should come in the order of their times.
#[derive(Clone, Debug)]
pub struct Clocked {
    ftl: Ftl,
    dies: Dies,
}

impl Clocked {
    /// An empty, idle drive.
    ///
    /// # Errors
    /// If a drive with this configuration can't work.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        Ok(Self::of(Ftl::new(config)?))
    }

    /// An idle drive with this mapping.
    pub fn of(ftl: Ftl) -> Self {
        let dies = Dies::new(ftl.config().geometry, ftl.config().timing);
        Self { ftl, dies }
    }

    /// The mapping and its counters.
    pub fn ftl(&self) -> &Ftl {
        &self.ftl
    }

    /// The mapping, to be changed by operations that take no time.
    pub fn ftl_mut(&mut self) -> &mut Ftl {
        &mut self.ftl
    }

    /// Writes `count` blocks from `lba` on. The host's request comes at `now`. Returns the time at
    /// which the last block is on the media.
    ///
    /// # Errors
    /// If a block is beyond the drive, or if there is no such handle. After an error, nothing has
    /// changed.
    pub fn write(
        &mut self,
        now: Duration,
        lba: u64,
        count: u64,
        handle: u16,
    ) -> Result<Duration, FtlError> {
        let lba_count = self.ftl.config().lba_count;
        if lba.checked_add(count).is_none_or(|end| end > lba_count) {
            return Err(FtlError::OutOfRange { lba: lba.max(lba_count), lba_count });
        }
        let mut work = self.dies.begin(now);
        for lba in lba..lba + count {
            self.ftl.write_observed(lba, handle, &mut work)?;
        }
        Ok(work.end())
    }

    /// Reads `count` blocks from `lba` on. The host's request comes at `now`. Returns the time at
    /// which the last block has been read. Blocks that hold nothing take no time.
    pub fn read(&mut self, now: Duration, lba: u64, count: u64) -> Duration {
        let mut work = self.dies.begin(now);
        for page in (lba..lba.saturating_add(count)).filter_map(|lba| self.ftl.page_of(lba)) {
            work.read(page);
        }
        work.end()
    }

    /// Deallocates blocks. This takes no time, because the mapping is in the drive's memory.
    ///
    /// # Errors
    /// If some of the blocks are beyond the drive.
    pub fn deallocate(&mut self, lba: u64, count: u64) -> Result<(), FtlError> {
        self.ftl.deallocate(lba, count)
    }

    /// Moves a handle to a fresh unit at the time `now`.
    ///
    /// # Errors
    /// If there is no such handle.
    pub fn start_fresh_unit(&mut self, now: Duration, handle: u16) -> Result<(), FtlError> {
        self.ftl.start_fresh_unit(handle, &mut self.dies.begin(now))
    }

    /// The time at which all work so far is done.
    pub fn idle_at(&self) -> Duration {
        let last = self.dies.die_free.iter().chain(&self.dies.channel_free).max();
        Duration::from_nanos(last.copied().unwrap_or(0))
    }

    /// How long the dies have worked, added up over all dies.
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.dies.busy)
    }
}

/// When each die and channel is free, in nanoseconds.
#[derive(Clone, Debug)]
struct Dies {
    geometry: Geometry,
    die_free: Vec<u64>,
    channel_free: Vec<u64>,
    busy: u64,
    read: u64,
    program: u64,
    erase: u64,
    transfer: u64,
}

impl Dies {
    fn new(geometry: Geometry, timing: Timing) -> Self {
        let nanos = |duration: Duration| duration.as_nanos() as u64;
        Self {
            geometry,
            die_free: vec![0; geometry.die_count() as usize],
            channel_free: vec![0; geometry.channels as usize],
            busy: 0,
            read: nanos(timing.read),
            program: nanos(timing.program),
            erase: nanos(timing.erase),
            transfer: nanos(timing.transfer),
        }
    }

    fn begin(&mut self, now: Duration) -> Work<'_> {
        let now = now.as_nanos() as u64;
        Work { dies: self, now, end: now }
    }

    /// Keeps a die busy for `time`, starting no earlier than `from`. Returns the time at which the
    /// work ends.
    fn work(&mut self, die: u32, from: u64, time: u64) -> u64 {
        let free = &mut self.die_free[die as usize];
        *free = from.max(*free) + time;
        self.busy += time;
        *free
    }

    /// Transfers a page over a die's channel, starting no earlier than `from`. Returns the time at
    /// which the transfer ends.
    fn transfer(&mut self, die: u32, from: u64) -> u64 {
        if self.transfer == 0 {
            return from;
        }
        let free = &mut self.channel_free[self.geometry.channel_of(die) as usize];
        *free = from.max(*free) + self.transfer;
        *free
    }

    fn read(&mut self, page: NandPage, from: u64) -> u64 {
        let die = self.geometry.die_of(page.0);
        let read = self.work(die, from, self.read);
        self.transfer(die, read)
    }

    fn program(&mut self, page: NandPage, from: u64) -> u64 {
        let die = self.geometry.die_of(page.0);
        let there = self.transfer(die, from);
        self.work(die, there, self.program)
    }
}

/// One request of the host, and the collector's work that the request causes.
struct Work<'a> {
    dies: &'a mut Dies,
    now: u64,
    /// When the host's part of the work is done.
    end: u64,
}

impl Work<'_> {
    fn read(&mut self, page: NandPage) {
        let there = self.dies.read(page, self.now);
        self.end = self.end.max(there);
    }

    fn end(&self) -> Duration {
        Duration::from_nanos(self.end)
    }
}

impl Observer for Work<'_> {
    fn program(&mut self, page: NandPage, _: u64) {
        let there = self.dies.program(page, self.now);
        self.end = self.end.max(there);
    }

    fn pad(&mut self, page: NandPage) {
        self.dies.program(page, self.now);
    }

    fn copy(&mut self, from: NandPage, to: NandPage) {
        let read = self.dies.read(from, self.now);
        self.dies.program(to, read);
    }

    fn erase(&mut self, unit: u32) {
        let first = unit * self.dies.geometry.unit_pages();
        for page in first..first + self.dies.geometry.unit_dies() {
            let die = self.dies.geometry.die_of(page);
            self.dies.work(die, self.now, self.dies.erase);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Thresholds;

    fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    /// A drive with 64 dies, and units of 1024 pages.
    fn drive(timing: Timing) -> Clocked {
        let mut config = Config { timing, ..Config::scaled(720 << 20) };
        config.thresholds = Thresholds::LAST_MOMENT;
        assert_eq!((config.geometry.die_count(), config.geometry.unit_pages()), (64, 1024));
        Clocked::new(config).expect("the drive can work")
    }

    #[test]
    fn dies_work_beside_each_other_and_each_alone() {
        let mut drive = drive(Timing::PAPER);
        assert_eq!(drive.write(micros(0), 0, 64, 0), Ok(micros(200)), "one page for each die");
        assert_eq!(
            drive.write(micros(0), 64, 1, 0),
            Ok(micros(400)),
            "the write waits for the first page of its die"
        );
        assert_eq!(drive.write(micros(0), 65, 63, 0), Ok(micros(400)));
        assert_eq!(drive.read(micros(0), 1, 1), micros(440), "the read waits for its die");
        assert_eq!(drive.read(micros(1000), 0, 64), micros(1040));
        assert_eq!(
            drive.read(micros(1000), 5000, 64),
            micros(1000),
            "blocks that hold nothing take no time"
        );
        assert_eq!(drive.idle_at(), micros(1040));
        assert_eq!(drive.busy(), 128 * micros(200) + 65 * micros(40));
    }

    #[test]
    fn a_channel_moves_one_page_at_a_time() {
        let mut drive = drive(Timing::PAPER_EMULATOR);
        assert_eq!(drive.write(micros(0), 0, 1, 0), Ok(micros(225)));
        let mut all = super::tests::drive(Timing::PAPER_EMULATOR);
        // Each channel has eight dies, so the last page is programmed after eight transfers.
        assert_eq!(all.write(micros(0), 0, 64, 0), Ok(micros(400)));
        assert_eq!(
            all.read(micros(1000), 0, 1),
            micros(1065),
            "the page is read, then transferred"
        );
    }

    #[test]
    fn the_host_waits_behind_the_collector() {
        let mut drive = drive(Timing::PAPER);
        let lbas = drive.ftl().config().lba_count;
        let mut now = micros(0);
        let mut slowest = micros(0);
        // Every second block is written twice, so victims are half valid.
        for step in (1..=2).cycle().take(8) {
            for lba in (0..lbas).step_by(step) {
                let end = drive.write(now, lba, 1, 0).expect("the blocks are within the drive");
                slowest = slowest.max(end.saturating_sub(now));
                now = end;
            }
        }
        assert!(drive.ftl().counters().copied_bytes() > 0, "the collector has copied pages");
        // A die has 16 pages of each unit. A write may wait while its die copies some of these
        // pages and erases their block. It never waits for the collection of two units.
        assert!(slowest > Timing::PAPER.erase, "the slowest write took {slowest:?}");
        assert!(
            slowest < 2 * Timing::PAPER.erase + 40 * micros(240),
            "the slowest write took {slowest:?}"
        );
    }

    #[test]
    fn the_same_requests_take_the_same_time() {
        let run = || {
            let mut drive = drive(Timing::PAPER_EMULATOR);
            let lbas = drive.ftl().config().lba_count;
            let mut now = micros(0);
            for round in 0..3 * lbas / 8 {
                let lba = round * 8 * 7919 % (lbas - 8);
                now = drive
                    .write(now, lba, 8, (round % 8) as u16)
                    .expect("the blocks are within the drive");
            }
            (now, drive.idle_at(), drive.ftl().counters().clone())
        };
        assert_eq!(run(), run());
    }

    /// A log and a snapshot are written at the same time, and the collector copies nothing. The log
    /// must then be as fast with a separate handle as it is when it shares the snapshot's handle,
    /// because the log's writes meet the same number of busy dies in both cases.
    #[test]
    fn handles_of_their_own_cost_no_time_by_themselves() {
        const TURNS: u32 = 20_000;
        let mean = |of_log, of_snapshot| {
            let mut drive = Clocked::new(Config::scaled(720 << 20)).expect("the drive can work");
            let area = drive.ftl().config().lba_count / 8;
            // Writes the next blocks of an area. After the last block of the area comes the first
            // one again.
            let write = |drive: &mut Clocked, now, first, at: &mut u64, count, handle| {
                if *at + count > area {
                    *at = 0;
                }
                *at += count;
                drive
                    .write(now, first + *at - count, count, handle)
                    .expect("the blocks are within the drive")
            };
            let (mut log, mut snapshot) = (0, 0);
            let (mut now, mut snapshot_due) = (micros(0), micros(0));
            let mut waited = Duration::ZERO;
            for _ in 0..TURNS {
                while snapshot_due <= now {
                    let begun = snapshot_due;
                    let end = write(&mut drive, begun, area, &mut snapshot, 64, of_snapshot);
                    snapshot_due = end.max(begun + micros(1300));
                }
                let end = write(&mut drive, now, 0, &mut log, 50, of_log);
                waited += end.saturating_sub(now);
                now = end + micros(300);
            }
            assert_eq!(drive.ftl().counters().copied_bytes(), 0);
            waited / TURNS
        };
        let (apart, together) = (mean(1, 3), mean(0, 0));
        assert!(
            apart.abs_diff(together) < together / 50,
            "a write takes {apart:?} with its own handle, {together:?} with a shared handle"
        );
    }

    #[test]
    fn what_is_refused_takes_no_time() {
        let mut drive = drive(Timing::PAPER);
        let lbas = drive.ftl().config().lba_count;
        assert!(drive.write(micros(0), lbas - 1, 2, 0).is_err());
        assert!(drive.write(micros(0), u64::MAX, 2, 0).is_err());
        assert!(drive.write(micros(0), 0, 1, 8).is_err());
        assert_eq!((drive.idle_at(), drive.ftl().mapped_count()), (micros(0), 0));
    }
}
