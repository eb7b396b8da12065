//! Tests of open files that a ring holds.

use std::fs::{File, TryLockError};

use slimio_ring::{Features, Setup};

use crate::common::{connection, ring, with_each_setup};
use crate::refused::{on_a_thread, refuse};

fn is_locked(file: &File) -> bool {
    matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

#[test]
fn a_ring_holds_a_file_until_it_is_dropped() {
    with_each_setup(|setup| {
        for has_operations in [false, true] {
            let place = tempfile::NamedTempFile::new().expect("a file for the test");
            let other = place.reopen().expect("the file exists");
            let mut ring = ring(setup);
            let held = place.reopen().expect("the file exists");
            held.lock().expect("the file is not locked");
            ring.hold(&held).expect("the ring registers the file");
            drop(held);
            assert!(is_locked(&other), "the ring keeps the lock");
            let (fd, _far) = connection(&mut ring);
            if has_operations {
                ring.receive_into(fd, Vec::with_capacity(16), 16, "nothing comes");
            }
            ring.submit().expect("the ring works");
            assert!(is_locked(&other), "the ring keeps the lock");
            drop(ring);
            assert!(!is_locked(&other), "the dropped ring has released the file");
        }
    });
}

/// In this test, the kernel refuses the ring's calls while the ring is dropped. So the ring can't
/// find out whether its operations have ended, and the file must stay held.
#[test]
fn what_is_in_flight_holds_the_file_of_a_dropped_ring() {
    if let Err(refused) = slimio_ring::probe() {
        eprintln!("SKIPPED: {refused}");
        return;
    }
    on_a_thread(|| {
        let avoid = Features { deferred: true, ..Features::NONE };
        let mut ring = ring(Setup { avoid, ..Setup::default() });
        let place = tempfile::NamedTempFile::new().expect("a file for the test");
        let other = place.reopen().expect("the file exists");
        let held = place.reopen().expect("the file exists");
        held.lock().expect("the file is not locked");
        ring.hold(&held).expect("the ring registers the file");
        drop(held);
        let (fd, _far) = connection(&mut ring);
        ring.receive_into(fd, Vec::with_capacity(16), 16, "nothing comes");
        ring.submit().expect("the ring works");
        // When the ring's last descriptor is closed, the kernel closes the ring and ends its
        // operations. To prevent this, the test keeps a second descriptor of the ring.
        let readiness = ring.readiness().expect("this ring has a readable descriptor");
        let descriptor = readiness.try_clone_to_owned().expect("descriptors are left");
        refuse((libc::SYS_io_uring_enter, None), libc::EBUSY);
        drop(ring);
        assert!(is_locked(&other), "the operation in flight keeps the lock");
        drop(descriptor);
    });
}

#[test]
#[should_panic(expected = "holds one file")]
fn a_second_one_is_a_bug() {
    let file = tempfile::tempfile().expect("a file for the test");
    let Ok(mut ring) = slimio_ring::Ring::<()>::new(slimio_ring::Setup::default()) else {
        panic!("SKIPPED: a ring holds one file, and there is no io_uring here");
    };
    ring.hold(&file).expect("the ring registers the file");
    let _ = ring.hold(&file);
}
