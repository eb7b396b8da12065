//! `slimio drive`: an emulated SSD that other programs use.

mod control;
mod page;
mod process;
mod serve;
mod stats;

use clap::Subcommand;

/// The subcommands of `slimio drive`.
#[derive(Debug, Subcommand)]
pub(crate) enum Drive {
    /// Offer an emulated SSD to this machine or others, over NVMe/TCP, until told to stop
    Serve(serve::Serve),
    /// Show how much a served drive has written, copied and erased, in all and for each handle
    Stats(stats::Stats),
    /// Show the output of stats anew each second, until the drive is not served any more
    Top(stats::Top),
}

impl Drive {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// If the subcommand fails. The error is a sentence for the user.
    pub(crate) fn run(&self) -> Result<(), String> {
        match self {
            Self::Serve(serve) => serve.run(),
            Self::Stats(stats) => stats.run(),
            Self::Top(top) => top.run(),
        }
    }
}
