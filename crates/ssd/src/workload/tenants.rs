//! Generates the writes of virtual machines that come and go, and makes a drive execute the writes.
//! The drive serves as the machines' memory.
//!
//! A small drive of some ten thousand pages stands for the real drive. Each of its pages stands for
//! many pages of the real drive, and all other sizes and rates are scaled in the same way. A
//! machine first writes all of its memory once, in sequence. Then it writes at random places. A new
//! machine gets pieces of memory from all over the drive, as from an allocator that has been in use
//! for a while.

use fastrand::Rng;
use slimio_planted::is_planted;

use super::HostOp;
use super::population::{CAPACITY, Stay, Stretch};
use crate::{Ftl, FtlError};

/// Number of pages of a piece. Machines get their memory in pieces.
pub const PIECE_PAGES: u64 = 16;

/// The stream of writes and deallocations of all machines of a schedule, with the current time.
#[derive(Clone, Debug)]
pub struct Tenants {
    rng: Rng,
    /// Machines that have not begun yet. The machine that begins next is the last element.
    coming: Vec<Stay>,
    present: Vec<Tenant>,
    free: Vec<u32>,
    /// Pieces that machines gave back, and that are not deallocated yet.
    trims: Vec<u32>,
    with_trim: bool,
    page_size: f64,
    now_s: f64,
}

#[derive(Clone, Debug)]
struct Tenant {
    end_s: f64,
    /// How many pages the machine writes per second.
    rate: f64,
    pieces: Vec<u32>,
    /// How many pages the machine has written in sequence so far.
    loaded: u64,
}

impl Tenant {
    fn page_count(&self) -> u64 {
        self.pieces.len() as u64 * PIECE_PAGES
    }

    fn next_lba(&mut self, rng: &mut Rng) -> u64 {
        let page = if self.loaded < self.page_count() {
            self.loaded += 1;
            self.loaded - 1
        } else {
            rng.u64(..self.page_count())
        };
        let piece = u64::from(self.pieces[(page / PIECE_PAGES) as usize]);
        piece * PIECE_PAGES + page % PIECE_PAGES
    }
}

impl Tenants {
    /// The stream of a schedule, for a drive of `lba_count` pages. Together, these pages stand for
    /// [`CAPACITY`] bytes. The writes are the same with trims and without.
    pub fn new(schedule: &[Stay], lba_count: u64, with_trim: bool, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut free: Vec<u32> = (0..(lba_count / PIECE_PAGES) as u32).collect();
        rng.shuffle(&mut free);
        let mut coming = schedule.to_vec();
        coming.reverse();
        Self {
            rng,
            coming,
            present: Vec::new(),
            free,
            trims: Vec::new(),
            with_trim,
            page_size: CAPACITY / lba_count as f64,
            now_s: 0.0,
        }
    }

    /// The time of the latest operation, in seconds.
    pub fn now_s(&self) -> f64 {
        self.now_s
    }

    /// Removes the machines that have ended, and adds the machines that begin.
    fn turn(&mut self) {
        while let Some(index) = self.present.iter().position(|tenant| tenant.end_s <= self.now_s) {
            let gone = self.present.swap_remove(index);
            if self.with_trim {
                self.trims.extend(&gone.pieces);
            }
            self.free.extend(gone.pieces);
        }
        while let Some(stay) = self.coming.pop_if(|stay| stay.start_s <= self.now_s) {
            let wanted = (stay.memory / self.page_size / PIECE_PAGES as f64).floor() as usize;
            let pieces = (0..wanted.clamp(1, self.free.len().max(1)))
                .filter_map(|_| {
                    let free = self.free.len();
                    let place = (free > 0).then(|| self.rng.usize(..free))?;
                    if is_planted("memory-given-twice") {
                        return Some(self.free[place]);
                    }
                    Some(self.free.swap_remove(place))
                })
                .collect();
            let rate = stay.job.write_rate / self.page_size;
            self.present.push(Tenant { end_s: stay.end_s, rate, pieces, loaded: 0 });
        }
    }
}

impl Iterator for Tenants {
    type Item = HostOp;

    fn next(&mut self) -> Option<HostOp> {
        loop {
            if let Some(piece) = self.trims.pop() {
                let lba = u64::from(piece) * PIECE_PAGES;
                return Some(HostOp::Deallocate { lba, count: PIECE_PAGES });
            }
            self.turn();
            if !self.trims.is_empty() {
                continue;
            }
            if self.present.is_empty() {
                self.now_s = self.coming.last()?.start_s;
                continue;
            }
            let all: f64 = self.present.iter().map(|tenant| tenant.rate).sum();
            self.now_s += 1.0 / all;
            let mut drawn = self.rng.f64() * all;
            let last = self.present.len() - 1;
            let chosen = self.present.iter().position(|tenant| {
                drawn -= tenant.rate;
                drawn < 0.0
            });
            let tenant = &mut self.present[chosen.unwrap_or(last)];
            return Some(HostOp::Write { lba: tenant.next_lba(&mut self.rng) });
        }
    }
}

/// Number of writes between two samples of how full a drive is.
const SAMPLE_WRITES: u64 = 256;

