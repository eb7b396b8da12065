//! Power cuts under stock programs, with and without `slimio shortcut run`: every write that a
//! program acknowledged before the cut must be there after the cut.
//!
//! ```text
//!   program ── ext4 ── disk that records ──► all requests ──► images ── ext4 ── stock program
//!      │                                          │                                  │
//!      └── acknowledges write N ── after request M                 are 1 to N there? ┘
//! ```
//!
//! A client waits until a write is acknowledged before it sends the next one. For each write, the
//! ledger notes how many requests the disk had received when the write was acknowledged. After a
//! cut, the disk still has all data that was flushed before the cut. Of the other data, the disk
//! has everything, some or nothing. The tests need root, FUSE and loop devices. If one of these is
//! missing, the tests say so, and test nothing.
#![expect(clippy::unwrap_used, reason = "a test fails if it cannot go on")]

mod drive;
mod mariadb;
mod place;
mod postgres;
mod redis;
mod sqlite;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use slimio_host::power_cut::{Entry, Survivors, write_image};
use slimio_lab::recorder::{KeptDisk, can_record};
use slimio_shortcut::Profile;

use place::{Mount, Place, Running, command, text};

/// A program, its clients, and how a test finds out which writes the program has after a power cut.
trait Program {
    /// Size of the file system, in bytes.
    const SIZE: u64;
    const CLIENTS: usize;
    /// How many writes each client makes.
    const WRITES: u64;
    /// How many cuts there are. Each has three images, which differ in the unflushed data that the
    /// disk still has.
    const CUTS: usize;

    /// Makes the files that the program needs before it starts.
    fn prepare(&self, _place: &Place) {}
    /// Starts the program in `place`, with its clients.
    fn start(&self, place: &Place) -> (Running, Vec<Box<dyn Client>>);
    /// Starts the program on the files that a power cut has left. Returns a number for each client:
    /// the program has exactly the client's writes from the first to this number. If there is no
    /// such number, the error says why.
    fn recover(&self, place: &Place) -> Result<Vec<u64>, String>;
}

/// A client of a running program.
trait Client: Send {
    /// Makes a write. Returns when the write is acknowledged.
    fn write(&mut self, number: u64);
}

/// The requests to a disk, and how many of them the disk had received when each write was
/// acknowledged.
struct Recorded {
    entries: Vec<Entry>,
    /// For each client, how many requests the disk had received when each of the client's writes
    /// was acknowledged.
    ledger: Vec<Vec<usize>>,
}

/// The whole test of a program. Without a profile, the program runs without `slimio shortcut run`.
fn outlives_power_cuts<P: Program>(program: &P, profile: Option<&'static str>) {
    if let Err(why) = can_record() {
        eprintln!("SKIPPED: no power was cut: {why}");
        return;
    }
    if let Some(name) = profile.filter(|name| Profile::named(name).is_none()) {
        eprintln!("SKIPPED: no power was cut: there is no profile {name}");
        return;
    }
    let place = Place::new(profile);
    let recorded = record(program, &place);
    let entries = &recorded.entries;
    for cut in recorded.cuts(P::CUTS) {
        let acknowledged = recorded.acknowledged(cut);
        for survivors in [Survivors::None, Survivors::All, Survivors::Some(cut as u64 * 0x9e37)] {
            let found = recover(program, &place, entries, cut, survivors);
            assert!(
                is_kept(&found, &acknowledged),
                "cut after {cut} of {} requests, {survivors:?}: {acknowledged:?} writes were \
                 acknowledged, but the program has {found:?}",
                entries.len()
            );
        }
    }
    // A check that can't fail proves nothing. So the check is done once more, on a disk that has
    // flushed nothing since the first acknowledgement. On such a disk, the check must fail.
    let (before, behind) = entries.split_at(recorded.positions()[0]);
    let volatile = behind.iter().cloned().filter_map(Entry::without_stability);
    let entries = [before, &volatile.collect::<Vec<_>>()].concat();
    let found = recover(program, &place, &entries, entries.len(), Survivors::None);
    assert!(
        !is_kept(&found, &vec![P::WRITES; P::CLIENTS]),
        "the check finds no loss on a disk that has flushed nothing: {found:?}"
    );
}

/// Whether all acknowledged writes are there. A client's write in flight may be there, too.
fn is_kept(found: &Result<Vec<u64>, String>, acknowledged: &[u64]) -> bool {
    found.as_ref().is_ok_and(|found| {
        let mut all = found.iter().zip(acknowledged);
        found.len() == acknowledged.len()
            && all.all(|(found, told)| (*told..=told + 1).contains(found))
    })
}

