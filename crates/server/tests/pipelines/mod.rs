//! Pipelines that are longer than what one turn serves: little of them waits in memory, whoever sends them.

use crate::common::{Client, Running, encode, until};
use crate::{info, serving};

/// The most that any client has waiting for the server, in bytes.
fn longest_input(observer: &mut Client) -> usize {
    let list = observer.call(&["CLIENT", "LIST"]);
    let sizes = list.split_whitespace().filter_map(|word| word.strip_prefix("qbuf="));
    sizes.map(|size| size.parse().unwrap()).max().unwrap()
}

/// Sends everything, and returns how many replies came; `meanwhile` runs beside it again and again.
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
        // What the kernel has received when reading pauses still comes.
        assert!(longest < 4 << 20, "{longest} bytes waited, of {}", 14 * COUNT);
    });
}

/// While one of them runs in steps, the others wait, and no limit to one request is meant for them.
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
        // More than both sockets hold.
        let requests = encode(&[b"PING"]).repeat(200_000);
        for _ in 0..8 {
            if !stranger.try_send_bytes(&requests) {
                break;
            }
        }
        until("nobody was closed", || {
            info(&mut observer, "client_output_buffer_limit_disconnections") == "1"
        });
        assert_eq!(observer.call(&["CONFIG", "SET", "requirepass", ""]), "+OK\r\n");
    });
}
