//! `slimio drive`: an emulated SSD that other programs use.

mod serve;

use clap::Subcommand;

/// What is done with a drive.
#[derive(Debug, Subcommand)]
pub(crate) enum Drive {
    /// Offer an emulated SSD to this machine or others, over NVMe/TCP, until told to stop
    Serve(serve::Serve),
}

impl Drive {
    /// Does it.
    ///
    /// # Errors
    /// A sentence with a remedy.
    pub(crate) fn run(&self) -> Result<(), String> {
        match self {
            Self::Serve(serve) => serve.run(),
        }
    }
}
