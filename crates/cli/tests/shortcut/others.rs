//! Tests of `slimio shortcut run` with exit statuses, signals, daemons, threads, full disks, and
//! files that the short path does not take.
//!
//! `run` starts a program with a library that replaces calls such as `write`. What the program
//! appends to a log goes to the log's *stage*, memory that processes share. `run` itself stays as
//! the *keeper*, which prepares the log's file for the program's direct writes, the *short path*.
//! If the keeper is killed, another process, the *guard*, gives the log back to the kernel.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{LEASES, PATIENCE, Place, Running, child_of, guard_of, kill, pid, text, wait_for};

const MATCH: [&str; 3] = ["--match", "*.log", "--"];

#[test]
fn it_ends_as_the_program_ends() {
    let Some(place) = Place::new() else { return };
    let run = |program: &str| {
        let mut command = place.run(&[&MATCH[0], &MATCH[1], &MATCH[2], &"sh", &"-c", &program]);
        command.status().unwrap()
    };
    assert_eq!(run("exit 0").code(), Some(0));
    assert_eq!(run("exit 7").code(), Some(7));
    assert_eq!(run("kill -9 $$").code(), Some(137));
    assert!(place.said().contains("no file was written by the short path"), "{}", place.said());
    // `run` becomes the parent of the processes that the program leaves behind, and waits for them.
    assert_eq!(run("(sleep 0.3; echo late > late) & exit 3").code(), Some(3));
    fs::remove_file("late").unwrap();
}

#[test]
fn signals_reach_the_program() {
    let Some(place) = Place::new() else { return };
    let text = "import signal, sys, time\n\
                signal.signal(signal.SIGUSR1, lambda *_: print('usr1', flush=True))\n\
                signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n\
                print('ready', flush=True)\n\
                while True: time.sleep(0.02)\n";
    let said = place.path().join("out");
    let mut command = place.python(text);
    let mut run = command.stdout(fs::File::create(&said).unwrap()).spawn().map(Running).unwrap();
    let has_said = |word: &str| fs::read_to_string(&said).unwrap().contains(word);
    wait_for("script", || has_said("ready"));
    kill_process(pid(&run), Signal::USR1).unwrap();
    wait_for("signal", || has_said("usr1"));
    kill_process(pid(&run), Signal::TERM).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(9));
}

#[test]
fn a_daemon_is_looked_after() {
    let Some(place) = Place::new() else { return };
    let text = format!(
        "import os, time\n\
         if os.fork(): os._exit(5)\n\
         os.setsid()\n\
         fd = os.open({:?}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n\
         os.write(fd, b'line\\n'); os.fsync(fd)\n\
         time.sleep(60)\n",
        place.path().join("daemon.log")
    );
    let mut command = place.python(&text);
    let mut run = Running(command.spawn().unwrap());
    wait_for("daemon's log", || {
        place.status().contains("daemon.log: takes the short path; 5 bytes")
    });
    // `run` passes the signal on to the daemon.
    kill_process(pid(&run), Signal::TERM).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(5));
    assert_eq!(fs::read(place.path().join("daemon.log")).unwrap(), b"line\n");
}

#[test]
fn threads_append_whole_records() {
    append_by_threads(false);
}

/// The keeper is killed while the program's threads append and this test reads.
#[test]
fn threads_append_whole_records_without_a_keeper() {
    append_by_threads(true);
}

