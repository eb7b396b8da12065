//! Tests of socket operations, with each set of features that a kernel may have.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use slimio_ring::{Errno, EventFd, Interest, Outcome, Segments};

use crate::common::{PATIENCE, connection, ring, wait_for, wait_for_one, with_each_setup};

/// Bytes with a pattern that shows a missing or moved part.
fn pattern(size: usize) -> Vec<u8> {
    (0..size).map(|index| (index ^ (index >> 8) ^ (index >> 16)) as u8).collect()
}

#[test]
fn accepts_until_cancelled() {
    with_each_setup(|setup| {
        let mut ring = ring::<u8>(setup);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("the listener has an address");
        let listener = ring.adopt(OwnedFd::from(listener));
        let accept = ring.accept(listener, 7);
        let mut clients = Vec::new();
        let mut accepted = Vec::new();
        for _ in 0..20 {
            clients.push(TcpStream::connect(address).expect("the listener accepts connections"));
            let completion = wait_for_one(&mut ring);
            assert_eq!((completion.op, completion.payload, completion.is_last), (accept, 7, false));
            let Outcome::Accepted(Ok(fd)) = completion.outcome else { panic!("{completion:?}") };
            accepted.push(fd);
        }
        ring.cancel(accept);
        let completion = wait_for_one(&mut ring);
        assert!(completion.is_last);
        let Outcome::Accepted(Err(errno)) = completion.outcome else { panic!("{completion:?}") };
        assert_eq!(errno, Errno::CANCELED);
        assert_eq!(ring.in_flight(), 0);

        // The connections must work, and must come in the order in which the clients connected.
        let last = accepted.pop().expect("twenty connections were accepted");
        ring.send(last, b"hi".to_vec(), 0);
        let completion = wait_for_one(&mut ring);
        assert!(matches!(completion.outcome, Outcome::Sent { result: Ok(()), .. }));
        let mut received = [0; 2];
        clients[19].set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        clients[19].read_exact(&mut received).expect("the bytes arrive");
        assert_eq!(&received, b"hi");
    });
}

#[test]
fn receives_everything_through_few_buffers() {
    with_each_setup(|setup| {
        let mut ring = ring::<()>(setup);
        ring.provide_buffers(4, 1000).expect("there is memory");
        let (near, mut far) = connection(&mut ring);
        let sent = pattern(300_000);
        let to_send = sent.clone();
        let sender = std::thread::spawn(move || {
            far.write_all(&to_send).expect("the other end receives");
        });
        ring.receive(near, ());
        let mut received = Vec::new();
        let mut held = Vec::new();
        loop {
            let mut is_over = false;
            for completion in wait_for(&mut ring, 1) {
                match completion.outcome {
                    Outcome::Received(Ok(Some(provided))) => {
                        assert!(!completion.is_last);
                        received.extend_from_slice(ring.bytes(&provided));
                        held.push(provided);
                    }
                    Outcome::Received(Ok(None)) => {
                        assert!(completion.is_last);
                        is_over = true;
                    }
                    other => panic!("{other:?}"),
                }
            }
            // Buffers are given back only when all four are handed out, so the receive runs out of
            // buffers each time.
            if held.len() == 4 || is_over {
                held.drain(..).for_each(|provided| ring.give_back(provided));
            }
            if is_over {
                break;
            }
        }
        sender.join().expect("the sender ends");
        assert!(received == sent, "the received bytes differ from the sent bytes");
        assert_eq!(ring.in_flight(), 0);
    });
}

#[test]
fn a_starved_receive_can_be_cancelled_and_closed() {
    with_each_setup(|setup| {
        let mut ring = ring::<u32>(setup);
        ring.provide_buffers(1, 16).expect("there is memory");
        let (near, mut far) = connection(&mut ring);
        let (other, mut other_far) = connection(&mut ring);
        let receive = ring.receive(near, 1);
        far.write_all(b"takes the only buffer").expect("the connection is open");
        let completion = wait_for_one(&mut ring);
        let Outcome::Received(Ok(Some(provided))) = completion.outcome else { panic!() };
        assert_eq!(ring.bytes(&provided), b"takes the only b");
        // The first receive finds no free buffer for the rest of its bytes. The second receive
        // finds no free buffer at all.
        ring.receive(other, 2);
        other_far.write_all(b"more").expect("the connection is open");
        let mut completions = Vec::new();
        let timeout = std::time::Duration::from_millis(20);
        ring.submit_and_wait(1, Some(timeout)).expect("the ring works");
        ring.reap(&mut completions);
        ring.submit_and_wait(1, Some(timeout)).expect("the ring works");
        ring.reap(&mut completions);
        assert!(completions.is_empty(), "{completions:?}");

        ring.cancel(receive);
        ring.close(other);
        let completions = wait_for(&mut ring, 2);
        for completion in completions {
            assert!(completion.is_last);
            assert!(matches!(completion.outcome, Outcome::Received(Err(Errno::CANCELED))));
        }
        assert_eq!(ring.in_flight(), 0);
        assert!(ring.descriptor(other).is_none(), "the socket must be closed");

        // The buffer and the socket must still be usable, and no byte may be lost.
        ring.give_back(provided);
        ring.receive(near, 3);
        let completion = wait_for_one(&mut ring);
        let Outcome::Received(Ok(Some(provided))) = completion.outcome else { panic!() };
        assert_eq!(ring.bytes(&provided), b"uffer");
        ring.give_back(provided);
    });
}

