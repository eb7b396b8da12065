//! A drive's volatile write cache.

use std::collections::VecDeque;
use std::time::Duration;

/// A volatile cache. It keeps no data, and models only how much room is free. Blocks leave the
/// cache in order, each when it is on the media.
#[derive(Debug)]
pub(super) struct Cache {
    pub(super) lbas_max: u64,
    lbas: u64,
    /// The blocks in the cache. Each element is a number of blocks, and the time at which these
    /// blocks are on the media.
    taken: VecDeque<(u64, Duration)>,
    empty_at: Duration,
}

impl Cache {
    pub(super) fn new(lbas_max: u32) -> Self {
        let taken = VecDeque::new();
        Self { lbas_max: u64::from(lbas_max), lbas: 0, taken, empty_at: Duration::ZERO }
    }

    /// Takes blocks that will be on the media at `written`. Returns the time at which the cache has
    /// room for them. If they never fit, returns `written`.
    pub(super) fn take(&mut self, lbas: u64, now: Duration, written: Duration) -> Duration {
        self.empty_at = self.empty_at.max(written);
        if lbas > self.lbas_max {
            return written;
        }
        let mut room_at = now;
        while let Some(&(others, at)) = self.taken.front() {
            if at > now && self.lbas + lbas <= self.lbas_max {
                break;
            }
            room_at = room_at.max(at);
            self.lbas -= others;
            self.taken.pop_front();
        }
        self.taken.push_back((lbas, written));
        self.lbas += lbas;
        room_at
    }

    pub(super) fn empty_at(&self) -> Duration {
        self.empty_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_hides_writes_until_it_is_full() {
        let micros = Duration::from_micros;
        let mut cache = Cache::new(8);
        assert_eq!(cache.take(4, micros(0), micros(200)), micros(0));
        assert_eq!(cache.take(4, micros(0), micros(400)), micros(0));
        assert_eq!(
            cache.take(1, micros(1), micros(600)),
            micros(200),
            "the first blocks must leave the cache"
        );
        assert_eq!(
            cache.take(3, micros(2), micros(700)),
            micros(2),
            "the first blocks are no longer in the cache"
        );
        assert_eq!(cache.take(9, micros(3), micros(900)), micros(900), "nine blocks never fit");
        assert_eq!(cache.empty_at(), micros(900));
        assert_eq!(cache.take(8, micros(1000), micros(1200)), micros(1000), "all blocks have left");
    }
}
