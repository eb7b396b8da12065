//! `slimio waf`: computes write amplification, from recorded or generated traces, or by formula.

mod compare;
mod generate;
mod hollow;
mod replay;
mod stream;

use clap::{Args, Subcommand};
use slimio_ssd::workload::Size;

/// Computes how much an SSD writes to its media for each byte that its host writes.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "A checkout of SlimIO has commands that draw pictures: cargo x waf with validate, tenants or map."
)]
pub(crate) struct Waf {
    #[command(flatten)]
    traces: replay::Traces,
    /// Part of the media that the drive does not export [default: 0.25 for traces, 0.1 for --model]
    #[arg(long, allow_negative_numbers = true)]
    spare: Option<f64>,
    /// Compare the formulas with a simulation, for one drive with uniform writes
    #[arg(long, conflicts_with = "files", help_heading = "By formula")]
    model: bool,
    #[command(flatten)]
    drive: compare::Drive,
    #[command(subcommand)]
    experiment: Option<Experiment>,
}

#[derive(Debug, Subcommand)]
enum Experiment {
    /// Write a trace of what SlimIO's storage writes in the SlimIO paper's benchmark, scaled to a
    /// drive of any size
    Generate(generate::Generate),
}

impl Waf {
    pub(crate) fn run(&self) -> Result<(), String> {
        match &self.experiment {
            Some(Experiment::Generate(generate)) => generate.run(),
            None if self.model => self.drive.run(self.spare),
            None if self.traces.is_empty() => Err("name a trace to replay (cargo x trace \
                 records one), use --model, or use a command that slimio waf --help lists"
                .into()),
            None => self.traces.run(self.spare),
        }
    }
}

/// Size and seed of the simulated drive.
#[derive(Clone, Copy, Debug, Args)]
struct SizeArgs {
    /// Number of reclaim units that can hold data
    #[arg(long, default_value_t = Size::DEFAULT.unit_count)]
    units: u32,
    /// Number of pages of each reclaim unit
    #[arg(long, default_value_t = Size::DEFAULT.unit_pages)]
    unit_pages: u32,
    /// Seed of the random numbers: the same seed gives the same results
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl SizeArgs {
    fn size(self) -> Size {
        Size { unit_count: self.units, unit_pages: self.unit_pages }
    }
}
