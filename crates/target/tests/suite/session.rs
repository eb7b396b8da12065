//! Tests of sessions without sockets. Each test tells the session what time it is.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slimio_device::{Completion as DriveCompletion, DeviceError, Op};
use slimio_nvme::command::{DSM_DEALLOCATE, DsmRange};
use slimio_nvme::fabrics::{
    CNTLID_ANY, Configuration, Connect, ConnectData, Property, PropertyAccess,
};
use slimio_nvme::feature::{FeatureAccess, fid};
use slimio_nvme::pdu::{self, DataHead, Digests, Head, IcReq, IcResp, Kind, flags};
use slimio_nvme::{Command, Completion, DISCOVERY_NQN, Name, Sgl, Status, opcode};
use slimio_target::{Session, Subsystem, limits};

use crate::host::{HOST, Target, named};

const NONE: Digests = Digests { header: false, data: false };

/// A queue without a socket. Function calls pass its bytes.
pub(crate) struct Queue {
    pub(crate) session: Session,
    pub(crate) cntlid: u16,
}

/// The fields of a host's Connect.
#[derive(Clone, Debug)]
pub(crate) struct Connecting<'a> {
    pub(crate) subsystem: Option<&'a str>,
    pub(crate) qid: u16,
    pub(crate) cntlid: u16,
    pub(crate) host: &'a str,
    pub(crate) host_id: [u8; 16],
    pub(crate) kato: u32,
}

impl Default for Connecting<'_> {
    fn default() -> Self {
        Self { subsystem: None, qid: 0, cntlid: CNTLID_ANY, host: HOST, host_id: [7; 16], kato: 0 }
    }
}

impl Queue {
    fn open(subsystem: &Arc<Subsystem>, qid: u16, cntlid: u16, now: Instant) -> Self {
        Self::open_of(subsystem, subsystem.nqn(), qid, cntlid, now)
    }

    fn open_of(subsystem: &Arc<Subsystem>, nqn: &str, qid: u16, cntlid: u16, now: Instant) -> Self {
        let with = Connecting { subsystem: Some(nqn), qid, cntlid, ..Connecting::default() };
        let (queue, completion) = Self::connect(subsystem, &with, now);
        assert!(completion.status.is_success(), "{}", completion.status);
        queue
    }

    /// Opens a connection, and sends a Connect. Returns the queue, and the reply to the Connect.
    pub(crate) fn connect(
        subsystem: &Arc<Subsystem>,
        with: &Connecting<'_>,
        now: Instant,
    ) -> (Self, Completion) {
        let mut session = Session::new(subsystem.clone(), None, now);
        let mut bytes = Vec::new();
        IcReq::default().push(&mut bytes);
        session.receive(&bytes, now);
        assert_eq!(session.output().len(), IcResp::SIZE);
        session.note_sent(IcResp::SIZE, now);
        let subsystem = with.subsystem.unwrap_or(subsystem.nqn());
        let data = ConnectData {
            hostid: with.host_id,
            cntlid: with.cntlid,
            subnqn: Name::new(subsystem).expect("the name is short"),
            hostnqn: Name::new(with.host).expect("the name is short"),
        };
        let (qid, kato) = (with.qid, with.kato);
        let connect = Connect { qid, kato, sqsize: 127, ..Connect::default() };
        let mut queue = Self { session, cntlid: 0 };
        let command = connect.command(1).sgl(Sgl::in_capsule(1024));
        queue.send(&command, &data.encode(), now);
        let completion = queue.reply(now);
        queue.cntlid = completion.result as u16;
        (queue, completion)
    }

    pub(crate) fn configure(&mut self, configuration: Configuration, now: Instant) {
        self.send(&PropertyAccess::set(Property::Cc, configuration.0.into(), 2), &[], now);
        self.completion(now);
    }

