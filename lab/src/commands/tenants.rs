//! `slimio-lab tenants`: simulates virtual machines that come and go on one drive, as in the paper
//! of Lee et al. (`HotStorage` 2025). Each combination of a mix of machines and a collector runs
//! twice. In one run, each machine trims its blocks at its end. In the other run, no machine does.

use std::fmt::Write as _;

use clap::Args;
use slimio_plot::{Axis, Chart, Curve, Ink, Panel};
use slimio_ssd::model::{Trims, alpha_of_spare, effective_alpha, fifo};
use slimio_ssd::workload::population::{Population, Stay, Stretch, schedule, stretches};
use slimio_ssd::workload::{Moment, Tenants as Stream, on_all_cores, run_tenants};
use slimio_ssd::{Config, Ftl, Victims};

use super::out::OutArg;
use crate::error::{BenchError, Result};

/// Mixes of machines that run YCSB or DLRM. A mix's name is the ratio of YCSB to DLRM. The number
/// is the share of YCSB.
const MIXES: [(&str, f64); 2] = [("6:4", 0.6), ("3:7", 0.3)];
/// Number of equal stretches into which a run's time is cut.
const STRETCHES: u32 = 100;
/// Mean lifetimes of machines in the second table, in minutes.
const RUN_MINUTES: [f64; 6] = [5.0, 10.0, 15.0, 20.0, 60.0, 240.0];
/// A drive counts as full if at least this share of its blocks is mapped.
const FULL: f64 = 0.999;
const UNIT_PAGES: u32 = 32;

/// The help text of `slimio-lab tenants`.
pub const HELP: &str = include_str!("../../help/tenants.txt");

/// The arguments.
#[derive(Debug, Args)]
pub struct Tenants {
    #[command(flatten)]
    out: OutArg,
    /// Number of machines in the table of the formulas
    #[arg(long, default_value_t = 5000)]
    machines: u32,
    /// How many of these machines, counted from the first, are simulated
    #[arg(long, default_value_t = 500)]
    simulated: u32,
    /// Mean lifetime of a machine, in minutes
    #[arg(long, default_value_t = 20.0)]
    run_minutes: f64,
    /// Share of the drive that machines would hold if none had to wait for room
    #[arg(long, default_value_t = 0.7)]
    load: f64,
    /// Share of the NAND that is not exported
    #[arg(long, default_value_t = 0.1)]
    spare: f64,
    /// Number of reclaim units of the simulated drive, which is a small model of the real drive
    #[arg(long, default_value_t = 1000)]
    units: u32,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// One run on the simulated drive.
#[derive(Clone, Copy)]
struct Run {
    mix: usize,
    victims: Victims,
    with_trim: bool,
}

/// The samples of one mix and one collector, with TRIM and without.
struct Pair {
    with: Vec<Moment>,
    without: Vec<Moment>,
}

/// Mean and largest saving by TRIM, as shares of the WAF without TRIM.
#[derive(Clone, Copy)]
struct Saved {
    mean: f64,
    most: f64,
}

impl Tenants {
    /// Simulates all runs, and writes the tables and pictures. Returns the text to print.
    pub fn run(&self) -> Result<String> {
        let alpha = self.check()?;
        let folder = self.out.make()?.display();
        let schedules: Vec<(Vec<Stay>, Vec<Stretch>)> = MIXES
            .iter()
            .map(|(_, ycsb_share)| {
                let mut stays =
                    schedule(&self.population(*ycsb_share, self.run_minutes), self.seed);
                stays.truncate(self.simulated as usize);
                let stretches = stretches(&stays, STRETCHES);
                (stays, stretches)
            })
            .collect();
        let runs: Vec<Run> = (0..MIXES.len())
            .flat_map(|mix| {
                [Victims::Fifo, Victims::Greedy].into_iter().flat_map(move |victims| {
                    [true, false].map(|with_trim| Run { mix, victims, with_trim })
                })
            })
            .collect();
        let results = on_all_cores(&runs, |run| {
            let (stays, stretches) = &schedules[run.mix];
            self.simulate(run, stays, stretches)
        });
        let mut moments = results.into_iter().collect::<Result<Vec<_>>>()?.into_iter();
        let mut pairs = Vec::new();
        while let (Some(with), Some(without)) = (moments.next(), moments.next()) {
            pairs.push(Pair { with, without });
        }
        let mut rows = String::new();
        for (mix, ((name, _), (_, stretches))) in MIXES.iter().zip(&schedules).enumerate() {
            let (by_age, greedy) = (&pairs[mix * 2], &pairs[mix * 2 + 1]);
            let file = format!("tenants-{}.svg", name.replace(':', "-"));
            self.out.draw(&file, &chart(name, alpha, stretches, by_age))?;
            rows.push_str(&row(name, alpha, stretches, by_age, greedy));
        }
        self.out.write("tenants.md", &self.text(alpha, &rows))?;
        Ok(format!("wrote tenants.md and two pictures to {folder}\n"))
    }

