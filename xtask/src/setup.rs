//! What the tests need beyond Rust: stock Redis to compare with, redis-py, clients in other
//! languages (see `clients.rs`), and what the lab needs (see `lab/machine/src/tools.rs`).
//!
//! If run on Debian and as root, setup installs what is missing. Otherwise a message says what to
//! install by hand. Setup keeps packages from starting their servers, because the tests start
//! servers of their own.

use std::path::PathBuf;

use slimio_host::process::{command, is_installed, run, succeeds, target_dir};
use slimio_host::{Failure, NoServiceStarts, is_ci, is_root};
use slimio_machine::tools::Kernel;

use crate::clients;

const BY_HAND: &str = "install the packages redis-server, redis-tools, strace and python3-redis \
    (Debian, Ubuntu), or Redis 7.0, strace and `pip install redis` for python3";

/// `cargo x setup [--long]`. With the flag, setup also installs what `cargo x lab --long` needs.
pub(crate) fn verb(args: &[String]) -> Result<(), Failure> {
    let kernels = match args {
        [] => &[Kernel::Cloud][..],
        [flag] if flag == "--long" => &[Kernel::Cloud, Kernel::General],
        _ => return Err("the only flag is --long: cargo x setup [--long]".into()),
    };
    let python = install()?;
    println!("ready: redis-server, redis-cli, redis-benchmark; redis-py in {}", python.display());
    match install_all(FILE_SYSTEMS, FILE_SYSTEMS_BY_HAND) {
        Ok(()) => println!("ready: tools for ext4, XFS and btrfs, on which tests put volumes"),
        Err(Failure(why)) if !is_ci() => println!("SKIPPED: tests on file systems: {why}"),
        Err(failure) => return Err(failure),
    }
    match install_all(DATABASES, DATABASES_BY_HAND) {
        Ok(()) => println!("ready: other databases, for tests of the short path"),
        Err(Failure(why)) if !is_ci() => println!("SKIPPED: tests with other databases: {why}"),
        Err(failure) => return Err(failure),
    }
    match clients::install() {
        Ok(()) => println!("ready: go-redis and Jedis in {}", clients::dir().display()),
        Err(Failure(why)) if !is_ci() => println!("SKIPPED: tests with go-redis and Jedis: {why}"),
        Err(failure) => return Err(failure),
    }
    for kernel in kernels {
        match slimio_machine::tools::install(*kernel) {
            Ok(tools) => println!("ready: the lab, with the kernel {}", tools.kernel.display()),
            Err(Failure(why)) if !is_ci() => println!("SKIPPED: the lab: {why}"),
            Err(failure) => return Err(failure),
        }
    }
    Ok(())
}

/// Installs the missing packages. Returns the Python that can import `redis`.
pub(crate) fn install() -> Result<PathBuf, Failure> {
    let packages = missing_packages();
    if !packages.is_empty() {
        install_packages(&packages, BY_HAND)?;
    }
    let missing: Vec<&str> =
        PROGRAMS.iter().map(|(program, _)| *program).filter(|p| !is_installed(p)).collect();
    if !missing.is_empty() {
        return Err(
            format!("these programs are still missing: {}; {BY_HAND}", missing.join(", ")).into()
        );
    }
    if let Some(python) = python_with_redis() {
        return Ok(python);
    }
    make_venv()
}

/// The Python that can import `redis`, if there is one.
///
/// Debian's package of redis-py works only with Debian's own Python, and another Python may come
/// first on the path.
pub(crate) fn python_with_redis() -> Option<PathBuf> {
    let candidates = ["python3".into(), "/usr/bin/python3".into(), venv_python()];
    candidates.into_iter().find(|python| succeeds(command(python).args(["-c", "import redis"])))
}

/// Programs, each with the Debian package that contains it.
const PROGRAMS: &[(&str, &str)] = &[
    ("redis-server", "redis-server"),
    ("redis-cli", "redis-tools"),
    ("redis-benchmark", "redis-tools"),
    ("python3", "python3"),
    ("strace", "strace"),
];

