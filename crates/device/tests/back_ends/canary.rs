//! Other tests check with `check_all` that a device keeps the contract of devices. This file tests
//! `check_all`: the check must fail for a device that breaks the contract.

use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use slimio_device::{
    Buffer, Completion, Device, DeviceError, Directory, Geometry, Lba, Op, PathOptions, Token,
};
use slimio_sim::contract::{CONTRACT_LBAS, check_all};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    LosesAWrite,
    WritesBesideTheRange,
    SwapsTheBuffer,
    KeepsTheBufferOfAFailure,
    TakesWhatIsOutside,
    SaysLessMayBeInFlight,
    CompletesTwice,
    CountsWrong,
    GrowsWithoutRoom,
    IsAlwaysReadable,
}

/// A device with a bug.
struct Broken {
    inner: Box<dyn Device>,
    bug: Bug,
    writes: u64,
    always_readable: std::fs::File,
}

impl Broken {
    fn spoil(&self, completions: &mut Vec<Completion>, from: usize) {
        let mut twice = Vec::new();
        for completion in &mut completions[from..] {
            match self.bug {
                Bug::SwapsTheBuffer => {
                    let lbas = completion.buffer.as_ref().map(Buffer::len_lbas);
                    completion.buffer = lbas.map(Buffer::zeroed);
                }
                Bug::KeepsTheBufferOfAFailure if completion.result.is_err() => {
                    completion.buffer = None;
                }
                Bug::TakesWhatIsOutside => completion.result = Ok(()),
                Bug::CompletesTwice => twice.push(Completion {
                    token: completion.token,
                    buffer: None,
                    result: completion.result.clone(),
                }),
                _ => {}
            }
        }
        completions.extend(twice);
    }
}

impl Device for Broken {
    fn geometry(&self) -> Geometry {
        let mut geometry = self.inner.geometry();
        if self.bug == Bug::SaysLessMayBeInFlight {
            geometry.in_flight_max -= 1;
        }
        geometry
    }

    fn submit(&mut self, token: Token, mut op: Op) -> Result<(), Op> {
        if let Op::Write { lba, .. } = &mut op {
            self.writes += 1;
            match self.bug {
                Bug::LosesAWrite if self.writes % 10 == 5 => {
                    let Op::Write { buffer, .. } = op else { unreachable!() };
                    return self.inner.submit(token, Op::Read { lba: Lba(0), buffer });
                }
                Bug::WritesBesideTheRange if self.writes.is_multiple_of(4) && lba.0 > 0 => {
                    lba.0 -= 1;
                }
                _ => {}
            }
        }
        self.inner.submit(token, op)
    }

    fn kick(&mut self) {
        self.inner.kick();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let from = completions.len();
        self.inner.poll(completions);
        self.spoil(completions, from);
    }

    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        let from = completions.len();
        self.inner.wait(timeout, completions);
        self.spoil(completions, from);
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + usize::from(self.bug == Bug::CountsWrong && self.writes > 3)
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        match self.bug {
            Bug::IsAlwaysReadable => Some(std::os::fd::AsFd::as_fd(&self.always_readable)),
            _ => self.inner.readiness(),
        }
    }

    fn grow(&mut self, lba_count: u64) -> Result<(), DeviceError> {
        match self.bug {
            Bug::GrowsWithoutRoom => Ok(()),
            _ => self.inner.grow(lba_count),
        }
    }
}

/// Whether a device with a bug passes the check.
fn passes(bug: Bug) -> bool {
    let place = tempfile::tempdir_in("/dev/shm").expect("Linux has shared memory");
    let options = PathOptions { in_flight_max: 16, ..PathOptions::default() };
    let mut directory = Directory::open(place.path(), options).expect("the directory is free");
    let mut count = 0;
    let check = || {
        check_all(|| {
            count += 1;
            let name = format!("file-{count}");
            directory.create_file(&name, CONTRACT_LBAS).expect("there is room");
            let inner =
                directory.open_path(&name).expect("the file was just made") as Box<dyn Device>;
            let always_readable = std::fs::File::open("/dev/zero").expect("Linux has /dev/zero");
            Box::new(Broken { inner, bug, writes: 0, always_readable })
        });
    };
    catch_unwind(AssertUnwindSafe(check)).is_ok()
}

#[test]
fn each_bug_is_caught() {
    assert!(passes(Bug::None), "the wrapper itself breaks nothing");
    for bug in [
        Bug::LosesAWrite,
        Bug::WritesBesideTheRange,
        Bug::SwapsTheBuffer,
        Bug::KeepsTheBufferOfAFailure,
        Bug::TakesWhatIsOutside,
        Bug::SaysLessMayBeInFlight,
        Bug::CompletesTwice,
        Bug::CountsWrong,
        Bug::GrowsWithoutRoom,
        Bug::IsAlwaysReadable,
    ] {
        assert!(!passes(bug), "the check misses {bug:?}");
    }
}
