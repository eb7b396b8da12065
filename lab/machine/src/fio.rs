//! Runs scripts that measure with fio, in a virtual machine with the general kernel, which has more
//! modules than the cloud kernel.

use std::time::Duration;

use slimio_host::Failure;
use slimio_host::process::{root, target_dir};
use slimio_host::programs;

use crate::guest::{Guest, Task, unpack_results};
use crate::machine::{self, Plan, RESULTS};
use crate::namespaces::Namespace;
use crate::tools::{self, Kernel};
use crate::{folder, names};

/// Runs `script` in a machine with these kernel modules. Prints each line of the script's output,
/// and passes the line to `take`. Copies the files that the script leaves in `/results` to the
/// folder `lab/NAME/results` of the target folder.
///
/// # Errors
/// When the machine can't be set up, or the script fails.
pub(super) fn run(
    name: &str,
    modules: &[&str],
    time_limit: Duration,
    script: String,
    mut take: impl FnMut(&str),
) -> Result<(), Failure> {
    // fio is installed together with the general kernel.
    let tools = tools::install(Kernel::General)?;
    programs::build_binaries(&["--release"])?;
    let mut guest = Guest::new(&tools)?;
    guest.program(&target_dir().join("release/slimio"))?;
    let fio = tools::find("fio").ok_or("fio is not installed")?;
    guest.program(&fio)?;
    for library in ["lab-test", "lab-fabrics"] {
        guest.program(&root().join("tests/lab").join(library))?;
    }
    guest.optional_modules(&tools, modules)?;
    let folder = folder(name)?;
    let namespaces = vec![Namespace::parse("PLAIN=16M")?];
    let plan = Plan::new(&tools, &folder, &namespaces, time_limit);
    guest.finish(&plan.archive, &names(&namespaces), &Task::Script(script))?;
    let status = machine::run(&plan, &mut |line| {
        println!("{line}");
        take(line);
    })?;
    unpack_results(&folder.join(RESULTS), &folder.join("results"))?;
    if status == 0 { Ok(()) } else { Err(format!("the script ended with status {status}").into()) }
}
