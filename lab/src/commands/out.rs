//! The folder for the tables and pictures of an experiment.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use slimio_plot::Chart;

use crate::error::{Doing, Result};

/// The flag that names the folder.
#[derive(Debug, Args)]
pub(super) struct OutArg {
    /// Folder for the tables and pictures; created if it is missing
    #[arg(long, default_value = "./waf/")]
    out: PathBuf,
}

impl OutArg {
    pub(super) fn make(&self) -> Result<&Path> {
        fs::create_dir_all(&self.out).doing(format!("making {}", self.out.display()))?;
        Ok(&self.out)
    }

    pub(super) fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.out.join(name);
        fs::write(&path, text).doing(format!("writing {}", path.display()))
    }

    pub(super) fn draw(&self, name: &str, chart: &Chart) -> Result<()> {
        self.write(name, &chart.svg())
    }
}
