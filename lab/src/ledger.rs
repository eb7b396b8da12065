//! The ledger: clients write down which of their writes were acknowledged, and the server is killed
//! at random moments. After each restart, the server's data is compared with the clients' notes.
//! The time from a start to the next death is a life. Each life goes on with the data of the life
//! before.
//!
//! Under every `appendfsync` policy, each promise below must hold whenever the process dies.
//! (Stock Redis keeps all of them under `always` and `no`. Under `everysec`, while a flush is under
//! way, stock Redis acknowledges writes that wait in its own memory. Within a few dozen lives, the
//! ledger finds that such writes are missing.)
//!
//! - every acknowledged write is there;
//! - of the writes that a connection had in flight, those up to some point are there, and no later
//!   write is there (because one connection's commands are executed in order, and a recovered state
//!   is a prefix of the log);
//! - a `MULTI` … `EXEC`, an `MSET` or any other command is there whole or not at all;
//! - every value and every expiry time was written by some client;
//! - if a client was shown a value before the death, the recovered state is at least as new as that
//!   value.
//!
//! Each client has its own keys, which no other client writes. So the client's own commands alone
//! say what these keys must hold. A unit is a command or a transaction. The keys must be in the
//! acknowledged state, or in a state in which the first 1, 2, … units in flight are applied as
//! well.

mod audit;
mod model;
mod sabotage;
mod snapshots;
mod worker;
mod workload;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{BenchError, Result};
use crate::rng::for_part;
use crate::server::{Server, ServerConfig};
use worker::{Account, Stop};

pub use sabotage::Sabotage;

/// The largest number of clients of one ledger.
pub const CLIENTS_MAX: usize = 1000;
/// The longest time that the clients may take to get a life's writes acknowledged.
const LIFE_MAX: Duration = Duration::from_secs(120);
/// Longest random wait between the last counted acknowledgement and the end of the life.
const HESITATION_US_MAX: u64 = 3000;

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// SIGKILL.
    Kill,
    /// SIGTERM, with clients still writing.
    Terminate,
}

/// Settings of a ledger.
#[derive(Clone, Debug)]
pub struct LedgerConfig {
    /// The server; its directory must be fresh.
    pub server: ServerConfig,
    /// Number of lives.
    pub lives: u32,
    /// Number of concurrent clients.
    pub clients: usize,
    /// A life ends after a random number of acknowledged units. This is the largest such number.
    pub units_per_life_max: u64,
    /// How lives end.
    pub death: Death,
    /// Whether one client requests snapshots and rewrites of the log all the time.
    pub snapshots: bool,
    /// Damage that is done to the data between death and restart. The ledger must notice the
    /// damage.
    pub sabotage: Sabotage,
    /// Decides keys, commands, values and moments of death, but not the server's timing.
    pub seed: u64,
}

/// The counts of a ledger that found nothing wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LedgerReport {
    /// Lives that ended and were checked.
    pub lives: u32,
    /// Units acknowledged.
    pub acknowledged: u64,
    /// Units that were in flight at a death, and were found after the restart.
    pub in_flight_kept: u64,
    /// Units that were in flight at a death, and were not found after the restart.
    pub in_flight_gone: u64,
    /// Values that clients read from each other's keys.
    pub observed: u64,
    /// Snapshots and rewrites that were begun.
    pub snapshots: u64,
    /// Number of keys at the end.
    pub keys: u64,
}

/// Runs all lives. [`BenchError::Broken`] says which promise was broken, in which life, and with
/// which seed.
pub fn run(config: &LedgerConfig) -> Result<LedgerReport> {
    if !(1..=CLIENTS_MAX).contains(&config.clients) {
        return Err(BenchError::Usage(format!("the number of clients must be 1 to {CLIENTS_MAX}")));
    }
    let mut accounts: Vec<Account> =
        (0..config.clients).map(|index| Account::new(index, config.seed)).collect();
    let mut report = LedgerReport::default();
    let blame = |error| match error {
        BenchError::Broken(text) => BenchError::Broken(format!("seed {}: {text}", config.seed)),
        other => other,
    };
    for life in 0..config.lives {
        let kept = sabotage::before_life(config.sabotage, &config.server)?;
        live(config, life, &mut accounts, &mut report).map_err(blame)?;
        sabotage::after_death(config.sabotage, &config.server, kept)?;
        let in_life = |error| match error {
            BenchError::Broken(text) => BenchError::Broken(format!("after life {life}: {text}")),
            other => other,
        };
        check(config, &mut accounts, &mut report).map_err(in_life).map_err(blame)?;
        report.lives += 1;
    }
    Ok(report)
}