/// What a drive wrote in a stretch of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Moment {
    /// Write amplification. `None` if the host wrote nothing.
    pub waf: Option<f64>,
    /// Pages written to the media.
    pub media_pages: u64,
    /// Which share of the logical pages was mapped. The share was sampled after every
    /// `SAMPLE_WRITES` writes. The mean alone would not suffice, because write amplification is not
    /// a linear function of the share.
    pub mapped_shares: Vec<f64>,
}

impl Moment {
    /// The mean of the samples. NaN if there are none.
    pub fn mapped_share(&self) -> f64 {
        self.mapped_shares.iter().sum::<f64>() / self.mapped_shares.len() as f64
    }
}

/// Runs a stream on a drive until the end of the last stretch.
///
/// # Errors
/// If the stream does not fit the drive.
pub fn run_tenants(
    drive: &mut Ftl,
    tenants: &mut Tenants,
    stretches: &[Stretch],
) -> Result<Vec<Moment>, FtlError> {
    let lba_count = drive.config().lba_count as f64;
    let mut moments = Vec::with_capacity(stretches.len());
    for stretch in stretches {
        let before = (drive.counters().host_pages(), drive.counters().media_bytes());
        let mut mapped_shares = Vec::new();
        while tenants.now_s() < stretch.end_s {
            let Some(op) = tenants.next() else { break };
            op.run(drive)?;
            let is_write = matches!(op, HostOp::Write { .. });
            if is_write && drive.counters().host_pages().is_multiple_of(SAMPLE_WRITES) {
                mapped_shares.push(drive.mapped_count() as f64 / lba_count);
            }
        }
        let host_pages = drive.counters().host_pages() - before.0;
        let page_bytes = slimio_device::LBA_SIZE as u64;
        let media_pages = (drive.counters().media_bytes() - before.1) / page_bytes;
        let waf = (host_pages > 0).then(|| media_pages as f64 / host_pages as f64);
        moments.push(Moment { waf, media_pages, mapped_shares });
    }
    Ok(moments)
}

#[cfg(test)]
mod tests {
    use super::super::population::{Population, schedule, stretches};
    use super::*;
    use crate::{Config, Victims};

    const POPULATION: Population =
        Population { count: 60, ycsb_share: 0.6, run_s: 60.0, load: 0.7 };
    const LBA_COUNT: u64 = 3600;

    fn stream(with_trim: bool) -> Tenants {
        Tenants::new(&schedule(&POPULATION, 1), LBA_COUNT, with_trim, 5)
    }

    #[test]
    fn trims_change_nothing_but_that_there_are_trims() {
        let writes = |with_trim| {
            stream(with_trim).filter(|op| matches!(op, HostOp::Write { .. })).collect::<Vec<_>>()
        };
        assert_eq!(writes(true), writes(false));
        let trimmed = stream(true).filter(|op| matches!(op, HostOp::Deallocate { .. })).count();
        assert!(trimmed > 60, "{trimmed}");
        assert!(stream(false).all(|op| matches!(op, HostOp::Write { .. })));
    }

    #[test]
    fn machines_write_as_much_as_their_schedule_says_and_never_what_another_holds() {
        let stays = schedule(&POPULATION, 1);
        let mut tenants = stream(true);
        let mut pages = 0;
        let mut owned = vec![false; LBA_COUNT as usize];
        while let Some(op) = tenants.next() {
            pages += u64::from(matches!(op, HostOp::Write { .. }));
            let mut seen = std::collections::HashSet::new();
            if pages.is_multiple_of(1000) {
                assert!(
                    tenants.present.iter().flat_map(|t| &t.pieces).all(|piece| seen.insert(*piece))
                );
            }
            if let HostOp::Write { lba } = op {
                owned[lba as usize] = true;
            }
        }
        let expected = stays.iter().map(Stay::written).sum::<f64>() * LBA_COUNT as f64 / CAPACITY;
        assert!(
            (pages as f64 / expected - 1.0).abs() < 0.02,
            "the machines write {pages} pages, not {expected}"
        );
        assert!(owned.iter().all(|owned| *owned), "the machines did not write every block");
    }

    #[test]
    fn without_trims_the_drive_fills_up_and_with_them_it_writes_less() {
        let stays = schedule(&POPULATION, 1);
        let stretches = stretches(&stays, 10);
        let run = |with_trim| {
            let config = Config::model(225, 250, 16, Victims::Fifo);
            assert_eq!(config.lba_count, LBA_COUNT);
            run_tenants(&mut Ftl::new(config).unwrap(), &mut stream(with_trim), &stretches).unwrap()
        };
        let (with, without) = (run(true), run(false));
        let last = |moments: &[Moment]| moments[9].mapped_share();
        assert!(last(&without) > 0.98 && last(&with) < 0.9);
        let media =
            |moments: &[Moment]| moments.iter().map(|moment| moment.media_pages).sum::<u64>();
        assert!(media(&with) < media(&without));
        for (moment, stretch) in with.iter().zip(&stretches) {
            let slack = moment.mapped_share() - stretch.held_share;
            assert!(
                slack < 0.02,
                "the drive holds data of machines that are gone: {moment:?} {stretch:?}"
            );
        }
    }
}
