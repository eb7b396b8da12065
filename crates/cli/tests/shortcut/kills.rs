//! No data that a program has written is lost if the program, its keeper or both are killed.
//!
//! The keeper is the process of `slimio shortcut run`, the parent of the program. The program and
//! the keeper share a stage: memory that holds the bytes that are not yet in the log. The guard is
//! a child of the keeper. If only the keeper is killed, the guard gives the log back to the kernel.
//! If a log's stage is left over, the next `run` mends the log.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use slimio_testing::client::Reply;

use super::redis::Redis;
use super::{LEASES, PATIENCE, Place, Running, child_of, guard_of, kill, library, pid, wait_for};

/// A process that a test kills.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Killed {
    Program,
    Keeper,
    Guard,
}
pub(crate) use Killed::{Guard, Keeper, Program};

/// The orders of killing that differ in their effect. After the keeper was killed, a guard that
/// still lives gives the log back.
pub(crate) const ORDERS: [&[Killed]; 6] = [
    &[Program],
    &[Guard, Program, Keeper],
    &[Guard, Keeper, Program],
    &[Keeper],
    &[Program, Keeper],
    &[Keeper, Program, Guard],
];

/// Kills processes in the given order. Between two kills there is a pause of this many
/// milliseconds. In the end, the program is always killed.
pub(crate) fn kill_in_order(order: &[Killed], keeper: Pid, program: Pid, pause: u64) {
    let guard = guard_of(keeper);
    for (number, killed) in order.iter().enumerate() {
        if number > 0 {
            // During the pause, a program whose keeper was killed can go on without the keeper.
            std::thread::sleep(Duration::from_millis(pause));
        }
        let process = match killed {
            Program => program,
            Keeper => keeper,
            Guard => guard,
        };
        // An error is ignored, because the process may have ended already: a guard ends soon after
        // its keeper.
        let _ = kill_process(process, Signal::KILL);
    }
    if order == [Keeper] {
        std::thread::sleep(Duration::from_millis(50));
        kill(program);
    }
}

/// A Python function that kills the keeper and its guard.
const KILL_KEEPER: &str = "\
import os
def kill_keeper():
    keeper = os.getppid()
    for child in open(f'/proc/{keeper}/task/{keeper}/children').read().split():
        if 'guard' in open(f'/proc/{child}/cmdline').read(): os.kill(int(child), 9)
    os.kill(keeper, 9)
";

const ROUNDS: usize = 12;
/// The least number of acknowledged writes in a round.
const WRITES_MIN: usize = 5;

/// Sets keys until the server does not answer any more. `count` is the number of acknowledged keys.
fn set_until_killed(redis: &Redis, count: &Arc<AtomicUsize>) -> std::thread::JoinHandle<()> {
    let (mut client, count) = (redis.client(), Arc::clone(count));
    std::thread::spawn(move || {
        let mut key = count.load(Relaxed);
        while client.expect(&["SET", &format!("k:{key}"), &"v".repeat(key % 900)]).is_ok() {
            key = 1 + count.fetch_add(1, Relaxed);
        }
    })
}

#[test]
fn what_was_acknowledged_outlives_every_kill() {
    let Some(place) = Place::new() else { return };
    let mut acknowledged = 0;
    for (round, order) in ORDERS.into_iter().cycle().take(ROUNDS).enumerate() {
        let Some(mut redis) = Redis::start(&place, "always") else { return };
        let (keeper, program) = {
            redis.client();
            (pid(&redis.run), child_of(pid(&redis.run)))
        };
        // `run` has mended the log of the previous round before it started this server.
        let held = redis.client().expect(&["DBSIZE"]).unwrap();
        let Reply::Integer(held) = held else { panic!("{held:?}") };
        // The last SET of the previous round may have been written without being acknowledged.
        assert!(
            [0, 1].contains(&(held - acknowledged as i64)),
            "round {round}: there are {held} keys, and {acknowledged} were acknowledged; {}",
            place.said()
        );
        let count = Arc::new(AtomicUsize::new(held as usize));
        let setting = set_until_killed(&redis, &count);
        wait_for("acknowledged writes", || count.load(Relaxed) >= held as usize + WRITES_MIN);
        std::thread::sleep(Duration::from_millis(40 + 23 * round as u64));
        kill_in_order(order, keeper, program, round as u64 % 3 * 9);
        setting.join().unwrap();
        acknowledged = count.load(Relaxed);
        redis.run.wait().unwrap();
        wait_for("end of the program", || rustix::process::test_kill_process(program).is_err());
        if *order == [Program] {
            assert!(fs::read(redis.log()).unwrap().ends_with(b"\r\n"), "the log is not mended");
            assert!(place.stages().is_empty());
        }
    }
    assert!(acknowledged >= ROUNDS * WRITES_MIN, "only {acknowledged} writes were acknowledged");
}

