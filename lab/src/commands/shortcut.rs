//! `slimio-lab shortcut`: measures stock programs with and without `slimio shortcut run`, which
//! gives their logs a short path to the device.

mod child;
mod mariadb;
mod postgres;
mod redis;
mod rocksdb;
mod sqlite;
mod table;

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use slimio_testing::loops::Mounted;

use crate::commands::compare::absolute;
use crate::error::{BenchError, Doing, Result};
use crate::recorder::{check_interrupt, heed_interrupts};
use table::{Measured, Plan};

/// The help text of `slimio-lab shortcut`.
pub const HELP: &str = include_str!("../../help/shortcut.txt");

/// Size in bytes of the file system that is made if `--dir` names no folder.
const FILE_SYSTEM_SIZE: u64 = 4 << 30;
/// The file system in memory (tmpfs) for [`Site::memory`].
const MEMORY: &str = "/dev/shm";

/// The flags.
#[derive(Debug, Args)]
pub struct Shortcut {
    #[arg(long, default_value = "redis")]
    program: String,
    #[arg(long)]
    stock: Option<String>,
    #[arg(long, default_value = "target/release/slimio")]
    slimio: PathBuf,
    #[arg(long, allow_hyphen_values = true)]
    run: Option<String>,
    #[arg(long)]
    dir: Option<PathBuf>,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

/// A program that is measured.
trait Subject {
    /// Name of the program's profile, for `slimio shortcut run --profile`.
    fn profile(&self) -> &'static str;
    fn plan(&self) -> Plan;
    /// Measures the rows of a group with one setting. The folder of `site` is empty at the start.
    /// Returns the operations per second of each row.
    fn measure(&self, group: usize, setting: usize, site: &Site) -> Result<Vec<f64>>;
}

/// Where and how a program is measured.
#[derive(Debug)]
struct Site {
    /// A folder for the program's data, in `--dir` or on a file system made for this run. Empty at
    /// the start.
    folder: PathBuf,
    /// A folder in memory (tmpfs). Its path is short enough for the address of a Unix socket.
    memory: PathBuf,
    /// The words in front of the program's command line: none, or `slimio shortcut run` with its
    /// flags.
    under: Vec<String>,
    time: Duration,
}

impl Site {
    /// Prints a warning if `slimio shortcut run` was used but did not report that a log takes the
    /// short path. `said` is the output of the measured program and of `slimio shortcut run`.
    fn check(&self, said: &str) {
        if !self.under.is_empty() && !said.contains(": written by the short path") {
            let lines = said.lines().filter(|line| line.starts_with("slimio: "));
            let why: Vec<&str> = lines.collect();
            eprintln!("no log took the short path: {} {}", self.under.join(" "), why.join("; "));
        }
    }

    /// The time in whole seconds, because some programs accept only whole seconds.
    fn seconds(&self) -> u64 {
        (self.time.as_secs_f64().round() as u64).max(1)
    }
}

impl Shortcut {
    /// Measures all programs that `--program` names. Returns the text to print.
    pub fn run(&self) -> Result<String> {
        let subjects = self.subjects()?;
        if !(self.seconds > 0.0 && self.seconds < 86_400.0) || self.rounds == 0 {
            return Err(BenchError::Usage(
                "--rounds must be at least 1, --seconds above 0 and below 86400".into(),
            ));
        }
        heed_interrupts()?;
        let made;
        let dir = if let Some(dir) = &self.dir {
            absolute(dir)?
        } else {
            made = Mounted::new(&["mkfs.ext4", "-q"], FILE_SYSTEM_SIZE, "defaults");
            let made = made.as_ref().ok_or_else(|| {
                BenchError::Usage("no loop device can be made: name a folder with --dir".into())
            })?;
            made.path().to_owned()
        };
        let (mut text, mut has_failed) = (String::new(), false);
        for subject in &subjects {
            // If one program fails, the tables of the other programs are printed nevertheless.
            let table = self.measure(&**subject, &dir);
            has_failed |= table.is_err();
            let table = table.unwrap_or_else(|error| format!("{error}\n"));
            let _ = write!(text, "{}:\n\n{table}\n", subject.profile());
        }
        if has_failed { Err(BenchError::Server(text)) } else { Ok(text) }
    }

