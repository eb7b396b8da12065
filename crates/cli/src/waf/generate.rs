//! `slimio waf generate`: makes a trace of what SlimIO's storage would write in the SlimIO paper's
//! benchmark. The benchmark is scaled to the size of the drive. Time is simulated, so the program
//! never waits for it to pass.

use std::fs::File;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use slimio_device::LBA_SIZE;
use slimio_ssd::trace::{TraceHeader, TraceWriter};
use slimio_ssd::workload::PaperRun;
use slimio_storage::{Lifetime, Policy};

use super::hollow::Hollow;
use super::stream::{Pace, Server};
use crate::tools::say;

/// The trace that is generated.
#[derive(Debug, Args)]
pub(super) struct Generate {
    /// Size of the drive, for example 1440M or 180G
    #[arg(long, default_value = "180G", value_parser = size)]
    size: u64,
    /// Value of appendfsync that the trace is for
    #[arg(long, value_enum, default_value_t = PolicyName::Everysec)]
    policy: PolicyName,
    /// Number of repetitions: each takes one on-demand snapshot and runs the paper's number of SETs
    #[arg(long, default_value_t = 5)]
    repetitions: u32,
    /// Number of keys, as a multiple of the paper's number; it decides how full the drive is
    #[arg(long, default_value_t = 1.0)]
    keys: f64,
    /// Length at which the log is rewritten, as a multiple of the paper's length
    #[arg(long, default_value_t = 1.0)]
    log: f64,
    /// File to write the trace to
    #[arg(long)]
    out: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PolicyName {
    Everysec,
    Always,
}

impl PolicyName {
    fn policy(self) -> Policy {
        match self {
            Self::Everysec => Policy::EverySec,
            Self::Always => Policy::Always,
        }
    }
}

fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text} is no size such as 1440M or 180G");
    let (number, shift) = match text.as_bytes().last() {
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

impl Generate {
    /// Writes the trace.
    ///
    /// # Errors
    /// If the trace can't be written, or the drive is too small for the run. The error is a
    /// sentence for the user.
    pub(super) fn run(&self) -> Result<(), String> {
        let paper = PaperRun::scaled(self.size);
        let run = PaperRun {
            key_count: (paper.key_count as f64 * self.keys) as u64,
            log_bytes: (paper.log_bytes as f64 * self.log) as u64,
            repetitions: self.repetitions,
            ..paper
        };
        let is_file = self.out.metadata().map_or(true, |there| there.is_file());
        let events = if is_file { self.write_whole(run)? } else { self.write(&self.out, run)? };
        say(&format!("{events} events in {}", self.out.display()));
        Ok(())
    }

    /// Writes the trace to a file that gets its final name only when it is complete, because an
    /// incomplete trace is useless.
    fn write_whole(&self, run: PaperRun) -> Result<u64, String> {
        let mut unfinished = self.out.clone().into_os_string();
        unfinished.push(".unfinished");
        let unfinished = PathBuf::from(unfinished);
        let named = self.write(&unfinished, run).and_then(|events| {
            let failed = |error| format!("{}: {error}", self.out.display());
            std::fs::rename(&unfinished, &self.out).map_err(failed).map(|()| events)
        });
        if named.is_err() {
            // If removing the file fails too, only the first error is reported.
            drop(std::fs::remove_file(&unfinished));
        }
        named
    }

    /// Writes the trace to a file. Returns how many events are in it.
    fn write(&self, path: &Path, run: PaperRun) -> Result<u64, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let file = File::create(path).map_err(failed)?;
        let trace = TraceWriter::new(file, &self.header(&run)).map_err(failed)?;
        let (device, record) = Hollow::new(self.size / LBA_SIZE as u64, trace);
        let server = Server::new(device, self.size, record.clone(), run, self.policy.policy());
        let server = server.map_err(|error| {
            format!(
                "a drive of {} MiB is too small for the run: {error}; take a larger --size",
                self.size >> 20
            )
        })?;
        server.run().map_err(|error| format!("{error}; take fewer --keys or a larger --size"))?;
        record.finish().map_err(failed)
    }

    fn header(&self, run: &PaperRun) -> TraceHeader {
        let pace = Pace::of_paper(self.policy.policy());
        let names = Lifetime::ALL.map(Lifetime::name).join(", ");
        let lines = [
            ("server", format!("SlimIO's storage in virtual time, {:?}", self.policy.policy())),
            (
                "workload",
                format!(
                    "{} keys, {} times {} SETs of {} bytes, {} clients",
                    run.key_count, run.repetitions, run.requests, run.value_size, run.clients
                ),
            ),
            (
                "snapshots",
                format!(
                    "a WAL-snapshot whenever the log has {} bytes, and an on-demand snapshot at the beginning of each \
                     repetition",
                    run.log_bytes
                ),
            ),
            (
                "pace",
                format!(
                    "{} SETs a second, {} during a snapshot, which writes {:.0} keys a second: the speeds \
                     that the paper measured",
                    pace.alone, pace.beside, pace.keys
                ),
            ),
            ("streams", names),
        ];
        let about = lines.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        TraceHeader { device_bytes: self.size, about }
    }
}

