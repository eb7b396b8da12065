//! Changes that make a key ready (the key then holds what a client waits for), and changes that do
//! not.

use super::{NOTHING, Waiters, bulk, integer, popped, send_all};
use crate::serving;

#[test]
fn whatever_makes_a_list_serves_who_waits_for_it() {
    let makers: [&[&str]; 9] = [
        &["LPUSH", "k", "v"],
        &["RPUSH", "k", "v"],
        &["LMOVE", "source", "k", "LEFT", "RIGHT"],
        &["RPOPLPUSH", "source", "k"],
        &["RENAME", "source", "k"],
        &["RENAMENX", "source", "k"],
        &["COPY", "source", "k"],
        &["MOVE", "k", "0"],
        &["SWAPDB", "0", "1"],
    ];
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        for maker in makers {
            assert_eq!(waiters.call(&["FLUSHALL"]), "+OK\r\n");
            let from = if ["MOVE", "SWAPDB"].contains(&maker[0]) { "1" } else { "0" };
            let mut waiter = waiters.join(&["BLPOP", "k", "0"]);
            assert_eq!(waiters.call(&["SELECT", from]), "+OK\r\n");
            if from == "1" {
                assert_eq!(waiters.call(&["RPUSH", "k", "v"]), integer(1));
            } else {
                assert_eq!(waiters.call(&["RPUSH", "source", "v"]), integer(1));
            }
            assert!(!waiters.call(maker).starts_with('-'), "{maker:?}");
            waiters.served(&mut waiter, &popped("k", "v"));
            assert_eq!(waiters.call(&["SELECT", "0"]), "+OK\r\n");
            assert_eq!(waiters.call(&["EXISTS", "k"]), integer(0), "{maker:?}");
        }
    });
}

#[test]
fn a_list_that_is_restored_serves_who_waits_for_it() {
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        waiters.call(&["RPUSH", "k", "v"]);
        let mut dumper = server.connect();
        dumper.send(&["DUMP", "k"]);
        let dumped = dumper.read();
        let begin = dumped.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        let payload = &dumped[begin..dumped.len() - 2];
        waiters.call(&["DEL", "k"]);
        let mut waiter = waiters.join(&["BRPOP", "k", "0"]);
        dumper.send_bytes(&crate::common::encode(&[b"RESTORE", b"k", b"0", payload]));
        assert_eq!(dumper.read(), b"+OK\r\n");
        waiters.served(&mut waiter, &popped("k", "v"));
    });
}

#[test]
fn other_types_and_other_keys_serve_nobody() {
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let mut waiter = waiters.join(&["BLPOP", "k", "0"]);
        let others: [&[&str]; 7] = [
            &["SET", "k", "v"],
            &["APPEND", "k", "w"],
            &["DEL", "k"],
            &["HSET", "k", "f", "v"],
            &["FLUSHALL"],
            &["RPUSH", "other", "v"],
            &["SWAPDB", "0", "1"],
        ];
        for other in others {
            assert!(!waiters.call(other).starts_with('-'), "{other:?}");
            waiters.see("the client no longer waits");
        }
        assert_eq!(waiters.call(&["RPUSH", "k", "v"]), integer(1));
        waiters.served(&mut waiter, &popped("k", "v"));
    });
}

/// The key holds a list within the transaction, but a string when the transaction has ended.
#[test]
fn who_is_woken_for_another_type_goes_on_waiting() {
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let mut waiter = waiters.join(&["BLPOP", "k", "0"]);
        let replies = waiters.exec(&[&["RPUSH", "k", "v"], &["DEL", "k"], &["SET", "k", "s"]]);
        assert_eq!(replies, "*3\r\n:1\r\n:1\r\n+OK\r\n");
        waiters.see("the client no longer waits");
        assert!(waiter.is_silent());
        assert_eq!(waiters.call(&["DEL", "k"]), integer(1));
        assert_eq!(waiters.call(&["RPUSH", "k", "w"]), integer(1));
        waiters.served(&mut waiter, &popped("k", "w"));
    });
}

#[test]
fn who_waits_is_served_when_the_transaction_is_over() {
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let mut waiter = waiters.join(&["BLPOP", "k", "0"]);
        let replies = waiters.exec(&[
            &["RPUSH", "k", "first"],
            &["LPOP", "k"],
            &["RPUSH", "k", "second"],
            &["LLEN", "k"],
        ]);
        assert_eq!(replies, format!("*4\r\n:1\r\n{}:1\r\n:1\r\n", bulk("first")));
        waiters.served(&mut waiter, &popped("k", "second"));
    });
}

