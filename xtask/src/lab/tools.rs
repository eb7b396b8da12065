//! What the lab itself needs: QEMU, a kernel with the NVMe driver in it, programs for the guest.
//!
//! Debian's backports hold a QEMU that knows FDP and a kernel that knows its NVMe generic devices.
//! They come from the mirror that the machine already uses, through a list of packages of the lab's
//! own: nothing else on the machine is upgraded by it. The kernel is unpacked, not installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failure;
use crate::process::{command, is_installed, run, target_dir};
use crate::setup::{NoServiceStarts, is_root};

const QEMU: &str = "qemu-system-x86_64";
/// The first that knows FDP.
const QEMU_MAJOR_MIN: u32 = 8;
const KERNEL: &str = "linux-image-cloud-amd64";
/// Programs for the guest, and the Debian package each comes in.
const PROGRAMS: &[(&str, &str)] = &[
    ("busybox", "busybox-static"),
    ("nvme", "nvme-cli"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("xz", "xz-utils"),
    ("strip", "binutils"),
    ("setpriv", "util-linux"),
];

const BY_HAND: &str = "the lab needs Debian with its backports, or by hand QEMU 8 or later with \
    busybox-static, nvme-cli, e2fsprogs, xfsprogs, xz-utils and binutils";

/// Where everything of the lab is kept.
pub(crate) fn lab_dir() -> PathBuf {
    target_dir().join("lab")
}

/// What a machine is started with.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    pub(crate) qemu: PathBuf,
    pub(crate) kernel: PathBuf,
    /// The folder `kernel/` of the kernel's modules, each compressed with xz.
    pub(crate) modules: PathBuf,
}

/// Installs what is missing, says what can't be.
pub(crate) fn install() -> Result<Tools, Failure> {
    let programs: Vec<&str> = PROGRAMS
        .iter()
        .filter(|(program, _)| find(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    let needs_qemu = qemu().is_none();
    let needs_kernel = kernel().is_none();
    if needs_qemu || needs_kernel || !programs.is_empty() {
        if !is_installed("apt-get") || !is_installed("dpkg-deb") {
            return Err(BY_HAND.into());
        }
        let apt = Apt::new()?;
        if needs_qemu {
            apt.install(&["qemu-system-x86"], true)?;
        }
        if !programs.is_empty() {
            apt.install(&programs, false)?;
        }
        if needs_kernel {
            apt.unpack_kernel()?;
        }
    }
    if let Some((program, package)) = PROGRAMS.iter().find(|(program, _)| find(program).is_none()) {
        return Err(format!("{program} of {package} is still missing: {BY_HAND}").into());
    }
    let qemu = qemu().ok_or_else(|| format!("no {QEMU} of version {QEMU_MAJOR_MIN} or later"))?;
    let (kernel, modules) = kernel().ok_or("no kernel was found in Debian's package")?;
    Ok(Tools { qemu, kernel, modules })
}

/// The path of a program, also of one that only root has on its path.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    dirs.map(|dir| dir.join(program)).find(|path| path.is_file())
}

/// QEMU, if it is new enough.
fn qemu() -> Option<PathBuf> {
    let path = find(QEMU)?;
    let said = command(&path).arg("--version").output().ok()?;
    let major = parse_qemu_major(&String::from_utf8_lossy(&said.stdout))?;
    (major >= QEMU_MAJOR_MIN).then_some(path)
}

/// `QEMU emulator version 10.0.2 (Debian …)`
fn parse_qemu_major(said: &str) -> Option<u32> {
    let (_, version) = said.split_once("version ")?;
    version.split('.').next()?.parse().ok()
}

/// The unpacked kernel and the folder of its modules.
fn kernel() -> Option<(PathBuf, PathBuf)> {
    let root = kernel_dir();
    let images = fs::read_dir(root.join("boot")).ok()?;
    let image = images.filter_map(|entry| Some(entry.ok()?.path())).find(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"))
    })?;
    let name = image.file_name()?.to_string_lossy().into_owned();
    let release = name.strip_prefix("vmlinuz-")?;
    // Debian 13 and later keep modules below /usr.
    let modules = ["usr/lib/modules", "lib/modules"]
        .map(|dir| root.join(dir).join(release).join("kernel"))
        .into_iter()
        .find(|dir| dir.is_dir())?;
    Some((image, modules))
}

