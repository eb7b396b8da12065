//! Makes the archive that the machine starts with: busybox, a few tools, and the task with its
//! programs.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use slimio_host::Failure;
use slimio_host::process::{command, run, succeeds};

use crate::cpio::Cpio;
use crate::drive;
use crate::tools::{Tools, find, lab_dir};

const INIT: &str = include_str!("init.sh");
const STEER: &str = include_str!("steer.sh");
/// Programs of the host that are in every machine, with the libraries they need.
const PROGRAMS: &[&str] = &["nvme", "mkfs.ext4", "losetup", "addpart", "delpart"];
/// Modules that are loaded at the start, in this order, unless they are built into the kernel. The
/// list has `crc32c_generic` because the module `ext4` needs it, but does not say so.
const MODULES: &[&str] = &["crc32c_generic", "nvme", "ext4", "loop"];
/// The host identity that the guest states when it connects to a drive over a network.
const HOST: &str = "5110f10a-0000-4000-8000-000000000001";
/// Folder for programs without their debug information.
const STRIPPED: &str = "stripped";

/// The root file system of a machine, while it is put together.
pub(crate) struct Guest {
    cpio: Cpio,
    libraries: BTreeSet<PathBuf>,
    /// Names of the modules that were added.
    modules: BTreeSet<String>,
}

/// The task that the first process runs after it has set the system up.
pub(crate) enum Task {
    Script(String),
    Shell { welcome: String },
}

impl Guest {
    /// A root file system with everything that each machine has.
    pub(crate) fn new(tools: &Tools) -> Result<Self, Failure> {
        let mut guest =
            Self { cpio: Cpio::default(), libraries: BTreeSet::new(), modules: BTreeSet::new() };
        guest.cpio.node("dev/console", 5, 1);
        guest.cpio.file("init", 0o755, INIT.as_bytes());
        guest.cpio.file("bin/lab", 0o755, STEER.as_bytes());
        guest.cpio.directory("lab/modules");
        for folder in ["proc", "sys", "tmp", "results", "mnt", "root", "var/lib", "etc"] {
            guest.cpio.directory(folder);
        }
        guest.cpio.file("etc/passwd", 0o644, b"root:x:0:0:root:/tmp:/bin/sh\n");
        guest.cpio.file("etc/group", 0o644, b"root:x:0:\n");
        // On a real machine, the installation of Debian's package nvme-cli makes these two files.
        guest.cpio.file("etc/nvme/hostid", 0o644, format!("{HOST}\n").as_bytes());
        let name = format!("nqn.2014-08.org.nvmexpress:uuid:{HOST}\n");
        guest.cpio.file("etc/nvme/hostnqn", 0o644, name.as_bytes());
        // These programs are added before busybox, so that they replace busybox's versions, which
        // lack options that are needed.
        for program in PROGRAMS {
            let path = find(program).ok_or_else(|| format!("{program} is not installed"))?;
            guest.program(&path)?;
        }
        guest.busybox()?;
        guest.modules_into("lab/modules", tools, MODULES)?;
        Ok(guest)
    }

    /// Adds modules, and the modules that they need, to `/lab/optional`. Nothing loads them at the
    /// start. The task may load them, in the order of their files' names.
    pub(crate) fn optional_modules(&mut self, tools: &Tools, list: &[&str]) -> Result<(), Failure> {
        self.modules_into("lab/optional", tools, list)
    }

    /// Adds the modules for the network over which the machine reaches the drive that the host
    /// serves. `init.sh` loads these modules, and then sets the network up.
    pub(crate) fn network(&mut self, tools: &Tools) -> Result<(), Failure> {
        self.modules_into("lab/network", tools, drive::MODULES)
    }

    /// Adds a program or a script to `/usr/local/bin`, with the libraries that it needs.
    pub(crate) fn program(&mut self, path: &Path) -> Result<(), Failure> {
        let name = path.file_name().ok_or_else(|| format!("{}: not a file", path.display()))?;
        self.program_named(path, &name.to_string_lossy())
    }

    pub(crate) fn program_named(&mut self, path: &Path, name: &str) -> Result<(), Failure> {
        for library in libraries_of(path)? {
            self.library(&library)?;
        }
        let contents = without_debug_information(path)?;
        self.cpio.file(&format!("usr/local/bin/{name}"), 0o755, &contents);
        Ok(())
    }

    pub(crate) fn finish(
        mut self,
        path: &Path,
        namespaces: &[String],
        task: &Task,
    ) -> Result<(), Failure> {
        self.cpio.file("lab/namespaces", 0o644, namespaces.join("\n").as_bytes());
        match task {
            Task::Script(text) => self.cpio.file("lab/run", 0o755, text.as_bytes()),
            Task::Shell { welcome } => {
                self.cpio.file("lab/shell", 0o644, b"");
                self.cpio.file("lab/welcome", 0o644, welcome.as_bytes());
            }
        }
        fs::write(path, self.cpio.finish()).map_err(|error| said(path, &error))
    }

