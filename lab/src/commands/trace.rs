//! `slimio-lab trace`: records what a server writes to its device.

use std::path::{Path, PathBuf, absolute};

use crate::args::Args;
use crate::error::{BenchError, Doing, Result};
use crate::recorder::{FileSystemKind, Place, Recording, drive_bytes};
use crate::server::{Policy, find_program};

/// Flags without a value.
pub const SWITCHES: &[&str] = &["discard"];

/// What the flags of `trace` mean.
pub const HELP: &str = include_str!("../../help/trace.txt");

/// A folder made in `--folder`. A run that was killed has left it, and the next run finds it.
const OWN_FOLDER: &str = "slimio-trace";

/// Records what `args` describe; the result is the text to print.
pub fn run(mut args: Args) -> Result<String> {
    let kind = FileSystemKind::named(&args.value("file-system", "ext4".to_owned())?)?;
    let discard = args.switch("discard");
    let policy =
        Policy::named(&args.value("policy", "everysec".to_owned())?).map_err(BenchError::Usage)?;
    let device_bytes = drive_bytes(args.value("size", 1440u64)?)?;
    let redis = args.text("redis").map(PathBuf::from).or_else(|| find_program("redis-server"));
    let (program, place) = match (args.text("slimio"), redis) {
        (Some(slimio), _) => (slimio.into(), Place::Device),
        (None, Some(redis)) => (redis, Place::FileSystem { kind, discard }),
        (None, None) => {
            return Err(BenchError::Usage("redis-server is not installed; name one".into()));
        }
    };
    let mut workload = place.workload(device_bytes);
    workload.repetitions = args.value("repetitions", workload.repetitions)?;
    workload.seed = args.value("seed", workload.seed)?;
    workload.key_count = (workload.key_count as f64 * args.value("keys", 1.0)?) as u64;
    let folder = args.text("folder").map_or_else(std::env::temp_dir, PathBuf::from);
    let trace = args.text("out").map(PathBuf::from);
    let trace = trace.ok_or_else(|| BenchError::Usage("--out names the trace".into()))?;
    args.finish()?;

    // A server works in a folder of its own.
    let whole = |path: &Path| absolute(path).doing(format!("finding {}", path.display()));
    let (folder, trace) = (whole(&folder)?.join(OWN_FOLDER), whole(&trace)?);
    let recording = Recording { program, place, policy, device_bytes, workload, folder, trace };
    let events = recording.run()?;
    Ok(format!("{events} events in {}\n", recording.trace.display()))
}