/// With `appendfsync no`, data that the program has written may be only in memory for a while. The
/// data must not be lost if the program is killed.
#[test]
fn what_was_only_written_outlives_the_program() {
    let Some(place) = Place::new() else { return };
    for both in [false, true] {
        let Some(mut redis) = Redis::start(&place, "no") else { return };
        let mut client = redis.client();
        let Reply::Integer(before) = client.expect(&["DBSIZE"]).unwrap() else { panic!() };
        let (keeper, program) = (pid(&redis.run), child_of(pid(&redis.run)));
        for key in 0..300 {
            client.expect(&["SET", &format!("{both}:{key}"), "value"]).unwrap();
        }
        if both {
            kill(guard_of(keeper));
            kill(keeper);
        }
        kill(program);
        redis.run.wait().unwrap();
        wait_for("end of the program", || rustix::process::test_kill_process(program).is_err());
        let redis = Redis::start(&place, "no").unwrap();
        let after = redis.client().expect(&["DBSIZE"]).unwrap();
        assert_eq!(after, Reply::Integer(before + 300), "keeper killed: {both}: {}", place.said());
        redis.stop();
        assert_eq!(place.said().contains("mended: "), both, "{}", place.said());
    }
}

/// Logs are renamed and removed after the program and its keeper were killed.
#[test]
fn a_log_is_found_where_it_is_now() {
    let Some(place) = Place::new() else { return };
    let text = format!(
        "import os, signal\n\
         for name in ['here', 'renamed', 'removed']:\n\
        \x20    fd = os.open({:?} + '/' + name + '.log', os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n\
        \x20    os.write(fd, b'durable, '); os.fdatasync(fd); os.write(fd, b'staged')\n\
         kill_keeper(); os.kill(os.getpid(), signal.SIGKILL)\n",
        place.path()
    );
    let path = place.script(&format!("{KILL_KEEPER}{text}"));
    let run = |program: &[&dyn AsRef<std::ffi::OsStr>]| {
        let mut command = place.run(&[&"--match", &"*.log", &"--"]);
        command.args(program.iter().map(AsRef::as_ref)).status().unwrap()
    };
    assert!(!run(&[&"python3", &path]).success());
    let log = |name: &str| place.path().join(name);
    wait_for("three stages", || place.status().matches("needs mending").count() == 3);
    fs::rename(log("renamed.log"), log("renamed.1")).unwrap();
    fs::remove_file(log("removed.log")).unwrap();
    assert!(run(&[&"true"]).success());
    for name in ["here.log", "renamed.1"] {
        assert_eq!(fs::read(log(name)).unwrap(), b"durable, staged");
        assert!(place.said().contains(&format!("{name}: mended: 15 bytes")), "{}", place.said());
    }
    assert!(
        place.said().contains("removed.log: can't be mended: the file is not there"),
        "{}",
        place.said()
    );
    // The stage of the removed log stays: the log may come back when a file system is mounted.
    assert_eq!(place.stages().len(), 1);
    assert!(place.status().contains("removed.log: needs mending"));
}

