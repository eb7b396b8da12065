//! `slimio-lab drive`: compares the emulated SSD over NVMe/TCP with the same drive in this process.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use crate::drive::{self, Extent};
use crate::error::{BenchError, Doing as _, Result};
use crate::runtime::folder_in_memory;
use crate::server::find_program;

/// The help text of `slimio-lab drive`.
pub const HELP: &str = include_str!("../../help/drive.txt");

/// How long the host polls for a reply before it sleeps. The time is longer than any request takes.
const SPIN: Duration = Duration::from_millis(10);

/// The flags of `slimio-lab drive`.
#[derive(Debug, Args)]
pub struct Drive {
    #[arg(long)]
    slimio: Option<PathBuf>,
    #[arg(long, default_value = "./drive")]
    out: PathBuf,
    #[arg(long)]
    folder: Option<PathBuf>,
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    #[arg(long)]
    sleepy: bool,
    #[arg(long)]
    quick: bool,
}

/// Runs the measurements, and returns the text to print.
///
/// # Errors
/// When the drive can't be served, a command fails, or the write amplification over NVMe/TCP is not
/// the same as in this process. When a drive's counters are lower after a kill than before.
pub fn run(args: &Drive) -> Result<String> {
    let missing =
        || BenchError::Usage("slimio is not installed; give its path with --slimio".into());
    let program = args.slimio.clone().or_else(|| find_program("slimio")).ok_or_else(missing)?;
    let parent = args.folder.clone().unwrap_or_else(folder_in_memory);
    let folder = parent.join(format!("slimio-drive-{}", std::process::id()));
    let spin = if args.sleepy { Duration::ZERO } else { SPIN };
    let extent = if args.quick {
        Extent { time: Duration::from_millis(100), size_mib: 64, killed_mib: 64, spin }
    } else {
        Extent { time: Duration::from_secs(args.seconds), size_mib: 256, killed_mib: 2048, spin }
    };
    fs::create_dir_all(&args.out).doing(format!("making {}", args.out.display()))?;
    fs::create_dir_all(&folder).doing(format!("making {}", folder.display()))?;
    let result = measured(&program, &folder, extent);
    fs::remove_dir_all(&folder).doing(format!("removing {}", folder.display()))?;
    let text = result?;
    let path = args.out.join("drive.md");
    fs::write(&path, &text).doing(format!("writing {}", path.display()))?;
    Ok(format!("{text}\nwritten to {}\n", path.display()))
}

fn measured(program: &Path, folder: &Path, extent: Extent) -> Result<String> {
    let tables = drive::run(program, folder, extent)?;
    let host = if extent.spin.is_zero() { "sleeps while it waits" } else { "polls" };
    Ok(format!(
        "# The emulated SSD over NVMe/TCP\n\nMeasured on loopback with SlimIO's own initiator, which \
         {host}. For the drive in this process, the caller polls.\n\n{tables}"
    ))
}