/// One life: starts the server, lets the clients write, and ends the server.
fn live(
    config: &LedgerConfig,
    life: u32,
    accounts: &mut [Account],
    report: &mut LedgerReport,
) -> Result<()> {
    let server = Server::start(&config.server)?;
    let address = server.address().clone();
    let mut rng = for_part(config.seed, u64::from(life) + 1_000_000);
    // The length of a life is drawn from a range whose end is also drawn. So short lives are
    // frequent, and some servers die right after their start.
    let longest = 1 + rng.u64(..config.units_per_life_max.max(1));
    let units = 1 + rng.u64(..longest);
    let hesitation = Duration::from_micros(rng.u64(..HESITATION_US_MAX));

    let observed: Vec<AtomicU64> =
        accounts.iter().map(|account| AtomicU64::new(account.observed())).collect();
    let acknowledged = AtomicU64::new(0);
    let (dying, snapshots) = (AtomicBool::new(false), AtomicU64::new(0));
    let (stop_sender, stops) = mpsc::channel();
    let ended = thread::scope(|scope| {
        let mut threads = Vec::new();
        for account in accounts.iter_mut() {
            let life = worker::Life {
                address: &address,
                number: life,
                acknowledged: &acknowledged,
                units,
                observed: &observed,
                dying: &dying,
                stop: stop_sender.clone(),
            };
            threads.push(scope.spawn(move || worker::write_until_death(account, &life)));
        }
        if config.snapshots {
            let rng = for_part(config.seed, u64::from(life) + 2_000_000);
            let (address, dying, begun) = (&address, &dying, &snapshots);
            scope.spawn(move || snapshots::ask_until_death(address, rng, dying, begun));
        }
        let stop = stops.recv_timeout(LIFE_MAX);
        if matches!(stop, Ok(Stop::Enough)) {
            spin(hesitation);
        }
        dying.store(true, Ordering::SeqCst);
        let death = match config.death {
            Death::Kill => server.kill(),
            Death::Terminate => server.terminate(),
        };
        let mut outcomes: Vec<Result<()>> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        if stop.is_err() {
            let text = format!(
                "fewer than {units} commands or transactions were acknowledged in {} s",
                LIFE_MAX.as_secs()
            );
            outcomes.push(Err(BenchError::Server(text)));
        }
        outcomes.push(death.map_err(BenchError::from));
        outcomes.into_iter().collect::<Result<Vec<()>>>()
    });
    ended?;
    report.acknowledged += acknowledged.load(Ordering::SeqCst);
    report.snapshots += snapshots.load(Ordering::SeqCst);
    for (account, observed) in accounts.iter_mut().zip(observed) {
        account.observe(observed.into_inner());
    }
    Ok(())
}

/// Restarts the server, and compares its data with the accounts. With [`Death::Terminate`], the
/// server is then stopped in good order, so that the next life also starts from the data that an
/// orderly stop leaves.
fn check(config: &LedgerConfig, accounts: &mut [Account], report: &mut LedgerReport) -> Result<()> {
    let server = Server::start(&config.server)?;
    let mut client = server.client()?;
    let mut keys = 0;
    for account in accounts.iter_mut() {
        let found = audit::read_keys(&mut client, account.index())?;
        let settled = account.settle(&found)?;
        report.in_flight_kept += settled.kept;
        report.in_flight_gone += settled.gone;
        keys += found.len() as u64;
    }
    audit::nothing_else(&mut client, keys)?;
    report.keys = keys;
    report.observed = accounts.iter().map(Account::peek_count).sum();
    drop(client);
    match config.death {
        // Killing the server here, too, makes two deaths in a row without a write between them.
        Death::Kill => server.kill()?,
        Death::Terminate => server.stop()?,
    }
    Ok(())
}

fn spin(duration: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < duration {
        std::hint::spin_loop();
    }
}

/// A directory for a ledger's server: `name` below the system's directory for temporary files.
pub fn scratch_directory(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("slimio-{name}-{}", std::process::id()))
}
