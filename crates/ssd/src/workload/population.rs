//! Draws at random which virtual machines come and go on one drive: their jobs, sizes, beginnings
//! and ends.
//!
//! The population is invented. The paper (Lee et al., "Revisiting Trim for CXL Memory",
//! `HotStorage` 2025) gives the traffic of each job, the two mixes of jobs, the number of machines
//! (5000), and the most memory that they had together (22.75 GiB). It does not give the machines'
//! sizes, lifetimes and arrivals, so these are drawn at random here. Sizes are drawn from those
//! that Azure offered, and lifetimes from a log-normal distribution. Arrivals are drawn from a
//! Poisson process that fills the drive to a given share.

use fastrand::Rng;

/// The job of a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Job {
    /// The job's name in the paper.
    pub name: &'static str,
    /// How much the job writes to memory, in bytes per second.
    pub write_rate: f64,
}

const fn job(name: &'static str, write_mb_per_s: u32) -> Job {
    Job { name, write_rate: write_mb_per_s as f64 * 1e6 }
}

/// The YCSB workloads. The rates, here and in [`DLRM`], are from the table of memory access traffic
/// in Lee et al.
pub const YCSB: [Job; 6] = [
    job("YCSB A", 147),
    job("YCSB B", 154),
    job("YCSB C", 94),
    job("YCSB D", 388),
    job("YCSB E", 40),
    job("YCSB F", 101),
];

/// Training and inference of a recommendation model.
pub const DLRM: [Job; 2] = [job("DLRM training", 500), job("DLRM inference", 267)];

/// The sizes of machines in GiB, each with the percentage of machines that have this size. The
/// sizes are those of the Azure machines of 2017. The percentages are assumed: small machines are
/// common, large ones rare.
pub const SIZES: [(f64, u32); 5] = [(0.75, 10), (1.75, 40), (3.5, 30), (7.0, 15), (14.0, 5)];

/// Size of the drive that the machines share, in bytes. The paper writes GB. But the number is a
/// sum of machine sizes (14 + 7 + 1.75), and those are in GiB.
pub const CAPACITY: f64 = 22.75 * GIB;

/// The spread of lifetimes: the standard deviation of their logarithm.
const LIFETIME_SIGMA: f64 = 1.0;

const GIB: f64 = (1_u64 << 30) as f64;

/// The parameters that a population is drawn from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Population {
    /// Number of machines.
    pub count: u32,
    /// The share of machines that run a YCSB workload. The others run DLRM.
    pub ycsb_share: f64,
    /// How long a machine runs on average after its memory was loaded, in seconds.
    pub run_s: f64,
    /// The part of the drive that the machines would hold on average if no machine ever had to
    /// wait, and if loading the memory took no time.
    pub load: f64,
}

/// A machine, from its beginning to its end. A machine may have waited between its arrival and its
/// beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stay {
    /// When the machine begins, in seconds from the start of the schedule.
    pub start_s: f64,
    /// When the machine ends, in seconds.
    pub end_s: f64,
    /// Size of its memory, in bytes. The machine first writes the whole memory once, and then at
    /// random places.
    pub memory: f64,
    /// The machine's job.
    pub job: Job,
}

impl Stay {
    /// How many bytes the machine writes.
    pub fn written(&self) -> f64 {
        (self.end_s - self.start_s) * self.job.write_rate
    }
}

/// Draws a population, and starts its machines in the order in which they arrive. A machine that
/// does not fit waits for room, and all later machines wait until that machine has started.
pub fn schedule(population: &Population, seed: u64) -> Vec<Stay> {
    let mut rng = Rng::with_seed(seed);
    let mean_memory: f64 =
        SIZES.iter().map(|&(gib, share)| gib * GIB * f64::from(share) / 100.0).sum();
    let mut arrived_s = 0.0;
    let mut begun_s = 0.0;
    let mut stays: Vec<Stay> = Vec::new();
    // The machines on the drive: the time at which each ends, and the size of its memory.
    let mut present: Vec<(f64, f64)> = Vec::new();
    for _ in 0..population.count {
        let job = draw_job(population.ycsb_share, &mut rng);
        let memory = draw_memory(&mut rng);
        let run_s = population.run_s * draw_log_normal(&mut rng);
        let rate = population.load * CAPACITY / (mean_memory * population.run_s);
        arrived_s -= (1.0 - rng.f64()).ln() / rate;
        let mut start_s = f64::max(arrived_s, begun_s);
        present.retain(|&(end_s, _)| end_s > start_s);
        while present.iter().map(|(_, held)| held).sum::<f64>() + memory > CAPACITY {
            let next = present.iter().map(|(end_s, _)| *end_s).fold(f64::INFINITY, f64::min);
            start_s = next;
            present.retain(|&(end_s, _)| end_s > start_s);
        }
        begun_s = start_s;
        let end_s = start_s + memory / job.write_rate + run_s;
        present.push((end_s, memory));
        stays.push(Stay { start_s, end_s, memory, job });
    }
    stays
}

fn draw_job(ycsb_share: f64, rng: &mut Rng) -> Job {
    if rng.f64() < ycsb_share {
        YCSB[rng.usize(..YCSB.len())]
    } else {
        DLRM[rng.usize(..DLRM.len())]
    }
}