#[test]
fn receives_behind_what_is_there() {
    with_each_setup(|setup| {
        let mut ring = ring::<()>(setup);
        let (near, mut far) = connection(&mut ring);
        let mut bytes = Vec::with_capacity(100);
        bytes.extend_from_slice(b"head ");
        let address = bytes.as_ptr();
        ring.receive_into(near, bytes, 4, ());
        far.write_all(b"body and more").expect("the connection is open");
        let completion = wait_for_one(&mut ring);
        assert!(completion.is_last);
        let Outcome::ReceivedInto { bytes, result } = completion.outcome else { panic!() };
        assert_eq!((bytes.as_slice(), result), (&b"head body"[..], Ok(4)));
        assert_eq!(bytes.as_ptr(), address, "the bytes must be appended in place");

        ring.receive_into(near, bytes, usize::MAX, ());
        drop(far);
        let completion = wait_for_one(&mut ring);
        let Outcome::ReceivedInto { bytes, result } = completion.outcome else { panic!() };
        assert_eq!((bytes.as_slice(), result), (&b"head body and more"[..], Ok(9)));
        ring.receive_into(near, bytes, usize::MAX, ());
        let completion = wait_for_one(&mut ring);
        assert!(matches!(completion.outcome, Outcome::ReceivedInto { result: Ok(0), .. }));
    });
}

#[test]
fn sends_more_than_the_socket_holds() {
    with_each_setup(|setup| {
        let mut ring = ring::<()>(setup);
        let (near, mut far) = connection(&mut ring);
        let expected = pattern(5_000_000);
        let mut segments = Segments::new();
        let shared = Arc::new(expected[1_000_000..4_000_000].to_vec());
        segments.push(expected[..1_000_000].to_vec());
        for start in (0..3_000_000).step_by(1000) {
            segments.push_shared(shared.clone(), start..start + 1000);
        }
        ring.send_segments(near, segments, ());
        ring.submit().expect("the ring works");
        let receiver = std::thread::spawn(move || {
            let mut received = vec![0; 5_000_000];
            far.read_exact(&mut received).expect("everything arrives");
            (received, far)
        });
        let completion = wait_for_one(&mut ring);
        let Outcome::SentSegments { segments, result: Ok(()) } = completion.outcome else {
            panic!()
        };
        assert!(segments.is_empty());
        ring.send(near, expected[4_000_000..].to_vec(), ());
        let completion = wait_for_one(&mut ring);
        let Outcome::Sent { bytes, result: Ok(()) } = completion.outcome else { panic!() };
        assert_eq!(bytes.len(), 1_000_000);
        let (received, far) = receiver.join().expect("the receiver ends");
        assert!(received == expected, "the received bytes differ from the sent bytes");

        drop(far);
        ring.send(near, b"nobody is there".to_vec(), ());
        let completion = wait_for_one(&mut ring);
        let Outcome::Sent { result: Err(errno), .. } = completion.outcome else { panic!() };
        assert_eq!(errno.number(), libc::EPIPE);
    });
}

#[test]
fn closing_ends_what_is_in_flight() {
    with_each_setup(|setup| {
        let mut ring = ring::<&str>(setup);
        ring.provide_buffers(4, 16).expect("there is memory");
        let (near, mut far) = connection(&mut ring);
        ring.receive(near, "receive");
        // The socket can't take this many bytes while its peer does not read.
        ring.send(near, vec![1; 10_000_000], "send");
        ring.submit().expect("the ring works");
        assert_eq!(ring.in_flight(), 2);
        ring.close(near);
        let mut completions = wait_for(&mut ring, 2);
        completions.sort_by_key(|completion| completion.payload);
        let Outcome::Received(Err(Errno::CANCELED)) = completions[0].outcome else {
            panic!("{:?}", completions[0].outcome)
        };
        let Outcome::Sent { bytes, result: Err(errno) } = &completions[1].outcome else { panic!() };
        assert_eq!((bytes.len(), *errno), (10_000_000, Errno::CANCELED));
        assert!(completions.iter().all(|completion| completion.is_last));
        assert_eq!(ring.in_flight(), 0);
        assert!(ring.descriptor(near).is_none());
        let mut rest = Vec::new();
        far.read_to_end(&mut rest).expect("the stream ends");
        assert!(rest.len() < 10_000_000);
    });
}