/// A client is served from the key that became a list first, not from the key that it names first.
#[test]
fn keys_are_served_in_the_order_in_which_they_became_ready() {
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let mut one = waiters.join(&["BLPOP", "a", "b", "0"]);
        let mut two = waiters.join(&["BLPOP", "a", "b", "0"]);
        let pushes: [&[&str]; 3] = [&["SET", "a", "s"], &["RPUSH", "b", "1"], &["DEL", "a"]];
        waiters.exec(&[pushes[0], pushes[1], pushes[2], &["RPUSH", "a", "2"]]);
        waiters.served(&mut one, &popped("b", "1"));
        waiters.served(&mut two, &popped("a", "2"));
    });
}

#[test]
fn who_waits_for_several_keys_gets_from_the_one_that_became_ready_first() {
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let mut waiter = waiters.join(&["BLPOP", "a", "b", "0"]);
        waiters.exec(&[&["RPUSH", "b", "1"], &["RPUSH", "a", "2"]]);
        waiters.served(&mut waiter, &popped("b", "1"));
        assert_eq!(waiters.call(&["LLEN", "a"]), integer(1));
    });
}

/// The first client has sent another request after its blocking request. This second request
/// runs only after all waiting clients are served.
#[test]
fn who_waits_is_served_before_the_next_request_of_another() {
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let mut first = server.connect();
        send_all(&mut first, &[&["BLPOP", "k", "0"], &["LPOP", "k"]]);
        waiters.one_more_waits();
        let mut second = waiters.join(&["BLPOP", "k", "0"]);
        assert_eq!(waiters.call(&["RPUSH", "k", "1", "2"]), integer(2));
        waiters.served(&mut first, &popped("k", "1"));
        assert_eq!(first.read(), b"$-1\r\n");
        waiters.served(&mut second, &popped("k", "2"));
    });
}

#[test]
fn who_waits_for_several_keys_is_served_once() {
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let mut waiter = waiters.join(&["BLPOP", "a", "b", "a", "c", "0"]);
        assert_eq!(
            waiters.call(&["INFO", "clients"]).matches("total_blocking_keys:3\r").count(),
            1
        );
        // If one key holds another type, the client is still served from its other keys.
        assert_eq!(waiters.call(&["SET", "a", "s"]), "+OK\r\n");
        assert_eq!(waiters.call(&["RPUSH", "c", "1", "2"]), integer(2));
        waiters.served(&mut waiter, &popped("c", "1"));
        assert_eq!(waiters.call(&["DEL", "a"]), integer(1));
        assert_eq!(waiters.call(&["RPUSH", "a", "3"]), integer(1));
        assert_eq!(waiters.call(&["RPUSH", "b", "4"]), integer(1));
        assert_eq!(waiter.call(&["BLPOP", "c", "b", "a", "0"]), popped("c", "2"));
        assert_eq!(waiters.call(&["EXISTS", "a", "b", "c"]), integer(2));
        assert!(waiters.call(&["INFO", "clients"]).contains("total_blocking_keys:0\r"));
    });
}

#[test]
fn each_command_takes_what_it_names() {
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let waits: [(&[&str], &str, &str); 6] = [
            (&["BLPOP", "k", "0"], &popped("k", "1"), "*2\r\n$1\r\n2\r\n$1\r\n3\r\n"),
            (&["BRPOP", "k", "0"], &popped("k", "3"), "*2\r\n$1\r\n1\r\n$1\r\n2\r\n"),
            (
                &["BLMOVE", "k", "k", "RIGHT", "LEFT", "0"],
                &bulk("3"),
                "*3\r\n$1\r\n3\r\n$1\r\n1\r\n$1\r\n2\r\n",
            ),
            (&["BRPOPLPUSH", "k", "other", "0"], &bulk("3"), "*2\r\n$1\r\n1\r\n$1\r\n2\r\n"),
            (
                &["BLMPOP", "0", "2", "x", "k", "RIGHT", "COUNT", "2"],
                "*2\r\n$1\r\nk\r\n*2\r\n$1\r\n3\r\n$1\r\n2\r\n",
                "*1\r\n$1\r\n1\r\n",
            ),
            (
                &["BLMPOP", "0", "1", "k", "LEFT"],
                "*2\r\n$1\r\nk\r\n*1\r\n$1\r\n1\r\n",
                "*2\r\n$1\r\n2\r\n$1\r\n3\r\n",
            ),
        ];
        for (request, reply, left) in waits {
            let mut waiter = waiters.join(request);
            assert_eq!(waiters.call(&["RPUSH", "k", "1", "2", "3"]), integer(3));
            waiters.served(&mut waiter, reply);
            assert_eq!(waiters.call(&["LRANGE", "k", "0", "-1"]), left, "{request:?}");
            // If the key already holds a list, the client does not wait.
            assert_eq!(waiters.call(&["FLUSHALL"]), "+OK\r\n");
            assert_eq!(waiters.call(&["RPUSH", "k", "1", "2", "3"]), integer(3));
            assert_eq!(waiters.call(request), reply, "{request:?}");
            assert_eq!(waiters.call(&["FLUSHALL"]), "+OK\r\n");
        }
    });
}

