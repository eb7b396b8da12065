//! Measures PostgreSQL with `pgbench -N`, whose transactions do not wait for each other.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Signal, geteuid};

use super::child::{Life, Running, missing, rate, text_of};
use super::{Plan, Site, Subject};
use crate::error::{BenchError, Result};
use crate::server::find_program;

/// Debian's folder for PostgreSQL's programs. It has a folder for each version.
const VERSIONS: &str = "/usr/lib/postgresql";
/// The user that PostgreSQL's package makes. PostgreSQL does not run as root.
const USER: &str = "postgres";
const CLIENTS: [u32; 3] = [1, 16, 32];
/// Number of accounts in the data of `pgbench`, in units of 100,000.
const SCALE: &str = "4";
/// Settings of the server. `wal_level=minimal` excludes replication, so it also needs
/// `max_wal_senders=0`.
const SETTINGS: [(&str, &[&str]); 3] = [
    ("default", &[]),
    ("`open_datasync`, `minimal`", &["wal_sync_method=open_datasync", MINIMAL, NO_SENDERS]),
    ("`fdatasync`, `minimal`, `commit_delay`", &["commit_delay=100", MINIMAL, NO_SENDERS]),
];
const MINIMAL: &str = "wal_level=minimal";
const NO_SENDERS: &str = "max_wal_senders=0";

#[derive(Debug)]
pub(super) struct Postgres {
    programs: PathBuf,
    /// The server's user, and the signal that ends the server. At SIGINT, PostgreSQL ends without
    /// waiting for its clients.
    life: Life,
}

impl Postgres {
    pub(super) fn new() -> Result<Self> {
        let programs = programs().ok_or_else(|| missing("postgres", "postgresql"))?;
        let is_root = geteuid().is_root();
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        if is_root && !users.lines().any(|line| line.starts_with("postgres:")) {
            let text = "there is no user postgres, and PostgreSQL does not run as root";
            return Err(BenchError::Usage(text.into()));
        }
        let life = Life { user: is_root.then_some(USER), end: Signal::INT };
        Ok(Self { programs, life })
    }

    fn command(&self, under: &[String], program: &str, site: &Site) -> Command {
        let mut command = self.life.command(under, &self.programs.join(program));
        command.current_dir(&site.folder).env("PGHOST", &site.memory).env("PGUSER", USER);
        command.env("PGDATABASE", USER);
        command
    }

    /// Runs `pgbench`. Returns its transactions per second.
    fn load(&self, site: &Site, clients: u32, seconds: u64) -> Result<f64> {
        let mut command = self.command(&[], "pgbench", site);
        command.args(["-N", "-n", "-c", &clients.to_string(), "-j", &clients.min(2).to_string()]);
        command.args(["-T", &seconds.to_string()]);
        rate(&text_of(&mut command)?, "tps = ", "(without")
    }
}

/// The folder with the programs of the newest PostgreSQL of Debian, or else the folder of `initdb`
/// in `PATH`.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir(VERSIONS).into_iter().flatten().flatten();
    let version = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.map(|entry| entry.path()).max_by_key(|path| version(path));
    let of_debian = newest.map(|path| path.join("bin"));
    let in_path = || Some(find_program("initdb")?.parent()?.to_owned());
    of_debian.filter(|path| path.join("initdb").is_file()).or_else(in_path)
}

impl Subject for Postgres {
    fn profile(&self) -> &'static str {
        "postgres"
    }

    fn plan(&self) -> Plan {
        Plan {
            heads: vec!["clients"],
            unit: "transactions",
            settings: SETTINGS.map(|(name, _)| name).to_vec(),
            groups: vec![CLIENTS.map(|clients| vec![clients.to_string()]).to_vec()],
        }
    }

    fn measure(&self, _group: usize, setting: usize, site: &Site) -> Result<Vec<f64>> {
        let data = site.folder.join("data");
        let mut make = self.command(&[], "initdb", site);
        make.args(["--no-sync", "--username", USER, "--auth", "trust", "--pgdata"]).arg(&data);
        text_of(&mut make)?;
        let mut serve = self.command(&site.under, "postgres", site);
        serve.arg("-D").arg(&data).arg("-k").arg(&site.memory).args(["-c", "listen_addresses="]);
        serve.args(SETTINGS[setting].1.iter().flat_map(|setting| ["-c", setting]));
        let answers = || text_of(&mut self.command(&[], "pg_isready", site)).is_ok();
        let server = Running::start(serve, self.life.end, site.memory.join("log"), answers)?;
        text_of(self.command(&[], "pgbench", site).args(["-i", "-q", "-s", SCALE]))?;
        text_of(self.command(&[], "psql", site).args(["-q", "-c", "CHECKPOINT"]))?;
        // The first transactions are not counted: after a checkpoint, the first change to a page
        // also writes a copy of the page to the log.
        self.load(site, CLIENTS[1], site.seconds().div_ceil(3))?;
        let rates = CLIENTS.map(|clients| self.load(site, clients, site.seconds()));
        let rates = rates.into_iter().collect::<Result<Vec<f64>>>()?;
        site.check(&server.said());
        server.stop()?;
        Ok(rates)
    }
}
