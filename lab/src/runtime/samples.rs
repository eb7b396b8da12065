//! Samples of server and drive, taken several times a second while clients write.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::error::{BenchError, Doing as _, Result};
use crate::proc::CpuTime;
use crate::recorder::{DriveMeter, GO_ON, HELD_BACK};
use crate::server::Server;

/// Time between two samples.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Where the drive's counters come from.
#[derive(Clone, Debug)]
pub enum Meter {
    /// From the server, by `INFO slimio`.
    Info,
    /// From the drive itself.
    Drive(DriveMeter),
}

/// One sample. The server's counters count from the server's start. The drive's counters count from
/// the time when the drive was empty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Seconds since sampling began.
    pub at_s: f64,
    /// Commands that the server has executed.
    pub commands: u64,
    /// Bytes that the host has written to the drive.
    pub host_bytes: u64,
    /// Bytes that the drive has written to its media.
    pub media_bytes: u64,
    /// CPU time of the server, including the children that it has waited for.
    pub cpu: Duration,
    /// Whether the server is writing an on-demand snapshot or rewriting its log.
    pub is_saving: bool,
}

impl Sample {
    fn take(client: &mut Client, pid: u32, meter: &Meter, began: Instant) -> Result<Self> {
        let commands = Section::of(client, "stats")?.number("total_commands_processed")?;
        let at_s = began.elapsed().as_secs_f64();
        let (host_bytes, media_bytes) = match meter {
            Meter::Info => {
                let info = Section::of(client, "slimio")?;
                (info.number("device_host_bytes")?, info.number("device_media_bytes")?)
            }
            Meter::Drive(drive) => drive.host_and_media_bytes(),
        };
        let cpu = CpuTime::of_process(pid)?.total();
        let info = Section::of(client, "persistence")?;
        let is_saving = info.number("rdb_bgsave_in_progress")? > 0
            || info.number("aof_rewrite_in_progress")? > 0;
        Ok(Self { at_s, commands, host_bytes, media_bytes, cpu, is_saving })
    }
}

/// A section of INFO as it was at one moment.
struct Section {
    name: &'static str,
    fields: BTreeMap<String, String>,
}

impl Section {
    fn of(client: &mut Client, name: &'static str) -> Result<Self> {
        Ok(Self { name, fields: client.info(name)? })
    }

    fn number(&self, field: &str) -> Result<u64> {
        let value = self.fields.get(field).and_then(|text| text.trim().parse().ok());
        let missing = || BenchError::Reply(format!("INFO {} lacks the number {field}", self.name));
        value.ok_or_else(missing)
    }
}

/// Takes samples in a separate thread.
#[derive(Debug)]
pub struct Sampler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<()>>>,
}

#[derive(Debug)]
struct Shared {
    began: Instant,
    is_over: AtomicBool,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    samples: Vec<Sample>,
    marks: Vec<(f64, String)>,
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sampler {
    /// Begins to sample a server, over a separate connection.
    pub fn start(server: &Server, meter: Meter) -> Result<Self> {
        let mut client = server.client()?;
        let pid = server.pid();
        let shared = Arc::new(Shared {
            began: Instant::now(),
            is_over: AtomicBool::new(false),
            seen: Mutex::default(),
        });
        let its_own = Arc::clone(&shared);
        let keep = move || {
            while !its_own.is_over.load(Ordering::Relaxed) {
                let began = Instant::now();
                let sample = Sample::take(&mut client, pid, &meter, its_own.began)?;
                its_own.seen().samples.push(sample);
                std::thread::park_timeout(POLL_INTERVAL.saturating_sub(began.elapsed()));
            }
            let last = Sample::take(&mut client, pid, &meter, its_own.began)?;
            its_own.seen().samples.push(last);
            Ok(())
        };
        let thread = std::thread::Builder::new().name("samples".into()).spawn(keep);
        Ok(Self { shared, thread: Some(thread.doing("starting the thread that takes samples")?) })
    }

    /// Marks this moment with a text that says what the clients do next.
    pub fn mark(&self, what: &str) {
        let at_s = self.shared.began.elapsed().as_secs_f64();
        self.shared.seen().marks.push((at_s, what.to_owned()));
    }

    /// Takes a last sample, and stops sampling.
    pub fn finish(mut self) -> Result<Samples> {
        self.end()?;
        let mut seen = self.shared.seen();
        Ok(Samples::of(std::mem::take(&mut seen.samples), &seen.marks))
    }

    fn end(&mut self) -> Result<()> {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.thread().unpark();
        thread.join().expect("the thread that takes samples does not panic")
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        // If the thread still samples here, the measurement has failed before `finish`. The error
        // of the measurement is reported, and the error of the thread is dropped.
        drop(self.end());
    }
}

/// The results of sampling. Times count from the start of the first repetition, except the time of
/// `last`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    /// The samples from the start of the first repetition to the last SET.
    pub during: Vec<Sample>,
    /// Begin and end of each period in which clients were held back.
    pub held_back: Vec<(f64, f64)>,
    /// The last sample: its counters cover the run from an empty drive until all snapshots were
    /// complete.
    pub last: Option<Sample>,
}

