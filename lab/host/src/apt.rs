//! Runs Debian's package tools with package lists of their own, not with those of the machine. So
//! installing from another suite upgrades nothing else on the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{command, is_installed, run};
use crate::{Failure, NoServiceStarts, is_root};

/// Debian's package tools, with package lists in a separate folder.
#[derive(Debug)]
pub struct Apt {
    dir: PathBuf,
}

impl Apt {
    /// Downloads the package lists of `suites` into `dir`, from the mirror that the machine's own
    /// sources name.
    pub fn new(dir: PathBuf, suites: &[&str]) -> Result<Self, Failure> {
        if !is_installed("apt-get") || !is_installed("dpkg-deb") {
            return Err("apt-get or dpkg-deb is not installed".into());
        }
        let codename = codename().ok_or("/etc/os-release has no VERSION_CODENAME")?;
        let mirror = mirror(&codename)
            .ok_or_else(|| format!("apt's sources name no mirror of Debian {codename}"))?;
        let made = fs::create_dir_all(dir.join("lists/partial"))
            .and_then(|()| fs::write(dir.join("own.sources"), mirror.sources(suites)));
        made.map_err(|error| format!("{}: {error}", dir.display()))?;
        let apt = Self { dir };
        run(apt.command("apt-get").args(["update", "-q"]))?;
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let mut apt = command(program);
        apt.env("DEBIAN_FRONTEND", "noninteractive");
        let dir = self.dir.display();
        for option in [
            format!("Dir::Etc::sourcelist={dir}/own.sources"),
            "Dir::Etc::sourceparts=-".into(),
            format!("Dir::State::lists={dir}/lists"),
            "Dir::Cache::pkgcache=".into(),
            "Dir::Cache::srcpkgcache=".into(),
            "DPkg::Lock::Timeout=300".into(),
            // Apt stays root, because apt's own user may have no access to the target folder.
            "APT::Sandbox::User=root".into(),
        ] {
            apt.args(["-o", &option]);
        }
        apt
    }

    /// Installs packages, from `suite` if one is given.
    pub fn install(&self, packages: &[&str], suite: Option<&str>) -> Result<(), Failure> {
        if !is_root() {
            return Err(format!(
                "only root can install the missing packages {}",
                packages.join(", ")
            )
            .into());
        }
        let _policy = NoServiceStarts::ask()?;
        let mut install = self.command("apt-get");
        install.args(["install", "-y", "-q", "--no-install-recommends"]);
        install.args(suite.into_iter().flat_map(|suite| ["-t", suite]));
        run(install.args(packages))
    }

    /// Runs `apt-cache`, and returns its output.
    pub fn cache(&self, args: &[&str]) -> Result<String, Failure> {
        let said = self.command("apt-cache").args(args).output();
        let said = said.map_err(|error| format!("apt-cache did not start: {error}"))?;
        Ok(String::from_utf8_lossy(&said.stdout).into_owned())
    }

    /// Downloads packages, and unpacks them into the folder `place`. Afterwards, `place` holds
    /// nothing else.
    pub fn unpack(
        &self,
        packages: &[&str],
        suite: Option<&str>,
        place: &Path,
    ) -> Result<(), Failure> {
        let said = |path: &Path, error| format!("{}: {error}", path.display());
        let dir = self.dir.join("packages");
        drop(fs::remove_dir_all(&dir));
        fs::create_dir_all(&dir).map_err(|error| said(&dir, error))?;
        let mut download = self.command("apt-get");
        download.current_dir(&dir).args(["download", "-q"]);
        download.args(suite.into_iter().flat_map(|suite| ["-t", suite]));
        run(download.args(packages))?;
        // The packages are unpacked elsewhere and then renamed, so that `place` never holds only a
        // part of them.
        let unpacked = self.dir.join("unpacked");
        drop(fs::remove_dir_all(&unpacked));
        for file in fs::read_dir(&dir).map_err(|error| said(&dir, error))? {
            let file = file.map_err(|error| said(&dir, error))?.path();
            run(command("dpkg-deb").arg("-x").arg(&file).arg(&unpacked))?;
        }
        drop(fs::remove_dir_all(place));
        fs::rename(&unpacked, place)
            .and_then(|()| fs::remove_dir_all(&dir))
            .map_err(|error| said(place, error).into())
    }
}

/// The codename of the Debian release that this machine runs.
pub fn codename() -> Option<String> {
    os_release("VERSION_CODENAME")
}

fn os_release(wanted: &str) -> Option<String> {
    let text = fs::read_to_string("/etc/os-release").ok()?;
    text.lines().find_map(|line| {
        let (name, value) = line.split_once('=')?;
        (name == wanted).then(|| value.trim_matches('"').to_owned())
    })
}

/// The mirror that the machine's own sources name.
#[derive(Debug, PartialEq, Eq)]
struct Mirror {
    uri: String,
    /// Path of the key ring with which apt checks the mirror's lists.
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

/// Parses `deb [signed-by=PATH] URI SUITE COMPONENT…`.
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

/// Parses an entry of a `.sources` file, which has one field per line.
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
        let main = "Types: deb\n# a comment\nURIs: http://mirror.test/debian\n\
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
