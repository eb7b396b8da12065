//! What was written outlives the program, its keeper, or both.

use std::fs;
use std::time::Duration;

use slimio_testing::client::Reply;

use super::redis::Redis;
use super::{LEASES, Place, child_of, kill, pid, wait_for};

/// Who is killed, in this order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Killed {
    Program,
    Keeper,
}
pub(crate) use Killed::{Keeper, Program};

/// Sets keys until the server does not answer any more. Returns how many it has acknowledged.
fn set_until_killed(redis: &Redis, first: usize) -> std::thread::JoinHandle<usize> {
    let mut client = redis.client();
    std::thread::spawn(move || {
        let mut count = first;
        while client.expect(&["SET", &format!("k:{count}"), &"v".repeat(count % 900)]).is_ok() {
            count += 1;
        }
        count
    })
}

#[test]
fn what_was_acknowledged_outlives_every_kill() {
    let Some(place) = Place::new() else { return };
    let orders: [&[Killed]; 4] = [&[Program], &[Program, Keeper], &[Keeper, Program], &[Keeper]];
    let mut acknowledged = 0;
    for (round, order) in orders.into_iter().cycle().take(12).enumerate() {
        let Some(mut redis) = Redis::start(&place, "always") else { return };
        let (keeper, program) = {
            redis.client();
            (pid(&redis.run), child_of(pid(&redis.run)))
        };
        // What was left over was mended before.
        let held = redis.client().expect(&["DBSIZE"]).unwrap();
        let Reply::Integer(held) = held else { panic!("{held:?}") };
        // The last one may have been written without having been acknowledged.
        assert!(
            [0, 1].contains(&(held - acknowledged as i64)),
            "round {round}: {held} of {acknowledged}; {}",
            place.said()
        );
        let setting = set_until_killed(&redis, held as usize);
        std::thread::sleep(Duration::from_millis(40 + 23 * round as u64));
        for (number, killed) in order.iter().enumerate() {
            if number > 0 {
                // The program goes on without its keeper for a while.
                std::thread::sleep(Duration::from_millis(round as u64 % 3 * 9));
            }
            kill(if *killed == Program { program } else { keeper });
        }
        if *order == [Keeper] {
            std::thread::sleep(Duration::from_millis(50));
            kill(program);
        }
        acknowledged = setting.join().unwrap();
        redis.run.wait().unwrap();
        wait_for("end of the program", || rustix::process::test_kill_process(program).is_err());
        if *order == [Program] {
            assert!(fs::read(redis.log()).unwrap().ends_with(b"\r\n"), "the keeper has mended it");
            assert!(place.stages().is_empty());
        }
    }
    assert!(acknowledged > 50, "{acknowledged}");
}

/// With `everysec`, what the program has written is in memory for a moment. It is not lost with the
/// program.
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
            kill(keeper);
        }
        kill(program);
        redis.run.wait().unwrap();
        wait_for("end of the program", || rustix::process::test_kill_process(program).is_err());
        let redis = Redis::start(&place, "no").unwrap();
        let after = redis.client().expect(&["DBSIZE"]).unwrap();
        assert_eq!(after, Reply::Integer(before + 300), "{both}: {}", place.said());
        redis.stop();
        assert_eq!(place.said().contains("mended: "), both, "{}", place.said());
    }
}

/// Logs that were renamed or removed after both were killed.
#[test]
fn a_log_is_found_where_it_is_now() {
    let Some(place) = Place::new() else { return };
    let text = format!(
        "import os, signal\n\
         for name in ['here', 'renamed', 'removed']:\n\
        \x20    fd = os.open({:?} + '/' + name + '.log', os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n\
        \x20    os.write(fd, b'durable, '); os.fdatasync(fd); os.write(fd, b'staged')\n\
         os.kill(os.getppid(), signal.SIGKILL); os.kill(os.getpid(), signal.SIGKILL)\n",
        place.path()
    );
    let path = place.script(&text);
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
        place.said().contains("removed.log: can't be mended: it is neither"),
        "{}",
        place.said()
    );
    // It may come back, with its file system.
    assert_eq!(place.stages().len(), 1);
    assert!(place.status().contains("removed.log: needs mending"));
}

/// A power cut leaves zeros behind the log, no stage, and a note.
#[test]
fn a_power_cut_is_repaired_before_the_start() {
    let Some(place) = Place::new() else { return };
    let Some(mut redis) = Redis::start(&place, "always") else { return };
    redis.client().expect(&["SET", "k", "v"]).unwrap();
    let log = redis.log();
    let (keeper, program) = (pid(&redis.run), child_of(pid(&redis.run)));
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
    assert_eq!(fs::read_dir(place.notes()).unwrap().count(), 0, "nothing is noted any more");
}

/// A child that the killed program has forked, as Redis does for a snapshot, still has everything open.
#[test]
fn a_child_that_is_left_keeps_nobody_from_mending() {
    let _leases = LEASES.lock();
    let Some(place) = Place::new() else { return };
    let log = place.path().join("forked.log");
    let text = format!(
        "import os, signal, time\n\
         fd = os.open({log:?}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n\
         os.write(fd, b'durable, '); os.fdatasync(fd); os.write(fd, b'staged')\n\
         keeper = os.getppid()\n\
         if not os.fork():\n\
        \x20    while not os.path.exists({log:?} + '.mended'): time.sleep(0.01)\n\
        \x20    os.write(fd, b', the child'); os.fdatasync(fd); os._exit(0)\n\
         os.kill(keeper, signal.SIGKILL); os.kill(os.getpid(), signal.SIGKILL)\n"
    );
    let mut command = place.python(&text);
    assert!(!command.status().unwrap().success());
    // The kernel lets somebody in after a while, which is shortened for this test.
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
    // The child has the file as the killed program has left it, and writes on.
    wait_for("child's write", || fs::read(&log).unwrap() == b"durable, staged, the child");
}
