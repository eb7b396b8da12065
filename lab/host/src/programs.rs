//! The programs that cargo builds: binaries and test programs.

use std::path::PathBuf;

use crate::Failure;
use crate::process::{cargo, run, target_dir};

/// The feature that builds planted bugs in, all of them inactive.
pub const FEATURE: &str = "slimio-planted/bugs";
/// The environment variable that activates the bug whose name is its value.
pub const VARIABLE: &str = "SLIMIO_PLANTED";

/// The packages are built one by one. If they were built together, the server would get library
/// features that only the load generator asks for. Then it would not be the same server that `cargo
/// run` starts.
const BINARIES: &[&str] = &["slimio-cli", "slimio-preload", "slimio-lab"];

/// A test target that has been built.
#[derive(Debug, PartialEq, Eq)]
pub struct Program {
    /// The package that it belongs to.
    pub package: String,
    /// Name of the integration test file, or `lib` for unit tests.
    pub target: String,
    /// Where cargo would run it: the package's folder.
    pub folder: PathBuf,
    /// The executable.
    pub path: PathBuf,
}

/// Builds the server and the laboratory, as they are tested.
pub fn build_server() -> Result<(), Failure> {
    build_binaries(&[])
}

/// Builds the server and the laboratory, with further flags of `cargo build`.
pub fn build_binaries(flags: &[&str]) -> Result<(), Failure> {
    for package in BINARIES {
        run(cargo(["build", "--package", package]).args(flags))?;
    }
    Ok(())
}

/// Builds the test targets that the arguments of `cargo test` choose.
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

/// The program that a message of cargo names, if it is a test program.
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

/// The value of the first field with this name, if the value is a text.
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