    /// Checks the arguments. Returns alpha: all NAND, divided by the exported part.
    fn check(&self) -> Result<f64> {
        let alpha = alpha_of_spare(self.spare).map_err(|error| refused(&error))?;
        if self.load <= 0.0 || self.load > 1.0 || self.load.is_nan() {
            return Err(refused(&format!(
                "--load {}: the share of the drive must be above 0 and at most 1",
                self.load
            )));
        }
        if !(self.run_minutes.is_finite() && self.run_minutes > 0.0) {
            return Err(refused(&format!(
                "--run-minutes {}: the time must be above 0",
                self.run_minutes
            )));
        }
        if self.simulated < 2 || self.simulated > self.machines {
            return Err(refused(&format!(
                "--simulated {}: give 2 at least, and no more than there are --machines ({})",
                self.simulated, self.machines
            )));
        }
        self.config(Victims::Fifo).check().map_err(|error| refused(&error))?;
        Ok(alpha)
    }

    fn config(&self, victims: Victims) -> Config {
        let exported = (f64::from(self.units) * (1.0 - self.spare)).round() as u32;
        Config::model(exported, self.units, UNIT_PAGES, victims)
    }

    fn population(&self, ycsb_share: f64, run_minutes: f64) -> Population {
        let (count, load) = (self.machines, self.load);
        Population { count, ycsb_share, run_s: run_minutes * 60.0, load }
    }

    fn simulate(&self, run: &Run, stays: &[Stay], stretches: &[Stretch]) -> Result<Vec<Moment>> {
        let config = self.config(run.victims);
        let mut stream = Stream::new(stays, config.lba_count, run.with_trim, self.seed);
        let mut drive = Ftl::new(config).map_err(|error| refused(&error))?;
        run_tenants(&mut drive, &mut stream, stretches).map_err(|error| refused(&error))
    }