fn kernel_dir() -> PathBuf {
    lab_dir().join("kernel")
}

/// Debian's package tools with a list of packages of our own.
struct Apt {
    dir: PathBuf,
    backports: String,
}

impl Apt {
    fn new() -> Result<Self, Failure> {
        let codename = os_release("VERSION_CODENAME").ok_or(BY_HAND)?;
        let mirror = mirror(&codename)
            .ok_or_else(|| format!("apt's sources name no mirror of {codename}: {BY_HAND}"))?;
        let backports = format!("{codename}-backports");
        let dir = lab_dir().join("apt");
        let made = fs::create_dir_all(dir.join("lists/partial")).and_then(|()| {
            fs::write(dir.join("lab.sources"), mirror.sources(&[&codename, &backports]))
        });
        made.map_err(|error| format!("{}: {error}", dir.display()))?;
        let apt = Self { dir, backports };
        run(apt.command("apt-get").args(["update", "-q"]))?;
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let mut apt = command(program);
        apt.env("DEBIAN_FRONTEND", "noninteractive");
        let dir = self.dir.display();
        for option in [
            format!("Dir::Etc::sourcelist={dir}/lab.sources"),
            "Dir::Etc::sourceparts=-".into(),
            format!("Dir::State::lists={dir}/lists"),
            "Dir::Cache::pkgcache=".into(),
            "Dir::Cache::srcpkgcache=".into(),
            "DPkg::Lock::Timeout=300".into(),
            // Read-only for everybody else, the target folder may be.
            "APT::Sandbox::User=root".into(),
        ] {
            apt.args(["-o", &option]);
        }
        apt
    }

    fn install(&self, packages: &[&str], from_backports: bool) -> Result<(), Failure> {
        if !is_root() {
            return Err(
                format!("{} missing, and only root can install", packages.join(", ")).into()
            );
        }
        let _policy = NoServiceStarts::ask()?;
        let mut install = self.command("apt-get");
        install.args(["install", "-y", "-q", "--no-install-recommends"]);
        if from_backports {
            install.args(["-t", &self.backports]);
        }
        run(install.args(packages))
    }

    /// The kernel that the metapackage names, unpacked below the lab's folder.
    fn unpack_kernel(&self) -> Result<(), Failure> {
        let meta = format!("{KERNEL}/{}", self.backports);
        let said = self.command("apt-cache").args(["depends", &meta]).output();
        let said = said.map_err(|error| format!("apt-cache did not start: {error}"))?;
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let package = said
            .lines()
            .find_map(|line| line.trim().strip_prefix("Depends: linux-image-"))
            .ok_or_else(|| format!("{meta} names no kernel"))?;
        let package = format!("linux-image-{package}");
        let dir = self.dir.join("packages");
        drop(fs::remove_dir_all(&dir));
        fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let mut download = self.command("apt-get");
        run(download.current_dir(&dir).args(["download", "-q", "-t", &self.backports, &package]))?;
        let debs = fs::read_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let deb = debs.filter_map(Result::ok).map(|entry| entry.path()).next();
        let deb = deb.ok_or_else(|| format!("{package} was not downloaded"))?;
        // Unpacked beside its place and moved there: half a kernel must not be taken for one.
        let unpacked = self.dir.join("unpacked");
        drop(fs::remove_dir_all(&unpacked));
        run(command("dpkg-deb").arg("-x").arg(&deb).arg(&unpacked))?;
        drop(fs::remove_dir_all(kernel_dir()));
        fs::rename(&unpacked, kernel_dir())
            .and_then(|()| fs::remove_dir_all(&dir))
            .map_err(|error| format!("{}: {error}", kernel_dir().display()).into())
    }
}

fn os_release(wanted: &str) -> Option<String> {
    let text = fs::read_to_string("/etc/os-release").ok()?;
    text.lines().find_map(|line| {
        let (name, value) = line.split_once('=')?;
        (name == wanted).then(|| value.trim_matches('"').to_owned())
    })
}

