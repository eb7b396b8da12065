//! MariaDB: transactions of `sysbench`.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::child::{Life, Running, installed, rate, text_of};
use super::{Plan, Site, Subject};
use crate::error::{Doing, Result};

const PACKAGES: &str = "mariadb-server-core mariadb-client-core mariadb-common";
const LOADS: [&str; 3] = ["oltp_insert", "oltp_write_only", "oltp_read_write"];
const THREADS: [u32; 3] = [1, 16, 32];
/// By default, MariaDB writes its log by direct I/O. The short path, which is the way in which
/// SlimIO writes the logs of other programs, does not serve such a log.
const SETTINGS: [(&str, &[&str]); 3] = [
    ("default", &[]),
    ("`O_DSYNC`", &["--innodb-flush-method=O_DSYNC"]),
    ("buffered log", &["--innodb-log-file-buffering"]),
];
const BUFFERED: usize = 2;
const LOG: &str = "ib_logfile0";

#[derive(Debug)]
pub(super) struct MariaDb {
    server: PathBuf,
    install: PathBuf,
    client: PathBuf,
    sysbench: PathBuf,
}

impl MariaDb {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            server: installed("mariadbd", PACKAGES)?,
            install: installed("mariadb-install-db", PACKAGES)?,
            client: installed("mariadb", PACKAGES)?,
            sysbench: installed("sysbench", "sysbench")?,
        })
    }

    fn sysbench(&self, load: &str, threads: u32, site: &Site) -> Command {
        let mut command = Life::OURS.command(&[], &self.sysbench);
        command.arg(load).args(["--db-driver=mysql", "--mysql-user=root", "--mysql-db=test"]);
        command.arg(format!("--mysql-socket={}", site.memory.join("socket").display()));
        command.args(["--tables=4", "--table-size=10000"]).arg(format!("--threads={threads}"));
        command
    }

    /// Runs a load. Returns its transactions per second.
    fn load(&self, load: &str, threads: u32, seconds: u64, site: &Site) -> Result<f64> {
        let mut command = self.sysbench(load, threads, site);
        command.arg(format!("--time={seconds}")).arg("run");
        rate(&text_of(&mut command)?, "transactions:", "per sec")
    }
}

impl Subject for MariaDb {
    fn profile(&self) -> &'static str {
        "mariadb"
    }

    fn plan(&self) -> Plan {
        let rows = |load| {
            let row = |threads: u32| vec![format!("`{load}`"), threads.to_string()];
            THREADS.map(row).to_vec()
        };
        Plan {
            heads: vec!["load", "threads"],
            unit: "transactions",
            settings: SETTINGS.map(|(name, _)| name).to_vec(),
            groups: LOADS.map(rows).to_vec(),
        }
    }

    fn measure(&self, group: usize, setting: usize, site: &Site) -> Result<Vec<f64>> {
        let data = format!("--datadir={}", site.folder.join("data").display());
        // MariaDB runs as root only if this flag is given.
        let user = "--user=root";
        // When a server starts, it removes all tables in its folder for temporary tables. So two
        // servers must not share that folder.
        let temporary = format!("--tmpdir={}", site.memory.display());
        let mut make = Life::OURS.command(&[], &self.install);
        make.args([
            "--no-defaults",
            user,
            &data,
            &temporary,
            "--auth-root-authentication-method=normal",
        ]);
        text_of(make.args(["--skip-test-db", "--skip-name-resolve"]))?;
        write_again(&site.folder.join("data").join(LOG))?;
        let mut serve = Life::OURS.command(&site.under, &self.server);
        let socket = site.memory.join("socket").display().to_string();
        serve.args(["--no-defaults", user, &data, &temporary, "--skip-networking"]);
        serve.args([format!("--socket={socket}"), format!("--pid-file={socket}.pid")]);
        serve.args(SETTINGS[setting].1);
        let ask = |statement: &str| {
            let mut client = Life::OURS.command(&[], &self.client);
            client.args(["--no-defaults", "--user=root", "--socket", &socket, "-e", statement]);
            text_of(&mut client)
        };
        let log = site.memory.join("log");
        let answers = || ask("SELECT 1").is_ok();
        let server = Running::start(serve, Life::OURS.end, log, answers)?;
        ask("CREATE DATABASE IF NOT EXISTS test")?;
        text_of(self.sysbench(LOADS[0], 1, site).arg("prepare"))?;
        // The first run is not counted, because it reads pages into memory.
        self.load(LOADS[group], THREADS[1], site.seconds().div_ceil(3), site)?;
        let load = |threads| self.load(LOADS[group], threads, site.seconds(), site);
        let rates = THREADS.map(load).into_iter().collect::<Result<Vec<f64>>>()?;
        if setting == BUFFERED {
            site.check(&server.said());
        }
        server.stop()?;
        Ok(rates)
    }
}

/// Writes a new log once from end to end, as a minute of load would. The blocks of a new log are
/// allocated, but not yet written. At the first write to each block, the file system also changes
/// its metadata. The measurement should not include that work.
fn write_again(log: &Path) -> Result<()> {
    let file = File::options().read(true).write(true).open(log);
    let written = file.and_then(|mut file| {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        file.write_all_at(&bytes, 0)?;
        file.sync_all()
    });
    written.doing(format!("writing {}", log.display()))
}