    fn text(&self, alpha: f64, rows: &str) -> String {
        let mut text = format!(
            "# Machines that come and go, with TRIM at their end and without\n\n\
             Made by `cargo x waf tenants --machines {} --simulated {} --run-minutes {} --load \
             {} --spare {} --units {} --seed {}`. Virtual machines share a drive of 22.75 GiB \
             with a spare factor of {}. The memory of each machine is a part of this drive. Each \
             machine first writes its memory once. Then it writes at random places in its memory \
             until its end, with the traffic that Lee et al. report. With TRIM, the memory is \
             deallocated at the machine's end. Without TRIM, the drive keeps the memory as data \
             until another machine overwrites it. The machines are drawn at random: sizes from \
             0.75 to 14 GiB, log-normal lifetimes, and Poisson arrivals that would fill {} of the \
             drive if no machine had to wait for room.\n\n\
             Time is cut into {STRETCHES} stretches. The table leaves out the first stretches, in \
             which the drive without TRIM is not full yet. `mean` and `most`: the mean and the \
             largest reduction of the WAF by TRIM, over the stretches. `held`: the mean share of the \
             drive that machines hold. `in use`: the mean share of the drive that counts as \
             data. The simulated drive has {} units of {UNIT_PAGES} pages. Each page stands for \
             a larger piece of the real drive. The simulations and the formulas in this table \
             are for the first {} machines.\n\n\
             | YCSB : DLRM | trim ratio D | held | in use, with TRIM | formula of D: mean | most | formula of \
             the live share: mean | most | FIFO, simulated: mean | most | greedy, simulated: mean | most |\n\
             |---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n{rows}\
             | *Lee et al.* | – | – | – | *-11.56 %* | *-19.69 %* | – | – | – | – | – | – |\n\n\
             * alpha: all NAND of the drive over the exported part. Each formula below gives a larger alpha, from which the WAF with TRIM follows.\n\
             * formula of D: `alpha (1 + D)`, where D is the deallocated bytes of a stretch over its written bytes.\n\
             * formula of the live share: alpha over the part of the drive that the drive counts as data, \
             sampled throughout each stretch.\n",
            self.machines,
            self.simulated,
            self.run_minutes,
            self.load,
            self.spare,
            self.units,
            self.seed,
            self.spare,
            self.load,
            self.units,
            self.simulated,
        );
        for (name, _) in MIXES {
            let file = name.replace(':', "-");
            // Writing to a string does not fail.
            let _ = writeln!(text, "\n![YCSB to DLRM {name}](tenants-{file}.svg)");
        }
        let _ = write!(
            text,
            "\n## Lifetimes of the machines\n\nThe formulas are for all {} machines. The longer machines live, the \
             lower the trim ratio is. The free part of the drive depends on the lifetime far less.\n\n\
             | mean run | YCSB : DLRM | D | formula of D: mean | most | held | formula of the live share: \
             mean | most |\n|---:|---|---:|---:|---:|---:|---:|---:|\n",
            self.machines
        );
        for run_minutes in RUN_MINUTES {
            for (name, ycsb_share) in MIXES {
                let stays = schedule(&self.population(ycsb_share, run_minutes), self.seed);
                let stretches = stretches(&stays, STRETCHES);
                let held: Vec<f64> = stretches.iter().map(|stretch| stretch.held_share).collect();
                let _ = writeln!(
                    text,
                    "| {run_minutes} min | {name} | {:.4} | {} | {:.2} | {} |",
                    ratio(&stretches),
                    saved(stretches.iter().map(|stretch| by_ratio(alpha, stretch))),
                    mean(held.iter().copied()),
                    saved(held.iter().map(|&share| by_live_share(alpha, share))),
                );
            }
        }
        text
    }
}

fn refused(why: &dyn std::fmt::Display) -> BenchError {
    BenchError::Usage(why.to_string())
}

/// A row of the first table.
fn row(name: &str, alpha: f64, stretches: &[Stretch], by_age: &Pair, greedy: &Pair) -> String {
    let first = by_age.first_full();
    let (stretches, with) = (&stretches[first..], &by_age.with[first..]);
    format!(
        "| {name} | {:.4} | {:.2} | {:.2} | {} | {} | {} | {} |\n",
        ratio(stretches),
        mean(stretches.iter().map(|stretch| stretch.held_share)),
        mean(with.iter().map(Moment::mapped_share)),
        saved(stretches.iter().map(|stretch| by_ratio(alpha, stretch))),
        saved(with.iter().map(|moment| by_live_shares(alpha, moment))),
        saved(by_age.saved(first)),
        saved(greedy.saved(first)),
    )
}

impl Pair {
    /// The first stretch in which the drive without TRIM is full.
    fn first_full(&self) -> usize {
        let full = |moment: &Moment| moment.mapped_share() >= FULL;
        self.without.iter().position(full).unwrap_or(0)
    }

