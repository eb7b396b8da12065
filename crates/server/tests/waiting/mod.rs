//! Clients that wait for something, and how they go on.

use crate::common::{BACK_ENDS, Client, encode, start, until};
use crate::undurable::{held, send_all};

/// What a client waits for that nothing but `CLIENT UNBLOCK` lets go on.
const FOR_EVER: [&str; 4] = ["WAITAOF", "0", "1", "0"];

/// Sends `requests` behind one that waits, until all of them are with the server. Returns the
/// client's id.
fn send_behind_a_wait(client: &mut Client, requests: &[&[&str]], observer: &mut Client) -> String {
    let id = client.call(&["CLIENT", "ID"])[1..].trim().to_owned();
    let behind: usize = requests.iter().map(|request| encoded(request).len()).sum();
    send_all(client, &[&[&FOR_EVER[..]], requests].concat());
    let (start, behind) = (format!("id={id} "), format!(" qbuf={behind} "));
    until("the server does not have them", || {
        let list = observer.call(&["CLIENT", "LIST"]);
        list.lines().any(|line| line.starts_with(&start) && line.contains(&behind))
    });
    id
}

fn encoded(request: &[&str]) -> Vec<u8> {
    encode(&request.iter().map(|arg| arg.as_bytes()).collect::<Vec<_>>())
}

#[test]
fn who_is_unblocked_within_a_transaction_goes_on_behind_it() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let Some(server) = start(back_end, &volume, "appendfsync everysec") else { continue };
        let (mut one, mut two) = (server.connect(), server.connect());
        let requests: [&[&str]; 5] =
            [&["MULTI"], &["APPEND", "k", "c"], &["EXEC"], &["APPEND", "k", "d"], &["PING"]];
        let two_id = send_behind_a_wait(&mut two, &requests, &mut one);
        let unblock = ["CLIENT", "UNBLOCK", &two_id];
        let again = ["CLIENT", "UNBLOCK", &two_id, "ERROR"];
        send_all(
            &mut one,
            &[
                &["MULTI"],
                &["APPEND", "k", "a"],
                &unblock,
                &again,
                &["APPEND", "k", "b"],
                &["EXEC"],
            ],
        );
        (0..5).for_each(|_| drop(one.read()));
        assert_eq!(one.read(), b"*4\r\n:1\r\n:1\r\n:0\r\n:2\r\n", "{back_end}");
        for reply in
            ["*2\r\n:1\r\n:0\r\n", "+OK\r\n", "+QUEUED\r\n", "*1\r\n:3\r\n", ":4\r\n", "+PONG\r\n"]
        {
            assert_eq!(two.read(), reply.as_bytes(), "{back_end}");
        }
        server.stop();
        let server = start(back_end, &volume, "").unwrap();
        assert_eq!(server.connect().call(&["GET", "k"]), "$4\r\nabcd\r\n", "{back_end}");
        server.stop();
    }
}

#[test]
fn who_is_unblocked_within_a_transaction_is_answered_when_it_is_durable() {
    held("", |world| {
        let mut two = world.connect("two");
        let two_id = send_behind_a_wait(&mut two, &[&["SET", "k", "v"]], &mut world.observer);
        world.shut();
        let mut one = world.connect("one");
        send_all(&mut one, &[&["MULTI"], &["CLIENT", "UNBLOCK", &two_id], &["EXEC"]]);
        world.wait_until_run("two", "set");
        assert!(two.is_silent(), "answered before it is durable");
        for reply in ["+OK\r\n", "+QUEUED\r\n", "*1\r\n:1\r\n"] {
            assert_eq!(one.read(), reply.as_bytes());
        }
        world.open();
        assert_eq!(two.read(), b"*2\r\n:1\r\n:0\r\n");
        assert_eq!(two.read(), b"+OK\r\n");
    });
}
