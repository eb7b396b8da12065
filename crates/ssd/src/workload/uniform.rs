//! Generates uniformly random writes of single blocks, with trims in between.

use fastrand::Rng;

use super::HostOp;
use crate::model::{ModelError, Trims};

/// An endless stream of uniform writes to a drive on which every block has been written once. The
/// stream also has trims, evenly spaced: `ratio` trims per write. Each trim is of one block.
#[derive(Clone, Debug)]
pub struct UniformWrites {
    rng: Rng,
    lba_count: u32,
    /// Trims per write.
    ratio: f64,
    /// How many trims are due, including a fraction of a trim. When the number reaches 1, one trim
    /// is issued.
    due: f64,
    target: Target,
}

#[derive(Clone, Debug)]
enum Target {
    Any,
    Live(LiveSet),
}

impl UniformWrites {
    /// The stream of `seed` for a drive of `lba_count` blocks.
    ///
    /// # Errors
    /// If the ratio is out of the range of [`Trims::live_share`], if there are no blocks, or if
    /// there are 2^32 blocks or more.
    pub fn new(lba_count: u64, trims: Trims, ratio: f64, seed: u64) -> Result<Self, ModelError> {
        trims.live_share(ratio)?;
        let lba_count = u32::try_from(lba_count).unwrap_or(0);
        if lba_count == 0 {
            return Err(ModelError::NoPages);
        }
        let target = match trims {
            Trims::LivePage if ratio > 0.0 => Target::Live(LiveSet::all(lba_count)),
            _ => Target::Any,
        };
        Ok(Self { rng: Rng::with_seed(seed), lba_count, ratio, due: 0.0, target })
    }
}

impl Iterator for UniformWrites {
    type Item = HostOp;

    fn next(&mut self) -> Option<HostOp> {
        if self.due >= 1.0 {
            self.due -= 1.0;
            let lba = match &mut self.target {
                Target::Any => Some(self.rng.u32(..self.lba_count)),
                Target::Live(live) => live.take(&mut self.rng),
            };
            if let Some(lba) = lba {
                return Some(HostOp::Deallocate { lba: u64::from(lba), count: 1 });
            }
        }
        self.due += self.ratio;
        let lba = self.rng.u32(..self.lba_count);
        if let Target::Live(live) = &mut self.target {
            live.add(lba);
        }
        Some(HostOp::Write { lba: u64::from(lba) })
    }
}

/// The set of blocks that hold data, from which random blocks can be drawn.
#[derive(Clone, Debug)]
struct LiveSet {
    lbas: Vec<u32>,
    /// For each block, its index in `lbas`, or [`ABSENT`] if `lbas` does not have the block.
    place_of: Vec<u32>,
}

const ABSENT: u32 = u32::MAX;

impl LiveSet {
    fn all(lba_count: u32) -> Self {
        let lbas: Vec<u32> = (0..lba_count).collect();
        Self { place_of: lbas.clone(), lbas }
    }

    fn add(&mut self, lba: u32) {
        let place = &mut self.place_of[lba as usize];
        if *place == ABSENT {
            *place = self.lbas.len() as u32;
            self.lbas.push(lba);
        }
    }

    /// Removes a random block and returns it.
    fn take(&mut self, rng: &mut Rng) -> Option<u32> {
        let len = self.lbas.len();
        if len == 0 {
            return None;
        }
        let place = rng.usize(..len);
        let lba = self.lbas.swap_remove(place);
        self.place_of[lba as usize] = ABSENT;
        if let Some(moved) = self.lbas.get(place) {
            self.place_of[*moved as usize] = place as u32;
        }
        Some(lba)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// The blocks that are live after `ops` operations, and the number of trims among these
    /// operations.
    fn live_after(trims: Trims, ratio: f64, ops: usize) -> (HashSet<u64>, usize) {
        let stream = UniformWrites::new(1000, trims, ratio, 7).unwrap();
        let (mut live, mut trimmed): (HashSet<u64>, usize) = ((0..1000).collect(), 0);
        for op in stream.take(ops) {
            match op {
                HostOp::Write { lba } => {
                    live.insert(lba);
                }
                HostOp::Deallocate { lba, count } => {
                    assert_eq!(count, 1);
                    assert!(
                        live.remove(&lba) || trims == Trims::AnyPage,
                        "block {lba} was not live"
                    );
                    trimmed += 1;
                }
            }
        }
        (live, trimmed)
    }

    #[test]
    fn a_stream_keeps_its_trim_ratio_and_leaves_the_live_share_of_the_model() {
        for (trims, ratio) in
            [(Trims::AnyPage, 0.5), (Trims::LivePage, 0.5), (Trims::LivePage, 0.1)]
        {
            let ops = 60_000;
            let (live, trimmed) = live_after(trims, ratio, ops);
            let exact = ops as f64 * ratio / (1.0 + ratio);
            assert!(
                (trimmed as f64 - exact).abs() <= 2.0,
                "{trimmed} of {ops} operations are trims"
            );
            let share = live.len() as f64 / 1000.0;
            let expected = trims.live_share(ratio).unwrap();
            assert!(
                (share - expected).abs() < 0.06,
                "{trims:?} with ratio {ratio}: the live share is {share}, not {expected}"
            );
        }
    }

    #[test]
    fn the_seed_decides_the_stream() {
        let stream = |seed| UniformWrites::new(99, Trims::LivePage, 0.3, seed).unwrap();
        assert!(stream(1).take(500).eq(stream(1).take(500)));
        assert!(!stream(1).take(500).eq(stream(2).take(500)));
        assert_eq!(UniformWrites::new(0, Trims::AnyPage, 0.0, 1).unwrap_err(), ModelError::NoPages);
    }
}
