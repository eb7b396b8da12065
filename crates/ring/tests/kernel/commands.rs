//! Tests of commands to a driver, with files that exist on every machine.

#![expect(unsafe_code, reason = "the ring does not check that a command fits its memory")]

use std::fs::File;
use std::os::fd::OwnedFd;

use slimio_ring::{
    CommandError, Errno, Features, NvmeCommand, Outcome, Ring, Setup, TransferError, Wide,
};

type WideRing = Ring<u64, Vec<u8>, Wide>;

fn ring() -> Option<WideRing> {
    if let Err(refused) = slimio_ring::probe_wide() {
        eprintln!("SKIPPED: {refused}");
        return None;
    }
    let avoid = Features { deferred: true, ..Features::NONE };
    Some(
        Ring::new(Setup { submissions: 8, completions: 16, avoid, ..Setup::default() })
            .expect("the probe was successful"),
    )
}

fn run(ring: &mut WideRing) -> Outcome {
    let mut completions = Vec::new();
    while completions.is_empty() {
        ring.submit_and_wait(1, None).expect("the ring works");
        ring.reap(&mut completions);
    }
    completions.remove(0).outcome
}

#[test]
fn a_command_brings_its_memory_back() {
    let Some(mut ring) = ring() else { return };
    // From kernel 6.1 on, `/dev/null` accepts any command and does nothing. On older kernels, it
    // supports no commands.
    let null = ring.adopt(OwnedFd::from(File::open("/dev/null").expect("Linux has /dev/null")));
    let file = ring.adopt(OwnedFd::from(tempfile::tempfile().expect("a file for the test")));
    for fd in [null, file] {
        for memory in [Some(vec![7; 64]), None] {
            // SAFETY: neither file passes the command to a device, so nothing accesses the memory.
            unsafe { ring.command(fd, NvmeCommand::default(), memory.clone(), 1) };
            let Outcome::Commanded { memory: back, result } = run(&mut ring) else {
                panic!("the outcome is not that of a command")
            };
            assert_eq!(back, memory);
            let unknown = Err(CommandError::Os(Errno::new(libc::EOPNOTSUPP)));
            assert!(result == unknown || (fd == null && result == Ok(())), "{result:?}");
        }
    }
}

#[test]
fn a_wide_ring_does_what_a_narrow_one_does() {
    let Some(mut ring) = ring() else { return };
    let file = ring.adopt(OwnedFd::from(tempfile::tempfile().expect("a file for the test")));
    ring.write(file, vec![3; 100], 0, true, 1);
    let Outcome::Transferred { result: Ok(()), .. } = run(&mut ring) else {
        panic!("the file can't be written")
    };
    ring.read(file, vec![0; 200], 0, 2);
    let Outcome::Transferred { memory, result } = run(&mut ring) else {
        panic!("the outcome is not that of a read")
    };
    assert_eq!(result, Err(TransferError::Short { moved: 100, asked: 200 }));
    assert_eq!(memory[..100], [3; 100]);
    ring.nothing(file, 3);
    assert!(matches!(run(&mut ring), Outcome::Done(Ok(()))));
}
