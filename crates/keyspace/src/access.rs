//! When and how often a key was used. The key's slot has 24 bits for this information.
//!
//! ```text
//! LRU   23                                  0     LFU   23             8 7         0
//!       |  seconds, of the last access      |           | minutes, of   | logarithm |
//!       |  (wrap after 194 days)            |           | last access   | of uses   |
//! ```
//!
//! Both formats are those of Redis. They are approximations, because a list of all keys in the
//! order of their use would take more memory.

/// Bits of an [`Access`].
const BITS: u32 = 24;
const MASK: u32 = (1 << BITS) - 1;

/// The count that a new key starts with (`LFU_INIT_VAL`). With a count of 0, the key would be among
/// the first to be evicted.
const COUNT_NEW: u8 = 5;

/// The last access of an entry, as stored in its slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Access(u32);

/// How accesses are counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// If true, keys are ranked by the frequency of use (LFU), otherwise by the time of the last
    /// use (LRU).
    pub(crate) counts: bool,
    /// The larger this factor is, the more uses it takes to raise the count by one
    /// (`lfu-log-factor`).
    pub(crate) log_factor: u32,
    /// Minutes after which the count drops by one, or 0 if it never drops (`lfu-decay-time`).
    pub(crate) decay_minutes: u32,
}

impl Access {
    pub(crate) fn from_bits(bits: u32) -> Self {
        Self(bits & MASK)
    }

    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    /// The access of a new entry.
    pub(crate) fn new(now_ms: i64, rules: Rules) -> Self {
        if rules.counts { Self::counted(now_ms, COUNT_NEW) } else { Self(seconds(now_ms)) }
    }

    /// The access of an entry that has been idle for `idle_s` seconds (LRU).
    pub(crate) fn idle(now_ms: i64, idle_s: u64) -> Self {
        Self(seconds(now_ms).wrapping_sub(idle_s.min(u64::from(MASK)) as u32) & MASK)
    }

    /// The access of an entry that is used now. `count` is the logarithm of the count of its uses
    /// (LFU).
    pub(crate) fn counted(now_ms: i64, count: u8) -> Self {
        Self(u32::from(minutes(now_ms)) << 8 | u32::from(count))
    }

    /// The access of an entry that is used now. Under LFU, `random` decides whether the count goes
    /// up.
    #[must_use]
    pub(crate) fn touched(self, now_ms: i64, rules: Rules, random: u64) -> Self {
        if !rules.counts {
            return Self(seconds(now_ms));
        }
        let count = self.count(now_ms, rules);
        let above_new = u64::from(count.saturating_sub(COUNT_NEW));
        // The count is raised with a probability of 1 / (above_new * log_factor + 1).
        let odds = above_new.saturating_mul(u64::from(rules.log_factor)) + 1;
        let is_more = count < u8::MAX && random <= u64::MAX / odds;
        Self::counted(now_ms, count + u8::from(is_more))
    }

    /// Seconds since the last access (LRU).
    pub(crate) fn idle_seconds(self, now_ms: i64) -> u32 {
        seconds(now_ms).wrapping_sub(self.0) & MASK
    }

    /// The logarithm of the count of uses, after the decay since the last use (LFU; `OBJECT FREQ`).
    pub(crate) fn count(self, now_ms: i64, rules: Rules) -> u8 {
        let passed = minutes(now_ms).wrapping_sub((self.0 >> 8) as u16);
        let decayed = u32::from(passed).checked_div(rules.decay_minutes).unwrap_or(0);
        (self.0 as u8).saturating_sub(u8::try_from(decayed).unwrap_or(u8::MAX))
    }
}

/// The time in seconds, cut to 24 bits, as `INFO` shows it in `lru_clock`.
fn seconds(now_ms: i64) -> u32 {
    now_ms.div_euclid(1000) as u32 & MASK
}

fn minutes(now_ms: i64) -> u16 {
    now_ms.div_euclid(60_000) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    const LRU: Rules = Rules { counts: false, log_factor: 10, decay_minutes: 1 };
    const LFU: Rules = Rules { counts: true, ..LRU };
    const MINUTE_MS: i64 = 60_000;

    #[test]
    fn idle_time_is_right_while_the_clock_wraps() {
        for now_ms in [0, 1_700_000_000_000, i64::from(MASK) * 1000] {
            let access = Access::new(now_ms, LRU);
            assert_eq!(access.idle_seconds(now_ms), 0);
            assert_eq!(access.idle_seconds(now_ms + 77_000), 77);
            let access = access.touched(now_ms + 70_000, LRU, 0);
            assert_eq!(access.idle_seconds(now_ms + 77_000), 7);
        }
    }

    /// Compares our counts with the table in the comments of `redis.conf`. For each log factor,
    /// that table has the counts after 100, 1000 and more uses.
    #[test]
    fn uses_are_counted_by_their_logarithm() {
        let uses = [100, 1_000, 100_000, 1_000_000];
        let table = [
            (0, [104, 255, 255, 255]),
            (1, [18, 49, 255, 255]),
            (10, [10, 18, 142, 255]),
            (100, [8, 11, 49, 143]),
        ];
        for (log_factor, counts) in table {
            let rules = Rules { log_factor, ..LFU };
            for (uses, expected) in uses.into_iter().zip(counts) {
                let mut access = Access::new(0, rules);
                let mut random = 1u64;
                for _ in 0..uses {
                    random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
                    let mixed = (random ^ random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
                    access = access.touched(0, rules, mixed ^ mixed >> 31);
                }
                let count = access.count(0, rules);
                let tolerance = 3 + expected / 10;
                assert!(count.abs_diff(expected) <= tolerance, "{log_factor} {uses}: {count}");
            }
        }
    }

    #[test]
    fn counts_decay_with_time() {
        let access = Access::new(0, LFU);
        assert_eq!(access.count(0, LFU), COUNT_NEW);
        assert_eq!(access.count(3 * MINUTE_MS, LFU), COUNT_NEW - 3);
        assert_eq!(access.count(300 * MINUTE_MS, LFU), 0);
        assert_eq!(access.count(3 * MINUTE_MS, Rules { decay_minutes: 2, ..LFU }), COUNT_NEW - 1);
        assert_eq!(access.count(900 * MINUTE_MS, Rules { decay_minutes: 0, ..LFU }), COUNT_NEW);
        // The minutes have 16 bits, so they wrap around between these two times.
        let late = Access::new(65_535 * MINUTE_MS, LFU);
        assert_eq!(late.count(65_537 * MINUTE_MS, LFU), COUNT_NEW - 2);
        assert_eq!(Access::from_bits(late.bits()), late);
    }
}