    /// The programs that `--program` names. If several are not installed, one error names all of
    /// them.
    fn subjects(&self) -> Result<Vec<Box<dyn Subject>>> {
        let all = ["redis", "sqlite", "rocksdb", "postgres", "mariadb"];
        let names: Vec<&str> = match &*self.program {
            "all" => all.to_vec(),
            names => names.split(',').collect(),
        };
        let (mut subjects, mut missing) = (Vec::new(), Vec::new());
        for name in names {
            let subject: Result<Box<dyn Subject>> = match name {
                "redis" => redis::Redis::new(self.stock.as_deref()).map(|it| Box::new(it) as _),
                "sqlite" => sqlite::Sqlite::new().map(|it| Box::new(it) as _),
                "rocksdb" => rocksdb::RocksDb::new().map(|it| Box::new(it) as _),
                "postgres" => postgres::Postgres::new().map(|it| Box::new(it) as _),
                "mariadb" => mariadb::MariaDb::new().map(|it| Box::new(it) as _),
                _ => {
                    let text = format!(
                        "unknown program {name}; --program takes `all`, or: {}",
                        all.join(", ")
                    );
                    return Err(BenchError::Usage(text));
                }
            };
            match subject {
                Ok(subject) => subjects.push(subject),
                Err(BenchError::Usage(text)) => missing.push(text),
                Err(error) => return Err(error),
            }
        }
        if missing.is_empty() {
            return Ok(subjects);
        }
        Err(BenchError::Usage(missing.join("\n")))
    }

    /// Measures all rows of a program. Each round measures the rows with each setting, without and
    /// with the short path. Returns the table.
    fn measure(&self, subject: &dyn Subject, dir: &Path) -> Result<String> {
        let plan = subject.plan();
        let mut measured = Measured::new(&plan);
        let settings = 0..plan.settings.len();
        let ways: Vec<_> =
            settings.flat_map(|setting| [(setting, false), (setting, true)]).collect();
        for round in 0..self.rounds {
            for group in 0..plan.groups.len() {
                for turn in 0..ways.len() {
                    // The machine may get slower during a round. So every second round has the
                    // reverse order, and no measurement is always the last of its round.
                    let last = ways.len() - 1;
                    let (setting, is_short) = ways[if round % 2 == 0 { turn } else { last - turn }];
                    check_interrupt()?;
                    let rooms = Rooms::new(dir)?;
                    let site = Site {
                        folder: rooms.folder.clone(),
                        memory: rooms.memory.clone(),
                        under: if is_short { self.under(subject, &rooms)? } else { Vec::new() },
                        time: Duration::from_secs_f64(self.seconds),
                    };
                    let rates = subject.measure(group, setting, &site)?;
                    measured.add(&plan, group, setting, is_short, &rates);
                }
            }
        }
        Ok(measured.table(&plan))
    }

    /// The command line of `slimio shortcut run`, without the program that it runs.
    fn under(&self, subject: &dyn Subject, rooms: &Rooms) -> Result<Vec<String>> {
        let given = self.run.clone().unwrap_or_else(|| format!("--profile {}", subject.profile()));
        let text = |path: PathBuf| path.display().to_string();
        let slimio = text(absolute(&self.slimio)?);
        let (stages, notes) = (text(rooms.memory.join("stages")), text(rooms.folder.join("notes")));
        let mut under = [slimio, "shortcut".into(), "run".into()].to_vec();
        under.extend(["--stages".into(), stages, "--notes".into(), notes]);
        under.extend(given.split_whitespace().map(str::to_owned));
        under.push("--".into());
        Ok(under)
    }
}

/// The folders of one measurement. They are removed when this value is dropped. Every user may
/// create files in them, because some servers run as another user.
#[derive(Debug)]
struct Rooms {
    folder: PathBuf,
    memory: PathBuf,
}

impl Rooms {
    fn new(dir: &Path) -> Result<Self> {
        let name = format!("slimio-lab-{}", std::process::id());
        let rooms = Self { folder: dir.join(&name), memory: Path::new(MEMORY).join(&name) };
        for path in [&rooms.folder, &rooms.memory] {
            let made = fs::create_dir_all(path)
                .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o1777)));
            made.doing(format!("making {}", path.display()))?;
        }
        Ok(rooms)
    }
}

impl Drop for Rooms {
    fn drop(&mut self) {
        for path in [&self.folder, &self.memory] {
            if let Err(error) = fs::remove_dir_all(path) {
                eprintln!("cannot remove {}: {error}", path.display());
            }
        }
    }
}
