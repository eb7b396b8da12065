//! The first workload of SlimIO's paper (SC Workshops 2025): SETs, with snapshots at the same time.
//! The amounts are scaled to the size of a drive. The paper's drive has 180 GiB.

/// The amounts of the run on the paper's drive.
const KEYS: f64 = 5_321_523.0;
const REQUESTS: f64 = 28_835_840.0;
const LOG_BYTES: f64 = 52.5 * (1_u64 << 30) as f64;

/// The amounts of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaperRun {
    /// Number of keys. Each key is set once before the run begins.
    pub key_count: u64,
    /// Size of a value, in bytes.
    pub value_size: usize,
    /// Number of repetitions. In each repetition, an on-demand snapshot is taken while clients
    /// write.
    pub repetitions: u32,
    /// Number of SETs in each repetition. Their keys are drawn uniformly.
    pub requests: u64,
    /// The log is rewritten when it has grown by this many bytes.
    pub log_bytes: u64,
    /// Number of connections. Each connection has one SET at a time.
    pub clients: usize,
}

impl PaperRun {
    /// Size of the paper's drive.
    pub const DRIVE_BYTES: u64 = 180 << 30;

    /// The run for a drive of `device_bytes` bytes.
    pub fn scaled(device_bytes: u64) -> Self {
        let scale = device_bytes as f64 / Self::DRIVE_BYTES as f64;
        Self {
            key_count: (KEYS * scale) as u64,
            value_size: 4096,
            repetitions: 5,
            requests: (REQUESTS * scale) as u64,
            log_bytes: (LOG_BYTES * scale) as u64,
            clients: 50,
        }
    }

    /// Size of the log's segments on a drive of `device_bytes` bytes. A segment is the same share
    /// of the drive as the default of 64 MiB is of the paper's drive, rounded up to a power of two.
    /// A segment has at least 1 MiB, the smallest allowed size, and at most 64 MiB.
    pub fn segment_bytes(device_bytes: u64) -> u64 {
        (device_bytes / 2880).next_power_of_two().clamp(1 << 20, 64 << 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scaled_run_keeps_the_papers_shares() {
        let paper = PaperRun::scaled(PaperRun::DRIVE_BYTES);
        assert_eq!((paper.key_count, paper.requests), (5_321_523, 28_835_840));
        let scaled = PaperRun::scaled(1440 << 20);
        assert_eq!(scaled.key_count, paper.key_count / 128);
        assert_eq!(scaled.log_bytes, paper.log_bytes / 128);
        let share =
            |run: &PaperRun, device: f64| run.key_count as f64 * run.value_size as f64 / device;
        assert!((share(&scaled, 1440.0) / share(&paper, 180.0 * 1024.0) - 1.0).abs() < 0.001);
    }
}
