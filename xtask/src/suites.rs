//! The verbs that take long: all tests together, parts of them by name, and measurements.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use slimio_host::Failure;
use slimio_host::process::{
    cargo, command, cores, is_installed, root, run, run_all, run_seeing, target_dir,
};
use slimio_host::programs::{FEATURE, build_binaries, build_server};
use slimio_host::report::Report;

use crate::{clients, fuzz, lint, peers, planted, setup};

/// Programs for recordings: they prepare the recorded device, and make file systems on it. Beside
/// each program is the Debian package that contains it.
const FILE_SYSTEM_TOOLS: &[(&str, &str)] = &[
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("mkfs.f2fs", "f2fs-tools"),
    ("losetup", "mount"),
    ("blkdiscard", "util-linux"),
];
/// For each document that is made from the code, the package and the test that compares the
/// document with the code.
const DOCUMENT_TESTS: &[(&str, &str)] = &[
    ("slimio-storage", "format_md_says_what_the_code_does"),
    ("slimio-server", "configuration_md_says_what_the_table_does"),
];
/// The ledger is a test that starts and ends a server again and again, and checks that no
/// acknowledged write is lost. A life of the server is the time from a start to the next end.
/// `LEDGER_LIVES` counts the lives for each `appendfsync` policy and each way to end the server.
/// `LEDGER_UNITS` is the largest number of commands and transactions that are acknowledged in one
/// life. Both numbers are small, so that the ledger takes only seconds. `cargo x ledger` takes
/// flags for larger numbers.
const LEDGER_LIVES: &str = "50";
const LEDGER_UNITS: &str = "500";
/// Flags with which the server often rewrites its log even if no client asks for a rewrite.
const OFTEN_REWRITTEN: &str = "--auto-aof-rewrite-min-size 64kb --log-segment-size 1mb";

/// `cargo x test`.
pub(crate) fn test(_args: &[String]) -> Result<(), Failure> {
    let mut report = Report::default();
    test_steps(&mut report);
    report.finish()
}

/// `cargo x ci`: runs lint and then test, with one summary.
pub(crate) fn ci(_args: &[String]) -> Result<(), Failure> {
    let mut report = Report::default();
    lint::steps(&mut report);
    test_steps(&mut report);
    report.finish()
}

fn test_steps(report: &mut Report) {
    let mut python = None;
    report.step("tools of the tests", |report| match setup::install() {
        Ok(found) => {
            python = Some(found);
            Ok(())
        }
        Err(Failure(why)) => {
            report.skip(&format!("the tests against the binary: {why}"));
            Ok(())
        }
    });
    report.step("cargo test", |report| {
        // The planted bugs are built in but inactive, so that they need no separate build. The
        // output of passing tests is shown, because this output says which parts of the tests were
        // skipped.
        let args = ["test", "--workspace", "--no-fail-fast", "--features", FEATURE];
        let mut tests = cargo(args);
        // More tests run at a time than there are cores, because many tests wait for most of their
        // time.
        tests.env("RUST_TEST_THREADS", (2 * cores()).to_string()).args(["--", "--show-output"]);
        tests.env(fuzz::SECONDS, fuzz::SECONDS_SHORT.to_string());
        run_seeing(&mut tests, |line| report.see(line))
    });
    report.step("fuzz the NVMe/TCP target", |_| fuzz::target());
    report.step("planted bugs", |_| planted::verb(&[]));
    let mut suite = None;
    report.step("build for the lab", |report| {
        suite = slimio_machine::prepare(report)?;
        Ok(())
    });
    if !report.step("build the server", |_| build_server()) {
        return;
    }
    // The lab (tests in virtual machines) and the ledger run at the same time, because both mostly
    // wait: the lab for its machines, the ledger for its disk.
    report.together(vec![
        ("lab", Box::new(|report| suite.map_or(Ok(()), |suite| suite.run(report)))),
        ("ledger", Box::new(|_| run_ledger())),
    ]);
    let Some(python) = python else { return };
    report.step("write amplification", |report| {
        // The folder is not the one of `cargo x waf`, because this run must not replace the
        // recordings there.
        run_seeing(waf_command("debug", "waf-quick").arg("--quick"), |line| report.see(line))
    });
    report.step("runtime", |report| {
        run_seeing(runtime_command("debug", "runtime-quick").arg("--quick"), |line| {
            report.see(line);
        })
    });
    report.step("drive", |report| {
        run_seeing(drive_command("debug", "drive-quick").arg("--quick"), |line| report.see(line))
    });
    report.step("against the binary", |report| {
        run_blackbox(report, &python, &["--both-ways".into()])
    });
}

