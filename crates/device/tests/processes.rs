//! Tests that need a second process. For this, the program starts itself again, in another role. In
//! this crate, a path is one way to a file. Each path has its own queue of operations.

#![expect(clippy::print_stdout, reason = "the processes talk through standard output")]
#![expect(unsafe_code, reason = "only system calls can change the user and the limits")]

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use slimio_device::{
    Buffer, Device, DeviceError, Directory, LOCK_FILE_NAME, Lba, Op, OpenError, PathOptions,
    PlacementId, Polling, Token,
};
use slimio_ring::{Cause, Errno};
use slimio_sim::contract::{CONTRACT_LBAS, check_all};

#[path = "../examples/without_io_uring.rs"]
#[expect(dead_code, reason = "this test does not call the example's `main`")]
mod without_io_uring;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["hold", path] => hold(Path::new(path)),
        ["confined", path] => confined(Path::new(path)),
        ["bare", path] => bare(Path::new(path)),
        ["barred", path] => barred(Path::new(path)),
        ["crowded", path] => crowded(Path::new(path)),
        ["unreadable", path] => unreadable(Path::new(path)),
        _ => {
            a_second_process_is_refused_with_the_first_ones_id();
            println!("a second process is refused with the first one's id ... ok");
            without_io_uring_plain_calls_do_the_same();
            println!("without io_uring, plain calls keep the contract ... ok");
            without_durable_writes_a_flush_follows();
            println!("without durable writes, a flush follows ... ok");
            a_path_that_is_refused_later_says_so();
            println!("a path that loses io_uring reports an error ... ok");
            a_path_that_could_not_be_polled_is_told_of();
            println!("a path that can't be polled gets a note ... ok");
            a_name_in_an_unreadable_directory_is_flushed();
            println!("a name in an unreadable directory is flushed ... ok");
        }
    }
}

fn start(role: &str, path: &Path) -> Child {
    Command::new(std::env::current_exe().expect("the test's program has a path"))
        .arg(role)
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program can be started")
}

/// Holds a directory's lock until this process is killed or its standard input ends.
fn hold(path: &Path) {
    let _directory = Directory::open(path, PathOptions::default()).expect("the directory is free");
    println!("held");
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).expect("standard input can be read");
}

fn a_second_process_is_refused_with_the_first_ones_id() {
    let place = tempfile::tempdir().expect("a directory for the test");
    let options = PathOptions::default();
    let mut holder = start("hold", place.path());
    let mut said = String::new();
    let output = holder.stdout.take().expect("the output is piped");
    BufReader::new(output).read_line(&mut said).expect("the holder prints a line");
    assert_eq!(said, "held\n");

    let refused = Directory::open(place.path(), options).err().expect("the directory is in use");
    let OpenError::InUse { holder: named, .. } = &refused else { panic!("{refused}") };
    assert_eq!(*named, Some(holder.id()));
    assert!(refused.to_string().ends_with(&format!("is in use by process {}", holder.id())));

    // When the holder dies, its lock must become free, even if the holder was killed.
    holder.kill().expect("the holder runs");
    holder.wait().expect("the holder ends");
    let directory = Directory::open(place.path(), options).expect("the directory is free again");
    let refused = Directory::open(place.path(), options).err().expect("the directory is in use");
    let own = Some(std::process::id());
    assert!(matches!(refused, OpenError::InUse { holder, .. } if holder == own), "{refused}");
    drop(directory);
    assert!(place.path().join(LOCK_FILE_NAME).exists());
    Directory::open(place.path(), options).expect("the directory is free again");
}

/// Checks that files keep the contract of devices.
fn check_files(path: &Path) -> Directory {
    let mut directory =
        Directory::open(path, PathOptions::default()).expect("the directory is free");
    let mut count = 0;
    check_all(|| {
        count += 1;
        let name = format!("file-{count}");
        directory.create_file(&name, CONTRACT_LBAS).expect("there is room");
        directory.open_path(&name).expect("the file was just made") as Box<dyn Device>
    });
    directory
}

/// Checks that everything still works if io_uring is forbidden.
fn confined(path: &Path) {
    without_io_uring::forbid_io_uring();
    let refused = slimio_ring::probe().expect_err("io_uring is forbidden");
    assert_eq!(
        (refused.cause, refused.errno.map(Errno::number)),
        (Cause::Seccomp, Some(libc::EPERM))
    );
    assert!(refused.to_string().starts_with("a seccomp filter forbids io_uring"), "{refused}");

    let directory = check_files(path);
    assert!(directory.describe().contains("through plain system calls"));
    let notes = directory.notes();
    assert!(
        notes.iter().any(|note| note.starts_with("no io_uring: a seccomp filter")),
        "{notes:?}"
    );
    println!("done");
}

/// Checks that everything still works if io_uring is forbidden and the kernel can't make a write
/// durable in one call.
fn bare(path: &Path) {
    without_io_uring::forbid_io_uring();
    without_io_uring::fail(&[libc::SYS_pwritev2], libc::EOPNOTSUPP);
    check_files(path);
    println!("done");
}

