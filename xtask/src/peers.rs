//! `cargo x peers` gets servers to compare SlimIO with. They speak the Redis protocol, too, and are
//! newer than those of Debian stable.
//!
//! These servers are packages of Debian unstable, which may need a newer C library than the machine
//! has. So each is unpacked below the target folder together with all its libraries, and started
//! through the dynamic loader that came with them. Nothing is installed.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use slimio_host::Failure;
use slimio_host::apt::Apt;
use slimio_host::process::{command, target_dir};

/// The Redis 7 of Debian stable, which the tests need as well.
const DEBIAN_REDIS: &str = "redis-7";

const SUITE: &str = "unstable";
/// Name of the script that starts the server, in the folder of each peer.
const STARTER: &str = "server";

/// A server to compare with.
struct Peer {
    /// Its name for `cargo x bench --stock`.
    name: &'static str,
    package: &'static str,
    /// The beginning of the output of its `--version`.
    version: &'static str,
}

const PEERS: &[Peer] = &[
    Peer { name: "redis-8", package: "redis-server", version: "Redis server v=8." },
    Peer { name: "valkey-9", package: "valkey-server", version: "Valkey server v=9." },
];

/// `cargo x peers [--clean]`.
pub(crate) fn verb(args: &[String]) -> Result<(), Failure> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        [] => {
            for peer in PEERS {
                println!("ready: {}, {}", peer.name, peer.install()?.display());
            }
            println!(
                "to compare with one of them: cargo x bench --stock {}; with all: --stock all",
                PEERS[0].name
            );
            Ok(())
        }
        ["--clean"] => match fs::remove_dir_all(dir()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(format!("{}: {error}", dir().display()).into())
            }
            _ => Ok(()),
        },
        _ => {
            Err("cargo x peers [--clean]: gets newer servers to compare with, or removes them"
                .into())
        }
    }
}

/// Turns `word`, the argument of `cargo x bench --stock`, into the argument that the load generator
/// takes. `word` is the name of a peer (which is unpacked first if necessary), the name of Debian's
/// own Redis, a path, or `all`, which stands for Debian's own Redis and every peer.
pub(crate) fn stock(word: &str) -> Result<OsString, Failure> {
    if word == DEBIAN_REDIS {
        return Ok(installed("redis-server")?.into_os_string());
    }
    if word != "all" {
        let peer = PEERS.iter().find(|peer| peer.name == word);
        return Ok(peer
            .map(Peer::install)
            .transpose()?
            .map_or(word.into(), PathBuf::into_os_string));
    }
    let mut all =
        OsString::from(format!("{DEBIAN_REDIS}={}", installed("redis-server")?.display()));
    for peer in PEERS {
        all.push(format!(",{}=", peer.name));
        all.push(peer.install()?);
    }
    Ok(all)
}

/// The path of an installed program.
fn installed(program: &str) -> Result<PathBuf, Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut paths = std::env::split_paths(&path).map(|dir| dir.join(program));
    paths.find(|path| path.is_file()).ok_or_else(|| format!("{program} is not installed").into())
}

/// The folder that contains the folder of each peer.
pub(crate) fn dir() -> PathBuf {
    target_dir().join("peers")
}

impl Peer {
    fn install(&self) -> Result<PathBuf, Failure> {
        let place = dir().join(self.name);
        let starter = place.join(STARTER);
        if !starter.is_file() {
            self.unpack(&place).map_err(|Failure(why)| format!("{}: {why}", self.name))?;
        }
        Ok(starter)
    }

    fn unpack(&self, place: &Path) -> Result<(), Failure> {
        let apt = Apt::new(dir().join("apt"), &[SUITE])?;
        let needed = apt.cache(&[
            "depends",
            "--recurse",
            "--no-recommends",
            "--no-suggests",
            "--no-conflicts",
            "--no-breaks",
            "--no-replaces",
            "--no-enhances",
            // Makes apt list the libraries as if nothing were installed, because the machine's own
            // libraries are older.
            "-o",
            "Dir::State::status=/dev/null",
            self.package,
        ])?;
        let packages = programs_and_libraries(&needed);
        if packages.is_empty() {
            return Err(format!("{SUITE} has no {}", self.package).into());
        }
        let unpacked = dir().join("unpacked");
        apt.unpack(&packages, Some(SUITE), &unpacked)?;
        let starter = unpacked.join(STARTER);
        fs::write(&starter, starter_script(self.package))
            .and_then(|()| fs::set_permissions(&starter, fs::Permissions::from_mode(0o755)))
            .map_err(|error| format!("{}: {error}", starter.display()))?;
        self.check(&starter)?;
        // The peer is moved to its place only after it has started once.
        drop(fs::remove_dir_all(place));
        fs::rename(&unpacked, place).map_err(|error| format!("{}: {error}", place.display()).into())
    }

    fn check(&self, starter: &Path) -> Result<(), Failure> {
        let said = command(starter).arg("--version").output();
        let said = said.map_err(|error| format!("{}: {error}", starter.display()))?;
        let (out, err) =
            (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
        if out.starts_with(self.version) {
            return Ok(());
        }
        let (wanted, found) = (self.version, format!("{out}{err}"));
        Err(format!(
            "the version must begin with \"{wanted}\", but {SUITE} has \"{}\"",
            found.trim()
        )
        .into())
    }
}

/// The packages that a server needs to run, among those that `apt-cache depends --recurse` has
/// listed. Packages that only set up a system are left out. The server's own package is in the
/// list.
fn programs_and_libraries(listed: &str) -> Vec<&str> {
    let names = listed.lines().filter(|line| !line.starts_with([' ', '<', '|']));
    let is_wanted = |name: &&str| {
        ["lib", "lua-", "valkey-", "redis-"].iter().any(|begin| name.starts_with(begin))
            && !name.starts_with("libpam")
            && !name.contains(':')
    };
    let mut names: Vec<&str> = names.filter(is_wanted).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// A script that starts the program of `package`. It uses the loader and the libraries that were
/// unpacked into the script's folder.
fn starter_script(package: &str) -> String {
    format!(
        "#!/bin/sh\n\
         here=$(dirname \"$(readlink -f \"$0\")\")\n\
         for libraries in \"$here\"/usr/lib/*-linux-gnu; do break; done\n\
         exec \"$libraries\"/ld-linux-*.so.* --library-path \"$libraries\" \\\n\
         \x20   \"$here/usr/bin/{package}\" \"$@\"\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_sets_a_system_up_is_not_needed() {
        let listed = "valkey-server\n  Depends: libc6\n  Depends: adduser\n |Depends: debconf\n\
            libc6\n  Depends: libgcc-s1\nadduser\n<debconf-2.0>\nlibgcc-s1\nlibpam-runtime\nlua-cjson\n\
            libc6:i386\nlibc6\nvalkey-tools\n";
        let wanted = ["libc6", "libgcc-s1", "lua-cjson", "valkey-server", "valkey-tools"];
        assert_eq!(programs_and_libraries(listed), wanted);
    }
}
