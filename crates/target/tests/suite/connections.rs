//! Several hosts at once, and hosts that leave, fall silent or do not read.

use std::io::Write as _;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use slimio_device::{Completion, Op, Token};
use slimio_nvme::fabrics::{self, CNTLID_ANY, Connect, ConnectData};
use slimio_nvme::feature::{FeatureAccess, fid};
use slimio_nvme::pdu::{self, Digests, IcReq};
use slimio_nvme::{Command, Name, Sgl, Status, opcode};
use slimio_ssd::{Clock, DriveOptions, EmulatedDrive};
use slimio_target::{Recorder, Server, Session, Subsystem, SubsystemOptions, limits};

use crate::host::{HOST, Host, Received, Target, named};

const NONE: Digests = Digests { header: false, data: false };

#[test]
fn ten_hosts_write_and_read_at_once_and_each_finds_its_own() {
    let target = Target::start();
    std::thread::scope(|scope| {
        for number in 0..10_u8 {
            let target = &target;
            scope.spawn(move || {
                let (_admin, mut io) = target.queues();
                for round in 0..50_u8 {
                    let data = vec![number ^ round; 2 * 4096];
                    let lba = u64::from(number) * 16;
                    let command = Command::new(opcode::nvm::WRITE, io.next_cid()).nsid(1);
                    io.store(command.blocks(lba, 2), &data, round % 2 == 0)
                        .expect("the blocks are within the drive");
                    let command = Command::new(opcode::nvm::READ, io.next_cid()).nsid(1);
                    assert_eq!(io.fetch(command.blocks(lba, 2), 8192).as_ref(), Ok(&data));
                }
            });
        }
    });
    assert_eq!(target.host_bytes(), 10 * 50 * 8192);
}

#[test]
fn a_controller_ends_with_its_admin_queue() {
    let target = Target::start();
    let (admin, mut io) = target.queues();
    assert_eq!(target.subsystem.controller_count(), 1);
    drop(admin);
    assert!(matches!(io.receive(), Received::Closed));
    assert_eq!(target.subsystem.controller_count(), 0);
}

#[test]
fn a_host_that_falls_silent_loses_its_controller() {
    let target = Target::start();
    // On a busy machine, the test's own host may fall silent too early. Then the test tries again.
    while !falls_silent(&target) {}
}

/// Lets a host fall silent, and checks the end of its controller. Returns false if the host fell
/// silent too early.
fn falls_silent(target: &Target) -> bool {
    let mut host = Host::open(target.address(), NONE);
    let connect = Connect { sqsize: 31, kato: 1000, ..Connect::default() };
    let data = ConnectData {
        hostid: [1; 16],
        cntlid: CNTLID_ANY,
        subnqn: Name::new(target.nqn()).expect("the name is short"),
        hostnqn: Name::new(HOST).expect("the name is short"),
    };
    assert!(host.connect_with(&connect, &data).1.is_success());
    host.enable();
    let began = Instant::now();
    let mut silent = began;
    // Commands keep the controller alive for longer than the timeout.
    while began.elapsed() < Duration::from_millis(1500) {
        if silent.elapsed() > Duration::from_millis(500) {
            return false;
        }
        silent = Instant::now();
        let command = Command::new(opcode::admin::KEEP_ALIVE, host.next_cid());
        assert_eq!(host.run(command), Ok(0), "the controller is alive");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(matches!(host.receive(), Received::Closed));
    assert!(silent.elapsed() >= Duration::from_millis(990), "{:?}", silent.elapsed());
    assert_eq!(target.subsystem.controller_count(), 0);
    true
}

#[test]
fn a_queue_is_disconnected_and_connected_again() {
    let target = Target::start();
    let (admin, mut io) = target.queues();
    let mut second = Host::open(target.address(), NONE);
    let (_, status) = second.connect(target.nqn(), 1, admin.cntlid, 31);
    assert_eq!(status, Status::COMMAND_SEQUENCE_ERROR, "the queue is in use");
    let command = fabrics::disconnect(io.next_cid());
    assert_eq!(io.run(command), Ok(0));
    assert!(matches!(io.receive(), Received::Closed));
    let (_, status) = second.connect(target.nqn(), 1, admin.cntlid, 31);
    assert!(status.is_success(), "{status}");
}

#[test]
fn requests_for_events_wait_and_are_bounded_and_aborted() {
    let target = Target::start();
    let mut host = target.admin();
    let request = |cid| Command::new(opcode::admin::ASYNC_EVENT_REQUEST, cid);
    for cid in 100..100 + limits::ASYNC_REQUESTS_MAX as u16 {
        host.send_command(&request(cid), &[]);
    }
    let one_more = host.run(request(200));
    assert_eq!(one_more, Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED.dnr().more()));
    let abort = Command::new(opcode::admin::ABORT, host.next_cid()).cdw10(101 << 16);
    host.send_command(&abort, &[]);
    let aborted = host.completion();
    assert_eq!((aborted.cid, aborted.status), (101, Status::ABORT_REQUESTED));
    assert_eq!((host.completion().result, aborted.result), (0, 0));
    let abort = Command::new(opcode::admin::ABORT, host.next_cid()).cdw10(999 << 16);
    assert_eq!(host.run(abort), Ok(1), "no command has this identifier");
}

