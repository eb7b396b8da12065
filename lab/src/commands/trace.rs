//! `slimio-lab trace`: records what a server writes to its device.

use std::path::{Path, PathBuf, absolute};

use clap::Args;

use crate::error::{BenchError, Doing, Result};
use crate::recorder::{FileSystemKind, Place, Recording, drive_bytes};
use crate::server::{Policy, find_program};

/// The help text of `slimio-lab trace`.
pub const HELP: &str = include_str!("../../help/trace.txt");

/// Name of the folder that is made in `--folder`. The name is fixed, so that the next run finds the
/// mounts and devices that a killed run has left.
const OWN_FOLDER: &str = "slimio-trace";

/// The flags.
#[derive(Debug, Args)]
pub struct Trace {
    #[arg(long, value_parser = FileSystemKind::named, default_value = "ext4")]
    file_system: FileSystemKind,
    #[arg(long)]
    discard: bool,
    #[arg(long)]
    slimio: Option<PathBuf>,
    #[arg(long, value_parser = Policy::named, default_value = "everysec")]
    policy: Policy,
    #[arg(long, default_value_t = 1440)]
    size: u64,
    #[arg(long, default_value_t = 1.0)]
    keys: f64,
    #[arg(long)]
    repetitions: Option<u32>,
    #[arg(long)]
    redis: Option<PathBuf>,
    #[arg(long)]
    folder: Option<PathBuf>,
    #[arg(long)]
    out: PathBuf,
    #[arg(long)]
    seed: Option<u64>,
}

/// Records a trace, and returns the text to print.
pub fn run(args: &Trace) -> Result<String> {
    let &Trace { file_system: kind, discard, policy, .. } = args;
    let device_bytes = drive_bytes(args.size)?;
    let redis = args.redis.clone().or_else(|| find_program("redis-server"));
    let (program, place) = match (args.slimio.clone(), redis) {
        (Some(slimio), _) => (slimio, Place::Device),
        (None, Some(redis)) => (redis, Place::FileSystem { kind, discard }),
        (None, None) => {
            return Err(BenchError::Usage(
                "redis-server is not installed; give its path with --redis".into(),
            ));
        }
    };
    let mut workload = place.workload(device_bytes);
    workload.repetitions = args.repetitions.unwrap_or(workload.repetitions);
    workload.seed = args.seed.unwrap_or(workload.seed);
    workload.key_count = (workload.key_count as f64 * args.keys) as u64;
    let folder = args.folder.clone().unwrap_or_else(std::env::temp_dir);

    // A server's current directory is its own folder, so paths must be absolute.
    let whole = |path: &Path| absolute(path).doing(format!("finding {}", path.display()));
    let (folder, trace) = (whole(&folder)?.join(OWN_FOLDER), whole(&args.out)?);
    let recording = Recording { program, place, policy, device_bytes, workload, folder, trace };
    let events = recording.run()?;
    Ok(format!("{events} events in {}\n", recording.trace.display()))
}