/// Programs that the tests on file systems use, each with the Debian package that contains it.
const FILE_SYSTEMS: &[(&str, &str)] = &[
    ("mkfs.ext4", "e2fsprogs"),
    ("losetup", "mount"),
    ("mkfs.xfs", "xfsprogs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("rsync", "rsync"),
];
const FILE_SYSTEMS_BY_HAND: &str =
    "install the packages e2fsprogs, xfsprogs, btrfs-progs and rsync";

/// Programs of databases whose logs take the short path in tests, each with the Debian package that
/// contains it.
const DATABASES: &[(&str, &str)] = &[
    ("sqlite3", "sqlite3"),
    ("db_bench", "rocksdb-tools"),
    ("pg_ctlcluster", "postgresql"),
    ("mariadbd", "mariadb-server-core"),
    ("mariadb", "mariadb-client-core"),
    ("mariadb-install-db", "mariadb-server-core"),
];
const DATABASES_BY_HAND: &str = "install the packages sqlite3, rocksdb-tools, postgresql, mariadb-server-core and mariadb-client-core";

/// Installs the packages of those programs that are missing.
fn install_all(programs: &[(&str, &str)], by_hand: &str) -> Result<(), Failure> {
    let missing = programs.iter().filter(|(program, _)| !is_installed(program));
    let mut packages: Vec<&str> = missing.map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    if packages.is_empty() { Ok(()) } else { install_packages(&packages, by_hand) }
}

fn missing_packages() -> Vec<&'static str> {
    let mut packages: Vec<&str> = PROGRAMS
        .iter()
        .filter(|(program, _)| !is_installed(program))
        .map(|(_, package)| *package)
        .collect();
    if python_with_redis().is_none() {
        packages.push("python3-redis");
    }
    packages.dedup();
    packages
}

/// Installs packages of Debian. If that is not possible, the error ends with `by_hand`, which says
/// what to do.
pub(crate) fn install_packages(packages: &[&str], by_hand: &str) -> Result<(), Failure> {
    if !is_installed("apt-get") || !is_root() {
        // If only redis-py is missing, a virtual environment is enough.
        if packages == ["python3-redis"] {
            return Ok(());
        }
        return Err(format!(
            "these packages are missing: {}; setup needs root and apt-get to install them, so \
             {by_hand}",
            packages.join(", ")
        )
        .into());
    }
    let services = ["redis-server", "postgresql"];
    let new_services = services.iter().filter(|service| packages.contains(service));
    let _policy = NoServiceStarts::ask()?;
    if apt_install(packages).is_err() {
        run(command("apt-get").args(["update", "-q"]))?;
        apt_install(packages)?;
    }
    for service in new_services.filter(|_| is_installed("systemctl")) {
        // The server must not start at the next boot either. If systemd does not run, this command
        // fails, but then nothing would start the server.
        succeeds(command("systemctl").args(["disable", service]));
    }
    Ok(())
}

fn apt_install(packages: &[&str]) -> Result<(), Failure> {
    run(command("apt-get")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["install", "-y", "-q", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"])
        .args(packages))
}

/// Installs redis-py in a virtual environment below the target folder.
fn make_venv() -> Result<PathBuf, Failure> {
    let dir = venv_dir();
    let made = succeeds(command("python3").args(["-m", "venv"]).arg(&dir))
        && run(command(dir.join("bin/pip")).args(["install", "--quiet", "redis"])).is_ok();
    match python_with_redis() {
        Some(python) if made => Ok(python),
        _ => {
            Err(format!("redis-py is missing and no virtual environment could be made; {BY_HAND}")
                .into())
        }
    }
}

fn venv_dir() -> PathBuf {
    target_dir().join("venv")
}

fn venv_python() -> PathBuf {
    venv_dir().join("bin/python3")
}
