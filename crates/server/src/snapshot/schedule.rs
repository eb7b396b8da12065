//! Decides when a snapshot begins without a request.

/// `save seconds changes`: a snapshot is due `seconds` seconds after the last one, if there were at
/// least `changes` changes since then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SavePoint {
    pub(crate) seconds: i64,
    pub(crate) changes: u64,
}

impl SavePoint {
    /// Seconds until a snapshot is due, if `since` seconds have passed since the last one. As in
    /// Redis, the snapshot is due when more than `seconds` have passed. `None` if there are not
    /// enough changes.
    pub(crate) fn due_in(self, since: i64, changes: u64) -> Option<i64> {
        (changes >= self.changes && changes > 0)
            .then(|| self.seconds.saturating_add(1).saturating_sub(since).max(0))
    }
}

/// The save points in the value of `save`. The value is a list of pairs of numbers, which were
/// checked when `save` was set.
pub(crate) fn save_points(text: &str) -> Vec<SavePoint> {
    let numbers: Vec<i64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    numbers
        .chunks_exact(2)
        .map(|pair| SavePoint { seconds: pair[0], changes: pair[1].max(0) as u64 })
        .collect()
}

/// The values that decide whether the log is rewritten: `auto-aof-rewrite-percentage`,
/// `auto-aof-rewrite-min-size`, and the room on the volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RewriteRule {
    /// A rewrite is due when the log has grown by this percentage of the last snapshot's size; 0
    /// turns this condition off.
    pub(crate) percentage: u64,
    /// As long as the snapshot and the log together have at most this many bytes, no rewrite is
    /// due.
    pub(crate) size_min: u64,
    /// Largest number of bytes that the log may have.
    pub(crate) room: u64,
}

/// A snapshot must make room when more than this percentage of the log's room is taken.
const ROOM_PERCENT: u64 = 75;

/// If a snapshot would release at most this percentage of the log's room, it is not made for the
/// sake of room.
const GAIN_PERCENT: u64 = 10;

impl RewriteRule {
    /// Whether the log has grown so much that a snapshot is worth its cost. The snapshot that
    /// recovery starts from has `base` bytes, and the log after it has `log` bytes.
    pub(crate) fn is_due(&self, base: u64, log: u64) -> bool {
        self.percentage > 0
            && base + log > self.size_min
            && log.saturating_mul(100) / base.max(1) >= self.percentage
    }

    /// Bytes by which the log may grow before a snapshot must make room, if `used` bytes of the
    /// log's room are taken.
    pub(crate) fn room_at_ease(&self, used: u64) -> u64 {
        (self.room / 100 * ROOM_PERCENT).saturating_sub(used)
    }

    /// Whether the log is short of room, if `used` bytes of its room are taken. If `is_full` is
    /// set, the log cannot grow any more.
    pub(crate) fn is_short(&self, used: u64, is_full: bool) -> bool {
        is_full || used > self.room / 100 * ROOM_PERCENT
    }

    /// Whether a snapshot must make room, if `used` bytes of the log's room are taken and a
    /// snapshot that begins now would release `gain` of them.
    pub(crate) fn is_urgent(&self, used: u64, gain: u64, is_full: bool) -> bool {
        let room = if is_full { used } else { self.room };
        self.is_short(used, is_full) && gain > room / 100 * GAIN_PERCENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    #[test]
    fn a_save_point_needs_time_and_changes() {
        let points = save_points("60 100 10 1000");
        assert_eq!(points[1], SavePoint { seconds: 10, changes: 1000 });
        assert_eq!(points[0].due_in(0, 99), None);
        assert_eq!(points[0].due_in(20, 100), Some(41));
        assert_eq!(points[0].due_in(61, 100), Some(0));
        assert_eq!(SavePoint { seconds: 1, changes: 0 }.due_in(9, 0), None);
        assert_eq!(SavePoint { seconds: i64::MAX, changes: 1 }.due_in(9, 1), Some(i64::MAX - 9));
        assert!(save_points("").is_empty());
    }

    #[test]
    fn a_rewrite_is_due_when_the_log_has_doubled_and_is_not_small() {
        let rule = RewriteRule { percentage: 100, size_min: 64 * MB, room: 1024 * MB };
        assert!(!rule.is_due(0, 64 * MB), "a log of 64 MB is too small");
        assert!(rule.is_due(0, 65 * MB), "a larger log without a snapshot must be rewritten");
        assert!(!rule.is_due(50 * MB, 49 * MB));
        assert!(rule.is_due(50 * MB, 50 * MB));
        assert!(!RewriteRule { percentage: 0, ..rule }.is_due(1, 1 << 40));
    }

    #[test]
    fn a_log_that_runs_out_of_room_is_urgent_only_if_a_snapshot_gains_room() {
        let rule = RewriteRule { percentage: 0, size_min: 0, room: 1000 * MB };
        assert!(!rule.is_urgent(700 * MB, 700 * MB, false));
        assert!(rule.is_urgent(800 * MB, 800 * MB, false));
        assert_eq!(rule.room_at_ease(700 * MB), 50 * MB);
        assert_eq!(rule.room_at_ease(800 * MB), 0);
        assert!(
            !rule.is_urgent(800 * MB, 50 * MB, false),
            "a snapshot that gains little room is not urgent"
        );
        assert!(
            rule.is_urgent(100 * MB, 50 * MB, true),
            "on a full volume, a snapshot that gains room is urgent"
        );
        assert!(!rule.is_urgent(100 * MB, 0, true));
    }
}