    fn saved(&self, first: usize) -> impl Iterator<Item = Option<f64>> {
        let pairs = self.with.iter().zip(&self.without).skip(first);
        pairs.map(|(with, without)| Some(1.0 - with.waf? / without.waf?))
    }
}

/// Deallocated bytes, divided by written bytes.
fn ratio(stretches: &[Stretch]) -> f64 {
    let written: f64 = stretches.iter().map(|stretch| stretch.written).sum();
    stretches.iter().map(|stretch| stretch.given_back).sum::<f64>() / written
}

/// The saving by TRIM in a stretch, by the formula of Lee et al.
fn by_ratio(alpha: f64, stretch: &Stretch) -> Option<f64> {
    by_live_share(alpha, Trims::AnyPage.live_share(stretch.trim_ratio()).ok()?)
}

/// The mean saving over the samples of the stretch. The saving at a sample is that of a drive that
/// always holds as much data as this drive held at the sample.
fn by_live_shares(alpha: f64, moment: &Moment) -> Option<f64> {
    let saved = moment.mapped_shares.iter().map(|&share| by_live_share(alpha, share));
    let saved = saved.collect::<Option<Vec<f64>>>()?;
    (!saved.is_empty()).then(|| mean(saved.into_iter()))
}

/// The saving of a drive if only this share of its blocks holds data.
fn by_live_share(alpha: f64, live_share: f64) -> Option<f64> {
    let seen = effective_alpha(alpha, live_share.min(1.0)).ok()?;
    Some(1.0 - fifo(seen).ok()? / fifo(alpha).ok()?)
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values
        .filter(|value| value.is_finite())
        .fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count.max(1))
}

fn saved(values: impl Iterator<Item = Option<f64>>) -> Saved {
    let values: Vec<f64> = values.flatten().collect();
    Saved {
        mean: mean(values.iter().copied()),
        most: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
    }
}

impl std::fmt::Display for Saved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:+.2} % | {:+.2} %", -100.0 * self.mean, -100.0 * self.most)
    }
}

fn chart(name: &str, alpha: f64, stretches: &[Stretch], by_age: &Pair) -> Chart {
    let over_time = |values: &dyn Fn(usize) -> Option<f64>| {
        let at =
            |index: usize| (stretches[index].start_s / 3600.0, values(index).unwrap_or(f64::NAN));
        (0..stretches.len()).map(at).collect::<Vec<_>>()
    };
    let whole = fifo(alpha).ok();
    let after = |saved: Option<f64>| Some(whole? * (1.0 - saved?));
    let panel = |title: &str, y, curves| {
        let x = Axis { title: "time (hours)".into(), ..Axis::default() };
        Panel { title: title.into(), x, y, is_low: false, curves }
    };
    let used = vec![
        Curve::line("held by machines", Ink::Grey, over_time(&|at| Some(stretches[at].held_share))),
        Curve::line(
            "drive, without TRIM",
            Ink::Red,
            over_time(&|at| Some(by_age.without[at].mapped_share())),
        ),
        Curve::line(
            "drive, with TRIM",
            Ink::Blue,
            over_time(&|at| Some(by_age.with[at].mapped_share())),
        ),
    ];
    let waf = vec![
        Curve::line("without TRIM", Ink::Red, over_time(&|at| by_age.without[at].waf)),
        Curve::line("with TRIM", Ink::Blue, over_time(&|at| by_age.with[at].waf)),
        Curve::line(
            "formula of the trim ratio",
            Ink::Orange,
            over_time(&|at| after(by_ratio(alpha, &stretches[at]))),
        ),
        Curve::line(
            "formula of the live share",
            Ink::Green,
            over_time(&|at| after(by_live_shares(alpha, &by_age.with[at]))),
        ),
    ];
    Chart {
        title: format!("Machines that come and go, YCSB to DLRM {name}"),
        panels: vec![
            panel("use of the drive", Axis::from(0.0, "part of the drive"), used),
            panel(
                "write amplification, FIFO, simulated and by formula",
                Axis::from(1.0, "WAF (bytes to media / host)"),
                waf,
            ),
        ],
    }
}
