//! Several clients that wait for the same keys.

use std::time::{Duration, Instant};

use super::{NOTHING, Waiters, bulk, integer, popped, send_all};
use crate::common::{Client, Running};
use crate::{info, serving};

#[test]
fn who_waits_longest_is_served_first() {
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let mut clients: Vec<Client> = (0..4).map(|_| waiters.join(&["BRPOP", "k", "0"])).collect();
        assert_eq!(waiters.call(&["RPUSH", "k", "1", "2", "3"]), integer(3));
        for (client, element) in clients.iter_mut().zip(["3", "2", "1"]) {
            waiters.served(client, &popped("k", element));
        }
        assert!(clients[3].is_silent());
        // A client that was served comes after the others when it waits again.
        waiters.wait(&mut clients[0], &["BLPOP", "k", "0"]);
        assert_eq!(waiters.call(&["RPUSH", "k", "4", "5"]), integer(2));
        waiters.served(&mut clients[3], &popped("k", "5"));
        waiters.served(&mut clients[0], &popped("k", "4"));
        assert_eq!(waiters.call(&["EXISTS", "k"]), integer(0));
    });
}

#[test]
fn what_is_moved_goes_on_to_who_waits_for_it_there() {
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let mut one = waiters.join(&["BLMOVE", "a", "b", "LEFT", "RIGHT", "0"]);
        let mut two = waiters.join(&["BLMOVE", "b", "c", "LEFT", "RIGHT", "0"]);
        let mut three = waiters.join(&["BRPOPLPUSH", "c", "a", "0"]);
        let mut four = waiters.join(&["BLPOP", "a", "0"]);
        assert_eq!(waiters.call(&["RPUSH", "a", "v"]), integer(1));
        for client in [&mut one, &mut two, &mut three] {
            waiters.served(client, &bulk("v"));
        }
        waiters.served(&mut four, &popped("a", "v"));
        assert_eq!(waiters.call(&["DBSIZE"]), integer(0));
        // If the first client moves the element back to the same list, the next client is served,
        // too.
        let mut turner = waiters.join(&["BLMOVE", "k", "k", "LEFT", "RIGHT", "0"]);
        let mut taker = waiters.join(&["BLPOP", "k", "0"]);
        assert_eq!(waiters.call(&["RPUSH", "k", "1"]), integer(1));
        waiters.served(&mut turner, &bulk("1"));
        waiters.served(&mut taker, &popped("k", "1"));
    });
}

/// More clients wait than are served in one turn of the event loop. The next request must not take
/// the elements that are meant for these clients.
#[test]
fn nobody_overtakes_clients_who_are_still_to_be_served() {
    const COUNT: usize = 300;
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let mut clients: Vec<Client> = (0..COUNT).map(|_| server.connect()).collect();
        for client in &mut clients {
            client.send(&["BLMOVE", "k", "d", "LEFT", "LEFT", "0"]);
        }
        waiters.count = COUNT;
        waiters.see("not all clients wait");
        let elements: Vec<String> = (0..COUNT).map(|number| number.to_string()).collect();
        let push = ["RPUSH", "k"].into_iter().chain(elements.iter().map(String::as_str));
        let push: Vec<&str> = push.collect();
        let mut pusher = server.connect();
        send_all(
            &mut pusher,
            &[&push, &["LPOP", "k"], &["MULTI"], &["LLEN", "k"], &["EXEC"], &["PING"]],
        );
        let replies = [
            &integer(COUNT as i64),
            "$-1\r\n",
            "+OK\r\n",
            "+QUEUED\r\n",
            "*1\r\n:0\r\n",
            "+PONG\r\n",
        ];
        for reply in replies {
            assert_eq!(String::from_utf8_lossy(&pusher.read()), reply);
        }
        let mut got: Vec<String> = Vec::new();
        for client in &mut clients {
            got.push(String::from_utf8(client.read()).unwrap());
        }
        got.sort();
        let mut all: Vec<String> = elements.iter().map(|element| bulk(element)).collect();
        all.sort();
        assert_eq!(got, all, "each element must go to one client");
        waiters.leave(COUNT);
        assert_eq!(waiters.call(&["LLEN", "d"]), integer(COUNT as i64));
    });
}