fn append_by_threads(kills_keeper: bool) {
    let Some(place) = Place::new() else { return };
    let log = place.path().join("threads.log");
    let text = format!(
        "import os, threading\n\
         fd = os.open('{}', os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n\
         def append(thread):\n\
        \x20    for number in range(300):\n\
        \x20        size = 3000000 if number % 100 == 7 else (thread * 7919 + number * 977) % 9000\n\
        \x20        assert os.write(fd, b'%d:%d:%s\\n' % (thread, number, b'x' * size)) > size\n\
        \x20        if number % 3 == 0: os.fdatasync(fd)\n\
         threads = [threading.Thread(target=append, args=(t,)) for t in range(8)]\n\
         [t.start() for t in threads]; [t.join() for t in threads]\n",
        log.display()
    );
    let mut command = place.python(&text);
    let mut run = Running(command.spawn().unwrap());
    let program = child_of(pid(&run));
    if kills_keeper {
        wait_for("log", || fs::metadata(&log).is_ok_and(|log| log.len() > 1_000_000));
        run.kill().unwrap();
        run.wait().unwrap();
    }
    let has_ended = || rustix::process::test_kill_process(program).is_err();
    // Meanwhile, this test reads the log as another program would.
    let mut seen = 0;
    while !has_ended() && matches!(run.try_wait(), Ok(status) if kills_keeper || status.is_none()) {
        let now = fs::read(&log).unwrap_or_default();
        assert!(now.len() >= seen && !now.contains(&0), "{} bytes seen after {seen}", now.len());
        seen = now.len();
        std::thread::sleep(Duration::from_millis(30));
    }
    assert!(kills_keeper || run.wait().unwrap().success(), "{}", place.said());
    let log = fs::read(&log).unwrap();
    let mut next = [0; 8];
    for record in log.split_inclusive(|byte| *byte == b'\n') {
        let record = std::str::from_utf8(record).unwrap();
        let mut parts = record.split(':');
        let [thread, number] = [(); 2].map(|()| parts.next().unwrap().parse::<usize>().unwrap());
        assert_eq!(number, next[thread], "the records of a thread are not in order");
        next[thread] += 1;
    }
    assert_eq!(next, [300; 8]);
}

#[test]
fn a_full_disk_is_told_and_the_log_goes_on() {
    let Some(place) = Place::of_size(16 << 20) else { return };
    let text = format!(
        "import errno, os\n\
         fd = os.open({:?}, os.O_WRONLY | os.O_CREAT)\n\
         filler = os.open({:?}, os.O_WRONLY | os.O_CREAT)\n\
         os.write(filler, b'x' * 4000000); os.fsync(filler)\n\
         length = 0\n\
         try:\n\
        \x20    while True:\n\
        \x20        length += os.write(fd, b'y' * 100000); os.fdatasync(fd)\n\
         except OSError as error:\n\
        \x20    print(error.errno == errno.ENOSPC, length == os.fstat(fd).st_size)\n\
         os.ftruncate(filler, 0); os.fsync(filler)\n\
         length += os.write(fd, b'z' * 100000); os.fdatasync(fd); os.close(fd)\n\
         print(length > 4000000, length == os.path.getsize({0:?}))\n",
        place.path().join("full.log"),
        place.path().join("filler"),
    );
    let mut command = place.python(&text);
    let said = text_of(&mut command);
    assert_eq!(said, "True True\nTrue True\n", "{}", place.said());
    assert!(place.said().contains("written by the short path"));
}

fn text_of(command: &mut Command) -> String {
    text(&command.stdout(Stdio::piped()).output().unwrap())
}

/// If a message from the program comes while the keeper works, the keeper must not sleep before it
/// has read the message. If nothing was appended, only the message can wake the keeper.
#[test]
fn nobody_waits_long_for_the_file() {
    let Some(place) = Place::new() else { return };
    let log = place.path().join("wanted.log");
    let text = format!(
        "import os, time\n\
         written = 0\n\
         for number in range(300):\n\
        \x20    fd = os.open({log:?}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n\
        \x20    if number % 3 == 0: written += os.write(fd, b'x' * 20000)\n\
        \x20    time.sleep(number % 10 / 4000)\n\
        \x20    began = time.monotonic()\n\
        \x20    size = len(open({log:?}, 'rb').read())\n\
        \x20    assert size == written, size\n\
        \x20    assert time.monotonic() - began < 10, number\n\
        \x20    os.close(fd)\n"
    );
    let mut command = place.python(&text);
    assert!(command.status().unwrap().success(), "{}", place.said());
}

