//! Several commands, queues and hosts at once.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use slimio_initiator::{Error, Host, IoQueue, Options, Placed, Submission, Token};

use crate::target::{LBA_SIZE, Target, all_digests, connect, content};

/// Writes and reads random blocks of a range, with many commands in flight. Checks that each read
/// returns what was written last.
fn work(queue: &mut IoQueue, lbas: std::ops::Range<u64>, seed: u64, ops: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut written: HashMap<u64, u64> = HashMap::new();
    // For each token: the block, and the seed of its content if the command is a write. No two
    // commands in flight have the same block, because their order would be unknown.
    let mut in_flight: HashMap<u64, (u64, Option<u64>)> = HashMap::new();
    let (mut outcomes, mut begun) = (Vec::new(), 0);
    while begun < ops || !in_flight.is_empty() {
        while begun < ops && in_flight.len() < 64 {
            let lba = rng.u64(lbas.clone());
            if in_flight.values().any(|(known, _)| *known == lba) {
                break;
            }
            let is_write = !written.contains_key(&lba) || rng.bool();
            let (command, data) = if is_write {
                (queue.write_command(lba, 1, Placed::default()), content(seed ^ begun, 1))
            } else {
                (queue.read_command(lba, 1), vec![0; LBA_SIZE])
            };
            let submission = Submission { token: Token(begun), command, data };
            queue.queue().submit(submission).expect("the queue has room for the command");
            in_flight.insert(begun, (lba, is_write.then_some(seed ^ begun)));
            begun += 1;
        }
        queue.queue().wait(&mut outcomes).expect("the target answers");
        for outcome in outcomes.drain(..) {
            let outcome = outcome.checked().expect("the command succeeds");
            let (lba, write) = in_flight
                .remove(&outcome.token.0)
                .expect("each outcome belongs to a command in flight");
            match write {
                Some(seed) => drop(written.insert(lba, seed)),
                None => assert!(outcome.data == content(written[&lba], 1), "block {lba}"),
            }
        }
    }
    for (lba, seed) in written {
        assert!(
            queue.read(lba, 1).expect("the block can be read") == content(seed, 1),
            "block {lba}"
        );
    }
}

#[test]
fn many_commands_are_in_flight_with_and_without_flow_control() {
    let target = Target::start();
    for (seed, digests) in all_digests().into_iter().enumerate() {
        for has_flow_control in [true, false] {
            let options = Options { digests, has_flow_control, ..target.options() };
            let (_host, mut queue) = connect(&options);
            work(&mut queue, 0..500, seed as u64, 3000);
        }
    }
}

#[test]
fn ten_hosts_with_two_queues_each_do_not_disturb_each_other() {
    let target = Target::start();
    std::thread::scope(|scope| {
        for number in 0..10 {
            let target = &target;
            scope.spawn(move || {
                let name = format!("nqn.host{number}");
                let host_id = [number; 16];
                let options = Options { host: name, host_id, ..target.options() };
                let mut host = Host::connect(&options).expect("the target answers");
                let queues: Vec<IoQueue> = (1..=2)
                    .map(|qid| host.open_queue(qid, 128).expect("the target opens the queue"))
                    .collect();
                let mut first = u64::from(number) * 200;
                std::thread::scope(|scope| {
                    for mut queue in queues {
                        let seed = first;
                        scope.spawn(move || work(&mut queue, seed..seed + 100, seed, 2000));
                        first += 100;
                    }
                });
            });
        }
    });
}

#[test]
fn a_host_that_says_nothing_is_cut_off_and_one_that_keeps_alive_is_not() {
    let target = Target::start();
    let options = Options { keep_alive_ms: 100, ..target.options() };
    let (mut host, mut queue) = connect(&options);
    let error = host.admin().wait_until(Instant::now() + crate::target::TIME_MAX, &mut Vec::new());
    assert!(matches!(error, Err(Error::Closed)), "{error:?}");
    let error = queue.flush().expect_err("the target has ended the controller of the queue");
    assert!(matches!(error, Error::Closed | Error::Io(_)), "{error:?}");

    let options = Options { keep_alive_ms: 3000, ..target.options() };
    let mut host = Host::connect(&options).expect("the target answers");
    let before = host.admin().sent_at();
    host.idle_until(Instant::now() + Duration::from_millis(1200))
        .expect("the connection stays open");
    assert!(host.admin().sent_at() > before, "the idle host has sent no keep-alive command");
}