#[test]
fn a_destination_of_another_type_ends_the_wait_with_an_error() {
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let mut waiter = waiters.join(&["BLMOVE", "k", "d", "LEFT", "LEFT", "0"]);
        let mut next = waiters.join(&["BLPOP", "k", "0"]);
        assert_eq!(waiters.call(&["SET", "d", "s"]), "+OK\r\n");
        assert_eq!(waiters.call(&["RPUSH", "k", "v"]), integer(1));
        assert!(waiter.read().starts_with(b"-WRONGTYPE"));
        assert_eq!(next.read(), popped("k", "v").as_bytes());
        waiters.leave(2);
    });
}

#[test]
fn nobody_waits_in_a_transaction() {
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let replies = waiters.exec(&[
            &["BLPOP", "k", "0"],
            &["BRPOP", "k", "0"],
            &["BLMPOP", "0", "1", "k", "LEFT"],
            &["BLMOVE", "k", "d", "LEFT", "RIGHT", "0"],
            &["BRPOPLPUSH", "k", "d", "0"],
            &["RPUSH", "k", "v"],
            &["BLPOP", "k", "0"],
        ]);
        let nothing = format!("{NOTHING}{NOTHING}{NOTHING}$-1\r\n$-1\r\n");
        assert_eq!(replies, format!("*7\r\n{nothing}:1\r\n{}", popped("k", "v")));
    });
}

/// A client watches a key, and then pushes an element. The waiting client moves the element to the
/// watched key. So the transaction of the first client must fail.
#[test]
fn what_is_served_beside_a_client_concerns_what_it_watches() {
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let mut waiter = waiters.join(&["BLMOVE", "k", "d", "LEFT", "RIGHT", "0"]);
        assert_eq!(waiters.call(&["WATCH", "d"]), "+OK\r\n");
        assert_eq!(waiters.call(&["RPUSH", "k", "v"]), integer(1));
        waiters.served(&mut waiter, &bulk("v"));
        assert_eq!(waiters.exec(&[&["PING"]]), NOTHING);
    });
}

#[test]
fn a_request_of_any_form_waits_and_what_follows_it_waits_too() {
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let mut waiter = server.connect();
        waiter.send_bytes(b"BLPOP k 0\r\nPING\r\nBRPOP k l 0\r\nPING\r\n");
        waiters.one_more_waits();
        assert!(waiter.is_silent());
        // After the push, the client soon waits again, so the count of waiting clients stays the
        // same.
        assert_eq!(waiters.call(&["RPUSH", "k", "1"]), integer(1));
        assert_eq!(waiter.read(), popped("k", "1").as_bytes());
        assert_eq!(waiter.read(), b"+PONG\r\n");
        waiters.see("the client does not wait again");
        assert_eq!(waiters.call(&["RPUSH", "l", "2"]), integer(1));
        waiters.served(&mut waiter, &popped("l", "2"));
        assert_eq!(waiter.read(), b"+PONG\r\n");

        send_all(&mut waiter, &[&["CLIENT", "REPLY", "OFF"], &["BLPOP", "k", "0"], &["PING"]]);
        waiters.one_more_waits();
        assert_eq!(waiters.call(&["RPUSH", "k", "3"]), integer(1));
        waiters.leave(1);
        assert_eq!(waiter.call(&["CLIENT", "REPLY", "ON"]), "+OK\r\n");
        send_all(&mut waiter, &[&["CLIENT", "REPLY", "SKIP"], &["BLPOP", "k", "0"], &["PING"]]);
        waiters.one_more_waits();
        assert_eq!(waiters.call(&["RPUSH", "k", "4"]), integer(1));
        waiters.served(&mut waiter, "+PONG\r\n");
        assert_eq!(waiters.call(&["EXISTS", "k"]), integer(0));
    });
}

/// A request with 5000 elements runs in steps.
#[test]
fn a_long_push_serves_who_waits_when_it_is_over() {
    serving("", |server| {
        let mut waiters = Waiters::of(server);
        let mut one = waiters.join(&["BLPOP", "k", "0"]);
        let mut two = waiters.join(&["BLMOVE", "k", "d", "RIGHT", "LEFT", "0"]);
        let elements: Vec<String> = (0..5000).map(|number| number.to_string()).collect();
        let push = ["RPUSH", "k"].into_iter().chain(elements.iter().map(String::as_str));
        assert_eq!(waiters.call(&push.collect::<Vec<_>>()), integer(5000));
        waiters.served(&mut one, &popped("k", "0"));
        waiters.served(&mut two, &bulk("4999"));
        assert_eq!(waiters.call(&["LLEN", "k"]), integer(4998));
    });
}