#[test]
fn a_host_that_does_not_read_disturbs_no_other() {
    let target = Target::start();
    let (_admin, mut deaf) = target.queues();
    let (_other_admin, mut other) = target.queues();
    deaf.stream.set_nonblocking(true).expect("the mode of the socket can change");
    // The deaf host asks for much more than any buffer holds, and reads nothing.
    let mut asked = 0;
    for cid in 0..127 {
        let read = Command::new(opcode::nvm::READ, cid).nsid(1).blocks(0, 128);
        let mut bytes = Vec::new();
        pdu::push_command(&mut bytes, &read.sgl(Sgl::transport(128 * 4096)), &[], NONE, 4);
        match deaf.stream.write(&bytes) {
            Ok(size) if size == bytes.len() => asked += 1,
            _ => break,
        }
    }
    assert!(asked > 50);
    for lba in 0..100 {
        let command = Command::new(opcode::nvm::WRITE, other.next_cid()).nsid(1).blocks(lba, 1);
        other.store(command, &[1; 4096], true).expect("the other host is served");
    }
    // When the deaf host reads at last, it must get all replies.
    deaf.stream.set_nonblocking(false).expect("the mode of the socket can change");
    let mut done = 0;
    while done < asked {
        match deaf.receive() {
            Received::Data(..) => {}
            Received::Completion(completion) => {
                assert!(completion.status.is_success());
                done += 1;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_recorded_trace_has_what_hosts_did() {
    use slimio_ssd::trace::{ByteRange, TraceEvent, TraceReader};

    let place = tempfile::tempdir().expect("a temporary folder can be made");
    let path = place.path().join("trace");
    let options =
        DriveOptions::parse("64M,timing=none", Clock::Real).expect("the text describes a drive");
    let device_bytes = options.config.lba_count * 4096;
    let recorder = Recorder::create(&path, device_bytes).expect("the file is new");
    assert!(Recorder::create(&path, device_bytes).is_err(), "a trace is never overwritten");
    let drive = EmulatedDrive::open(options).expect("the drive opens");
    let subsystem =
        Subsystem::new(drive, named("traced"), Some(recorder)).expect("the name is valid");
    let listener = TcpListener::bind("127.0.0.1:0").expect("some port is free");
    let server = Server::start(listener, subsystem.clone()).expect("the server starts");
    let target = Target { server, subsystem };
    let (_admin, mut io) = target.queues();
    let command = Command::new(opcode::nvm::WRITE, io.next_cid()).nsid(1).blocks(3, 2);
    let flags = slimio_nvme::command::WriteFlags {
        directive: 2,
        directive_specific: 4,
        ..Default::default()
    };
    io.store(flags.on(command), &[1; 8192], true).expect("the blocks are within the drive");
    let zero = Command::new(opcode::nvm::WRITE_ZEROES, io.next_cid()).nsid(1).blocks(8, 3);
    io.run(zero).expect("the blocks are within the drive");
    let flush = Command::new(opcode::nvm::FLUSH, io.next_cid()).nsid(1);
    io.run(flush).expect("the drive can be flushed");
    let range = slimio_nvme::command::DsmRange { cattr: 0, nlb: 1, slba: 3 };
    let discard = Command::new(opcode::nvm::DATASET_MANAGEMENT, io.next_cid()).nsid(1).cdw(11, 4);
    io.store(discard, &range.encode(), true).expect("the blocks are within the drive");
    drop(io);
    let subsystem = target.subsystem.clone();
    target.server.stop();
    subsystem.recorder().expect("a recorder is set").finish().expect("the trace can be written");
    let file = std::fs::File::open(&path).expect("the trace exists");
    let reader = TraceReader::new(file).expect("the file is a trace");
    let events: Vec<TraceEvent> =
        reader.map(|record| record.expect("each record is whole").event).collect();
    let bytes = |lba: u64, lbas: u64| ByteRange::new(lba * 4096, lbas * 4096);
    let wanted = [
        TraceEvent::Write { stream: 4, range: bytes(3, 2) },
        TraceEvent::WriteZeros { range: bytes(8, 3) },
        TraceEvent::Flush,
        TraceEvent::Deallocate { range: bytes(3, 1) },
    ];
    assert_eq!(events, wanted);
}

/// A session without a socket. The test passes bytes and times to the session.
struct ByHand {
    session: Session,
    now: Instant,
}

impl ByHand {
    fn new(subsystem: &std::sync::Arc<Subsystem>) -> Self {
        let now = Instant::now();
        Self { session: Session::new(subsystem.clone(), None, now), now }
    }

    fn give(&mut self, bytes: &[u8]) -> usize {
        self.session.receive(bytes, self.now)
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        self.session.tick(self.now);
    }

    fn connect(&mut self, subnqn: &str, qid: u16, cntlid: u16) {
        let mut bytes = Vec::new();
        IcReq::default().push(&mut bytes);
        let connect = Connect { qid, sqsize: 127, ..Connect::default() };
        let data = ConnectData {
            hostid: [7; 16],
            cntlid,
            subnqn: Name::new(subnqn).expect("the name is short"),
            hostnqn: Name::new(HOST).expect("the name is short"),
        };
        let command = connect.command(1).sgl(Sgl::in_capsule(1024));
        pdu::push_command(&mut bytes, &command, &data.encode(), NONE, 4);
        assert_eq!(self.give(&bytes), bytes.len());
    }
}

#[test]
fn who_does_not_connect_or_read_or_send_in_time_is_cut_off() {
    let target = Target::start();
    let admin = target.admin();
    let mut slow = ByHand::new(&target.subsystem);
    slow.wait(limits::CONNECT_TIME_MAX / 2);
    assert!(!slow.session.is_over());
    slow.wait(limits::CONNECT_TIME_MAX / 2);
    assert!(slow.session.is_over());

    let mut deaf = ByHand::new(&target.subsystem);
    deaf.connect(target.nqn(), 1, admin.cntlid);
    assert!(!deaf.session.output().is_empty());
    deaf.wait(limits::SEND_TIME_MAX / 2);
    assert!(!deaf.session.is_over());
    deaf.wait(limits::SEND_TIME_MAX / 2);
    assert!(deaf.session.is_over() && deaf.session.output().is_empty());

    let mut owing = ByHand::new(&target.subsystem);
    owing.connect(target.nqn(), 2, admin.cntlid);
    let write = Command::new(opcode::nvm::WRITE, 9).nsid(1).blocks(0, 4);
    let mut bytes = Vec::new();
    pdu::push_command(&mut bytes, &write.sgl(Sgl::transport(4 * 4096)), &[], NONE, 4);
    owing.give(&bytes);
    let sent = owing.session.output().len();
    owing.session.note_sent(sent, owing.now);
    assert!(owing.session.next_deadline().is_some());
    owing.wait(limits::TRANSFER_TIME_MAX / 2);
    assert!(!owing.session.is_over());
    owing.wait(limits::TRANSFER_TIME_MAX);
    assert!(owing.session.is_over());
    assert_eq!(target.host_bytes(), 0);
}

#[test]
fn what_a_session_holds_is_bounded_while_nothing_is_sent() {
    let target = Target::start();
    let admin = target.admin();
    let mut deaf = ByHand::new(&target.subsystem);
    deaf.connect(target.nqn(), 1, admin.cntlid);
    let mut bytes = Vec::new();
    for cid in 0..100_u16 {
        // Half of the commands are refused at once. The others read from the drive.
        let (code, lbas) = if cid % 2 == 0 { (0x7d, 1) } else { (opcode::nvm::READ, 128) };
        let command = Command::new(code, cid).nsid(1).blocks(0, lbas);
        let command = command.sgl(Sgl::transport(lbas * 4096));
        pdu::push_command(&mut bytes, &command, &[], NONE, 4);
    }
    let mut taken = deaf.give(&bytes);
    let mut data = 0;
    while let Some(operation) = deaf.session.next_operation() {
        let Op::Read { buffer, .. } = operation.op else { panic!("the host asked only for reads") };
        data += buffer.len();
        let completion =
            Completion { token: operation.token, buffer: Some(buffer), result: Ok(()) };
        deaf.session.complete(completion, deaf.now);
        taken += deaf.give(&bytes[taken..]);
    }
    assert!(data <= 2 * limits::DATA_SIZE_MAX, "{data} bytes");
    let output = deaf.session.output().len();
    assert!(output <= limits::OUTBOX_SIZE_MAX + limits::TRANSFER_SIZE_MAX + 256, "{output} bytes");
    assert!(!deaf.session.wants_input() && !deaf.session.is_over());
    // The session must go on once the host reads.
    let mut seen = 0;
    while !deaf.session.output().is_empty() {
        let size = deaf.session.output().len();
        seen += size;
        deaf.session.note_sent(size, deaf.now);
        taken += deaf.give(&bytes[taken..]);
        while let Some(operation) = deaf.session.next_operation() {
            let Op::Read { buffer, .. } = operation.op else { panic!("only reads") };
            let Token(_) = operation.token;
            let completion =
                Completion { token: operation.token, buffer: Some(buffer), result: Ok(()) };
            deaf.session.complete(completion, deaf.now);
        }
    }
    assert_eq!(taken, bytes.len());
    assert!(seen > 50 * 128 * 4096, "{seen} bytes");
}

#[test]
fn names_that_are_no_nvme_names_are_refused() {
    let drive = || {
        let options = DriveOptions::parse("64M,timing=none", Clock::Real)
            .expect("the text describes a drive");
        EmulatedDrive::open(options).expect("the drive opens")
    };
    for nqn in ["disk", "nqn.2014-08.org.nvmexpress.discovery", &format!("nqn.{}", "x".repeat(300))]
    {
        let options = SubsystemOptions { nqn: nqn.to_owned(), ..SubsystemOptions::default() };
        assert!(Subsystem::new(drive(), options, None).is_err(), "{nqn}");
    }
    let allowed = vec!["someone".to_owned()];
    let options = SubsystemOptions { allowed, ..SubsystemOptions::default() };
    assert!(Subsystem::new(drive(), options, None).is_err());
}

#[test]
fn a_stopped_server_has_closed_every_connection() {
    let target = Target::start();
    let (mut admin, mut io) = target.queues();
    let address = target.address();
    target.server.stop();
    assert!(matches!(admin.receive(), Received::Closed));
    assert!(matches!(io.receive(), Received::Closed));
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn a_keep_alive_timeout_is_a_feature_too() {
    let target = Target::start();
    let mut host = target.admin();
    let set = FeatureAccess::set(host.next_cid(), fid::KEEP_ALIVE, 150, 0);
    assert_eq!(host.run(set), Ok(0));
    assert!(matches!(host.receive(), Received::Closed));
}

#[test]
fn a_name_with_control_characters_is_refused() {
    let target = Target::start();
    let mut host = Host::open(target.address(), NONE);
    let connect = Connect { sqsize: 31, ..Connect::default() };
    let data = ConnectData {
        hostid: [1; 16],
        cntlid: CNTLID_ANY,
        subnqn: Name::new(target.nqn()).expect("the name is short"),
        hostnqn: Name::new("nqn.\u{1b}[2J").expect("the name is short"),
    };
    assert!(!host.connect_with(&connect, &data).1.is_success());
}

#[test]
fn silent_connections_give_way_to_others() {
    let target = Target::start();
    let (mut admin, _io) = target.queues();
    let mut silent: Vec<Host> =
        (0..=limits::UNCONNECTED_MAX).map(|_| Host::raw(target.address())).collect();
    assert!(
        matches!(silent[0].receive(), Received::Closed),
        "the oldest silent connection is closed"
    );
    let mut last = Host::open(target.address(), NONE);
    assert!(last.connect(target.nqn(), 0, CNTLID_ANY, 31).1.is_success());
    let command = Command::new(opcode::admin::KEEP_ALIVE, admin.next_cid());
    assert_eq!(admin.run(command), Ok(0), "a connected host stays");
}