/// More clients wait than are served in one turn. The next request looks at more than one key, or
/// ends a wait. Its reply must not show that clients are still to be served.
#[test]
fn nothing_is_seen_of_clients_who_are_still_to_be_served() {
    const COUNT: usize = 300;
    let one_of = |count: usize| format!("*{count}\r\n");
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let mut clients: Vec<Client> = (0..COUNT).map(|_| server.connect()).collect();
        let last = super::id_of(&mut clients[COUNT - 1]);
        let elements: Vec<String> = (0..COUNT).map(|number| number.to_string()).collect();
        let push = ["RPUSH", "k"].into_iter().chain(elements.iter().map(String::as_str));
        let push: Vec<&str> = push.collect();
        let exec: (&[&[&str]], String) = (
            &[&["MULTI"], &["LPOP", "k"], &["EXEC"]],
            format!("+OK\r\n+QUEUED\r\n{}$-1\r\n", one_of(1)),
        );
        let size: (&[&[&str]], String) = (&[&["DBSIZE"]], integer(1));
        let copy: (&[&[&str]], String) = (&[&["COPY", "k", "x"]], integer(0));
        let unblock: [&[&str]; 1] = [&["CLIENT", "UNBLOCK", &last]];
        for (requests, replies) in [exec, size, copy, (&unblock, integer(0))] {
            for client in &mut clients {
                client.send(&["BLMOVE", "k", "d", "LEFT", "LEFT", "0"]);
                waiters.count += 1;
            }
            waiters.see("not all clients wait");
            let mut pusher = server.connect();
            send_all(&mut pusher, &[&[&push[..]], requests].concat());
            assert_eq!(pusher.read(), integer(COUNT as i64).as_bytes());
            let mut got = String::new();
            while got.len() < replies.len() {
                got.push_str(&String::from_utf8(pusher.read()).unwrap());
            }
            assert_eq!(got, replies);
            for client in &mut clients {
                assert!(client.read().starts_with(b"$"), "{requests:?}");
                waiters.count -= 1;
            }
            assert_eq!(waiters.call(&["DEL", "d"]), integer(1));
        }
    });
}

/// If a key still has elements after one client was served, the next client of the same key is
/// served. The key does not go to the end of the queue of ready keys.
#[test]
fn what_is_left_of_a_key_is_not_served_anew() {
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let moves = [["c", "a"], ["a", "c"], ["c", "b"], ["b", "c"]];
        let mut movers: Vec<Client> = moves
            .iter()
            .map(|[from, to]| waiters.join(&["BLMOVE", from, to, "LEFT", "LEFT", "0"]))
            .collect();
        let mut last = waiters.join(&["BLPOP", "c", "0"]);
        assert_eq!(waiters.call(&["RPUSH", "c", "1", "2"]), integer(2));
        for (mover, element) in movers.iter_mut().zip(["1", "1", "2", "2"]) {
            waiters.served(mover, &bulk(element));
        }
        waiters.served(&mut last, &popped("c", "2"));
        assert_eq!(waiters.call(&["LRANGE", "c", "0", "-1"]), "*1\r\n$1\r\n1\r\n");
    });
}

/// After `SWAPDB`, the server looks at the clients of all keys, however many turns this takes.
#[test]
fn all_keys_that_are_swapped_in_serve_who_waits_for_them() {
    const COUNT: usize = 600;
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let keys: Vec<String> = (0..COUNT).map(|number| format!("k{number}")).collect();
        let mut clients: Vec<Client> = (0..COUNT).map(|_| server.connect()).collect();
        for (client, key) in clients.iter_mut().zip(&keys) {
            client.send(&["BLPOP", key, "0"]);
        }
        waiters.count = COUNT;
        waiters.see("not all clients wait");
        let mut pusher = server.connect();
        assert_eq!(pusher.call(&["SELECT", "1"]), "+OK\r\n");
        // Every third key exists in the other database.
        for key in keys.iter().step_by(3) {
            assert_eq!(pusher.call(&["RPUSH", key, "v"]), integer(1));
        }
        send_all(&mut pusher, &[&["SWAPDB", "0", "1"], &["SELECT", "0"], &["DBSIZE"]]);
        for reply in ["+OK\r\n", "+OK\r\n", &integer(0)] {
            assert_eq!(String::from_utf8_lossy(&pusher.read()), reply);
        }
        for (client, key) in clients.iter_mut().zip(&keys).step_by(3) {
            waiters.served(client, &popped(key, "v"));
        }
        waiters.see("the number of clients that still wait is wrong");
    });
}

