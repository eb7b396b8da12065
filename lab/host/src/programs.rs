//! The programs that cargo builds: binaries and test programs.

use std::path::PathBuf;

use crate::Failure;
use crate::process::{cargo, run, target_dir};

/// The cargo feature that builds in all planted bugs, which are inactive at first. Tests must catch
/// each planted bug.
pub const FEATURE: &str = "slimio-planted/bugs";
/// The environment variable that names the planted bug to activate.
pub const VARIABLE: &str = "SLIMIO_PLANTED";

/// The packages with the server and the laboratory, which are built one by one. If they were built
/// together, cargo would build the libraries of the server with features that only the load
/// generator asks for. Such a server would differ from the one that `cargo run` starts.
const BINARIES: &[&str] = &["slimio-cli", "slimio-preload", "slimio-lab"];

/// A test target that has been built.
#[derive(Debug, PartialEq, Eq)]
pub struct Program {
    /// The package of the test target.
    pub package: String,
    /// Name of the integration test file, or `lib` for unit tests.
    pub target: String,
    /// The package's folder, in which cargo would run the executable.
    pub folder: PathBuf,
    /// The executable.
    pub path: PathBuf,
}

/// Builds the debug versions of the server, the preloaded library and the laboratory.
pub fn build_server() -> Result<(), Failure> {
    build_binaries(&[])
}

/// Builds the same packages as [`build_server`], with further flags of `cargo build`.
pub fn build_binaries(flags: &[&str]) -> Result<(), Failure> {
    for package in BINARIES {
        run(cargo(["build", "--package", package]).args(flags))?;
    }
    Ok(())
}

/// Builds the test targets that `chosen` selects. `chosen` has arguments of `cargo test`.
pub fn build(chosen: &[&str]) -> Result<Vec<Program>, Failure> {
    let args = ["test", "--no-run", "--message-format=json-render-diagnostics", "--quiet"];
    let output = cargo(args).args(chosen).output();
    let output = output.map_err(|error| format!("cargo did not start: {error}"))?;
    if !output.status.success() {
        eprintln!("{}", String::from_utf8_lossy(&output.stderr));
        return Err(format!("the tests of `{}` do not build", chosen.join(" ")).into());
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    Ok(messages.lines().filter_map(parse).collect())
}

/// The test program that a message of cargo names. `None` if the message names no test program.
fn parse(message: &str) -> Option<Program> {
    let path = target_dir().join(text(message, "executable")?);
    let (_, package) = text(message, "package_id")?.rsplit_once('#')?;
    let manifest = PathBuf::from(text(message, "manifest_path")?);
    let (_, target) = message.split_once(r#""target":{"#)?;
    let target = match target.split_once(r#""kind":[""#)?.1.split('"').next()? {
        "lib" => "lib",
        "test" => text(target, "name")?,
        _ => return None,
    };
    Some(Program {
        package: package.split('@').next()?.to_owned(),
        target: target.to_owned(),
        folder: manifest.parent()?.to_owned(),
        path,
    })
}

/// The value of the first field with this name, if the value is a string.
fn text<'a>(message: &'a str, field: &str) -> Option<&'a str> {
    let (_, value) = message.split_once(&format!(r#""{field}":""#))?;
    value.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_programs_of_tests_are_named() {
        let message = |kind: &str, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"path+file:///w/crates/device#slimio-device@0.1.0","manifest_path":"/w/crates/device/Cargo.toml","target":{{"kind":["{kind}"],"crate_types":["bin"],"name":"back_ends"}},"executable":{executable}}}"#
            )
        };
        let program = parse(&message("test", r#""/t/back_ends-1f""#)).unwrap();
        assert_eq!((&*program.package, &*program.target), ("slimio-device", "back_ends"));
        assert_eq!(program.path, PathBuf::from("/t/back_ends-1f"));
        assert_eq!(program.folder, PathBuf::from("/w/crates/device"));
        assert_eq!(parse(&message("lib", r#""/t/x""#)).unwrap().target, "lib");
        assert_eq!(parse(&message("bin", r#""/t/x""#)), None);
        assert_eq!(parse(&message("lib", "null")), None);
        assert_eq!(parse(r#"{"reason":"build-finished","success":true}"#), None);
    }
}
