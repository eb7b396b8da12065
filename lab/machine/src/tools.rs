//! Installs what the lab itself needs: QEMU, a kernel, and programs for the host and the guest.
//!
//! Debian's backports have a QEMU that supports FDP and a kernel that supports the NVMe generic
//! devices of this QEMU. The kernel is unpacked, not installed.

use std::fs;
use std::path::PathBuf;

use slimio_host::Failure;
use slimio_host::apt::{self, Apt};
use slimio_host::process::{command, target_dir};

use crate::modules::Modules;

const QEMU: &str = "qemu-system-x86_64";
/// The first major version of QEMU that supports FDP.
const QEMU_MAJOR_MIN: u32 = 8;
/// Programs that the lab always needs, each with its Debian package.
const PROGRAMS: &[(&str, &str)] = &[
    ("busybox", "busybox-static"),
    ("nvme", "nvme-cli"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("xz", "xz-utils"),
    ("strip", "binutils"),
    ("setpriv", "util-linux"),
];

/// Programs that the lab needs only for guests with the general kernel, each with its Debian
/// package.
const PROGRAMS_GENERAL: &[(&str, &str)] = &[("mkfs.f2fs", "f2fs-tools"), ("fio", "fio")];

const BY_HAND: &str = "the lab needs Debian with its backports; elsewhere, install by hand QEMU 8 or \
    later, busybox-static, nvme-cli, e2fsprogs, xfsprogs, xz-utils, binutils, util-linux, f2fs-tools \
    and fio";

/// The folder of all the lab's files.
pub(crate) fn lab_dir() -> PathBuf {
    target_dir().join("lab")
}

/// Which of Debian's kernels a machine starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kernel {
    /// The small kernel, made for virtual machines. NVMe and ext4 are built into it.
    #[default]
    Cloud,
    /// The kernel for all machines. It has more modules, among them F2FS.
    General,
}

impl Kernel {
    /// The metapackage that names the newest kernel of this kind.
    const fn package(self) -> &'static str {
        match self {
            Self::Cloud => "linux-image-cloud-amd64",
            Self::General => "linux-image-amd64",
        }
    }

    /// The folder that the kernel is unpacked into.
    fn dir(self) -> PathBuf {
        lab_dir().join(match self {
            Self::Cloud => "kernel",
            Self::General => "kernel-general",
        })
    }
}

/// What a machine is started with.
#[derive(Clone, Debug)]
pub struct Tools {
    /// The emulator.
    pub qemu: PathBuf,
    /// The kernel's image.
    pub kernel: PathBuf,
    /// The kernel's modules.
    pub modules: Modules,
}

/// Installs the tools that are missing; fails if one cannot be installed.
pub fn install(kernel: Kernel) -> Result<Tools, Failure> {
    let general: &[_] = if kernel == Kernel::General { PROGRAMS_GENERAL } else { &[] };
    let wanted = || PROGRAMS.iter().chain(general);
    let programs: Vec<&str> = wanted()
        .filter(|(program, _)| find(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    let needs_qemu = qemu().is_none();
    let needs_kernel = unpacked(kernel).is_none();
    if needs_qemu || needs_kernel || !programs.is_empty() {
        let codename = apt::codename().ok_or(BY_HAND)?;
        let backports = format!("{codename}-backports");
        let apt = Apt::new(lab_dir().join("apt"), &[&codename, &backports])
            .map_err(|Failure(why)| format!("{why}: {BY_HAND}"))?;
        if needs_qemu {
            apt.install(&["qemu-system-x86"], Some(&backports))?;
        }
        if !programs.is_empty() {
            apt.install(&programs, None)?;
        }
        if needs_kernel {
            unpack_kernel(&apt, kernel, &backports)?;
        }
    }
    if let Some((program, package)) = wanted().find(|(program, _)| find(program).is_none()) {
        return Err(format!("{program} of {package} is still missing: {BY_HAND}").into());
    }
    let qemu = qemu()
        .ok_or_else(|| format!("{QEMU} of version {QEMU_MAJOR_MIN} or later is not installed"))?;
    let (kernel, modules) = unpacked(kernel).ok_or("no kernel was found in Debian's package")?;
    Ok(Tools { qemu, kernel, modules: Modules::of(&modules)? })
}

/// The path of a program, even if only root has its folder on the search path.
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

/// Parses `QEMU emulator version 10.0.2 (Debian …)`.
fn parse_qemu_major(said: &str) -> Option<u32> {
    let (_, version) = said.split_once("version ")?;
    version.split('.').next()?.parse().ok()
}

/// The unpacked kernel and the folder of its modules.
fn unpacked(kernel: Kernel) -> Option<(PathBuf, PathBuf)> {
    let root = kernel.dir();
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

/// Unpacks the kernel that the metapackage names, below the lab's folder.
fn unpack_kernel(apt: &Apt, kernel: Kernel, backports: &str) -> Result<(), Failure> {
    let meta = format!("{}/{backports}", kernel.package());
    let said = apt.cache(&["depends", &meta])?;
    let package = said
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: linux-image-"))
        .ok_or_else(|| format!("the package {meta} names no kernel"))?;
    apt.unpack(&[&format!("linux-image-{package}")], Some(backports), &kernel.dir())
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
}