    pub(crate) fn send(&mut self, command: &Command, data: &[u8], now: Instant) {
        let mut bytes = Vec::new();
        pdu::push_command(&mut bytes, command, data, NONE, 4);
        assert_eq!(self.session.receive(&bytes, now), bytes.len());
    }

    pub(crate) fn completion(&mut self, now: Instant) -> Completion {
        let completion = self.reply(now);
        assert!(completion.status.is_success(), "{}", completion.status);
        completion
    }

    fn reply(&mut self, now: Instant) -> Completion {
        let output = self.session.output();
        let completion = Head::completion(output.first_chunk().expect("the session has replied"));
        let size = output.len();
        self.session.note_sent(size, now);
        completion
    }
}

/// An admin queue and an I/O queue of a controller that is ready.
pub(crate) fn queues(target: &Target, now: Instant) -> (Queue, Queue) {
    let mut admin = Queue::open(&target.subsystem, 0, CNTLID_ANY, now);
    admin.configure(Configuration::ENABLED, now);
    let io = Queue::open(&target.subsystem, 1, admin.cntlid, now);
    (admin, io)
}

/// A host can still send data on an old queue after the reset of its controller. This data must not
/// be written.
#[test]
fn data_that_comes_after_a_reset_is_not_written() {
    let target = Target::start();
    let now = Instant::now();
    let (mut admin, mut io) = queues(&target, now);
    let write = Command::new(opcode::nvm::WRITE, 2).nsid(1).sgl(Sgl::transport(4096)).blocks(0, 1);
    io.send(&write, &[], now);
    let r2t = io.session.output();
    let ttag = u16::from_le_bytes([r2t[10], r2t[11]]);
    let size = r2t.len();
    io.session.note_sent(size, now);
    admin.configure(Configuration::default(), now);
    admin.configure(Configuration::ENABLED, now);
    let mut bytes = Vec::new();
    let head = DataHead { cccid: 2, ttag, datao: 0, datal: 4096 };
    pdu::push_data_head(&mut bytes, Kind::H2cData, flags::LAST_PDU, &head, NONE, 4);
    pdu::push_data(&mut bytes, &[1; 4096], NONE);
    io.session.receive(&bytes, now);
    assert!(io.session.is_over() && io.session.output().is_empty());
    assert!(io.session.next_operation().is_none());
}

/// A controller ends when the drive is stopped, or when the host's admin queue is lost. If the
/// target then refused commands, the host would take a refusal for an error of the disk, and its
/// file systems would fail. If a command gets no reply, the host sends the command again as soon as
/// the host has connected to a target again.
#[test]
fn what_comes_when_the_controller_has_ended_is_not_refused() {
    let target = Target::start();
    let now = Instant::now();
    let (admin, mut io) = queues(&target, now);
    drop(admin);
    let write = Command::new(opcode::nvm::WRITE, 2).nsid(1).sgl(Sgl::in_capsule(4096));
    let mut bytes = Vec::new();
    pdu::push_command(&mut bytes, &write.blocks(0, 1), &[1; 4096], NONE, 4);
    io.session.receive(&bytes, now);
    assert!(io.session.is_over() && io.session.output().is_empty());
    assert!(io.session.next_operation().is_none());
}

/// If the host has turned off the drive's cache, each write must be durable.
#[test]
fn without_its_cache_each_write_is_durable() {
    let target = Target::of("64M,timing=none,cache=1M", named("test"));
    let now = Instant::now();
    let (mut admin, mut io) = queues(&target, now);
    for is_durable in [false, true] {
        let write = Command::new(opcode::nvm::WRITE, 2).nsid(1).sgl(Sgl::in_capsule(4096));
        io.send(&write.blocks(0, 1), &[1; 4096], now);
        let operation = io.session.next_operation().expect("the command needs the drive");
        let Op::Write { durable, .. } = &operation.op else { panic!("not a write") };
        assert_eq!(*durable, is_durable);
        let Op::Write { buffer, .. } = operation.op else { unreachable!("it is a write") };
        let (token, buffer) = (operation.token, Some(buffer));
        io.session.complete(DriveCompletion { token, buffer, result: Ok(()) }, now);
        io.completion(now);
        let off = FeatureAccess::set(3, fid::VOLATILE_WRITE_CACHE, 0, 0);
        admin.send(&off, &[], now);
        admin.completion(now);
    }
}

