//! Tests of file operations, and of rings that wait for other rings. In a deferred ring, the kernel
//! handles completions when the ring's thread waits, so no other thread can wait in this ring.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::time::Duration;

use slimio_ring::{Errno, Features, Interest, Outcome, Ring, Setup, TransferError};

use crate::common::{PATIENCE, connection, ring, wait_for, wait_for_one, with_each_setup};

fn temporary_file() -> OwnedFd {
    tempfile::tempfile().expect("a file for the test").into()
}

#[test]
fn writes_then_reads() {
    with_each_setup(|setup| {
        let mut ring = ring::<u32>(setup);
        let file = ring.adopt(temporary_file());
        // The queues can't hold this many operations at once.
        for index in 0..40_u32 {
            let bytes = vec![index as u8; 100];
            ring.write(file, bytes, u64::from(index) * 100, index % 2 == 0, index);
        }
        let mut done = wait_for(&mut ring, 40);
        done.sort_by_key(|completion| completion.payload);
        for (index, completion) in done.into_iter().enumerate() {
            assert_eq!((completion.payload as usize, completion.is_last), (index, true));
            let Outcome::Transferred { memory, result: Ok(()) } = completion.outcome else {
                panic!("{:?}", completion.outcome)
            };
            assert_eq!(memory, vec![index as u8; 100]);
        }
        ring.flush(file, true, 0);
        assert!(matches!(wait_for_one(&mut ring).outcome, Outcome::Done(Ok(()))));

        ring.read(file, vec![0; 200], 1950, 0);
        let completion = wait_for_one(&mut ring);
        let Outcome::Transferred { memory, result: Ok(()) } = completion.outcome else { panic!() };
        assert_eq!(memory[..], [vec![19; 50], vec![20; 100], vec![21; 50]].concat());
    });
}

#[test]
fn a_short_transfer_and_an_error_are_told_apart() {
    with_each_setup(|setup| {
        let mut ring = ring::<()>(setup);
        let file = ring.adopt(temporary_file());
        ring.write(file, vec![1; 100], 0, false, ());
        assert_eq!(wait_for(&mut ring, 1).len(), 1);
        ring.read(file, vec![0; 200], 50, ());
        let completion = wait_for_one(&mut ring);
        let Outcome::Transferred { memory, result } = completion.outcome else { panic!() };
        assert_eq!(result, Err(TransferError::Short { moved: 50, asked: 200 }));
        assert_eq!(memory.len(), 200);

        let read_only =
            File::open("/proc/self/exe").expect("the test's program can be opened").into();
        let read_only = ring.adopt(read_only);
        ring.write(read_only, vec![1; 100], 0, false, ());
        let completion = wait_for_one(&mut ring);
        let Outcome::Transferred { memory, result } = completion.outcome else { panic!() };
        assert_eq!(result, Err(TransferError::Os(Errno::new(libc::EBADF))));
        assert_eq!(memory, vec![1; 100]);
    });
}

#[test]
fn allocates() {
    with_each_setup(|setup| {
        let mut ring = ring::<()>(setup);
        let file = tempfile::tempfile().expect("a file for the test");
        let fd = ring.adopt(file.try_clone().expect("descriptors are left").into());
        ring.allocate(fd, 0, 0, 1 << 20, ());
        assert!(matches!(wait_for_one(&mut ring).outcome, Outcome::Done(Ok(()))));
        assert_eq!(file.metadata().expect("the file is open").len(), 1 << 20);
        ring.allocate(fd, 0, 0, 1 << 62, ());
        let Outcome::Done(Err(errno)) = wait_for_one(&mut ring).outcome else { panic!() };
        assert!([libc::EFBIG, libc::ENOSPC].contains(&errno.number()), "{errno}");
    });
}

/// If a thread sleeps in one ring, a completion in another ring of the thread must wake the thread.
#[test]
fn a_ring_wakes_for_another_ring() {
    with_each_setup(|setup| {
        let mut sleeper = ring::<&str>(setup);
        let avoid = Features { deferred: true, ..setup.avoid };
        let mut worker: Ring<u64> = ring(Setup { avoid, ..setup });
        let file = worker.adopt(temporary_file());
        let readiness = worker.readiness().expect("the worker is not deferred");
        let readiness = readiness.try_clone_to_owned().expect("descriptors are left");
        let readiness = sleeper.adopt(readiness);
        let mut completions = Vec::new();
        for round in 0..50 {
            worker.write(file, vec![1; 65536], round * 65536, true, round);
            worker.submit().expect("the ring works");
            while completions.len() as u64 <= round {
                // The kernel may wake the sleeper twice for one completion. There is nothing to
                // reap the second time.
                sleeper.poll(readiness, Interest::Readable, "worker");
                let completion = wait_for_one(&mut sleeper);
                assert!(matches!(completion.outcome, Outcome::Polled(Ok(()))));
                worker.reap(&mut completions);
            }
        }
        for completion in completions {
            let result = completion.outcome;
            assert!(matches!(result, Outcome::Transferred { result: Ok(()), .. }), "{result:?}");
        }
        assert_eq!((sleeper.in_flight(), worker.in_flight()), (0, 0));
    });
}

