//! Tests of rings whose system calls are refused by a filter: all calls, one kind of call, or all
//! calls from some moment on.
//!
//! A filter applies to one thread, and can't be removed. So each test starts a thread of its own
//! for the filter.

use std::io::Write;
use std::time::{Duration, Instant};

use slimio_ring::{Cause, Completion, Errno, Features, Outcome, Polling, Setup, probe_polling};

pub(crate) use slimio_testing::refused::on_a_thread;

use crate::common::{PATIENCE, connection, ring};

/// `IORING_REGISTER_PROBE` and `IORING_REGISTER_ENABLE_RINGS`.
const PROBE: u64 = 8;
const ENABLE_RINGS: u64 = 12;

/// The number of a system call. If the second field is set, the filter refuses only calls whose
/// second argument has this value.
pub(crate) type Call = (i64, Option<u64>);

/// Makes a call fail with this error number on this thread. If the number is zero, the call does
/// nothing and reports success.
pub(crate) fn refuse((number, second): Call, errno: i32) {
    slimio_testing::refused::refuse(&[(number, second.map(|value| (1, value)))], errno);
}

#[test]
fn a_ring_that_could_be_made_and_not_used_is_none() {
    if let Err(refused) = slimio_ring::probe() {
        eprintln!("SKIPPED: {refused}");
        return;
    }
    let calls: [Call; 5] = [
        (libc::SYS_io_uring_setup, None),
        (libc::SYS_io_uring_enter, None),
        (libc::SYS_io_uring_register, None),
        (libc::SYS_io_uring_register, Some(PROBE)),
        (libc::SYS_io_uring_register, Some(ENABLE_RINGS)),
    ];
    for call in calls {
        for errno in [libc::EPERM, libc::ENOSYS] {
            let polling = Polling { submissions_idle_ms: Some(1), completions: false };
            let all = on_a_thread(|| {
                refuse(call, errno);
                let polled = probe_polling(polling).err();
                [slimio_ring::probe().err(), slimio_ring::probe_wide().err(), polled]
            });
            for refused in all {
                let refused = refused.unwrap_or_else(|| panic!("{call:?} is refused"));
                assert_eq!(refused.cause, Cause::Seccomp, "{call:?}: {refused}");
                assert_eq!(refused.errno, Some(Errno::new(errno)), "{call:?}: {refused}");
            }
        }
    }
    let refused = on_a_thread(|| {
        refuse((libc::SYS_io_uring_enter, None), 0);
        slimio_ring::probe().expect_err("the kernel takes no operation")
    });
    assert_eq!(refused.errno, Some(Errno::new(libc::EPROTO)), "{refused}");
}

/// If the kernel is out of memory, a wait repeats its call for up to a second. But if the wait's
/// timeout is shorter, the wait must end at its timeout.
#[test]
fn a_wait_ends_at_its_limit_though_the_kernel_has_no_memory() {
    if let Err(refused) = slimio_ring::probe() {
        eprintln!("SKIPPED: {refused}");
        return;
    }
    on_a_thread(|| {
        let mut ring = ring::<usize>(Setup { submissions: 8, ..Setup::default() });
        let (near, _far) = connection(&mut ring);
        ring.receive_into(near, Vec::with_capacity(16), 16, 0);
        ring.submit().expect("the ring works");
        refuse((libc::SYS_io_uring_enter, None), libc::EAGAIN);
        for limit in [Duration::ZERO, Duration::from_millis(20)] {
            // A busy machine makes some waits longer, but not all of them.
            let is_in_time = (0..20).any(|_| {
                let began = Instant::now();
                assert_eq!(ring.submit_and_wait(1, Some(limit)), Ok(()));
                began.elapsed() < Duration::from_millis(900)
            });
            assert!(is_in_time, "{limit:?}");
        }
    });
}

/// Reaps `count` completions from a ring whose waits are refused.
fn reap(ring: &mut slimio_ring::Ring<usize>, count: usize) -> Vec<Completion<usize>> {
    let deadline = Instant::now() + PATIENCE;
    let mut completions = Vec::new();
    while completions.len() < count {
        assert!(Instant::now() < deadline, "only these completions arrived: {completions:?}");
        ring.reap(&mut completions);
        std::thread::yield_now();
    }
    completions
}