/// Sends all the data that an R2T has asked for.
fn give_data(io: &mut Queue, cccid: u16, ttag: u16, size: usize, now: Instant) {
    let mut bytes = Vec::new();
    for at in (0..size).step_by(limits::H2C_DATA_SIZE_MAX) {
        let datal = limits::H2C_DATA_SIZE_MAX.min(size - at);
        let last = if at + datal == size { flags::LAST_PDU } else { 0 };
        let head = DataHead { cccid, ttag, datao: at as u32, datal: datal as u32 };
        pdu::push_data_head(&mut bytes, Kind::H2cData, last, &head, NONE, 4);
        bytes.resize(bytes.len() + datal, 0);
    }
    assert_eq!(io.session.receive(&bytes, now), bytes.len());
}

/// Takes the output. Returns the command identifier and the transfer tag of each R2T. All other
/// PDUs must be replies that report success.
fn asked(io: &mut Queue, now: Instant) -> Vec<(u16, u16)> {
    let output = io.session.output();
    let (mut rest, mut pairs) = (output, Vec::new());
    while let Some(pdu) = rest.first_chunk::<24>() {
        if pdu[0] == Kind::R2t as u8 {
            let number = |at: usize| u16::from_le_bytes([pdu[at], pdu[at + 1]]);
            pairs.push((number(8), number(10)));
        } else {
            assert_eq!(pdu[0], Kind::CapsuleResp as u8);
            let status = Head::completion(pdu).status;
            assert!(status.is_success(), "{status}");
        }
        rest = &rest[24..];
    }
    let size = output.len();
    io.session.note_sent(size, now);
    pairs
}

/// A host with a slow network sends the data of one command after the other, and never pauses. Such
/// a host must not be cut off.
#[test]
fn a_slow_host_that_always_sends_is_not_cut_off() {
    let target = Target::start();
    let mut now = Instant::now();
    let (_admin, mut io) = queues(&target, now);
    for cid in 2..10 {
        let write = Command::new(opcode::nvm::WRITE, cid).nsid(1).sgl(Sgl::transport(0x10000));
        io.send(&write.blocks(0, 16), &[], now);
    }
    for (cid, ttag) in asked(&mut io, now) {
        now += limits::TRANSFER_TIME_MAX / 2;
        io.session.tick(now);
        assert!(!io.session.is_over(), "a host that always sends was cut off");
        give_data(&mut io, cid, ttag, 0x10000, now);
    }
    // The data of one transfer never comes. The session must not wait for this data for ever.
    let write = Command::new(opcode::nvm::WRITE, 20).nsid(1).sgl(Sgl::transport(0x10000));
    io.send(&write.blocks(0, 16), &[], now);
    asked(&mut io, now);
    let until = now + limits::ONE_TRANSFER_TIME_MAX;
    for cid in 21.. {
        io.send(&Command { cid, ..write.blocks(0, 16) }, &[], now);
        let (_, ttag) = asked(&mut io, now)[0];
        now += limits::TRANSFER_TIME_MAX / 2;
        io.session.tick(now);
        if io.session.is_over() {
            break;
        }
        give_data(&mut io, cid, ttag, 0x10000, now);
    }
    assert!(now >= until && now < until + limits::TRANSFER_TIME_MAX);
}