/// Clients that move elements are served over several turns. Nobody may see a part of these moves
/// without the rest, not even the client that pushed the elements. This also holds for moves that
/// form a chain.
#[test]
fn nobody_sees_a_part_of_what_is_moved_over_several_turns() {
    const COUNT: usize = 600;
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let mut movers: Vec<Client> = (0..2 * COUNT).map(|_| server.connect()).collect();
        for (number, mover) in movers.iter_mut().enumerate() {
            let (from, to) = if number % 2 == 0 { ("a", "b") } else { ("b", "c") };
            mover.send(&["BLMOVE", from, to, "LEFT", "RIGHT", "0"]);
        }
        waiters.count = 2 * COUNT;
        waiters.see("not all clients wait");
        let elements: Vec<String> = (0..COUNT).map(|number| number.to_string()).collect();
        let mut push = vec!["RPUSH", "a"];
        push.extend(elements.iter().map(String::as_str));
        let mut pusher = server.connect();
        send_all(&mut pusher, &[&push, &["LLEN", "c"], &["LLEN", "b"], &["LLEN", "a"]]);
        for length in [COUNT, COUNT, 0, 0] {
            assert_eq!(pusher.read(), integer(length as i64).as_bytes());
        }
        for (number, mover) in movers.iter_mut().enumerate() {
            waiters.served(mover, &bulk(&elements[number / 2]));
        }
    });
}

/// A turn has left some clients to be served later. Another client asks for the key to which the
/// last of these clients will move an element.
#[test]
fn who_asks_for_a_key_that_is_moved_to_is_served_too() {
    serving("enable-debug-command yes", |server| {
        let mut waiters = Waiters::of(server);
        let mut pusher = server.connect();
        let mut takers: Vec<Client> = (0..9).map(|_| waiters.join(&["BLPOP", "k", "0"])).collect();
        let mut mover = waiters.join(&["BLMOVE", "k", "other", "LEFT", "LEFT", "0"]);
        let mut late = server.connect();
        let push = ["RPUSH", "k", "1", "2", "3", "4", "5", "6", "7", "8", "9", "moved"];
        // The sleep uses up all the time of its turn, so only one client is served in that turn.
        send_all(&mut pusher, &[&["MULTI"], &push, &["DEBUG", "SLEEP", "0.3"]]);
        for reply in ["+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n"] {
            assert_eq!(pusher.read(), reply.as_bytes());
        }
        pusher.send(&["EXEC"]);
        late.send(&["BLPOP", "other", "0"]);
        assert_eq!(String::from_utf8_lossy(&late.read()), popped("other", "moved"));
        assert_eq!(pusher.read(), b"*2\r\n:10\r\n+OK\r\n");
        for (taker, element) in takers.iter_mut().zip(1..) {
            waiters.served(taker, &popped("k", &element.to_string()));
        }
        waiters.served(&mut mover, &bulk("moved"));
    });
}

/// The clients' time is up before all are served: a request keeps the server busy, and more clients
/// wait than two turns serve. No client gives up, because the elements were there in time.
#[test]
fn nobody_gives_up_who_is_still_to_be_served() {
    serving("enable-debug-command yes", |server| {
        // On a busy machine, it takes longer until all clients wait.
        assert!([2, 10, 50].into_iter().any(|seconds| all_are_served_late(server, seconds)));
    });
}

