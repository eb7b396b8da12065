//! Clients in languages other than Python, for the black-box tests: go-redis is built, and Jedis is
//! fetched. Each client has the version that its own file in `tests/clients/` names.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use slimio_host::Failure;
use slimio_host::process::{command, is_installed, root, run, target_dir};

use crate::setup;

/// Programs, each with the Debian package that contains it.
const PROGRAMS: &[(&str, &str)] =
    &[("go", "golang-go"), ("javac", "default-jdk-headless"), ("mvn", "maven")];

/// The Maven goal that fetches the files of a Java library.
const COPY_DEPENDENCIES: &str =
    "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies";

/// The number of times that a fetch is tried before it counts as failed.
const TRIES: u32 = 3;

/// The folder that the clients are in.
pub(crate) fn dir() -> PathBuf {
    target_dir().join("clients")
}

/// Installs the packages that are missing, and makes the clients.
pub(crate) fn install() -> Result<(), Failure> {
    let missing = PROGRAMS.iter().filter(|(program, _)| !is_installed(program));
    let packages: Vec<&str> = missing.map(|(_, package)| *package).collect();
    if !packages.is_empty() {
        setup::install_packages(&packages, "install Go, a JDK and Maven")?;
    }
    fs::create_dir_all(dir()).map_err(|error| format!("{}: {error}", dir().display()))?;
    build_go_redis()?;
    fetch_jedis()
}

fn build_go_redis() -> Result<(), Failure> {
    let mut go = command("go");
    go.current_dir(root().join("tests/clients/go-redis"));
    // The build uses the installed compiler, and only the modules that go.sum names.
    go.env("GOTOOLCHAIN", "local")
        .args(["build", "-mod=readonly", "-o"])
        .arg(dir().join("go-redis"));
    again_and_again(go.arg("."))
}

fn fetch_jedis() -> Result<(), Failure> {
    let wanted = root().join("tests/clients/jedis/pom.xml");
    let jars = dir().join("jedis");
    // This copy of `pom.xml` is written last, so it exists only if all files that it names have
    // been fetched.
    let got = jars.join("pom.xml");
    let text = fs::read(&wanted).map_err(|error| format!("{}: {error}", wanted.display()))?;
    if fs::read(&got).is_ok_and(|got| got == text) {
        return Ok(());
    }
    // An older version of a library must not stay on the class path.
    if jars.exists() {
        fs::remove_dir_all(&jars).map_err(|error| format!("{}: {error}", jars.display()))?;
    }
    let folder = format!("-DoutputDirectory={}", jars.display());
    let mut maven = command("mvn");
    maven.args(["-q", "-B", "-f"]).arg(&wanted).args([COPY_DEPENDENCIES, &folder]);
    again_and_again(&mut maven)?;
    fs::write(&got, text).map_err(|error| format!("{}: {error}", got.display()).into())
}

/// Runs a command that fetches something, up to `TRIES` times, because a network may fail for a
/// moment.
fn again_and_again(command: &mut Command) -> Result<(), Failure> {
    let mut outcome = run(command);
    for _ in 1..TRIES {
        if outcome.is_ok() {
            break;
        }
        outcome = run(command);
    }
    outcome
}