/// A comparison needs two buffers. It must get both buffers before the host is asked for data.
#[test]
fn comparisons_wait_for_room_and_none_is_refused() {
    let target = Target::start();
    let now = Instant::now();
    let (_admin, mut io) = queues(&target, now);
    let size = limits::TRANSFER_SIZE_MAX;
    for cid in 0..20 {
        let compare = Command::new(opcode::nvm::COMPARE, cid).nsid(1);
        io.send(&compare.blocks(0, 128).sgl(Sgl::transport(size as u32)), &[], now);
    }
    let mut answered = 0;
    while answered < 20 {
        let asked = asked(&mut io, now);
        assert!(!asked.is_empty() && asked.len() * 2 * size <= limits::DATA_SIZE_MAX);
        for (cid, ttag) in asked {
            give_data(&mut io, cid, ttag, size, now);
            let operation =
                io.session.next_operation().expect("the comparison reads from the drive");
            let Op::Read { buffer: mut found, .. } = operation.op else { panic!("not a read") };
            found.fill(0);
            let (token, buffer) = (operation.token, Some(found));
            io.session.complete(DriveCompletion { token, buffer, result: Ok(()) }, now);
            answered += 1;
        }
    }
    assert_eq!(asked(&mut io, now), []);
}

/// A discovery controller must end if its host disappears without closing the connection.
#[test]
fn a_discovery_controller_ends_when_no_command_comes() {
    let target = Target::start();
    let now = Instant::now();
    let mut queue = Queue::open_of(&target.subsystem, DISCOVERY_NQN, 0, CNTLID_ANY, now);
    queue.session.tick(now + limits::DISCOVERY_TIME_MAX / 2);
    assert!(!queue.session.is_over());
    assert!(queue.session.next_deadline().is_some());
    queue.session.tick(now + limits::DISCOVERY_TIME_MAX);
    assert!(queue.session.is_over());
    assert_eq!(target.subsystem.controller_count(), 0);
}

/// A host that takes no bytes for some time is cut off. This time must begin when bytes wait to be
/// sent, however long the queue was idle before.
#[test]
fn a_queue_that_was_idle_for_long_is_not_cut_off() {
    let target = Target::start();
    let start = Instant::now();
    let (_admin, mut io) = queues(&target, start);
    let later = start + Duration::from_secs(100);
    let write =
        Command::new(opcode::nvm::WRITE, 2).nsid(1).sgl(Sgl::transport(65536)).blocks(0, 16);
    io.send(&write, &[], later);
    assert!(!io.session.output().is_empty(), "no R2T waits to be sent");
    io.session.tick(later);
    assert!(!io.session.output().is_empty(), "the host was cut off at once");
    // A host that takes nothing must be cut off in the end.
    io.session.tick(later + Duration::from_secs(100));
    assert!(io.session.output().is_empty());
}

/// The total size of a connection's buffers must be limited, even if the buffers hold only zeros.
#[test]
fn zeros_for_many_commands_share_the_connections_memory() {
    let target = Target::start();
    let now = Instant::now();
    let (_admin, mut io) = queues(&target, now);
    for cid in 0..127 {
        let zero = Command::new(opcode::nvm::WRITE_ZEROES, cid).nsid(1).blocks(0, 128);
        io.send(&zero, &[], now);
    }
    let mut waiting = Vec::new();
    let (mut size, mut replies, mut blocks) = (0, 0, 0);
    loop {
        while let Some(operation) = io.session.next_operation() {
            let Op::Write { buffer, .. } = operation.op else { panic!("only writes are expected") };
            assert!(buffer.iter().all(|byte| *byte == 0));
            size += buffer.len();
            blocks += buffer.len_lbas();
            waiting.push((operation.token, buffer));
        }
        assert!(size <= limits::DATA_SIZE_MAX, "{size} bytes of zeros are in buffers");
        let Some((token, buffer)) = waiting.pop() else { break };
        size -= buffer.len();
        let completion = DriveCompletion { token, buffer: Some(buffer), result: Ok(()) };
        io.session.complete(completion, now);
        while !io.session.output().is_empty() {
            io.completion(now);
            replies += 1;
        }
    }
    assert_eq!((replies, blocks), (127, 127 * 128));
}