/// Where packages come from, as the machine's own sources say.
#[derive(Debug, PartialEq, Eq)]
struct Mirror {
    uri: String,
    /// Path of a key ring.
    signed_by: Option<String>,
}

impl Mirror {
    fn sources(&self, suites: &[&str]) -> String {
        let key = self.signed_by.as_ref().map(|path| format!("Signed-By: {path}\n"));
        format!(
            "Types: deb\nURIs: {}\nSuites: {}\nComponents: main\n{}",
            self.uri,
            suites.join(" "),
            key.unwrap_or_default()
        )
    }
}

fn mirror(codename: &str) -> Option<Mirror> {
    let parts = fs::read_dir("/etc/apt/sources.list.d").ok();
    let parts = parts.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let mut files = std::iter::once(PathBuf::from("/etc/apt/sources.list")).chain(parts);
    files.find_map(|path| mirror_in(&path, &fs::read_to_string(&path).ok()?, codename))
}

fn mirror_in(path: &Path, text: &str, codename: &str) -> Option<Mirror> {
    match path.extension()?.to_str()? {
        "list" => text.lines().find_map(|line| mirror_of_line(line, codename)),
        "sources" => text.split("\n\n").find_map(|entry| mirror_of_entry(entry, codename)),
        _ => None,
    }
}

/// `deb [signed-by=PATH] URI SUITE COMPONENT…`
fn mirror_of_line(line: &str, codename: &str) -> Option<Mirror> {
    let mut rest = line.trim().strip_prefix("deb ")?.trim();
    let mut signed_by = None;
    if let Some((options, after)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let mut options = options.split_whitespace();
        signed_by = options.find_map(|option| Some(option.strip_prefix("signed-by=")?.to_owned()));
        rest = after.trim();
    }
    let mut words = rest.split_whitespace();
    let uri = words.next()?.to_owned();
    let ours = words.next()? == codename && words.any(|component| component == "main");
    ours.then_some(Mirror { uri, signed_by })
}

/// The form with a field per line.
fn mirror_of_entry(entry: &str, codename: &str) -> Option<Mirror> {
    let field = |wanted: &str| {
        entry.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case(wanted).then(|| value.trim())
        })
    };
    let has = |name, wanted| field(name).is_some_and(|v| v.split_whitespace().any(|w| w == wanted));
    if !(has("Types", "deb") && has("Suites", codename) && has("Components", "main")) {
        return None;
    }
    let signed_by = field("Signed-By").filter(|value| value.starts_with('/')).map(str::to_owned);
    Some(Mirror { uri: field("URIs")?.split_whitespace().next()?.to_owned(), signed_by })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_qemu_is_read() {
        let said = "QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)\nCopyright (c) 2003-2025\n";
        assert_eq!(parse_qemu_major(said), Some(10));
        assert_eq!(parse_qemu_major("no such thing"), None);
    }

    #[test]
    fn the_mirror_is_the_one_that_holds_the_suite() {
        let line = "deb [arch=amd64 signed-by=/k.gpg] http://mirror.test/debian bookworm main";
        let keyed =
            Mirror { uri: "http://mirror.test/debian".into(), signed_by: Some("/k.gpg".into()) };
        assert_eq!(mirror_of_line(line, "bookworm"), Some(keyed));
        assert_eq!(mirror_of_line(line, "trixie"), None);
        assert_eq!(
            mirror_of_line("deb https://other.test/sdk sdk-bookworm main", "bookworm"),
            None
        );

        let security = "Types: deb\nURIs: http://mirror.test/security\nSuites: bookworm-security\n\
            Components: main\n";
        let main = "Types: deb\n# of a day\nURIs: http://mirror.test/debian\n\
            Suites: bookworm bookworm-updates\nComponents: main\nSigned-By: /k.gpg\n";
        let text = format!("{security}\n{main}");
        let found = mirror_in(Path::new("debian.sources"), &text, "bookworm").unwrap();
        assert_eq!(found.uri, "http://mirror.test/debian");
        assert_eq!(
            found.sources(&["bookworm", "bookworm-backports"]),
            "Types: deb\nURIs: http://mirror.test/debian\nSuites: bookworm bookworm-backports\n\
             Components: main\nSigned-By: /k.gpg\n"
        );
    }
}