fn record<P: Program>(program: &P, place: &Place) -> Recorded {
    let disk = KeptDisk::new(place.folder(), P::SIZE).unwrap();
    // The file system is made completely now, so that the kernel writes nothing for it in the
    // background later.
    let mut make = command("mkfs.ext4");
    make.args(["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", "-J", "size=4"]);
    text(make.arg(disk.device())).unwrap();
    let mounted = Mount::new(disk.device(), "noatime", &place.mounted());
    program.prepare(place);
    text(command("sync").arg("--file-system").arg(place.mounted())).unwrap();
    let (running, clients) = program.start(place);
    let keep = |mut client: Box<dyn Client>| {
        let write = |number| {
            client.write(number);
            disk.count()
        };
        (1..=P::WRITES).map(write).collect::<Vec<usize>>()
    };
    let ledger: Vec<Vec<usize>> = std::thread::scope(|scope| {
        let clients = clients.into_iter();
        let threads: Vec<_> = clients.map(|client| scope.spawn(|| keep(client))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    drop(running);
    place.forget();
    place.check_said();
    mounted.finish();
    Recorded { entries: disk.finish().unwrap(), ledger }
}

impl Recorded {
    /// Where to cut, as positions in the disk's requests, spread evenly over the acknowledged
    /// writes. The first, third, fifth cut and so on are right at the acknowledgement of a write.
    /// The second, fourth, sixth and so on are halfway to the next acknowledgement.
    fn cuts(&self, count: usize) -> Vec<usize> {
        let positions = self.positions();
        let last = positions.len() - 1;
        let cut = |index: usize| {
            let write = last * (index + 1) / count;
            let next = positions.get(write + 1).filter(|_| index % 2 == 1);
            next.map_or(positions[write], |next| positions[write].midpoint(*next))
        };
        (0..count).map(cut).collect()
    }

    /// The positions of all acknowledgements, in order.
    fn positions(&self) -> Vec<usize> {
        let mut positions = self.ledger.concat();
        positions.sort_unstable();
        positions
    }

    /// The number of each client's writes that were acknowledged before a cut.
    fn acknowledged(&self, cut: usize) -> Vec<u64> {
        let told = |ledger: &Vec<usize>| ledger.iter().filter(|position| **position <= cut).count();
        self.ledger.iter().map(|ledger| told(ledger) as u64).collect()
    }
}

/// Starts the program on the image of a power cut.
fn recover<P: Program>(
    program: &P,
    place: &Place,
    entries: &[Entry],
    cut: usize,
    survivors: Survivors,
) -> Result<Vec<u64>, String> {
    let image: PathBuf = place.folder().join("image");
    write_image(entries, cut, survivors, P::SIZE, &image).unwrap();
    let mounted = Mount::new(&image, "loop,noatime", &place.mounted());
    let found = program.recover(place);
    place.forget();
    mounted.finish();
    let checked = text(command("e2fsck").args(["-f", "-n"]).arg(&image));
    fs::remove_file(&image).unwrap();
    found.and_then(|found| checked.map(|_| found))
}

/// A client that is a process. For each line that the process reads, it makes a write, and then
/// prints the write's number.
struct Lines {
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Makes the line that asks for the write with a given number.
    line: Box<dyn Fn(u64) -> String + Send>,
    _process: Running,
}

impl Lines {
    fn new(command: &mut Command, line: impl Fn(u64) -> String + Send + 'static) -> Self {
        let mut process = Running::new(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let requests = process.child.stdin.take().unwrap();
        let answers = BufReader::new(process.child.stdout.take().unwrap());
        Self { requests, answers, line: Box::new(line), _process: process }
    }
}

impl Client for Lines {
    fn write(&mut self, number: u64) {
        writeln!(self.requests, "{}", (self.line)(number)).unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        assert_eq!(answer.trim(), number.to_string());
    }
}

/// A query that sums up the table with the writes of all clients.
const SUMMARY: &str = "SELECT client, count(*), max(number), \
    sum(CASE WHEN length(value) = number * 397 % 1500 THEN 1 ELSE 0 END) \
    FROM t GROUP BY client ORDER BY client";

/// The number of each client's writes, from the answer to [`SUMMARY`]. Between two numbers of a
/// line, there is one character that is not a digit.
fn summed_up(lines: &str, clients: usize) -> Result<Vec<u64>, String> {
    let mut all = vec![0; clients];
    for line in lines.lines() {
        let words = line.split(|c: char| !c.is_ascii_digit()).map(str::parse);
        let numbers: Vec<u64> = words.collect::<Result<_, _>>().map_err(|_| lines.to_owned())?;
        match numbers[..] {
            [client, count, last, whole] if count == last && count == whole => {
                *all.get_mut(client as usize).ok_or(line)? = count;
            }
            _ => return Err(format!("rows are missing or wrong: {line}")),
        }
    }
    Ok(all)
}

/// Whether a program is installed. If not, prints that the program's test is skipped.
fn is_installed(program: Option<&Path>, name: &str) -> bool {
    if program.is_none() {
        eprintln!("SKIPPED: no power was cut: {name} is not installed");
    }
    program.is_some()
}

#[test]
fn a_ledger_says_what_must_be_there() {
    let recorded = Recorded { entries: Vec::new(), ledger: vec![vec![3, 9], vec![5, 7]] };
    assert_eq!(recorded.positions(), [3, 5, 7, 9]);
    assert_eq!(recorded.cuts(3), [5, 8, 9]);
    assert_eq!(recorded.acknowledged(7), [1, 2]);
    let is_kept = |found: &[u64]| is_kept(&Ok(found.to_vec()), &[1, 2]);
    assert!(is_kept(&[1, 2]) && is_kept(&[2, 2]));
    assert!(!is_kept(&[1, 1]) && !is_kept(&[3, 2]) && !is_kept(&[1]));
    assert_eq!(summed_up("0|4|4|4\n2 7 7 7\n", 3), Ok(vec![4, 0, 7]));
    assert!(summed_up("0|4|5|4\n", 3).is_err(), "a row is missing");
    assert!(summed_up("3|4|4|4\n", 3).is_err() && summed_up("\n", 3).is_err());
}
