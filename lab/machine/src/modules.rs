//! The modules of a kernel, by name, and the modules that each of them needs.
//!
//! Debian's package of a kernel holds no list of these dependencies, because that list is made when
//! the package is installed. So the dependencies are read from the modules themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use slimio_host::Failure;
use slimio_host::process::command;

use crate::guest::said;

const SUFFIX: &str = ".ko.xz";
/// Name of the file that lists the modules built into the kernel, one path in each line.
const BUILT_IN: &str = "modules.builtin";

/// The modules of one kernel.
#[derive(Clone, Debug)]
pub struct Modules {
    /// Compressed files, by the module's name.
    files: BTreeMap<String, PathBuf>,
    built_in: BTreeSet<String>,
}

/// A module, unpacked and ready to be loaded.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) name: String,
    pub(crate) contents: Vec<u8>,
}

impl Modules {
    /// The modules below `folder`, which is the folder `kernel/` of a kernel's modules.
    pub(crate) fn of(folder: &Path) -> Result<Self, Failure> {
        let list = folder.with_file_name(BUILT_IN);
        let list = fs::read_to_string(&list).map_err(|error| said(&list, &error))?;
        let built_in = list.lines().filter_map(|line| line.strip_suffix(".ko")).map(name_of);
        let mut modules = Self { files: BTreeMap::new(), built_in: built_in.collect() };
        modules.find_below(folder)?;
        Ok(modules)
    }

    fn find_below(&mut self, folder: &Path) -> Result<(), Failure> {
        for entry in fs::read_dir(folder).map_err(|error| said(folder, &error))? {
            let path = entry.map_err(|error| said(folder, &error))?.path();
            if path.is_dir() {
                self.find_below(&path)?;
            } else if let Some(name) = path.to_string_lossy().strip_suffix(SUFFIX) {
                self.files.insert(name_of(name), path.clone());
            }
        }
        Ok(())
    }

    /// The modules of these names, each after the modules that it needs. Modules that are in
    /// `packed` or built into the kernel are left out. The others are added to `packed`.
    ///
    /// # Errors
    /// If the kernel lacks one of the named modules, or a module that one of them needs. Also if
    /// `xz` does not start or fails.
    pub(crate) fn with_dependencies(
        &self,
        names: &[&str],
        packed: &mut BTreeSet<String>,
    ) -> Result<Vec<Module>, Failure> {
        let mut found = Vec::new();
        for name in names {
            self.add(&name_of(name), packed, &mut found)?;
        }
        Ok(found)
    }

    fn add(
        &self,
        name: &str,
        packed: &mut BTreeSet<String>,
        found: &mut Vec<Module>,
    ) -> Result<(), Failure> {
        if self.built_in.contains(name) || !packed.insert(name.to_owned()) {
            return Ok(());
        }
        let file =
            self.files.get(name).ok_or_else(|| format!("the kernel has no module {name}"))?;
        let unpacked = command("xz").arg("-dc").arg(file).stderr(Stdio::inherit()).output();
        let unpacked = unpacked.map_err(|error| said(file, &error))?;
        if !unpacked.status.success() {
            return Err(format!("{} can't be unpacked: xz has failed", file.display()).into());
        }
        let contents = unpacked.stdout;
        for needed in dependencies(&contents) {
            self.add(&needed, packed, found)?;
        }
        found.push(Module { name: name.to_owned(), contents });
        Ok(())
    }
}

/// The name of a module by its path. The kernel treats `-` and `_` in a name as the same character.
fn name_of(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).replace('-', "_")
}

/// The names of the modules that `module` lists as needed.
fn dependencies(module: &[u8]) -> Vec<String> {
    const FIELD: &[u8] = b"\0depends=";
    let Some(at) = module.windows(FIELD.len()).position(|window| window == FIELD) else {
        return Vec::new();
    };
    let rest = module[at + FIELD.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let list = String::from_utf8_lossy(rest);
    list.split(',').filter(|name| !name.is_empty()).map(name_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::Stdio;

    /// A folder of modules, removed on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
            fs::create_dir_all(root.join("kernel/fs/b")).unwrap();
            fs::write(root.join(BUILT_IN), "kernel/crypto/inside.ko\n").unwrap();
            Self(root)
        }

        fn module(&self, path: &str, text: &[u8]) {
            let packed = fs::File::create(self.0.join("kernel").join(path)).unwrap();
            let mut xz = command("xz");
            let mut xz = xz.arg("-c").stdin(Stdio::piped()).stdout(packed).spawn().unwrap();
            xz.stdin.take().unwrap().write_all(text).unwrap();
            assert!(xz.wait().unwrap().success());
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    #[test]
    fn a_module_comes_behind_what_it_needs_and_only_once() {
        let folder = Folder::new("slimio-modules");
        folder.module("fs/b/top-most.ko.xz", b"license=GPL\0depends=mid_dle,inside,low\0x");
        folder.module("fs/mid-dle.ko.xz", b"license=GPL\0depends=low\0name=mid\0");
        folder.module("low.ko.xz", b"license=GPL\0depends=\0depending\0");
        folder.module("other.ko.xz", b"license=GPL\0depends=absent\0");
        let modules = Modules::of(&folder.0.join("kernel")).unwrap();
        let mut packed = BTreeSet::new();
        let mut names = |wanted: &[&str]| {
            let found = modules.with_dependencies(wanted, &mut packed);
            found.map(|all| all.into_iter().map(|module| module.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["low"]).unwrap(), ["low"]);
        assert_eq!(names(&["inside", "top-most"]).unwrap(), ["mid_dle", "top_most"]);
        assert_eq!(names(&["top_most"]).unwrap(), Vec::<String>::new());
        for missing in ["nobody", "other"] {
            let Failure(why) = names(&[missing]).unwrap_err();
            assert!(why.starts_with("the kernel has no module "), "{why}");
        }
    }
}
