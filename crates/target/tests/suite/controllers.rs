//! Promises of controllers about their queues, features and shutdown. The tests use sessions
//! without sockets.

use std::time::{Duration, Instant};

use slimio_device::{Completion as DriveCompletion, Op};
use slimio_nvme::command::WriteFlags;
use slimio_nvme::fabrics::{CNTLID_ANY, Configuration, Property, PropertyAccess};
use slimio_nvme::fdp::IoManagement;
use slimio_nvme::feature::{FeatureAccess, event, fid};
use slimio_nvme::{Command, Sgl, Status, opcode};
use slimio_testing::refused::{on_a_thread, refuse};

use crate::host::{HOST, Target, named};
use crate::session::{Connecting, Queue, queues};

/// Even if a host knows the number of another host's controller, the host must not get a queue of
/// that controller.
#[test]
fn an_io_queue_of_another_host_is_refused() {
    let target = Target::start();
    let now = Instant::now();
    let (admin, _io) = queues(&target, now);
    let own = Connecting { qid: 2, cntlid: admin.cntlid, ..Connecting::default() };
    let refused = [
        Connecting { host: "nqn.another", ..own.clone() },
        Connecting { host_id: [8; 16], ..own.clone() },
    ];
    for other in refused {
        let status = Queue::connect(&target.subsystem, &other, now).1.status;
        assert_eq!(status.to_string(), Status::CONNECT_INVALID_HOST.dnr().to_string());
    }
    assert_eq!(own.host, HOST);
    assert!(Queue::connect(&target.subsystem, &own, now).1.status.is_success());
}

#[test]
fn a_reset_forgets_features_and_an_abrupt_shutdown_ends() {
    let target = Target::start();
    let now = Instant::now();
    let (mut admin, _io) = queues(&target, now);
    let events = |admin: &mut Queue| {
        admin.send(&FeatureAccess::get(3, fid::ASYNC_EVENTS, 0), &[], now);
        admin.completion(now).result
    };
    let at_first = events(&mut admin);
    let changed = at_first as u32 ^ event::MASK_NAMESPACE;
    admin.send(&FeatureAccess::set(3, fid::ASYNC_EVENTS, changed, 0), &[], now);
    admin.completion(now);
    assert_eq!(events(&mut admin), u64::from(changed));
    admin.configure(Configuration::default(), now);
    admin.configure(Configuration::ENABLED, now);
    assert_eq!(events(&mut admin), at_first);
    // Source: base specification 2.1, 3.6: CSTS.SHST is 10b when the shutdown is complete.
    admin.configure(Configuration::ENABLED.with_shn(2), now);
    admin.send(&PropertyAccess::get(Property::Csts, 4), &[], now);
    assert_eq!(admin.completion(now).result >> 2 & 3, 2);
}

/// A host may shut a drive down without a Flush. So the shutdown itself must make the drive
/// durable.
#[test]
fn a_shutdown_is_not_complete_before_the_drive_is_durable() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let now = Instant::now();
    // A filter of system calls can't be removed from its thread, so each case has its own thread.
    let shut_down = |file: &str, is_refused: bool| {
        let spec = format!("{},size=64M,timing=none,sync=yes", folder.path().join(file).display());
        let target = Target::of(&spec, named("test"));
        let (mut admin, _io) = queues(&target, now);
        if is_refused {
            refuse(&[(libc::SYS_fdatasync, None)], libc::EIO);
        }
        admin.configure(Configuration::ENABLED.with_shn(1), now);
        admin.send(&PropertyAccess::get(Property::Csts, 4), &[], now);
        admin.completion(now).result >> 2 & 3
    };
    // Source: base specification 2.1, 3.1.4.6: 01b means that the shutdown is under way, and 10b
    // that it is complete.
    assert_eq!(on_a_thread(|| shut_down("durable", false)), 2);
    assert_eq!(on_a_thread(|| shut_down("volatile", true)), 1);
}