/// A session must begin only a few deallocations at a time, because the drive's journal has room
/// for few of them in flight. The session must begin a long deallocation in parts, because a drive
/// must be locked only for a short while at a time.
#[test]
fn deallocations_are_begun_a_few_at_a_time_and_long_ones_in_parts() {
    let target = Target::of("256M,timing=none", named("test"));
    let now = Instant::now();
    let (_admin, mut io) = queues(&target, now);
    let lba_count = target.lba_count();
    let range = |slba, nlb| DsmRange { cattr: 0, nlb, slba }.encode();
    let small: Vec<u8> = (0..256).flat_map(|slba| range(slba, 1)).collect();
    let commands = [(2, range(0, lba_count as u32).to_vec()), (3, small.clone()), (4, small)];
    for (cid, data) in commands {
        let command = Command::new(opcode::nvm::DATASET_MANAGEMENT, cid).nsid(1);
        let command = command.cdw10(data.len() as u32 / 16 - 1).cdw(11, DSM_DEALLOCATE);
        io.send(&command.sgl(Sgl::in_capsule(data.len() as u32)), &data, now);
    }
    let (mut waiting, mut blocks, mut replies) = (VecDeque::new(), 0, 0);
    loop {
        while let Some(operation) = io.session.next_operation() {
            let Op::Deallocate { range } = operation.op else {
                panic!("only deallocations are expected")
            };
            let lbas = range.end.0 - range.start.0;
            assert!(lbas <= limits::DEALLOCATED_AT_ONCE_LBAS, "{lbas}");
            blocks += lbas;
            waiting.push_back(operation.token);
        }
        assert!(waiting.len() <= limits::DEALLOCATIONS_MAX, "{}", waiting.len());
        let Some(token) = waiting.pop_front() else { break };
        io.session.complete(DriveCompletion { token, buffer: None, result: Ok(()) }, now);
        while !io.session.output().is_empty() {
            io.completion(now);
            replies += 1;
        }
    }
    assert_eq!((replies, blocks), (3, lba_count + 2 * 256));
}

/// A host that is told of a persistent error resets its controller, and writes nothing meanwhile.
/// So a failed command must not be reported as a persistent error.
#[test]
fn a_failed_command_is_no_persistent_error_and_a_full_drive_is_none_at_all() {
    let target = Target::start();
    let now = Instant::now();
    let (mut admin, mut io) = queues(&target, now);
    admin.send(&Command::new(opcode::admin::ASYNC_EVENT_REQUEST, 9), &[], now);
    let full = (DeviceError::NoSpace, Status::CAPACITY_EXCEEDED, None);
    let broken = (DeviceError::Io { errno: 5 }, Status::WRITE_FAULT, Some(0x01_0400));
    for (cid, (error, wanted, event)) in (2..).zip([full, broken]) {
        let write = Command::new(opcode::nvm::WRITE, cid).nsid(1).sgl(Sgl::in_capsule(4096));
        io.send(&write.blocks(0, 1), &[1; 4096], now);
        let operation = io.session.next_operation().expect("the command needs the drive");
        let Op::Write { buffer, .. } = operation.op else { panic!("not a write") };
        let (token, buffer) = (operation.token, Some(buffer));
        io.session.complete(DriveCompletion { token, buffer, result: Err(error) }, now);
        let output = io.session.output();
        let status =
            Head::completion(output.first_chunk().expect("the session has replied")).status;
        assert_eq!(status, wanted.more(), "the status or its bit `more` is wrong");
        let size = output.len();
        io.session.note_sent(size, now);
        admin.session.tick(now);
        let told = admin.session.output().first_chunk().map(|reply| Head::completion(reply).result);
        assert_eq!(told, event);
    }
}
