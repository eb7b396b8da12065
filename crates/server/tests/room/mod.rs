//! Requests that wait for room in the log. In some tests, a gate holds back the completions of the
//! log's writes while it is shut, so that the room runs out.

mod eviction;
mod full;
mod pinned;

use crate::common::{BACK_ENDS, Client, start_held, until};
use crate::{info, serving};

/// Milliseconds for which a test watches whether the server sleeps.
const WATCHED_MS: f64 = 500.0;

/// Lets this much time pass, by a `WAITAOF` that times out because there are no replicas.
fn pass(client: &mut Client, milliseconds: f64) {
    let reply = client.call(&["WAITAOF", "0", "1", &format!("{milliseconds:.0}")]);
    assert!(reply.ends_with(":0\r\n"), "{reply}");
}

/// CPU time that the server's main thread has taken, in milliseconds.
fn cpu_ms(client: &mut Client) -> f64 {
    let fields = ["used_cpu_user_main_thread", "used_cpu_sys_main_thread"];
    fields.iter().map(|field| info(client, field).parse::<f64>().unwrap() * 1000.0).sum()
}

#[test]
fn a_long_command_without_room_does_not_spin() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let directives = "enable-debug-command yes\nauto-aof-rewrite-percentage 0";
        let Some((server, gate)) = start_held(back_end, &volume, directives) else { continue };
        let (mut observer, mut client) = (server.connect(), server.connect());
        gate.shut();
        client.send(&["DEBUG", "POPULATE", "20000", "key", "1000"]);
        let mut size = String::new();
        loop {
            pass(&mut observer, 100.0);
            let now = observer.call(&["DBSIZE"]);
            if now == size && now != ":0\r\n" {
                break;
            }
            size = now;
        }
        assert_ne!(size, ":20000\r\n", "the log had room for every key");
        let before = cpu_ms(&mut observer);
        pass(&mut observer, WATCHED_MS);
        let took = cpu_ms(&mut observer) - before;
        assert!(
            took < WATCHED_MS / 10.0,
            "a server that could only wait took {took} ms of CPU time"
        );

        gate.open();
        // Opening the gate does not wake the server. The `PING` wakes it, and then the server
        // also looks for completed writes of the log.
        assert_eq!(observer.call(&["PING"]), "+PONG\r\n");
        assert_eq!(client.read(), b"+OK\r\n");
        assert_eq!(observer.call(&["DBSIZE"]), ":20000\r\n");
        server.stop();
    }
}

#[test]
fn who_waits_for_room_is_served_in_the_order_of_arrival() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let directives = "auto-aof-rewrite-percentage 0";
        let Some((server, gate)) = start_held(back_end, &volume, directives) else { continue };
        let (mut observer, mut filler) = (server.connect(), server.connect());
        gate.shut();
        let parked = |observer: &mut Client| {
            let list = observer.call(&["CLIENT", "LIST"]);
            list.lines().filter(|line| line.contains(" flags=b ")).count()
        };
        let value = "v".repeat(100_000);
        let mut sent = 0;
        while parked(&mut observer) == 0 {
            filler.send(&["SET", "filler", &value]);
            sent += 1;
        }
        let mut clients: Vec<Client> = (0..5).map(|_| server.connect()).collect();
        for (number, client) in clients.iter_mut().enumerate() {
            client.send(&["APPEND", "k", &value]);
            until("a client does not wait for room", || parked(&mut observer) == number + 2);
        }
        gate.open();
        // Opening the gate does not wake the server. The `PING` wakes it, and then the server
        // also looks for completed writes of the log.
        assert_eq!(observer.call(&["PING"]), "+PONG\r\n");
        (0..sent).for_each(|_| assert_eq!(filler.read(), b"+OK\r\n"));
        for (number, client) in clients.iter_mut().enumerate() {
            let len = (number + 1) * value.len();
            assert_eq!(client.read(), format!(":{len}\r\n").as_bytes());
        }
        server.stop();
    }
}

#[test]
fn more_than_can_be_counted_is_refused() {
    crate::serving("enable-debug-command yes", |server| {
        let mut client = server.connect();
        let most = i64::MAX.to_string();
        assert_eq!(client.call(&["MULTI"]), "+OK\r\n");
        assert_eq!(client.call(&["DEBUG", "POPULATE", &most, "k", &most]), "+QUEUED\r\n");
        let reply = client.call(&["EXEC"]);
        assert!(reply.starts_with("-EXECABORT"), "{reply}");
        assert_eq!(client.call(&["SET", "k", "v"]), "+OK\r\n");
    });
}

/// Under `always`, each batch takes at least a block of the log. So small records fill the log
/// although they have few bytes. A snapshot makes room in time.
#[test]
fn a_log_full_of_small_records_gets_room() {
    serving("log-segment-size 1mb\nlog-size-max 4mb\nappendfsync always", |server| {
        let writes = || {
            let mut client = server.connect();
            let mut written = 0;
            while written < 6000 && info(&mut client, "snapshot_rewrites_complete") == "0" {
                written += 100;
                for _ in 0..100 {
                    assert_eq!(client.call(&["SET", "k", "v"]), "+OK\r\n");
                }
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(writes))));
        let rewrites = info(&mut server.connect(), "snapshot_rewrites_complete");
        assert_ne!(rewrites, "0", "small records did not fill the log");
    });
}
