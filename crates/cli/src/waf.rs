//! `slimio waf`: write amplification of recorded traces, by formula, and of made-up streams.

mod compare;
mod generate;
mod hollow;
pub(crate) mod map;
mod replay;
mod stream;
mod tenants;
mod validate;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use slimio_ssd::workload::Size;

/// What an SSD writes for what its host writes.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Waf {
    #[command(flatten)]
    traces: replay::Traces,
    /// Part of the media that the drive does not export [default: 0.25 for traces, 0.1 for --model]
    #[arg(long, allow_negative_numbers = true)]
    spare: Option<f64>,
    /// Formula and simulation side by side, for one drive with uniform writes
    #[arg(long, conflicts_with = "files", help_heading = "By formula")]
    model: bool,
    #[command(flatten)]
    drive: compare::Drive,
    #[command(flatten)]
    map: map::Map,
    #[command(subcommand)]
    experiment: Option<Experiment>,
}

#[derive(Debug, Subcommand)]
enum Experiment {
    /// The formulas against simulation over spare factors and trim ratios: validation.md and .png
    Validate(validate::Validate),
    /// What SlimIO's storage writes in the paper's run, on a drive of any size, as a trace
    Generate(generate::Generate),
    /// Machines that come and go, with TRIM at their end and without: tenants.md and pictures
    Tenants(tenants::Tenants),
}

impl Waf {
    pub(crate) fn run(&self) -> Result<(), String> {
        match &self.experiment {
            Some(Experiment::Validate(validate)) => validate.run(),
            Some(Experiment::Generate(generate)) => generate.run(),
            Some(Experiment::Tenants(tenants)) => tenants.run(),
            None if self.map.is_wanted() => self.map.run(),
            None if self.model => self.drive.run(self.spare),
            None if self.traces.is_empty() => Err("say what: a trace to replay, as cargo x trace \
                 records it, or --model, or an experiment of slimio waf --help"
                .into()),
            None => self.traces.run(self.spare),
        }
    }
}

/// How large a drive is simulated.
#[derive(Clone, Copy, Debug, Args)]
struct SizeArgs {
    /// Units of the simulated drive that data may lie in
    #[arg(long, default_value_t = 4000)]
    units: u32,
    /// Pages of each unit
    #[arg(long, default_value_t = 128)]
    unit_pages: u32,
    /// The seed of all that is random: the same one gives the same numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl SizeArgs {
    fn size(self) -> Size {
        Size { unit_count: self.units, unit_pages: self.unit_pages }
    }
}

/// Where an experiment leaves its table and its pictures.
#[derive(Debug, Args)]
struct OutArg {
    /// Folder for the tables and pictures; made if it is not there
    #[arg(long, default_value = "./waf/")]
    out: PathBuf,
}

impl OutArg {
    fn make(&self) -> Result<&Path, String> {
        std::fs::create_dir_all(&self.out)
            .map_err(|error| format!("{} can't be made: {error}", self.out.display()))?;
        Ok(&self.out)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), String> {
        let path = self.out.join(name);
        std::fs::write(&path, text)
            .map_err(|error| format!("{} can't be written: {error}", path.display()))
    }

    fn draw(&self, name: &str, chart: &slimio_plot::Chart) -> Result<(), String> {
        let path = self.out.join(name);
        slimio_plot::write_png(&chart.draw(), &path)
            .map_err(|error| format!("{} can't be written: {error}", path.display()))
    }
}

/// Runs `work` on every item, on all cores; the results are in the items' order.
fn on_all_cores<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let next = std::sync::atomic::AtomicUsize::new(0);
    let take = || next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let one_thread = || {
        let mine = std::iter::from_fn(|| {
            let index = take();
            Some((index, items.get(index)?))
        });
        mine.map(|(index, item)| (index, work(item))).collect::<Vec<_>>()
    };
    let mut all: Vec<(usize, R)> = std::thread::scope(|scope| {
        let running: Vec<_> =
            (0..threads.min(items.len())).map(|_| scope.spawn(one_thread)).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("it does not panic")).collect()
    });
    all.sort_unstable_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, result)| result).collect()
}