    fn busybox(&mut self) -> Result<(), Failure> {
        let path = find("busybox").ok_or("busybox is not installed")?;
        let contents = fs::read(&path).map_err(|error| said(&path, &error))?;
        self.cpio.file("bin/busybox", 0o755, &contents);
        let list = command(&path).arg("--list").output();
        let list = list.map_err(|error| said(&path, &error))?;
        for name in String::from_utf8_lossy(&list.stdout).lines() {
            if !self.cpio.has(&format!("usr/local/bin/{name}")) {
                self.cpio.link(&format!("bin/{name}"), "busybox");
            }
        }
        Ok(())
    }

    fn modules_into(&mut self, dir: &str, tools: &Tools, list: &[&str]) -> Result<(), Failure> {
        let modules = tools.modules.with_dependencies(list, &mut self.modules)?;
        for (index, module) in modules.iter().enumerate() {
            // Modules are loaded in the order of their files' names.
            let path = format!("{dir}/{index:02}-{}.ko", module.name);
            self.cpio.file(&path, 0o644, &module.contents);
        }
        Ok(())
    }

    fn library(&mut self, path: &Path) -> Result<(), Failure> {
        if self.libraries.insert(path.to_owned()) {
            let contents = fs::read(path).map_err(|error| said(path, &error))?;
            let place = path.to_string_lossy();
            self.cpio.file(place.trim_start_matches('/'), 0o755, &contents);
        }
        Ok(())
    }
}

/// Libraries that the dynamic linker would load for this program. A script or a static program has
/// none.
fn libraries_of(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    let output = command("ldd").arg(path).output().map_err(|error| said(path, &error))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if let Some(line) = text.lines().find(|line| line.contains("not found")) {
        return Err(format!("{}: {}", path.display(), line.trim()).into());
    }
    Ok(text.lines().filter_map(parse_library).collect())
}

/// Parses a line such as `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)` or
/// `/lib64/ld-linux-x86-64.so.2 (0x…)`.
fn parse_library(line: &str) -> Option<PathBuf> {
    let line = line.trim();
    let path = line.split_once("=> ").map_or(line, |(_, path)| path);
    let path = path.split_whitespace().next()?;
    path.starts_with('/').then(|| path.into())
}

/// The program without its debug information. In a test program, that information takes most of the
/// space, and the whole archive must fit into the machine's memory.
fn without_debug_information(path: &Path) -> Result<Vec<u8>, Failure> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let contents = fs::read(path).map_err(|error| said(path, &error))?;
    if !contents.starts_with(b"\x7fELF") {
        return Ok(contents);
    }
    let dir = lab_dir().join(STRIPPED);
    fs::create_dir_all(&dir).map_err(|error| said(&dir, &error))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Several archives may be made at the same time, so each gets its own file.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let stripped = dir.join(format!("{name}-{}-{number}", std::process::id()));
    let done = succeeds(command("strip").args(["--strip-debug", "-o"]).arg(&stripped).arg(path));
    let contents = if done { fs::read(&stripped) } else { Ok(contents) };
    drop(fs::remove_file(&stripped));
    contents.map_err(|error| said(&stripped, &error))
}

/// Unpacks the archive of the guest's folder `/results` into `folder`.
pub(crate) fn unpack_results(archive: &Path, folder: &Path) -> Result<(), Failure> {
    drop(fs::remove_dir_all(folder));
    fs::create_dir_all(folder).map_err(|error| said(folder, &error))?;
    // With this mode, the user who runs the lab may remove the results again.
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))
        .map_err(|error| said(folder, &error))?;
    run(command("tar").args(["-x", "--no-same-owner", "-C"]).arg(folder).arg("-f").arg(archive))
}

/// Quotes an argument for the shell.
pub(crate) fn quoted(argument: &str) -> String {
    format!("'{}'", argument.replace('\'', r"'\''"))
}

pub(crate) fn said(path: &Path, error: &std::io::Error) -> Failure {
    format!("{}: {error}", path.display()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_in_what_ldd_says() {
        let found = |line| parse_library(line).map(|path| path.to_string_lossy().into_owned());
        assert_eq!(found("\tlinux-vdso.so.1 (0x00007f2ae3fc0000)"), None);
        assert_eq!(
            found("\tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f)").as_deref(),
            Some("/lib/x86_64-linux-gnu/libz.so.1")
        );
        assert_eq!(
            found("\t/lib64/ld-linux-x86-64.so.2 (0x00007f)").as_deref(),
            Some("/lib64/ld-linux-x86-64.so.2")
        );
        assert_eq!(found("\tnot a dynamic executable"), None);
    }

    #[test]
    fn a_quoted_argument_comes_back() {
        for argument in ["", "plain", "two words", "it's", "$HOME `x` \\"] {
            let script = format!("printf %s {}", quoted(argument));
            let output = command("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), argument);
        }
    }
}