impl Samples {
    fn of(samples: Vec<Sample>, marks: &[(f64, String)]) -> Self {
        let at = |what: &str| marks.iter().find(|(_, mark)| mark.starts_with(what));
        let begin = at("repetition 1").map_or(0.0, |(at, _)| *at);
        let end = at("the last SET").map_or(f64::INFINITY, |(at, _)| *at);
        let last = samples.last().copied();
        let during = samples.into_iter().filter(|sample| (begin..=end).contains(&sample.at_s));
        let during = during.map(|sample| Sample { at_s: sample.at_s - begin, ..sample });
        let mut held_back: Vec<(f64, f64)> = Vec::new();
        for (at_s, mark) in marks {
            match (mark.as_str(), held_back.last_mut()) {
                (HELD_BACK, _) => held_back.push((at_s - begin, f64::INFINITY)),
                (GO_ON, Some((_, to))) => *to = at_s - begin,
                _ => {}
            }
        }
        Self { during: during.collect(), held_back, last }
    }

    /// Requests per second between two successive samples, at the time midway between them. Points
    /// at which clients were held back are left out.
    pub fn requests_per_s(&self) -> Vec<(f64, f64)> {
        let mut rates = self.rates(|sample| sample.commands);
        let is_held = |at: f64| self.held_back.iter().any(|(from, to)| (*from..=*to).contains(&at));
        rates.retain(|(at, _)| !is_held(*at));
        rates
    }

    /// CPU time of the server for each request, in microseconds.
    pub fn cpu_us_per_request(&self) -> f64 {
        let [first, .., last] = self.during.as_slice() else { return f64::NAN };
        let cpu = last.cpu.saturating_sub(first.cpu);
        cpu.as_secs_f64() * 1e6 / last.commands.saturating_sub(first.commands) as f64
    }

    /// MiB per second that the drive wrote to its media in addition to what the host wrote.
    pub fn collected_mib_per_s(&self) -> Vec<(f64, f64)> {
        let of_host = self.rates(|sample| sample.host_bytes);
        let of_media = self.rates(|sample| sample.media_bytes);
        let pairs = of_media.into_iter().zip(of_host);
        // Both counters count the pages that the host writes. So the difference is the pages that
        // the collector has copied.
        let mib = f64::from(1 << 20);
        pairs.map(|((at, media), (_, host))| (at, ((media - host) / mib).max(0.0))).collect()
    }

    /// Begin and end of each snapshot: the times of the first and the last sample that found it
    /// running.
    pub fn snapshots(&self) -> Vec<(f64, f64)> {
        let mut stretches: Vec<(f64, f64)> = Vec::new();
        let mut was_saving = false;
        for sample in &self.during {
            if sample.is_saving {
                match stretches.last_mut() {
                    Some((_, end)) if was_saving => *end = sample.at_s,
                    _ => stretches.push((sample.at_s, sample.at_s)),
                }
            }
            was_saving = sample.is_saving;
        }
        stretches
    }

    fn rates(&self, of: impl Fn(&Sample) -> u64) -> Vec<(f64, f64)> {
        let pairs = self.during.windows(2).filter(|pair| pair[1].at_s > pair[0].at_s);
        let rate = |pair: &[Sample]| {
            let seconds = pair[1].at_s - pair[0].at_s;
            let count = of(&pair[1]).saturating_sub(of(&pair[0]));
            (f64::midpoint(pair[0].at_s, pair[1].at_s), count as f64 / seconds)
        };
        pairs.map(rate).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_s: f64, commands: u64, mib: (u64, u64), is_saving: bool) -> Sample {
        let (host_bytes, media_bytes) = (mib.0 << 20, mib.1 << 20);
        let cpu = Duration::from_micros(5 * commands);
        Sample { at_s, commands, host_bytes, media_bytes, cpu, is_saving }
    }

    #[test]
    fn rates_are_those_between_the_first_repetition_and_the_last_set() {
        let held = [(1.9, HELD_BACK.to_owned()), (2.4, GO_ON.to_owned())];
        let samples = vec![
            sample(0.5, 0, (0, 0), false),
            sample(1.0, 100, (10, 10), false),
            sample(1.5, 150, (20, 25), true),
            sample(2.5, 350, (30, 55), true),
            sample(3.0, 350, (40, 65), false),
            sample(9.0, 360, (50, 75), true),
        ];
        let marks =
            [(1.0, "repetition 1: BGSAVE"), (2.0, "repetition 2: BGSAVE"), (3.5, "the last SET")];
        let marks = marks.map(|(at, what)| (at, what.to_owned()));
        let held = Samples::of(samples.clone(), &[&marks[..1], &held].concat());
        assert_eq!(held.requests_per_s(), [(0.25, 100.0), (1.75, 0.0), (5.0, 10.0 / 6.0)]);
        let samples = Samples::of(samples, &marks);
        assert_eq!(samples.requests_per_s(), [(0.25, 100.0), (1.0, 200.0), (1.75, 0.0)]);
        assert_eq!(samples.collected_mib_per_s(), [(0.25, 10.0), (1.0, 20.0), (1.75, 0.0)]);
        assert_eq!(samples.snapshots(), [(0.5, 1.5)]);
        assert!((samples.cpu_us_per_request() - 5.0).abs() < 1e-9);
        assert_eq!(samples.last.unwrap().media_bytes, 75 << 20);
    }
}