/// A program whose keeper was killed goes on by itself. Other programs see its appended data.
#[test]
fn a_program_goes_on_without_its_keeper() {
    let Some(place) = Place::new() else { return };
    let log = place.path().join("alone.log");
    let text = format!(
        "import os, sys\n\
         fd = os.open({log:?}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n\
         for line in sys.stdin: os.write(fd, line.encode()); os.fdatasync(fd); print(flush=True)\n"
    );
    let mut command = place.python(&text);
    let run = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut run = Running(run.unwrap());
    let (mut to, mut from) = (run.stdin.take().unwrap(), run.stdout.take().unwrap());
    let mut append = |line: &str| {
        use std::io::{Read as _, Write as _};
        to.write_all(line.as_bytes()).unwrap();
        from.read_exact(&mut [0]).unwrap();
    };
    append("one\n");
    assert!(place.status().contains(".log: takes the short path"));
    let program = child_of(pid(&run));
    // The guard is killed first. Otherwise, the guard would give the file back.
    kill(guard_of(pid(&run)));
    run.kill().unwrap();
    assert_eq!(run.wait().unwrap().signal(), Some(9));
    append("two\n");
    assert_eq!(fs::read(&log).unwrap(), b"one\ntwo\n");
    append("three\n");
    assert_eq!(fs::read(&log).unwrap(), b"one\ntwo\nthree\n");
    assert_eq!(fs::metadata(&log).unwrap().len(), 14);
    drop(to);
    wait_for("end of the program", || rustix::process::test_kill_process(program).is_err());
}

/// A child, such as one that saves a snapshot, closes the descriptors that it does not need. The
/// parent's log must still take the short path after that.
#[test]
fn a_child_that_closes_the_log_does_not_end_it() {
    let Some(place) = Place::new() else { return };
    let text = format!(
        "import os, sys\n\
         fd = os.open({:?}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n\
         os.write(fd, b'one\\n'); os.isatty(fd)\n\
         child = os.fork()\n\
         if not child: os.close(fd); os._exit(0)\n\
         os.waitpid(child, 0)\n\
         print('closed', flush=True)\n\
         sys.stdin.read()\n",
        place.path().join("parent.log")
    );
    let mut command = place.python(&text);
    let run = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut run = Running(run.unwrap());
    std::io::Read::read_exact(run.stdout.as_mut().unwrap(), &mut [0; 6]).unwrap();
    let status = place.status();
    assert!(status.contains("parent.log: takes the short path; 4 bytes"), "{status}");
    drop(run.stdin.take());
    assert!(run.wait().unwrap().success());
}

