//! `cargo x lab shortcut`: boots one virtual machine, and measures there how long durable appends
//! to a log file take. Some appends take the short path of `slimio shortcut run` (one direct write
//! into space that was filled with zeros before). The others are made in other ways. The file is
//! first on ext4 with its journal, and then on XFS.

use std::fs;
use std::time::Duration;

use slimio_host::Failure;
use slimio_host::process::{cargo, run, target_dir};
use slimio_host::programs;

use crate::guest::{Guest, Task, said};
use crate::machine::{self, Plan};
use crate::namespaces::Namespace;
use crate::tools::{self, Kernel, lab_dir};
use crate::{folder, names, rounds};

const TIME_LIMIT: Duration = Duration::from_secs(900);
const TABLES: &str = "shortcut.md";
/// A script that prints a heading and a table for each file system.
const SCRIPT: &str = "
set -e
mount -t tracefs trace /sys/kernel/tracing
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
for module in /lab/optional/*.ko; do insmod $module; done
measure() {
    mount $SLIMIO_NVME_PLAIN_BLOCK /mnt
    echo \"### $1\"
    echo
    slimio shortcut run --match '*/preload.log' --stages /dev/shm/stages --notes /tmp/notes -- \\
        rungs /mnt $rounds /sys/kernel/tracing
    echo
    umount /mnt
}
mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 $SLIMIO_NVME_PLAIN_BLOCK
measure 'ext4 with its journal'
mkfs.xfs -q -f $SLIMIO_NVME_PLAIN_BLOCK
measure XFS
";

/// Measures, and writes the tables to the lab's folder. The number of rounds is the only argument,
/// and may be left out.
pub(super) fn run_all(args: &[String]) -> Result<(), Failure> {
    let rounds = rounds(args, "shortcut")?;
    let tools = tools::install(Kernel::Cloud)?;
    run(&mut cargo(["build", "--release", "--package", "slimio-shortcut", "--example", "rungs"]))?;
    programs::build_binaries(&["--release"])?;
    let mut guest = Guest::new(&tools)?;
    for program in ["examples/rungs", "slimio", "libslimio_preload.so"] {
        guest.program(&target_dir().join("release").join(program))?;
    }
    let mkfs = tools::find("mkfs.xfs").ok_or("mkfs.xfs is not installed")?;
    guest.program(&mkfs)?;
    guest.optional_modules(&tools, &["xfs"])?;
    let folder = folder("shortcut")?;
    let namespaces = vec![Namespace::parse("PLAIN=1G")?];
    let plan = Plan::new(&tools, &folder, &namespaces, TIME_LIMIT);
    let task = Task::Script(format!("rounds={rounds}\n{SCRIPT}"));
    guest.finish(&plan.archive, &names(&namespaces), &task)?;
    let mut text = String::new();
    let status = machine::run(&plan, &mut |line| {
        println!("{line}");
        text.extend([line, "\n"]);
    })?;
    if status != 0 {
        return Err("the script failed, so not everything was measured".into());
    }
    let path = lab_dir().join(TABLES);
    fs::write(&path, text).map_err(|error| said(&path, &error))
}