/// Makes clients wait for up to `seconds` seconds, pushes elements for all of them, and then keeps
/// the server busy for longer than this time. Returns `false` if it took too long until all clients
/// waited.
fn all_are_served_late(server: &Running, seconds: u64) -> bool {
    const COUNT: usize = 600;
    let mut waiters = Waiters::of(server);
    let mut clients: Vec<Client> = (0..COUNT).map(|_| server.connect()).collect();
    let began = Instant::now();
    for client in &mut clients {
        client.send(&["BLPOP", "k", &seconds.to_string()]);
    }
    while info(&mut waiters.observer, "blocked_clients") != COUNT.to_string() {
        if began.elapsed() > Duration::from_secs(seconds) / 2 {
            drop(clients);
            waiters.see("clients that have disconnected still wait");
            return false;
        }
    }
    waiters.count = COUNT;
    let push = ["RPUSH", "k"].into_iter().chain(["v"; COUNT]);
    let push: Vec<&str> = push.collect();
    let sleep = format!("{seconds}.1");
    let replies = waiters.exec(&[&push, &["DEBUG", "SLEEP", &sleep]]);
    assert_eq!(replies, format!("*2\r\n:{COUNT}\r\n+OK\r\n"));
    for client in &mut clients {
        waiters.served(client, &popped("k", "v"));
    }
    true
}

#[test]
fn who_waits_for_many_keys_takes_more_memory() {
    const COUNT: usize = 1000;
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let many: Vec<String> = (0..COUNT).map(|number| format!("k{number:04}")).collect();
        let same = vec!["k0000".to_owned(); COUNT];
        let [many, same] = [many, same].map(|keys| {
            let mut client = server.connect();
            let id = super::id_of(&mut client);
            let keys = keys.iter().map(String::as_str);
            let request: Vec<&str> = ["BLPOP"].into_iter().chain(keys).chain(["0"]).collect();
            waiters.wait(&mut client, &request);
            let line = waiters.call(&["CLIENT", "LIST", "ID", &id]);
            let field = |name: &str| {
                let field = line.split(' ').find_map(|field| field.strip_prefix(name)).unwrap();
                field.parse::<usize>().unwrap()
            };
            assert_eq!(field("argv-mem="), 5 * COUNT + "BLPOP".len() + 1, "{line}");
            let memory = field("tot-mem=");
            drop(client);
            waiters.leave(1);
            memory
        });
        assert!(
            many > same + 40 * COUNT,
            "different keys take {many} bytes, equal keys take {same}"
        );
    });
}

#[test]
fn deadlines_pass_in_the_order_of_time() {
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let mut never = waiters.join(&["BLMPOP", "0", "1", "k", "LEFT"]);
        let mut late = waiters.join(&["BLPOP", "k", "l", "2"]);
        // The observer does not look for this client, because the client may give up before the
        // observer can see it wait.
        let mut soon = server.connect();
        soon.send(&["BLMOVE", "k", "d", "LEFT", "LEFT", "0.02"]);
        assert_eq!(soon.read(), NOTHING.as_bytes());
        assert!(late.is_silent());
        assert_eq!(late.read(), NOTHING.as_bytes());
        waiters.leave(1);
        assert!(waiters.call(&["INFO", "clients"]).contains("clients_in_timeout_table:0\r"));
        assert_eq!(waiters.call(&["RPUSH", "k", "v"]), integer(1));
        waiters.served(&mut never, "*2\r\n$1\r\nk\r\n*1\r\n$1\r\nv\r\n");
    });
}

#[test]
fn a_command_that_has_waited_is_counted_once() {
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let mut waiter = waiters.join(&["BLPOP", "k", "0"]);
        let calls = |waiters: &mut Waiters| {
            let stats = waiters.call(&["INFO", "commandstats"]);
            let line = stats.lines().find(|line| line.starts_with("cmdstat_blpop:")).unwrap();
            line.split(',').next().unwrap().to_owned()
        };
        assert_eq!(calls(&mut waiters), "cmdstat_blpop:calls=1");
        assert_eq!(waiters.call(&["RPUSH", "k", "v"]), integer(1));
        waiters.served(&mut waiter, &popped("k", "v"));
        assert_eq!(calls(&mut waiters), "cmdstat_blpop:calls=1");
    });
}
