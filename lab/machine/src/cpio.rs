//! The archive that the kernel unpacks as its first root file system. The archive has the format
//! `newc` of cpio.

use std::collections::BTreeSet;

const MODE_DIRECTORY: u32 = 0o040_755;
const MODE_FILE: u32 = 0o100_000;
const MODE_LINK: u32 = 0o120_777;
const MODE_CHARACTERS: u32 = 0o020_600;

/// An archive that is being made, in memory.
#[derive(Default)]
pub(crate) struct Cpio {
    bytes: Vec<u8>,
    /// Names in the archive. A folder is added with the first file in it, and no file is added
    /// twice.
    names: BTreeSet<String>,
}

impl Cpio {
    /// Adds a folder. `path` has no leading `/`. An entry that exists already stays as it is.
    pub(crate) fn directory(&mut self, path: &str) {
        if path.is_empty() || self.names.contains(path) {
            return;
        }
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent);
        }
        self.entry(path, MODE_DIRECTORY, (0, 0), &[]);
    }

    pub(crate) fn file(&mut self, path: &str, mode: u32, contents: &[u8]) {
        self.below_its_folder(path, MODE_FILE | mode, (0, 0), contents);
    }

    pub(crate) fn link(&mut self, path: &str, to: &str) {
        self.below_its_folder(path, MODE_LINK, (0, 0), to.as_bytes());
    }

    /// Adds a character device.
    pub(crate) fn node(&mut self, path: &str, major: u32, minor: u32) {
        self.below_its_folder(path, MODE_CHARACTERS, (major, minor), &[]);
    }

    pub(crate) fn has(&self, path: &str) -> bool {
        self.names.contains(path)
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn below_its_folder(&mut self, path: &str, mode: u32, device: (u32, u32), contents: &[u8]) {
        if self.has(path) {
            return;
        }
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent);
        }
        self.entry(path, mode, device, contents);
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), contents: &[u8]) {
        self.names.insert(path.to_owned());
        // The kernel recognises hard links by inode number, so each entry gets its own number.
        let inode = self.names.len() as u32;
        let links = 1;
        let fields = [
            inode,
            mode,
            0,
            0,
            links,
            0,
            contents.len() as u32,
            0,
            0,
            device.0,
            device.1,
            path.len() as u32 + 1,
            0,
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(path.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slimio_host::process::{command, is_installed};
    use std::io::Write;
    use std::process::Stdio;

    #[test]
    fn busybox_reads_what_was_packed() {
        if !is_installed("busybox") {
            println!("SKIPPED: busybox is not installed, so no archive was read back");
            return;
        }
        let mut cpio = Cpio::default();
        cpio.file("bin/tool", 0o755, b"odd");
        cpio.link("sbin", "bin");
        cpio.file("bin/tool", 0o644, b"a second file of this name is dropped");
        let archive = cpio.finish();
        let mut list = command("busybox");
        list.args(["cpio", "-tv"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut list = list.stderr(Stdio::null()).spawn().unwrap();
        list.stdin.take().unwrap().write_all(&archive).unwrap();
        let said = list.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&said.stdout);
        let names: Vec<_> = said.lines().filter_map(|l| l.split_whitespace().last()).collect();
        assert_eq!(names, ["bin", "bin/tool", "bin"], "{said}");
        assert!(said.contains("-rwxr-xr-x") && said.contains("sbin -> bin"), "{said}");
    }
}
