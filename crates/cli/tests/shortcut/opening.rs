//! A program opens a log, and something goes wrong before the log is taken.
//!
//! The *keeper* (the process `slimio shortcut run`) takes the log for the program, and hands over the
//! log's *stage*: memory with the bytes that are appended but not in the file yet. If the keeper is
//! killed, another process, the *guard*, gives the log back to the kernel.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use slimio_shortcut::protocol::{Meeting, Message, VARIABLE};
use slimio_shortcut::{Kind, LogFile, NotTaken, Pattern, Stage};

use crate::{Place, library, wait_for};

/// Appends two records to the log `sys.argv[1]`, and waits for the end of its input. With `locked`,
/// the program has a lock on the log beforehand, and prints whether it still has the lock.
const PROGRAM: &str = "
import fcntl, os, sys
path, how = sys.argv[1:]
first = os.open(path, os.O_RDONLY) if how == 'locked' else None
if first: fcntl.lockf(first, fcntl.LOCK_SH)
log = os.open(path, os.O_RDWR if how == 'written' else os.O_WRONLY | os.O_APPEND)
if how == 'written': os.lseek(log, 0, os.SEEK_END)
os.write(log, b'two,'); os.write(log, b'three'); os.fsync(log)
node = ':%d ' % os.fstat(log).st_ino
print(any(node in lock for lock in open('/proc/locks') if 'POSIX' in lock), flush=True)
sys.stdin.read()
";

/// The moment at which the keeper is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Killed {
    BeforeItTakes,
    Taking,
}

/// This test plays the keeper, so that the keeper's end comes at a certain moment.
#[test]
fn a_log_whose_keeper_was_killed_while_taking_it_loses_nothing() {
    let Some(place) = Place::new() else { return };
    for killed in [Killed::BeforeItTakes, Killed::Taking] {
        for how in ["appended", "written", "locked"] {
            lose_keeper(&place, how, killed);
        }
    }
}

fn lose_keeper(place: &Place, how: &str, killed: Killed) {
    let case = format!("{how} {killed:?}");
    let path = place.path().join(format!("{case}.log"));
    fs::write(&path, "one,").unwrap();
    let name = format!("slimio test {} {case}", std::process::id());
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let listener = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    rustix::net::bind(&listener, &address).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    let patterns = vec![Pattern { kind: Kind::Log, text: "*.log".to_owned() }];
    let meeting = Meeting { name, token: "t".repeat(32), patterns };
    let mut program = Command::new("python3");
    program.arg(place.script(PROGRAM)).arg(&path).arg(how);
    program.env(VARIABLE, meeting.to_text()).env("LD_PRELOAD", library());
    let program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let socket = rustix::net::accept(&listener).unwrap();
    let (message, descriptors) = Message::receive(&socket, true).unwrap().unwrap();
    assert!(matches!(message, Message::Take { .. }), "{case}: {message:?}");
    let file = File::from(descriptors.into_iter().next().unwrap());
    let stage_file = File::from(memfd_create("stage", MemfdFlags::CLOEXEC).unwrap());
    let log = LogFile::new(&file, Stage::create(&stage_file).unwrap());
    Message::Stage(1).send(&socket, &[stage_file.as_fd()], true).unwrap();
    let lease = (killed == Killed::Taking).then(|| log.take_leased(&file));
    if let Some(taken) = &lease {
        let is_busy = matches!(taken, Err(NotTaken::Busy));
        assert_eq!(is_busy, how == "locked", "{case}: {:?}", taken.as_ref().err());
    }
    // The kernel keeps the lease of a killed keeper as long as the program has the file open.
    std::mem::forget(lease);
    drop((socket, listener));
    let has_lock = said_by(program, || {
        // The test also plays the guard, which gives the log back only now.
        log.release().unwrap();
    });
    assert_eq!(has_lock, how == "locked", "{case}: whether the program has its lock");
    assert_eq!(fs::read_to_string(&path).unwrap(), "one,two,three", "{case}");
}

/// Waits until the program has written its records, runs `then`, and ends the program. Returns
/// whether the program has printed `True`.
fn said_by(mut program: Child, then: impl FnOnce()) -> bool {
    let mut line = String::new();
    BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
    then();
    program.stdin.take().unwrap().flush().unwrap();
    assert!(program.wait().unwrap().success());
    line == "True\n"
}

/// The program has only one to three free descriptors when it opens the log, and the log takes one
/// of them. If the program can't have the stage for want of a descriptor, the keeper must give the
/// log back before the program writes to it.
#[test]
fn a_program_without_descriptors_loses_nothing() {
    let Some(place) = Place::new() else { return };
    for free in 1..=3 {
        let log = place.path().join(format!("{free}.log"));
        let first = place.path().join("first.log");
        let text = format!(
            "import os, resource, time\n\
             resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))\n\
             os.open({first:?}, os.O_WRONLY | os.O_CREAT)\n\
             taken = []\n\
             try:\n\
            \x20    while True: taken.append(os.open('/dev/null', os.O_RDONLY))\n\
             except OSError: pass\n\
             for _ in range({free}): os.close(taken.pop())\n\
             fd = os.open({log:?}, os.O_WRONLY | os.O_CREAT)\n\
             for line in range(300):\n\
            \x20    os.write(fd, b'line %d\\n' % line)\n\
            \x20    if line % 50 == 0: os.fsync(fd); time.sleep(0.05)\n\
             os.fsync(fd)\n"
        );
        assert!(place.python(&text).status().unwrap().success());
        let lines: Vec<String> = (0..300).map(|line| format!("line {line}\n")).collect();
        wait_for("the keeper's end", || place.stages().is_empty());
        assert_eq!(
            fs::read_to_string(&log).unwrap(),
            lines.concat(),
            "{free} free; {}",
            place.said()
        );
    }
}