/// Checks that a path reports an error if io_uring is forbidden while the path is in use.
fn barred(path: &Path) {
    const COUNT: u64 = 8;
    let mut directory =
        Directory::open(path, PathOptions::default()).expect("the directory is free");
    if !directory.describe().contains("through io_uring") {
        eprintln!("SKIPPED: {}", directory.notes().join("; "));
        println!("done");
        return;
    }
    directory.create_file("file", COUNT).expect("there is room");
    let mut path = directory.open_path("file").expect("the file was just made");
    let write = |lba, byte| {
        let mut buffer = Buffer::zeroed(1);
        buffer.fill(byte);
        Op::Write { lba: Lba(lba), buffer, placement: PlacementId::default(), durable: true }
    };
    let mut run = |ops: Vec<Op>, has_kick: bool| {
        let count = ops.len();
        for (token, op) in ops.into_iter().enumerate() {
            path.submit(Token(token as u64), op).expect("the queue is not full");
        }
        if has_kick {
            path.kick();
        }
        let mut completions = Vec::new();
        while completions.len() < count {
            path.wait(None, &mut completions);
        }
        assert_eq!(path.in_flight(), 0);
        assert!(completions.iter().all(|completion| completion.buffer.is_some()));
        completions.into_iter().map(|completion| completion.result).collect::<Vec<_>>()
    };
    let all = |byte| (0..COUNT).map(|lba| write(lba, byte)).collect::<Vec<_>>();
    assert!(run(all(1), true).iter().all(Result::is_ok));

    without_io_uring::fail(&[libc::SYS_io_uring_enter], libc::EPERM);
    let untaken = DeviceError::Untaken { errno: libc::EPERM };
    for has_kick in [true, false] {
        let results = run(all(2), has_kick);
        assert!(results.iter().all(|result| result.as_ref() == Err(&untaken)), "{results:?}");
    }
    let said = untaken.to_string();
    assert!(said.contains("allow io_uring_enter"), "{said}");
    // The operations that the kernel refused were not executed.
    let written = std::fs::read(directory.file_path("file")).expect("the file can be read");
    assert!(written.iter().all(|&byte| byte == 1));
    drop(path);
    println!("done");
}

fn a_path_that_is_refused_later_says_so() {
    run_to_the_end("barred");
}

/// The id of a user who has no other process.
const NOBODY_ELSE: u32 = 54_321;

/// Counts the threads of this process, including the kernel's threads for its rings.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("Linux has /proc/self/task").count()
}

/// Checks what the notes say if the kernel makes a polling thread for the first path, but refuses
/// such a thread for the second path.
fn crowded(path: &Path) {
    // SAFETY: the call takes only a number.
    assert_eq!(unsafe { libc::setuid(NOBODY_ELSE) }, 0, "root may become another user");
    let polling = Polling { submissions_idle: Some(Duration::from_millis(2)), completions: false };
    let options = PathOptions { polling, ..PathOptions::default() };
    let mut directory = Directory::open(path, options).expect("the directory is free");
    if !directory.describe().contains("polls for") {
        eprintln!("SKIPPED: {}", directory.notes().join("; "));
        println!("done");
        return;
    }
    // Opening the directory has made a ring to probe for polling. The kernel's thread for that ring
    // may outlive the ring, so the test waits for the thread's end.
    let deadline = Instant::now() + Duration::from_secs(60);
    while threads() > 1 {
        assert!(Instant::now() < deadline, "{} threads are left", threads());
        std::thread::yield_now();
    }
    let limit = libc::rlimit { rlim_cur: 2, rlim_max: 2 };
    // SAFETY: the kernel reads the limit only during the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit) }, 0);
    let paths = ["first", "second"].map(|name| {
        directory.create_file(name, CONTRACT_LBAS).expect("there is room");
        directory.open_bulk_path(name).expect("the file was just made")
    });
    let (described, notes) = (directory.describe(), directory.notes().join("; "));
    assert!(described.ends_with("(SQPOLL, 2 ms) on 1 of 2 paths"), "{described}; {notes}");
    assert!(notes.contains("nothing is polled for: "), "{notes}");
    drop(paths);
    println!("done");
}

fn a_path_that_could_not_be_polled_is_told_of() {
    // SAFETY: the call takes no arguments.
    if unsafe { libc::geteuid() } != 0 || slimio_ring::probe().is_err() {
        eprintln!("SKIPPED: this test needs io_uring, and root to become another user");
        return;
    }
    let place = tempfile::tempdir().expect("a directory for the test");
    std::os::unix::fs::chown(place.path(), Some(NOBODY_ELSE), None).expect("we are root");
    run_role("crowded", place.path());
}

/// Makes a volume's directory in a directory that this process may change but not read.
fn unreadable(above: &Path) {
    // SAFETY: the call takes only a number.
    assert_eq!(unsafe { libc::setuid(NOBODY_ELSE) }, 0, "root may become another user");
    assert!(std::fs::read_dir(above).is_err(), "this user may not read the directory");
    let directory = Directory::open_or_create(&above.join("data"), PathOptions::default())
        .expect("the user may make a directory");
    directory.flush_own_name().expect("the file system can be flushed");
    // From here on, `syncfs`, which flushes a whole file system, fails. If the next flush of the
    // name fails, that flush has called `syncfs`. So the flush above has called `syncfs`, too.
    without_io_uring::fail(&[libc::SYS_syncfs], libc::EIO);
    assert!(
        directory.flush_own_name().is_err(),
        "the flush must call `syncfs` and report its error"
    );
    println!("done");
}

fn a_name_in_an_unreadable_directory_is_flushed() {
    // SAFETY: the call takes no arguments.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: only root can become another user");
        return;
    }
    let place = tempfile::tempdir().expect("a directory for the test");
    std::fs::set_permissions(place.path(), Permissions::from_mode(0o733)).expect("we are root");
    run_role("unreadable", place.path());
}

fn run_to_the_end(role: &str) {
    let place =
        tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory for the test");
    run_role(role, place.path());
}

/// Runs this program in a role, and checks that the program succeeds.
fn run_role(role: &str, path: &Path) {
    let output = start(role, path).wait_with_output().expect("the program ends");
    assert!(output.status.success(), "{role}: {:?}", output.status);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "done\n", "{role}");
}

fn without_io_uring_plain_calls_do_the_same() {
    run_to_the_end("confined");
}

fn without_durable_writes_a_flush_follows() {
    run_to_the_end("bare");
}