/// `cargo x blackbox [word]… [--server CMD] …`.
pub(crate) fn blackbox(args: &[String]) -> Result<(), Failure> {
    let python = setup::install()?;
    build_server()?;
    run_blackbox(&mut Report::default(), &python, args)
}

/// `cargo x differential [--seed N] [--rounds N]`.
pub(crate) fn differential(args: &[String]) -> Result<(), Failure> {
    let mut all = vec!["differential".to_owned()];
    all.extend_from_slice(args);
    blackbox(&all)
}

/// `cargo x ledger [flag]…`: without flags, the same runs as in `cargo x test`. With flags, one run
/// of `slimio-lab ledger` with these flags.
pub(crate) fn ledger(args: &[String]) -> Result<(), Failure> {
    build_server()?;
    if args.is_empty() {
        return run_ledger();
    }
    run(bench_command("debug", "ledger").args(["--program".into(), program("debug")]).args(args))
}

/// `cargo x bench [flag]…`: the flags are those of `slimio-lab compare`, and `--stock` also takes
/// the name of a [peer](peers), or `all`.
pub(crate) fn bench(args: &[String]) -> Result<(), Failure> {
    beside_stock("compare", args)
}

/// `cargo x shortcut [flag]…`: the flags are those of `slimio-lab shortcut`, and `--stock` also
/// takes the same names as in `cargo x bench`.
pub(crate) fn shortcut(args: &[String]) -> Result<(), Failure> {
    beside_stock("shortcut", args)
}

/// Runs a verb of `slimio-lab` that measures SlimIO, and stock servers beside it.
fn beside_stock(verb: &str, args: &[String]) -> Result<(), Failure> {
    setup::install()?;
    let args = with_peer(args)?;
    build_binaries(&["--release"])?;
    let slimio = ["--slimio".into(), program("release")];
    run(bench_command("release", verb).args(slimio).args(args))
}

/// Replaces the names of peers in the flags by the paths of their programs.
fn with_peer(args: &[String]) -> Result<Vec<OsString>, Failure> {
    let (mut found, mut args) = (Vec::new(), args.iter());
    while let Some(arg) = args.next() {
        let stock = match arg.strip_prefix("--stock=") {
            None if arg == "--stock" => args.next().map(String::as_str),
            value => value,
        };
        let Some(stock) = stock else {
            found.push(arg.into());
            continue;
        };
        found.extend(["--stock".into(), peers::stock(stock)?]);
    }
    Ok(found)
}

/// `cargo x trace [flag]…`: the flags are those of `slimio-lab trace`.
pub(crate) fn trace(args: &[String]) -> Result<(), Failure> {
    prepare_recorder()?;
    run(bench_command("release", "trace").args(args))
}

/// `cargo x waf [flag]…`: the flags are those of `slimio-lab waf`; `cargo x waf validate`,
/// `tenants` and `map` run verbs of `slimio-lab` that need neither servers nor root.
pub(crate) fn waf(args: &[String]) -> Result<(), Failure> {
    if let Some((verb, rest)) = args.split_first()
        && matches!(verb.as_str(), "map" | "tenants" | "validate")
    {
        run(&mut cargo(["build", "--quiet", "--release", "--package", "slimio-lab"]))?;
        return run(bench_command("release", verb).args(rest));
    }
    prepare_recorder()?;
    run(waf_command("release", "waf").args(args))
}

/// `cargo x runtime [flag]…`: the flags are those of `slimio-lab runtime`.
pub(crate) fn runtime(args: &[String]) -> Result<(), Failure> {
    prepare_recorder()?;
    run(runtime_command("release", "runtime").args(args))
}

