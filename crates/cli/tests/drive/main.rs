//! Tests that kill `slimio drive serve` under load. After each restart, each block holds the data
//! that was acknowledged last, or the data of a command that was in flight at the kill. The drive's
//! counters go on from their last values.

mod traced;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use slimio_initiator::{Host, IoQueue, Options, Outcome, Placed, Submission, Token};
use slimio_lab::drive::{LBA_SIZE, Served};

/// Number of hosts that write at the same time.
const HOSTS: u64 = 3;
/// Number of blocks of each host. Hosts share no block.
const LBAS: u64 = 2000;
/// Number of commands that each host keeps in flight.
const DEPTH: usize = 16;
/// Number of commands that must be acknowledged before the drive is killed.
const ACKNOWLEDGED_MIN: u64 = 5000;
const LIVES: u64 = 4;
/// On average, of this many commands, one deallocates, one flushes, and one is a write that is
/// durable at once.
const SELDOM: u64 = 16;

/// The versions of a host's blocks. Version 0 stands for a block without data.
#[derive(Debug, Default)]
struct Blocks {
    acknowledged: HashMap<u64, u64>,
    /// For each block with a command in flight when the drive was killed, the version that the
    /// command would make. The command may or may not have had its effect.
    possible: HashMap<u64, u64>,
    versions: u64,
    acknowledged_writes: u64,
    submitted_writes: u64,
}

fn content(lba: u64, version: u64) -> Vec<u8> {
    if version == 0 {
        return vec![0; LBA_SIZE];
    }
    let words = (0..LBA_SIZE as u64 / 8).map(|at| lba << 40 ^ version << 12 ^ at);
    words.flat_map(u64::to_le_bytes).collect()
}

fn connect(served: &Served, number: u64) -> (Host, IoQueue) {
    let options = Options {
        host: format!("nqn.host{number}"),
        host_id: [number as u8 + 1; 16],
        time_max: Duration::from_secs(120),
        ..Options::new(served.address, &served.nqn)
    };
    let mut host = Host::connect(&options).expect("the drive is served");
    let queue = host.open_queue(1, DEPTH as u16 + 1).expect("a queue can be opened");
    (host, queue)
}

impl Blocks {
    /// Sends commands until the drive is gone.
    ///
    /// Adds each acknowledged command to `acknowledged`, the count of all hosts. When the count
    /// reaches [`ACKNOWLEDGED_MIN`], a message goes to `enough`.
    fn write(
        &mut self,
        queue: &mut IoQueue,
        (first, seed): (u64, u64),
        acknowledged: &AtomicU64,
        enough: &Sender<()>,
    ) {
        let mut rng = fastrand::Rng::with_seed(seed);
        // For each token, the block and its new version. A flush has no block.
        let mut in_flight: HashMap<u64, Option<(u64, u64)>> = HashMap::new();
        let (mut outcomes, mut tokens): (Vec<Outcome>, u64) = (Vec::new(), 0);
        loop {
            while in_flight.len() < DEPTH {
                let lba = first + rng.u64(..LBAS);
                if in_flight.values().flatten().any(|(known, _)| *known == lba) {
                    break;
                }
                let kind = rng.u64(..SELDOM);
                let (command, data, what) = if kind == 0 {
                    let (command, data) = queue.deallocate_command(&[(lba, 1)]);
                    (command, data, Some((lba, 0)))
                } else if kind == 1 {
                    (queue.flush_command(), Vec::new(), None)
                } else {
                    self.versions += 1;
                    self.submitted_writes += 1;
                    let placed = Placed { durable: kind == 2, placement: Some((lba % 4) as u16) };
                    let data = content(lba, self.versions);
                    (queue.write_command(lba, 1, placed), data, Some((lba, self.versions)))
                };
                tokens += 1;
                in_flight.insert(tokens, what);
                let submission = Submission { token: Token(tokens), command, data };
                queue.queue().submit(submission).expect("the queue has room");
            }
            let waited = queue.queue().wait(&mut outcomes);
            for outcome in outcomes.drain(..) {
                let outcome = outcome.checked().expect("the command succeeds");
                let what = in_flight.remove(&outcome.token.0).expect("the command was in flight");
                if let Some((lba, version)) = what {
                    self.acknowledged.insert(lba, version);
                    self.acknowledged_writes += u64::from(version > 0);
                }
                if acknowledged.fetch_add(1, Ordering::Relaxed) + 1 == ACKNOWLEDGED_MIN {
                    enough.send(()).expect("the test waits for the message");
                }
            }
            if waited.is_err() {
                self.possible = in_flight.into_values().flatten().collect();
                return;
            }
        }
    }

    /// Checks each block. From then on, the version that the block holds counts as acknowledged.
    fn check(&mut self, queue: &mut IoQueue, first: u64) {
        for lba in first..first + LBAS {
            let found = queue.read(lba, 1).expect("the block can be read");
            let known = self.acknowledged.get(&lba).copied().unwrap_or(0);
            let possible = self.possible.get(&lba).copied();
            if found == content(lba, known) {
                continue;
            }
            let version = possible.filter(|version| found == content(lba, *version));
            let words = &found[..16];
            let version = version.unwrap_or_else(|| {
                panic!("block {lba} begins with {words:x?}, and has neither version {known} nor {possible:?}")
            });
            self.acknowledged.insert(lba, version);
        }
        self.possible.clear();
    }
}

#[test]
fn what_was_acknowledged_is_there_after_each_kill() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let file = folder.path().join("drive");
    let spec = format!("{},size=64M,spare=20%,handles=4,timing=none", file.display());
    let program = Path::new(env!("CARGO_BIN_EXE_slimio"));
    let mut all: Vec<Blocks> = (0..HOSTS).map(|_| Blocks::default()).collect();
    let mut host_bytes = 0;
    for life in 0..=LIVES {
        let served = Served::start(program, &spec).expect("the drive is served");
        let mut hosts: Vec<(Host, IoQueue)> =
            (0..HOSTS).map(|number| connect(&served, number)).collect();
        for (number, blocks) in (0..).zip(&mut all) {
            blocks.check(&mut hosts[number as usize].1, number * LBAS);
        }
        let counted = hosts[0].0.statistics(1).expect("the drive reports its counters").hbmw;
        let bytes = |count: fn(&Blocks) -> u64| {
            u128::from(all.iter().map(count).sum::<u64>()) * LBA_SIZE as u128
        };
        assert!(counted >= host_bytes, "counters went back from {host_bytes} to {counted}");
        assert!(
            counted >= bytes(|blocks| blocks.acknowledged_writes),
            "{counted} bytes are counted, fewer than were acknowledged"
        );
        assert!(
            counted <= bytes(|blocks| blocks.submitted_writes),
            "{counted} bytes are counted, more than were submitted"
        );
        host_bytes = counted;
        if life == LIVES {
            break;
        }
        let acknowledged = AtomicU64::new(0);
        let (enough, has_enough) = channel();
        thread::scope(|scope| {
            for ((number, blocks), (_, queue)) in (0..).zip(&mut all).zip(&mut hosts) {
                let place = (number * LBAS, life * HOSTS + number);
                let (acknowledged, enough) = (&acknowledged, enough.clone());
                scope.spawn(move || blocks.write(queue, place, acknowledged, &enough));
            }
            drop(enough);
            has_enough.recv().expect("the drive acknowledges enough commands");
            served.kill().expect("the server can be killed");
        });
    }
}