/// If a program never syncs, the keeper writes the appended data after a while: the first data,
/// data that is appended while the keeper rests, and data that a forked child appends.
#[test]
fn what_is_not_synced_is_written_at_last() {
    let Some(place) = Place::new() else { return };
    let text = format!(
        "import os, sys\n\
         fd = os.open({:?}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n\
         for line in sys.stdin:\n\
        \x20    if line == 'by a child\\n' and os.fork(): os.wait(); print(line); continue\n\
        \x20    os.write(fd, line.encode())\n\
        \x20    if line == 'by a child\\n': os._exit(0)\n",
        place.path().join("unsynced.log")
    );
    let mut command = place.python(&text);
    command.env("PYTHONUNBUFFERED", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut run = Running(command.spawn().unwrap());
    let mut to = run.stdin.take().unwrap();
    let mut said = BufReader::new(run.stdout.take().unwrap());
    wait_for("taken log", || place.stages().len() == 1);
    // Opening the file would cause the write that the test waits for, so the test reads the stage
    // instead. Three fields count: the log's length, the written length, and the bits that say what
    // the keeper was told. No bit is set while the keeper rests.
    let is_written = |length: u64| {
        let header = fs::read(&place.stages()[0]).unwrap();
        // A new stage's file is empty for a moment.
        let Some(header) = header.get(4096..) else { return false };
        let field = |at: usize| u64::from_le_bytes(header[at..][..8].try_into().unwrap());
        [field(32), field(40), field(80)] == [length, length, 0]
    };
    let mut length = 0;
    for line in ["first\n", "at rest\n", "by a child\n", "last\n"] {
        let by_child = line == "by a child\n";
        if by_child {
            // The keeper is stopped until the child has ended. So the keeper learns of the child's
            // data only after the child's end.
            kill_process(pid(&run), Signal::STOP).unwrap();
        }
        std::io::Write::write_all(&mut to, line.as_bytes()).unwrap();
        length += line.len() as u64;
        if by_child {
            said.read_line(&mut String::new()).unwrap();
            kill_process(pid(&run), Signal::CONT).unwrap();
        }
        wait_for(line, || is_written(length));
    }
    drop(to);
    assert!(run.wait().unwrap().success());
}

/// If tmpfs has no room for a stage, the log goes through the kernel as usual.
#[test]
fn without_memory_the_log_is_left_to_the_kernel() {
    let Some(place) = Place::new() else { return };
    let small = place.path().join("small");
    fs::create_dir(&small).unwrap();
    let mount = ["-t", "tmpfs", "-o", "size=1M,mode=700", "tmpfs"];
    assert!(Command::new("mount").args(mount).arg(&small).status().unwrap().success());
    let log = place.path().join("room.log");
    let text = format!(
        "import os\n\
         fd = os.open({log:?}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n\
         for _ in range(30): os.write(fd, b'x' * 100000)\n\
         os.fdatasync(fd)\n"
    );
    let path = place.script(&text);
    let mut command = place.run_with(&small, &[&MATCH[0], &MATCH[1], &MATCH[2]]);
    let status = command.arg("python3").arg(&path).status().unwrap();
    assert!(Command::new("umount").arg(&small).status().unwrap().success());
    assert!(status.success(), "{}", place.said());
    assert_eq!(fs::metadata(&log).unwrap().len(), 3_000_000);
    assert!(place.said().contains("left to the kernel: no stage"), "{}", place.said());
}

/// One program is stopped in the middle of a write. Another program's log must still be readable at
/// once.
#[test]
fn a_stopped_program_holds_up_no_other() {
    let _leases = LEASES.lock();
    let Some(place) = Place::new() else { return };
    let program = |name: &str| {
        format!(
            "import os, sys, time\n\
             if os.fork() == 0:\n\
            \x20    fd = os.open({:?}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n\
            \x20    print(os.getpid(), flush=True)\n\
            \x20    while True: os.write(fd, b'x' * 100); os.fdatasync(fd)\n\
             fd = os.open({:?}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n\
             for number in range(100000):\n\
            \x20    os.write(fd, b'%d\\n' % number); os.fdatasync(fd); time.sleep(0.001)\n",
            place.path().join(name),
            place.path().join("other.log")
        )
    };
    let mut command = place.python(&program("stopped.log"));
    let mut run = Running(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    let mut said = std::io::BufReader::new(run.stdout.as_mut().unwrap());
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    let stopped = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
    let other = place.path().join("other.log");
    let stopped_log = place.path().join("stopped.log");
    // Zeros, which are written ahead of the data, also make a file longer. So only the status shows
    // that data was written.
    let is_written =
        |line: &&str| line.contains(".log: takes the short path; ") && !line.ends_with("; 0 bytes");
    wait_for("writes to both", || place.status().lines().filter(is_written).count() == 2);
    std::thread::sleep(Duration::from_millis(100));
    kill_process(stopped, Signal::STOP).unwrap();
    // The reader has to wait, because the stopped program can't give its log back.
    let waiting = std::thread::spawn(move || fs::read(stopped_log).unwrap());
    for _ in 0..3 {
        let begin = Instant::now();
        let seen = fs::read(&other).unwrap();
        // If `other.log` were not given back, the kernel would let this read wait for 45 seconds.
        assert!(begin.elapsed() < PATIENCE, "reading took {:?}", begin.elapsed());
        assert!(seen.ends_with(b"\n") && !seen.contains(&0), "{} bytes", seen.len());
        std::thread::sleep(Duration::from_millis(700));
    }
    kill_process(stopped, Signal::CONT).unwrap();
    let seen = waiting.join().unwrap();
    let other = seen.iter().position(|byte| *byte != b'x');
    assert_eq!(
        (seen.is_empty(), other),
        (false, None),
        "the log is empty or has another byte than x: {} bytes; {}",
        seen.len(),
        place.said()
    );
    kill_process(stopped, Signal::KILL).unwrap();
    let program = child_of(pid(&run));
    kill_process(program, Signal::KILL).unwrap();
    run.wait().unwrap();
    assert!(place.stages().is_empty());
}

/// A program that inherits a descriptor knows nothing of the stage. So the log must be given back
/// to the kernel before that program starts.
#[test]
fn another_program_inherits_the_log() {
    let Some(place) = Place::new() else { return };
    let log = place.path().join("inherited.log");
    let text = format!(
        "import os\n\
         fd = os.open({log:?}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n\
         os.set_inheritable(fd, True)\n\
         os.write(fd, b'parent\\n')\n\
         child = os.fork()\n\
         if not child: os.execv('/bin/bash', ['bash', '-c', 'echo child >&%d' % fd])\n\
         assert os.waitpid(child, 0)[1] == 0\n\
         os.write(fd, b'parent\\n'); os.fdatasync(fd)\n"
    );
    let mut command = place.python(&text);
    assert!(command.status().unwrap().success(), "{}", place.said());
    assert_eq!(fs::read(&log).unwrap(), b"parent\nchild\nparent\n");
}

/// The keeper looks after several logs at once, and the program may close them in any order.
#[test]
fn logs_are_closed_in_any_order() {
    let Some(place) = Place::new() else { return };
    let text = format!(
        "import os\n\
         def log(name): return os.open({:?} + '/' + name + '.log', os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n\
         for turn in range(20):\n\
        \x20    fds = [log(name) for name in 'abc']\n\
        \x20    for fd in fds: os.write(fd, b'1'); os.fdatasync(fd)\n\
        \x20    while fds:\n\
        \x20        os.close(fds.pop(turn * 7 % len(fds)))\n\
        \x20        for fd in fds: os.write(fd, b'2'); os.fdatasync(fd)\n\
         print(len(os.listdir('/proc/self/fd')))\n",
        place.path()
    );
    let mut command = place.python(&text);
    let open = text_of(&mut command);
    assert!(open.trim().parse::<usize>().unwrap() < 8, "{open} descriptors are open");
    let sizes = ["a", "b", "c"].map(|name| {
        let log = fs::read(place.path().join(name).with_extension("log")).unwrap();
        assert!(log.iter().all(|byte| b"12".contains(byte)));
        log.len()
    });
    assert_eq!(sizes.iter().sum::<usize>(), 20 * (3 + 2 + 1));
    assert!(place.stages().is_empty());
}

/// A child of vfork(2) runs in its parent's memory, so the library must not treat that memory as
/// the child's own.
#[test]
fn programs_that_are_started_change_nothing() {
    let Some(place) = Place::new() else { return };
    let log = place.path().join("vfork.log");
    let text = format!(
        "import os, subprocess\n\
         fd = os.open({log:?}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n\
         subprocess.run(['true'])\n\
         os.write(fd, b'parent,')\n\
         child = os.fork()\n\
         if not child:\n\
        \x20    subprocess.run(['true']); os.write(fd, b'child,'); os._exit(0)\n\
         assert os.waitpid(child, 0)[1] == 0\n\
         subprocess.run(['true'])\n\
         os.write(fd, b'parent'); os.fdatasync(fd)\n"
    );
    let mut command = place.python(&text);
    assert!(command.status().unwrap().success(), "{}", place.said());
    assert_eq!(fs::read(&log).unwrap(), b"parent,child,parent");
}

/// A program with a limit of file sizes must get the same errors as without the short path.
#[test]
fn a_limited_program_meets_its_limits() {
    let Some(place) = Place::new() else { return };
    let log = place.path().join("limited.log");
    let text = format!(
        "import errno, os, resource, signal\n\
         signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n\
         fds = [os.open({log:?}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)]\n\
         resource.setrlimit(resource.RLIMIT_FSIZE, (10000, -1))\n\
         fds += [os.open({log:?} + '.log', os.O_WRONLY | os.O_CREAT | os.O_APPEND)]\n\
         for fd in fds:\n\
        \x20  print([os.write(fd, b'x' * 3000) for _ in range(4)])\n\
        \x20  os.fdatasync(fd)\n\
        \x20  try: os.write(fd, b'x')\n\
        \x20  except OSError as error: print(error.errno == errno.EFBIG)\n"
    );
    let mut command = place.python(&text);
    assert_eq!(text_of(&mut command), "[3000, 3000, 3000, 1000]\nTrue\n".repeat(2));
    assert_eq!(fs::metadata(&log).unwrap().len(), 10_000);
}

/// The program can neither replace nor close the library's own descriptors: to the program, they
/// seem not to be open.
#[test]
fn the_librarys_descriptors_stay() {
    let Some(place) = Place::new() else { return };
    let text = format!(
        "import os\n\
         fds = lambda: {{int(name) for name in os.listdir('/proc/self/fd')}}\n\
         before = fds()\n\
         fd = os.open({:?}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n\
         other = os.open({:?}, os.O_RDWR | os.O_CREAT)\n\
         os.write(other, b'untouched'); os.write(fd, b'one,')\n\
         own = sorted(fds() - before - {{fd, other, other + 1}})\n\
         def fails(call):\n\
        \x20    try: call()\n\
        \x20    except OSError: return True\n\
         print(len(own), [fails(lambda: os.dup2(other, n)) and fails(lambda: os.close(n)) for n in own])\n\
         os.write(fd, b'two'); os.fdatasync(fd)\n",
        place.path().join("own.log"),
        place.path().join("other"),
    );
    let mut command = place.python(&text);
    assert_eq!(text_of(&mut command), "3 [True, True, True]\n", "{}", place.said());
    assert_eq!(fs::read(place.path().join("own.log")).unwrap(), b"one,two");
    assert_eq!(fs::read(place.path().join("other")).unwrap(), b"untouched");
}

/// The keeper is killed while one thread waits for it in `open`, and another thread appends.
#[test]
fn what_is_appended_while_the_keeper_dies_is_kept() {
    let Some(place) = Place::new() else { return };
    let log = place.path().join("dying.log");
    let text = format!(
        "import os, signal, threading, time\n\
         def log(): return os.open({log:?}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n\
         fd = log(); os.write(fd, b'one,'); os.close(os.dup(fd))\n\
         os.kill(os.getppid(), signal.SIGSTOP)\n\
         opening = threading.Thread(target=log); opening.start()\n\
         state = lambda: open('/proc/self/task/%d/wchan' % opening.native_id).read()\n\
         end = time.monotonic() + 10\n\
         while 'unix' not in state() and 'skb' not in state() and time.monotonic() < end: pass\n\
         os.write(fd, b'two,'); os.fsync(fd)\n\
         os.kill(os.getppid(), signal.SIGKILL); opening.join()\n\
         os.write(fd, b'three'); os.fsync(fd)\n"
    );
    let mut run = Running(place.python(&text).spawn().unwrap());
    let program = child_of(pid(&run));
    run.wait().unwrap();
    wait_for("end of the program", || rustix::process::test_kill_process(program).is_err());
    assert_eq!(fs::read(&log).unwrap(), b"one,two,three", "{}", place.said());
}

#[test]
fn what_can_not_be_run_is_said() {
    let Some(place) = Place::new() else { return };
    let refused = |words: &[&dyn AsRef<std::ffi::OsStr>], why: &str| {
        let output = place.run(words).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why), "{said}");
    };
    refused(
        &[&"--", &"true"],
        "choose --profile (redis, valkey, sqlite, rocksdb, postgres, mariadb) or",
    );
    refused(&[&"--profile", &"oracle", &"--", &"true"], "there is no profile `oracle`");
    refused(&[&"--profile", &"redis", &"--", &"/no/such/program"], "No such file");
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let text = format!("open({:?}, 'ab', 0).write(b'x')", memory.path().join("a.log"));
    let mut command = place.python(&text);
    assert!(command.status().unwrap().success());
    assert!(place.said().contains("left to the kernel: tmpfs is memory"), "{}", place.said());
    assert_eq!(fs::read(memory.path().join("a.log")).unwrap(), b"x");
}