/// Any command must restart the keep alive timer, as CTRATT.TBKAS says.
#[test]
fn commands_of_an_io_queue_keep_the_controller() {
    let target = Target::start();
    let start = Instant::now();
    let seconds = |count| start + Duration::from_secs(count);
    let with = Connecting { cntlid: CNTLID_ANY, kato: 10_000, ..Connecting::default() };
    let (mut admin, completion) = Queue::connect(&target.subsystem, &with, start);
    assert!(completion.status.is_success());
    admin.configure(Configuration::ENABLED, start);
    let with = Connecting { qid: 1, cntlid: admin.cntlid, ..Connecting::default() };
    let (mut io, _) = Queue::connect(&target.subsystem, &with, start);
    for count in 1..=4 {
        let now = seconds(8 * count);
        io.send(&Command::new(opcode::nvm::FLUSH, 2).nsid(1), &[], now);
        let token = io.session.next_operation().expect("the command needs the drive").token;
        io.session.complete(DriveCompletion { token, buffer: None, result: Ok(()) }, now);
        io.completion(now);
        admin.session.tick(now);
        assert!(!admin.session.is_over(), "after {} s", 8 * count);
    }
    admin.session.tick(seconds(8 * 4 + 30));
    assert!(
        admin.session.is_over(),
        "the controller must be lost, because no command came in time"
    );
}

/// A host takes only a few bytes at a time, but never pauses for long.
#[test]
fn a_slow_reader_that_goes_on_is_not_cut_off() {
    let target = Target::start();
    let start = Instant::now();
    let (_admin, mut io) = queues(&target, start);
    let read = Command::new(opcode::nvm::READ, 2).nsid(1).blocks(0, 1);
    io.send(&read.sgl(Sgl::transport(4096)), &[], start);
    let operation = io.session.next_operation().expect("the command needs the drive");
    let Op::Read { buffer, .. } = operation.op else { panic!("the operation is not a read") };
    let done = DriveCompletion { token: operation.token, buffer: Some(buffer), result: Ok(()) };
    io.session.complete(done, start);
    for count in 1..=10 {
        let now = start + Duration::from_secs(20 * count);
        io.session.note_sent(1, now);
        io.session.tick(now);
        assert!(!io.session.is_over(), "after {} s", 20 * count);
    }
}

/// The command's data has two handles, but its count says one. The second handle must be ignored.
#[test]
fn as_many_handles_are_updated_as_the_count_says() {
    let target = Target::start();
    let now = Instant::now();
    let (_admin, mut io) = queues(&target, now);
    let placements: Vec<u8> = [1_u16, 99].iter().flat_map(|id| id.to_le_bytes()).collect();
    let update = IoManagement::update(2, 1).nsid(1).sgl(Sgl::in_capsule(placements.len() as u32));
    io.send(&update, &placements, now);
    // The second handle does not exist. If the target looked at it, the command would be refused.
    io.completion(now);
}

/// The drive has no durable deallocation, so zeros that must be durable are written.
#[test]
fn durable_zeros_are_written_where_there_is_a_cache() {
    let target = Target::of("64M,timing=none,cache=1M", named("test"));
    let now = Instant::now();
    let (_admin, mut io) = queues(&target, now);
    for fua in [true, false] {
        let flags = WriteFlags { deallocate: true, fua, ..WriteFlags::default() };
        let zeros = Command::new(opcode::nvm::WRITE_ZEROES, 2).nsid(1).blocks(0, 1);
        io.send(&flags.on(zeros), &[], now);
        let operation = io.session.next_operation().expect("the command needs the drive");
        let buffer = match operation.op {
            Op::Write { buffer, durable, .. } => {
                assert!(durable && fua);
                Some(buffer)
            }
            Op::Deallocate { .. } => {
                assert!(!fua);
                None
            }
            other => panic!("{other:?}"),
        };
        let done = DriveCompletion { token: operation.token, buffer, result: Ok(()) };
        io.session.complete(done, now);
        io.completion(now);
    }
}