/// After a power cut there are zeros after the log's end, and a note about the log, but no stage.
#[test]
fn a_power_cut_is_repaired_before_the_start() {
    let Some(place) = Place::new() else { return };
    let Some(mut redis) = Redis::start(&place, "always") else { return };
    redis.client().expect(&["SET", "k", "v"]).unwrap();
    let log = redis.log();
    let (keeper, program) = (pid(&redis.run), child_of(pid(&redis.run)));
    kill(guard_of(keeper));
    kill(keeper);
    kill(program);
    redis.run.wait().unwrap();
    wait_for("end of the program", || rustix::process::test_kill_process(program).is_err());
    for stage in place.stages() {
        fs::remove_file(stage).unwrap();
    }
    assert!(fs::read(&log).unwrap().ends_with(&[0]));
    let redis = Redis::start(&place, "always").unwrap();
    let value = redis.client().expect(&["GET", "k"]).unwrap();
    assert_eq!(value, Reply::Bulk(b"v".into()), "{}", place.said());
    assert!(place.said().contains("as a power cut leaves them"), "{}", place.said());
    redis.stop();
    assert_eq!(
        fs::read_dir(place.notes()).unwrap().count(),
        0,
        "there is still a note about the log"
    );
}

/// A child that the killed program has forked still has the log open, like the child that Redis
/// forks for a snapshot.
#[test]
fn a_child_that_is_left_keeps_nobody_from_mending() {
    let _leases = LEASES.lock();
    let Some(place) = Place::new() else { return };
    let log = place.path().join("forked.log");
    let text = format!(
        "import os, signal, time\n\
         fd = os.open({log:?}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n\
         os.write(fd, b'durable, '); os.fdatasync(fd); os.write(fd, b'staged')\n\
         if not os.fork():\n\
        \x20    while not os.path.exists({log:?} + '.mended'): time.sleep(0.01)\n\
        \x20    os.write(fd, b', the child'); os.fdatasync(fd); os._exit(0)\n\
         kill_keeper(); os.kill(os.getpid(), signal.SIGKILL)\n"
    );
    let mut command = place.python(&format!("{KILL_KEEPER}{text}"));
    assert!(!command.status().unwrap().success());
    // The child still holds the lease of the killed program. This file of the kernel has the number
    // of seconds after which the kernel takes a lease away. The test lowers the number to save
    // time.
    let limit = "/proc/sys/fs/lease-break-time";
    let before = fs::read_to_string(limit).unwrap();
    fs::write(limit, "5").unwrap();
    let text = format!("print(open({log:?}, 'rb').read()); open({log:?} + '.mended', 'w')");
    let mut command = place.python(&text);
    let output = command.output().unwrap();
    fs::write(limit, before).unwrap();
    assert_eq!(super::text(&output), "b'durable, staged'\n", "{}", place.said());
    assert!(place.said().contains("forked by the killed program"), "{}", place.said());
    assert!(place.stages().is_empty());
    // The child's descriptor still works, and the child goes on writing after the last byte of the
    // killed program.
    wait_for("child's write", || fs::read(&log).unwrap() == b"durable, staged, the child");
}

/// An idle program does not notice that its keeper was killed, but the guard does.
#[test]
fn nobody_waits_for_a_log_whose_keeper_was_killed() {
    let Some(place) = Place::new() else { return };
    let log = place.path().join("idle.log");
    for ends in [false, true] {
        let _ = fs::remove_file(&log);
        let text = format!(
            "import os, signal, time\n\
             fd = os.open({log:?}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n\
             os.write(fd, b'durable, '); os.fdatasync(fd); os.write(fd, b'staged')\n\
             os.kill(os.getppid(), signal.SIGKILL)\n\
             if {}: os.kill(os.getpid(), signal.SIGKILL)\n\
             while not os.path.exists({log:?} + '.seen'): time.sleep(0.01)\n\
             os.write(fd, b', and more'); os.fdatasync(fd)\n",
            if ends { "True" } else { "False" }
        );
        let mut run = Running(place.python(&text).stdout(Stdio::null()).spawn().unwrap());
        run.wait().unwrap();
        let begin = Instant::now();
        assert_eq!(fs::read(&log).unwrap(), b"durable, staged", "{ends}: {}", place.said());
        // If no process gave the file back, the kernel would take the lease away after 45 seconds.
        assert!(begin.elapsed() < PATIENCE, "reading took {:?}", begin.elapsed());
        if !ends {
            fs::write(place.path().join("idle.log.seen"), b"").unwrap();
            wait_for("later write", || fs::read(&log).unwrap() == b"durable, staged, and more");
            fs::remove_file(place.path().join("idle.log.seen")).unwrap();
        }
    }
    assert!(place.said().contains("the keeper is gone"), "{}", place.said());
}