fn draw_memory(rng: &mut Rng) -> f64 {
    let mut drawn = rng.u32(..100);
    for (gib, share) in SIZES {
        if drawn < share {
            return gib * GIB;
        }
        drawn -= share;
    }
    unreachable!("the percentages add up to 100")
}

/// A log-normal random number with mean 1 (Box and Muller's method).
fn draw_log_normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
    let normal = radius * (std::f64::consts::TAU * rng.f64()).cos();
    (LIFETIME_SIGMA * normal - LIFETIME_SIGMA * LIFETIME_SIGMA / 2.0).exp()
}

/// What the machines do in a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    /// When the stretch begins, in seconds.
    pub start_s: f64,
    /// When the stretch ends, in seconds.
    pub end_s: f64,
    /// The part of the drive that machines held, on average.
    pub held_share: f64,
    /// How many bytes machines wrote.
    pub written: f64,
    /// How many bytes machines gave back.
    pub given_back: f64,
}

impl Stretch {
    /// The trim ratio of this stretch: how many bytes were given back for each byte written.
    pub fn trim_ratio(&self) -> f64 {
        if self.written > 0.0 { self.given_back / self.written } else { 0.0 }
    }
}

/// Divides the time until the last machine begins into `count` equal stretches. The time after the
/// last machine has begun is left out, because the drive then only empties.
pub fn stretches(stays: &[Stay], count: u32) -> Vec<Stretch> {
    let last_s = stays.iter().map(|stay| stay.start_s).fold(0.0, f64::max);
    let len_s = last_s / f64::from(count);
    (0..count)
        .map(|index| {
            let (start_s, end_s) = (len_s * f64::from(index), len_s * f64::from(index + 1));
            let mut stretch =
                Stretch { start_s, end_s, held_share: 0.0, written: 0.0, given_back: 0.0 };
            for stay in stays {
                let there_s = (stay.end_s.min(end_s) - stay.start_s.max(start_s)).max(0.0);
                stretch.held_share += stay.memory * there_s / (len_s * CAPACITY);
                stretch.written += stay.job.write_rate * there_s;
                if (start_s..end_s).contains(&stay.end_s) {
                    stretch.given_back += stay.memory;
                }
            }
            stretch
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const POPULATION: Population =
        Population { count: 3000, ycsb_share: 0.6, run_s: 600.0, load: 0.7 };

    #[test]
    fn machines_never_hold_more_than_the_drive_and_come_in_order() {
        let stays = schedule(&POPULATION, 1);
        assert_eq!(stays.len(), 3000);
        assert!(stays.is_sorted_by(|a, b| a.start_s <= b.start_s));
        let mut peak = 0.0_f64;
        for now in &stays {
            let there = |stay: &&Stay| stay.start_s <= now.start_s && now.start_s < stay.end_s;
            let held: f64 = stays.iter().filter(there).map(|stay| stay.memory).sum();
            assert!(held <= CAPACITY, "the machines hold {held} bytes at {} s", now.start_s);
            peak = peak.max(held);
        }
        assert!(
            peak > 0.95 * CAPACITY,
            "at no time do the machines hold almost all of the drive: {peak}"
        );
    }

    #[test]
    fn a_population_is_drawn_as_it_is_described() {
        let stays = schedule(&POPULATION, 2);
        let share = |is: &dyn Fn(&Stay) -> bool| {
            stays.iter().filter(|stay| is(stay)).count() as f64 / stays.len() as f64
        };
        assert!((share(&|stay| stay.job.name.starts_with("YCSB")) - 0.6).abs() < 0.03);
        assert!((share(&|stay| stay.memory < 2.0 * GIB) - 0.5).abs() < 0.03);
        let run_s = |stay: &Stay| stay.end_s - stay.start_s - stay.memory / stay.job.write_rate;
        let mean_s = stays.iter().map(run_s).sum::<f64>() / stays.len() as f64;
        assert!((mean_s / 600.0 - 1.0).abs() < 0.1, "{mean_s}");
        assert_eq!(stays, schedule(&POPULATION, 2), "the same seed gave two populations");
        assert_ne!(stays, schedule(&POPULATION, 3));
    }

    #[test]
    fn stretches_add_up() {
        let stays = schedule(&POPULATION, 4);
        let stretches = stretches(&stays, 50);
        let end_s = stretches[49].end_s;
        let written: f64 = stretches.iter().map(|stretch| stretch.written).sum();
        let by_machine = |stay: &Stay| (stay.end_s.min(end_s) - stay.start_s) * stay.job.write_rate;
        let expected: f64 = stays.iter().map(by_machine).sum();
        assert!((written / expected - 1.0).abs() < 1e-9);
        let given_back: f64 = stretches.iter().map(|stretch| stretch.given_back).sum();
        let ended = stays.iter().filter(|stay| stay.end_s < end_s);
        assert!((given_back / ended.map(|stay| stay.memory).sum::<f64>() - 1.0).abs() < 1e-9);
        assert!(stretches.iter().all(|stretch| stretch.held_share <= 1.0 + 1e-9));
    }
}
