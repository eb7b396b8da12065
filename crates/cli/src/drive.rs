//! `slimio drive`: an emulated SSD that other programs use.

mod control;
mod page;
mod process;
mod serve;
mod stats;

use clap::Subcommand;

/// What is done with a drive.
#[derive(Debug, Subcommand)]
pub(crate) enum Drive {
    /// Offer an emulated SSD to this machine or others, over NVMe/TCP, until told to stop
    Serve(serve::Serve),
    /// Show what a drive that is served has written, copied and erased, and for which handles
    Stats(stats::Stats),
    /// The same, each second
    Top(stats::Top),
}

impl Drive {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// A sentence with a remedy.
    pub(crate) fn run(&self) -> Result<(), String> {
        match self {
            Self::Serve(serve) => serve.run(),
            Self::Stats(stats) => stats.run(),
            Self::Top(top) => top.run(),
        }
    }
}