/// The kernel accepts a receive, and no operation after it. The later operations must end with an
/// error, but the receive must still work.
fn end_what_was_not_taken(setup: Setup) {
    const RECEIVE: usize = 1000;
    let mut ring = ring::<usize>(setup);
    let (near, mut far) = connection(&mut ring);
    let memory = Vec::with_capacity(16);
    let address = memory.as_ptr();
    ring.receive_into(near, memory, 16, RECEIVE);
    ring.submit().expect("the ring works");

    refuse((libc::SYS_io_uring_enter, None), libc::EPERM);
    // The submission queue has no room for this many operations.
    let count = 3 * setup.submissions as usize;
    for index in 0..count {
        ring.send(near, b"never".to_vec(), index);
    }
    let not_permitted = Errno::new(libc::EPERM);
    assert_eq!(ring.submit(), Err(not_permitted));
    assert_eq!(ring.refused(), Some(not_permitted));
    let is_untaken = |completion: &Completion<usize>| {
        let Outcome::Sent { bytes, result } = &completion.outcome else {
            panic!("this is not the end of a send: {completion:?}");
        };
        completion.is_last && *result == Err(not_permitted) && bytes == b"never"
    };
    let ended = reap(&mut ring, count);
    assert!(ended.iter().all(is_untaken), "{ended:?}");
    let mut payloads: Vec<_> = ended.iter().map(|completion| completion.payload).collect();
    payloads.sort_unstable();
    assert_eq!(payloads, (0..count).collect::<Vec<_>>(), "each send has ended once");
    assert_eq!(ring.in_flight(), 1, "only the receive is in flight");

    // Later operations also end with the error, and waiting is refused.
    ring.send(near, b"never".to_vec(), count);
    let late = reap(&mut ring, 1);
    assert!(late.iter().all(is_untaken), "{late:?}");
    assert_eq!(ring.submit_and_wait(1, None), Err(not_permitted));

    if ring.features().deferred {
        // Such a ring gets completions only through the refused call, so it can't reap the receive.
        return;
    }
    far.write_all(b"late").expect("the connection is open");
    let received = reap(&mut ring, 1).remove(0);
    assert_eq!(received.payload, RECEIVE);
    let Outcome::ReceivedInto { bytes, result: Ok(4) } = received.outcome else {
        panic!("{received:?}");
    };
    assert_eq!((&bytes[..], bytes.as_ptr()), (&b"late"[..], address));
    assert_eq!(ring.in_flight(), 0);
    let began = Instant::now();
    drop(ring);
    assert!(began.elapsed() < Duration::from_secs(4), "dropping the ring does not wait");
}

#[test]
fn what_the_kernel_has_not_taken_ends_and_what_it_has_goes_on() {
    if let Err(refused) = slimio_ring::probe() {
        eprintln!("SKIPPED: {refused}");
        return;
    }
    let no_deferred = Features { deferred: true, ..Features::NONE };
    for avoid in [Features::NONE, no_deferred, Features::ALL] {
        let setup = Setup { submissions: 8, completions: 16, avoid, ..Setup::default() };
        on_a_thread(|| end_what_was_not_taken(setup));
    }
}

/// The kernel's polling thread sleeps, and the filter refuses the call that would wake the thread.
/// But if something else wakes the thread later, the thread takes the queued operations. So the
/// ring must not end these operations.
#[test]
fn what_a_thread_of_the_kernels_may_take_does_not_end() {
    let polling = Polling { submissions_idle_ms: Some(1), completions: false };
    if let Err(refused) = probe_polling(polling) {
        eprintln!("SKIPPED: {refused}");
        return;
    }
    on_a_thread(|| {
        let setup = Setup { submissions: 8, completions: 16, polling, ..Setup::default() };
        let mut ring = ring::<usize>(setup);
        let (near, _far) = connection(&mut ring);
        ring.submit().expect("the ring works");
        refuse((libc::SYS_io_uring_enter, None), libc::EPERM);
        let deadline = Instant::now() + PATIENCE;
        let mut completions = Vec::new();
        let mut count = 0;
        while ring.refused().is_none() {
            assert!(Instant::now() < deadline, "the polling thread did not fall asleep in time");
            // While the polling thread is awake, it takes the send without a system call.
            std::thread::sleep(Duration::from_millis(10));
            ring.send(near, b"taken".to_vec(), count);
            count += 1;
            let _ = ring.submit();
            ring.reap(&mut completions);
        }
        ring.reap(&mut completions);
        let is_sent = |completion: &Completion<usize>| {
            matches!(completion.outcome, Outcome::Sent { result: Ok(()), .. })
        };
        assert!(completions.iter().all(is_sent), "{completions:?}");
        assert_eq!(ring.in_flight(), count - completions.len());
        // Dropping the ring would wait for the operations in flight, so the test leaks the ring.
        std::mem::forget(ring);
    });
}