#[cfg(test)]
mod tests {
    use slimio_ssd::Config;
    use slimio_ssd::replay::{Outcome, Precondition, Replay};
    use slimio_ssd::trace::TraceReader;
    use slimio_volume::placements_of_lifetimes;

    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(size("1440M"), Ok(1440 << 20));
        assert_eq!(size("180G"), Ok(180 << 30));
        for wrong in ["", "G", "180", "-1G", "99999999999999999G"] {
            assert_eq!(size(wrong), Err(format!("{wrong} is no size such as 1440M or 180G")));
        }
    }

    fn generated(
        size: u64,
        policy: PolicyName,
        keys: f64,
        repetitions: u32,
    ) -> tempfile::NamedTempFile {
        let trace = tempfile::NamedTempFile::new().expect("there is room for a temporary file");
        let out = trace.path().to_path_buf();
        let generate = Generate { size, policy, repetitions, keys, log: 1.0, out };
        generate.run().expect("there is room on the drive");
        trace
    }

    /// Replays a trace on the paper's drive, scaled to `size`, with this many handles.
    fn replayed(trace: &tempfile::NamedTempFile, size: u64, handles: u16) -> Outcome {
        replayed_on(trace, Config { handles, ..Config::scaled(size) })
    }

    fn replayed_on(trace: &tempfile::NamedTempFile, config: Config) -> Outcome {
        let replay = Replay {
            handles: placements_of_lifetimes(config.handles).to_vec(),
            config,
            precondition: Precondition::Empty,
            stretch: 1,
        };
        // The trace is opened by name, because the finished trace has replaced the file that
        // `tempfile` made.
        let trace = TraceReader::new(File::open(trace.path()).expect("the trace exists"));
        replay.run(trace.expect("the file is a trace")).expect("the trace is complete")
    }

    /// The trace must hold everything that the run's clients and snapshots write. No two lifetimes
    /// (kinds of data that are deleted together) may share addresses or reclaim units.
    #[test]
    fn a_generated_trace_has_every_lifetime_to_itself() {
        let size = 360 << 20;
        for policy in [PolicyName::Everysec, PolicyName::Always] {
            let outcome = replayed(&generated(size, policy, 1.0, 2), size, 8);
            assert_eq!(outcome.separation.check(Lifetime::ALL.len(), &[]), Ok(()));
            let run = PaperRun::scaled(size);
            let value_lbas = (run.value_size / LBA_SIZE) as u64;
            let of = |lifetime: Lifetime| outcome.separation.written[lifetime.index()];
            let sets = run.key_count + 2 * run.requests;
            assert!(of(Lifetime::Wal) >= sets / 50 * 50 * value_lbas);
            let on_demand = of(Lifetime::Snapshot) / (run.key_count * value_lbas);
            assert_eq!(on_demand, 2);
            // There is one WAL-snapshot at the beginning, and one more whenever SETs have filled a
            // log.
            let rewrites = of(Lifetime::WalSnapshot) / (run.key_count * value_lbas);
            assert!((2..8).contains(&rewrites), "{rewrites} WAL-snapshots");
        }
    }

    /// The drive is nine tenths full. If the lifetimes share a handle, dead and live data are in
    /// the same units, so the collector has to copy. If each lifetime has a handle, the collector
    /// must copy almost nothing.
    #[test]
    fn data_placement_keeps_the_collector_from_copying() {
        let size = 1440 << 20;
        let trace = generated(size, PolicyName::Everysec, 1.4, 2);
        let waf = |handles| replayed(&trace, size, handles).waf().expect("the drive is written");
        let (without, with) = (waf(1), waf(4));
        assert!(with <= 1.005, "the WAF is {with} with a handle for each lifetime");
        assert!(without >= 1.02, "the WAF is {without} with one handle for all lifetimes");
    }

    /// The drive is full and has little spare NAND. If the collector has to keep more units free
    /// than the spare NAND provides, it copies from every unit that holds some dead data. With data
    /// placement, dead data shares a unit only with live data of the same lifetime. Such a unit
    /// exists only where one snapshot follows another, and where the log begins. The collector may
    /// copy only such units. If the spare NAND provides all units that the collector keeps free,
    /// the collector must copy nothing.
    #[test]
    fn with_data_placement_only_units_in_which_a_lifetime_goes_on_are_copied() {
        let size = 1440 << 20;
        let trace = generated(size, PolicyName::Always, 1.5, 6);
        let on = |handles, collects_below| {
            let config = Config { handles, ..Config::sized(size, None, 15) };
            let units = config.geometry.unit_count();
            let thresholds = config.thresholds.in_background_below(collects_below, units);
            let unit_size = config.geometry.unit_size();
            let outcome = replayed_on(&trace, Config { thresholds, ..config });
            let of = |kind| outcome.marks.iter().filter(|(_, mark)| mark == kind).count() as u64;
            let joints = 2 * of("WAL-snapshot") + of("on-demand snapshot");
            let last = outcome.points.last().expect("the drive is written");
            (last.media_bytes - last.host_bytes, joints * unit_size)
        };
        let (copied, joints) = on(4, 0.25);
        assert!(
            (1..=joints).contains(&copied),
            "{copied} bytes were copied, and at most {joints} bytes may be copied"
        );
        let (copied, _) = on(1, 0.25);
        assert!(
            copied > joints,
            "only {copied} bytes were copied without data placement, although up to {joints} bytes \
             may be copied even with data placement"
        );
        assert_eq!(on(4, 0.15).0, 0);
    }
}