#[test]
fn shutting_down_ends_a_receive() {
    with_each_setup(|setup| {
        let mut ring = ring::<&str>(setup);
        ring.provide_buffers(4, 16).expect("there is memory");
        let (near, mut far) = connection(&mut ring);
        ring.receive(near, "receive");
        ring.submit().expect("the ring works");
        ring.shutdown(near, "shutdown");
        let completions = wait_for(&mut ring, 2);
        for completion in completions {
            match completion.payload {
                "receive" => {
                    assert!(matches!(completion.outcome, Outcome::Received(Ok(None))));
                }
                _ => assert!(matches!(completion.outcome, Outcome::Done(Ok(())))),
            }
        }
        assert_eq!(far.read(&mut [0; 1]).expect("the stream ends"), 0);
        assert!(ring.release(near).is_some());
        assert!(ring.release(near).is_none());
    });
}

#[test]
fn another_thread_wakes_a_sleeping_ring() {
    with_each_setup(|setup| {
        let mut ring = ring::<()>(setup);
        let event = EventFd::new().expect("descriptors are left");
        let fd = event.as_fd().try_clone_to_owned().expect("descriptors are left");
        let fd = ring.adopt(fd);
        for repeatedly in [false, true, true] {
            if repeatedly {
                ring.poll_repeatedly(fd, Interest::Readable, ());
            } else {
                ring.poll(fd, Interest::Readable, ());
            }
            ring.submit().expect("the ring works");
            let raiser = event.clone();
            let thread = std::thread::spawn(move || raiser.raise());
            let completion = wait_for_one(&mut ring);
            assert!(matches!(completion.outcome, Outcome::Polled(Ok(()))));
            assert!(event.lower());
            thread.join().expect("the thread has raised the event");
            if !completion.is_last {
                ring.cancel(completion.op);
                assert!(wait_for_one(&mut ring).is_last);
            }
        }
    });
}

#[test]
fn a_timeout_ends_the_wait() {
    with_each_setup(|setup| {
        let mut ring = ring::<()>(setup);
        let (near, _far) = connection(&mut ring);
        ring.receive_into(near, Vec::with_capacity(1), 1, ());
        let begin = std::time::Instant::now();
        let timeout = std::time::Duration::from_millis(30);
        ring.submit_and_wait(1, Some(timeout)).expect("the ring works");
        assert!(begin.elapsed() >= timeout, "the wait has ended early");
        let mut completions = Vec::new();
        ring.reap(&mut completions);
        assert!(completions.is_empty());
    });
}

#[test]
fn many_connections_on_small_queues() {
    with_each_setup(|setup| {
        let mut ring = ring::<usize>(setup);
        ring.provide_buffers(8, 64).expect("there is memory");
        let (nears, mut fars): (Vec<_>, Vec<_>) = (0..100).map(|_| connection(&mut ring)).unzip();
        // The queues have 8 and 16 entries, so they can't hold all hundred receives at once.
        for (index, near) in nears.iter().enumerate() {
            ring.receive(*near, index);
        }
        for round in 0..5_u8 {
            for (index, far) in fars.iter_mut().enumerate() {
                far.write_all(&[index as u8, round]).expect("the connection is open");
            }
            let mut echoed = 0;
            while echoed < 100 {
                for completion in wait_for(&mut ring, 1) {
                    match completion.outcome {
                        Outcome::Received(Ok(Some(provided))) => {
                            let bytes = ring.bytes(&provided).to_vec();
                            ring.give_back(provided);
                            assert_eq!(bytes, [completion.payload as u8, round]);
                            ring.send(nears[completion.payload], bytes, completion.payload);
                        }
                        Outcome::Sent { result: Ok(()), .. } => echoed += 1,
                        other => panic!("{other:?}"),
                    }
                }
            }
            for (index, far) in fars.iter_mut().enumerate() {
                let mut bytes = [0; 2];
                far.read_exact(&mut bytes).expect("the bytes are echoed");
                assert_eq!(bytes, [index as u8, round]);
            }
        }
    });
}