#[test]
fn a_deferred_ring_has_no_readiness() {
    with_each_setup(|setup| {
        let ring = ring::<()>(setup);
        assert_eq!(ring.readiness().is_none(), ring.features().deferred);
    });
}

#[test]
fn a_ring_that_is_not_deferred_goes_from_thread_to_thread() {
    with_each_setup(|setup| {
        let avoid = Features { deferred: true, ..setup.avoid };
        let mut ring = ring::<()>(Setup { avoid, ..setup });
        let file = ring.adopt(temporary_file());
        ring.write(file, vec![1; 10], 0, true, ());
        assert_eq!(wait_for(&mut ring, 1).len(), 1);
        let thread = std::thread::spawn(move || {
            ring.write(file, vec![2; 10], 0, true, ());
            assert_eq!(wait_for(&mut ring, 1).len(), 1);
            // This thread submits the write, and the thread of the test reaps the completion.
            ring.write(file, vec![3; 10], 0, true, ());
            ring.submit().expect("the ring works");
            ring
        });
        let mut ring = thread.join().expect("the thread ends");
        assert_eq!(wait_for(&mut ring, 1).len(), 1);
        ring.read(file, vec![0; 10], 0, ());
        let Outcome::Transferred { memory, .. } = wait_for_one(&mut ring).outcome else { panic!() };
        assert_eq!(memory, vec![3; 10]);
    });
}

#[test]
fn a_deferred_ring_belongs_to_one_thread() {
    with_each_setup(|setup| {
        let mut ring = ring::<()>(setup);
        if !ring.features().deferred {
            return;
        }
        let (near, far) = connection(&mut ring);
        ring.receive_into(near, Vec::with_capacity(10), 10, ());
        ring.submit().expect("the ring works");
        let thread = std::thread::spawn(move || {
            let refused = ring
                .submit_and_wait(1, Some(PATIENCE))
                .expect_err("another thread can't wait in a deferred ring");
            assert_eq!(refused.number(), libc::EEXIST);
            // This thread can't wait in the ring. So the drop does not wait for the operations to
            // end, and leaks their memory.
            drop(ring);
        });
        thread.join().expect("dropping the ring is safe");
        drop(far);
    });
}

#[test]
fn dropping_a_ring_ends_what_is_in_flight() {
    with_each_setup(|setup| {
        let mut ring = ring::<()>(setup);
        ring.provide_buffers(4, 4096).expect("there is memory");
        let file = ring.adopt(temporary_file());
        let mut fars = Vec::new();
        for index in 0..20 {
            let (near, far) = connection(&mut ring);
            fars.push(far);
            match index % 4 {
                0 => ring.receive(near, ()),
                1 => ring.receive_into(near, Vec::with_capacity(4096), 4096, ()),
                2 => ring.send(near, vec![1; 1 << 20], ()),
                _ => ring.poll(near, Interest::Readable, ()),
            };
            ring.write(file, vec![1; 1 << 16], index << 16, true, ());
        }
        ring.submit().expect("the ring works");
        let begin = std::time::Instant::now();
        drop(ring);
        assert!(
            begin.elapsed() < Duration::from_secs(4),
            "the operations did not end soon after the ring was dropped"
        );
        // A reader sees the end of its stream only if the ring has closed the other end.
        for mut far in fars {
            std::io::copy(&mut far, &mut std::io::sink()).expect("the end of the stream");
        }
    });
}

#[test]
fn a_ring_that_was_never_used_can_be_dropped() {
    with_each_setup(|setup| {
        let mut ring = ring::<()>(setup);
        ring.provide_buffers(4, 4096).expect("there is memory");
        let (near, _far) = connection(&mut ring);
        ring.receive(near, ());
        ring.receive_into(near, Vec::with_capacity(10), 10, ());
    });
}