/// `cargo x drive [flag]…`: the flags are those of `slimio-lab drive`.
pub(crate) fn drive(args: &[String]) -> Result<(), Failure> {
    let packages = ["--package", "slimio-lab", "--package", "slimio-cli"];
    run(cargo(["build", "--quiet", "--release"]).args(packages))?;
    run(drive_command("release", "drive").args(args))
}

/// The command `slimio-lab drive`, with its table in `folder` below the target folder.
fn drive_command(profile: &str, folder: &str) -> Command {
    let mut command = bench_command(profile, "drive");
    command.args(["--slimio".into(), program(profile)]);
    command.args(["--out".into(), target_dir().join(folder).into_os_string()]);
    command
}

/// The command `slimio-lab runtime`, with its table and pictures in `folder` below the target
/// folder.
fn runtime_command(profile: &str, folder: &str) -> Command {
    let mut command = bench_command(profile, "runtime");
    command.args(["--slimio".into(), program(profile)]);
    command.args(["--out".into(), target_dir().join(folder).into_os_string()]);
    command
}

/// The command `slimio-lab waf`, with its recordings in `folder` below the target folder.
fn waf_command(profile: &str, folder: &str) -> Command {
    let mut command = bench_command(profile, "waf");
    command.args(["--slimio".into(), program(profile)]);
    command.args(["--out".into(), target_dir().join(folder).into_os_string()]);
    command
}

/// Installs what tests and recordings need, and builds the programs.
fn prepare_recorder() -> Result<(), Failure> {
    setup::install()?;
    let packages = FILE_SYSTEM_TOOLS.iter().filter(|(program, _)| !is_installed(program));
    let packages: Vec<&str> = packages.map(|(_, package)| *package).collect();
    if !packages.is_empty() {
        setup::install_packages(
            &packages,
            "install e2fsprogs, xfsprogs, f2fs-tools, mount and util-linux",
        )?;
    }
    build_binaries(&["--release"])
}

/// Runs the ledger for each `appendfsync` policy and each way to end the server, with and without
/// snapshots. Several runs go on at the same time, because each run mostly waits for its disk and
/// for servers to start.
fn run_ledger() -> Result<(), Failure> {
    let mut all = Vec::new();
    for policy in ["always", "everysec", "no"] {
        for death in ["kill", "term"] {
            for flags in [&[][..], &["--snapshots", "--extra", OFTEN_REWRITTEN]] {
                let mut one = bench_command("debug", "ledger");
                one.args(["--policy", policy, "--death", death])
                    .args(["--lives", LEDGER_LIVES, "--units", LEDGER_UNITS])
                    .args(flags)
                    .args(["--program".into(), program("debug")]);
                all.push(one);
            }
        }
    }
    run_all(all)
}

/// `cargo x docs`: runs the tests that compare documents with the code. Because `UPDATE_EXPECT` is
/// set, each test writes its document instead of comparing it.
pub(crate) fn docs(_args: &[String]) -> Result<(), Failure> {
    for (package, test) in DOCUMENT_TESTS {
        run(cargo(["test", "--quiet", "--package", package, "--tests", test])
            .env("UPDATE_EXPECT", "1"))?;
    }
    Ok(())
}

fn bench_command(profile: &str, verb: &str) -> Command {
    let mut bench = command(target_dir().join(profile).join("slimio-lab"));
    bench.arg(verb);
    bench
}

/// The server's program, as an argument.
fn program(profile: &str) -> OsString {
    target_dir().join(profile).join("slimio").into_os_string()
}

fn run_blackbox(report: &mut Report, python: &PathBuf, args: &[String]) -> Result<(), Failure> {
    let mut all: Vec<OsString> = vec!["-B".into(), root().join("tests/run.py").into()];
    if !args.iter().any(|arg| arg == "--server") {
        let mut server = program("debug");
        server.push(" serve");
        all.extend(["--server".into(), server]);
    }
    all.extend(["--folder".into(), target_dir().join("blackbox").into_os_string()]);
    all.extend(["--clients".into(), clients::dir().into_os_string()]);
    all.extend(["--peers".into(), peers::dir().into_os_string()]);
    all.extend(args.iter().map(OsString::from));
    run_seeing(command(python).args(all), |line| report.see(line))
}
