//! Tests that the operations of a ring allocate nothing once the ring has reached its peak load.

use std::io::{Read, Write};

use slimio_ring::{Outcome, Segments};

use crate::common::{connection, ring, with_each_setup};

#[test]
fn operations_allocate_nothing() {
    with_each_setup(|setup| {
        let mut ring = ring::<u8>(setup);
        ring.provide_buffers(8, 4096).expect("there is memory");
        let (near, mut far) = connection(&mut ring);
        ring.receive(near, 0);
        let mut completions = Vec::new();
        let mut bytes = Some(vec![1; 1000]);
        let mut segments = Some(Segments::new());
        let mut spare = vec![vec![2; 500]];
        let mut received = [0; 1500];
        let mut round = || {
            far.write_all(&received).expect("the connection is open");
            let mut segments_now = segments.take().expect("the send has ended");
            let mut more = spare.pop().expect("the receive has ended");
            more.resize(500, 2);
            segments_now.push(more);
            ring.send(near, bytes.take().expect("the send has ended"), 1);
            ring.submit().expect("the ring works");
            ring.send_segments(near, segments_now, 2);
            let mut waiting = 1500 + 2;
            while waiting > 0 {
                ring.submit_and_wait(1, None).expect("the ring works");
                ring.reap(&mut completions);
                for completion in completions.drain(..) {
                    match completion.outcome {
                        Outcome::Received(Ok(Some(provided))) => {
                            waiting -= provided.size();
                            ring.give_back(provided);
                        }
                        Outcome::Sent { bytes: home, result: Ok(()) } => {
                            bytes = Some(home);
                            waiting -= 1;
                        }
                        Outcome::SentSegments { segments: mut home, result: Ok(()) } => {
                            home.clear(&mut spare);
                            segments = Some(home);
                            waiting -= 1;
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
            far.read_exact(&mut received).expect("everything arrives");
        };
        (0..20).for_each(|_| round());
        let counted = allocation_counter::measure(|| (0..200).for_each(|_| round()));
        assert_eq!(counted.count_total, 0, "{counted:?}");
    });
}
