//! A turn is one pass of the server's event loop. These pipelines have more requests than one turn
//! serves. Only a little of each pipeline may wait in memory.

use crate::common::{Client, Running, encode, until};
use crate::{info, serving};

/// The size of the largest input buffer that any client has, in bytes.
fn longest_input(observer: &mut Client) -> usize {
    let list = observer.call(&["CLIENT", "LIST"]);
    let sizes = list.split_whitespace().filter_map(|word| word.strip_prefix("qbuf="));
    sizes.map(|size| size.parse().unwrap()).max().unwrap()
}

/// Sends all bytes and returns the number of replies. Until all replies have come, runs `meanwhile`
/// repeatedly.
fn flood(server: &Running, bytes: &[u8], mut meanwhile: impl FnMut(&mut Client)) -> usize {
    let (mut client, mut observer) = (server.connect(), server.connect());
    std::thread::scope(|scope| {
        let task = scope.spawn(|| {
            client.send_bytes(bytes);
            client.end_sending();
            let replies = client.read_to_end();
            replies.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count()
        });
        while !task.is_finished() {
            meanwhile(&mut observer);
        }
        task.join().unwrap()
    })
}

#[test]
fn little_of_a_long_one_waits_in_memory() {
    const COUNT: usize = 1_500_000;
    let directives = "appendonly no\nclient-query-buffer-limit 1mb";
    serving(directives, |server| {
        let mut longest = 0;
        let replies = flood(server, &encode(&[b"PING"]).repeat(COUNT), |observer| {
            longest = longest.max(longest_input(observer));
        });
        assert_eq!(replies, COUNT);
        // When the server stops reading, bytes that are already being received still arrive.
        assert!(
            longest < 4 << 20,
            "{longest} bytes waited in memory; the pipeline has {} bytes",
            14 * COUNT
        );
    });
}

/// While one request runs in steps, the other requests wait. The limit on the size of a request
/// applies to each request alone, not to the sum of the waiting requests.
#[test]
fn requests_in_steps_do_not_add_up_to_a_limit() {
    const COUNT: usize = 3000;
    let mut words = vec![b"EXISTS".as_slice()];
    words.resize(1101, b"k");
    let directives = "appendonly no\nclient-query-buffer-limit 8mb";
    serving(directives, |server| {
        assert_eq!(flood(server, &encode(&words).repeat(COUNT), |_| {}), COUNT);
    });
}

#[test]
fn who_never_authenticates_and_never_reads_is_closed() {
    serving("appendonly no", |server| {
        let mut observer = server.connect();
        assert_eq!(observer.call(&["CONFIG", "SET", "requirepass", "secret"]), "+OK\r\n");
        let mut stranger = server.connect();
        // Sent eight times, these bytes are more than the buffers of both sockets hold.
        let requests = encode(&[b"PING"]).repeat(200_000);
        for _ in 0..8 {
            if !stranger.try_send_bytes(&requests) {
                break;
            }
        }
        until("the client was not disconnected", || {
            info(&mut observer, "client_output_buffer_limit_disconnections") == "1"
        });
        assert_eq!(observer.call(&["CONFIG", "SET", "requirepass", ""]), "+OK\r\n");
    });
}

/// A turn must take less CPU time than this, in milliseconds, even if the server has more to do
/// than fits into one turn.
const LONG_TURN_MS: u64 = 15;

/// Fails if turns are long while several clients send the same bytes, all at once. Other work on
/// the machine also makes CPU time longer, above all if a hypervisor lends the cores to other
/// guests. So the best of several tries counts.
fn check_turns(server: &Running, clients: usize, bytes: &[u8]) {
    let is_short = (0..12).any(|_| longest_turn(server, clients, bytes) < LONG_TURN_MS);
    assert!(is_short, "each try had a turn of {LONG_TURN_MS} ms or more");
}

/// The CPU time of the command thread's longest turn, in milliseconds, while several clients send
/// the same bytes, all at once, and read all replies.
fn longest_turn(server: &Running, clients: usize, bytes: &[u8]) -> u64 {
    let mut observer = server.connect();
    assert_eq!(observer.call(&["CONFIG", "RESETSTAT"]), "+OK\r\n");
    let mut clients: Vec<Client> = (0..clients).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.send_bytes(bytes);
        client.end_sending();
    }
    for client in &mut clients {
        assert!(client.try_read_to_end() > 0);
    }
    info(&mut observer, "turn_cpu_us_max").parse::<u64>().unwrap() / 1000
}

const TIMED: &str = "appendonly no\ncommand-cpu-tracking yes\nenable-debug-command yes";

#[test]
fn requests_that_each_take_long_do_not_make_a_long_turn() {
    serving(TIMED, |server| {
        assert_eq!(server.connect().call(&["DEBUG", "POPULATE", "10000"]), "+OK\r\n");
        let scan = encode(&[b"SCAN", b"0", b"COUNT", b"10000", b"MATCH", b"*nothing*of*it*"]);
        check_turns(server, 1, &scan.repeat(256));
    });
}

#[test]
fn many_clients_with_a_command_in_steps_do_not_make_a_long_turn() {
    serving(TIMED, |server| {
        // Each client's command takes ten steps, so that most clients are served at the same time
        // even if the server begins before all clients have sent their command.
        assert_eq!(server.connect().call(&["DEBUG", "POPULATE", "100000"]), "+OK\r\n");
        check_turns(server, 100, &encode(&[b"KEYS", b"*nothing*of*it*"]));
    });
}

#[test]
fn options_have_an_end() {
    serving(TIMED, |server| {
        let mut words = vec![b"SET".as_slice(), b"k", b"v"];
        words.resize(1_000_000, b"NX");
        let mut client = server.connect();
        client.send_bytes(&encode(&words));
        assert!(client.read().starts_with(b"-ERR too many arguments for 'set' command"));
        words.truncate(20);
        client.send_bytes(&encode(&words));
        assert_eq!(client.read(), b"+OK\r\n");
    });
}

/// If a client stops watching many keys, the server forgets the watched keys in steps. A change of
/// a key that is not forgotten yet must not abort the client's next transaction.
#[test]
fn what_is_no_longer_watched_breaks_no_transaction() {
    serving("appendonly no", |server| {
        let keys: Vec<String> = (0..2000).map(|n| format!("key:{n}")).collect();
        let mut watch = vec![b"WATCH".as_slice()];
        watch.extend(keys.iter().map(String::as_bytes));
        let again = [&watch[..1], &[b"other"]].concat();
        let mut client = server.connect();
        for key in [b"key:1500".as_slice(), b"other"] {
            let requests: [&[&[u8]]; 6] =
                [&watch, &[b"UNWATCH"], &again, &[b"SET", key, b"v"], &[b"MULTI"], &[b"EXEC"]];
            let bytes: Vec<u8> = requests.iter().flat_map(|request| encode(request)).collect();
            client.send_bytes(&bytes);
            (0..5).for_each(|_| drop(client.read()));
            let expected: &[u8] = if key == b"other" { b"*-1\r\n" } else { b"*0\r\n" };
            assert_eq!(client.read(), expected);
        }
    });
}