/// A keeper whose guard was killed goes on as before. SIGTERM, which service managers send, does
/// not end the guard.
#[test]
fn a_killed_guard_changes_nothing() {
    let Some(place) = Place::new() else { return };
    let log = place.path().join("a.log");
    let text = format!(
        "import os, time\n\
         def open_log(name): return os.open({:?} + name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n\
         fd = open_log('a.log'); os.write(fd, b'one, '); os.fdatasync(fd)\n\
         keeper = os.getppid()\n\
         children = open(f'/proc/{{keeper}}/task/{{keeper}}/children').read().split()\n\
         for child in children:\n\
        \x20    if 'guard' not in open(f'/proc/{{child}}/cmdline').read(): continue\n\
        \x20    os.kill(int(child), 15); time.sleep(0.2); assert os.path.exists(f'/proc/{{child}}/exe')\n\
        \x20    os.kill(int(child), 9)\n\
         other = open_log('b.log'); os.write(other, b'other'); os.fdatasync(other); os.close(other)\n\
         os.write(fd, b'two')\n",
        format!("{}/", place.path().display())
    );
    assert!(place.python(&text).status().unwrap().success(), "{}", place.said());
    assert_eq!(fs::read(&log).unwrap(), b"one, two");
    assert_eq!(fs::read(place.path().join("b.log")).unwrap(), b"other");
    assert!(place.said().contains("there is no guard any more"), "{}", place.said());
    assert!(place.stages().is_empty());
}

/// A frozen file system: writes to the file system wait until the `Frozen` is dropped.
struct Frozen<'a>(&'a Path);

impl<'a> Frozen<'a> {
    fn new(path: &'a Path) -> Self {
        assert!(Command::new("fsfreeze").arg("--freeze").arg(path).status().unwrap().success());
        Self(path)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("--unfreeze").arg(self.0).status();
    }
}

/// When the next `run` starts, a write of the killed program is still under way. The next `run`
/// must wait until the write has reached the file.
#[test]
fn a_write_that_is_under_way_is_waited_for() {
    let Some(place) = Place::new() else { return };
    let log = place.path().join("slow.log");
    let text = format!(
        "fd = os.open({log:?}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n\
         os.write(fd, b'durable, '); os.fdatasync(fd); os.write(fd, b'staged')\n\
         print('ready', flush=True)\n\
         input()\n\
         os.write(fd, b', under way'); os.fdatasync(fd)\n"
    );
    let mut command = place.python(&format!("{KILL_KEEPER}{text}"));
    let mut run = Running(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut ready = [0; 6];
    run.stdout.take().unwrap().read_exact(&mut ready).unwrap();
    let (keeper, program) = (pid(&run), child_of(pid(&run)));
    let guard = guard_of(keeper);
    let frozen = Frozen::new(place.path());
    run.stdin.take().unwrap().write_all(b"\n").unwrap();
    // Either the program or its keeper does the write. If the keeper does, the program waits for
    // the keeper.
    let is_writing = |process: Pid| {
        let state = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
        state.unwrap().contains(") D ")
    };
    wait_for("a write", || is_writing(program) || is_writing(keeper));
    for process in [guard, keeper, program] {
        kill(process);
    }
    run.wait().unwrap();
    // The usual folder for notes is on the frozen file system. So this `run` gets another folder
    // for notes, and another file for its output.
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let said_path = memory.path().join("said");
    let said = || fs::read_to_string(&said_path).unwrap();
    let mut next = Command::new(env!("CARGO_BIN_EXE_slimio"));
    next.args(["shortcut", "run", "--stages"]).arg(place.stages_path());
    next.arg("--notes").arg(memory.path().join("notes"));
    next.args(["--match", "*.log", "--", "cat"]).arg(&log).env("SLIMIO_PRELOAD", library());
    next.stdout(Stdio::piped()).stderr(fs::File::create(&said_path).unwrap());
    let next = next.spawn().unwrap();
    wait_for("start that waits", || said().contains("a killed process still writes it; waiting"));
    drop(frozen);
    let output = next.wait_with_output().unwrap();
    let said = said();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "durable, staged, under way", "{said}");
    assert!(said.contains("mended: "), "{said}");
}
