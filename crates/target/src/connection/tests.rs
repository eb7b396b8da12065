//! Tests of connections that have no thread of their own. The tests themselves call
//! [`Connection::turn`], which does what a connection has to do now.

use std::net::TcpListener;

use slimio_device::{Buffer, Lba, Op, PlacementId, Token};
use slimio_nvme::command::{DSM_DEALLOCATE, DsmRange};
use slimio_nvme::fabrics::{
    CNTLID_ANY, Configuration, Connect, ConnectData, Property, PropertyAccess,
};
use slimio_nvme::fdp::IoManagement;
use slimio_nvme::feature::{FeatureAccess, fid};
use slimio_nvme::pdu::{self, DataHead, Digests, Head, IcReq, IcResp};
use slimio_nvme::{Command, Name, Sgl, opcode};
use slimio_ssd::{Clock, DriveOptions, EmulatedDrive};

use super::*;
use crate::limits::TRANSFER_SIZE_MAX;
use crate::subsystem::SubsystemOptions;

fn subsystem() -> Arc<Subsystem> {
    subsystem_of("64M,timing=none")
}

fn subsystem_of(spec: &str) -> Arc<Subsystem> {
    let options = DriveOptions::parse(spec, Clock::Real).expect("the text describes a drive");
    let drive = EmulatedDrive::open(options).expect("the drive opens");
    Subsystem::new(drive, SubsystemOptions::default(), None).expect("the options are valid")
}

/// A connection, and the host's end of its socket.
struct Pair {
    connection: Connection,
    host: TcpStream,
}

impl Pair {
    fn new(subsystem: &Arc<Subsystem>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("some port must be free");
        let address = listener.local_addr().expect("the listener has an address");
        let host = TcpStream::connect(address).expect("the listener accepts connections");
        let (stream, _) = listener.accept().expect("the host has connected");
        host.set_read_timeout(Some(Duration::from_secs(60))).expect("the timeout is not zero");
        let waker = Arc::new(Waker::new().expect("a file descriptor is free"));
        let shared = Shared { waker, is_stopping: Arc::default(), progress: Arc::default() };
        Self { connection: Connection::new(stream, subsystem.clone(), shared), host }
    }

    /// Sends bytes, and makes one turn once they have arrived.
    fn send(&mut self, bytes: &[u8]) {
        self.host.write_all(bytes).expect("the socket takes the bytes");
        while self.connection.end - self.connection.start < bytes.len() {
            assert!(self.connection.receive().expect("the socket works"), "the host is there");
        }
        self.connection.turn().expect("the host takes the output");
    }

    /// Sends a command with in-capsule data, and makes one turn.
    fn push(&mut self, command: &Command, data: &[u8]) {
        let mut bytes = Vec::new();
        pdu::push_command(&mut bytes, command, data, Digests::default(), 4);
        self.send(&bytes);
    }

    /// Connects a queue, and returns the id of its controller.
    fn connect(&mut self, subsystem: &Subsystem, qid: u16, cntlid: u16) -> u16 {
        let mut bytes = Vec::new();
        IcReq::default().push(&mut bytes);
        let connect = Connect { qid, sqsize: 127, ..Connect::default() };
        let data = ConnectData {
            hostid: [7; 16],
            cntlid,
            subnqn: Name::new(subsystem.nqn()).expect("the name is short"),
            hostnqn: Name::new("nqn.host").expect("the name is short"),
        };
        let command = connect.command(1).sgl(Sgl::in_capsule(1024));
        pdu::push_command(&mut bytes, &command, &data.encode(), Digests::default(), 4);
        self.send(&bytes);
        let mut reply = [0; IcResp::SIZE + 24];
        self.host.read_exact(&mut reply).expect("both replies come");
        let completion = Head::completion(reply.last_chunk().expect("a completion has 24 bytes"));
        assert!(completion.status.is_success(), "{}", completion.status);
        completion.result as u16
    }
}

/// A command that deallocates one range.
fn deallocation(cid: u16) -> Command {
    let command = Command::new(opcode::nvm::DATASET_MANAGEMENT, cid).nsid(1);
    command.cdw(11, DSM_DEALLOCATE).sgl(Sgl::in_capsule(16))
}

/// Connects an admin queue and an I/O queue of an enabled controller.
fn queues(subsystem: &Arc<Subsystem>) -> (Pair, Pair) {
    let mut admin = Pair::new(subsystem);
    let cntlid = admin.connect(subsystem, 0, CNTLID_ANY);
    let mut bytes = Vec::new();
    let enable = PropertyAccess::set(Property::Cc, Configuration::ENABLED.0.into(), 2);
    pdu::push_command(&mut bytes, &enable, &[], Digests::default(), 4);
    admin.send(&bytes);
    let mut io = Pair::new(subsystem);
    io.connect(subsystem, 1, cntlid);
    (admin, io)
}

/// Between two turns, a connection must check whether the server stops, and what the host has sent.
#[test]
fn a_command_of_many_operations_takes_many_turns() {
    let subsystem = subsystem();
    let (_admin, mut io) = queues(&subsystem);
    let lbas = (TRANSFER_SIZE_MAX / slimio_device::LBA_SIZE) as u32;
    let zero = Command::new(opcode::nvm::WRITE_ZEROES, 2).nsid(1).blocks(0, lbas);
    let mut bytes = Vec::new();
    pdu::push_command(&mut bytes, &zero, &[], Digests::default(), 4);
    io.send(&bytes);
    let mut turns = 1;
    while io.connection.session.has_operations() {
        assert!(io.connection.wait().expect("the socket works"), "the host is there");
        io.connection.turn().expect("the host takes the output");
        turns += 1;
    }
    assert_eq!(turns, u64::from(lbas) / crate::limits::ZEROED_AT_ONCE_LBAS);
    let mut reply = [0; 24];
    io.host.read_exact(&mut reply).expect("the reply comes");
    assert!(Head::completion(&reply).status.is_success());
}

/// A reset may come while a connection takes a command.
#[test]
fn a_closed_link_lets_nothing_begin() {
    let subsystem = subsystem();
    let (_admin, mut io) = queues(&subsystem);
    io.connection.link.close();
    io.push(&Command::new(opcode::nvm::FLUSH, 2).nsid(1), &[]);
    assert_eq!(io.connection.queue.in_flight(), 0);
    assert!(io.connection.has_news, "the session is told to look at its controller");
    let update = IoManagement::update(3, 1).nsid(1).sgl(Sgl::in_capsule(2));
    io.push(&update, &[1, 0]);
    assert!(io.connection.session.is_over());
}

/// A reset cancels the deallocations of the old queue. The queue's thread may notice this late, for
/// example because of a sync, and must then send no reply.
#[test]
fn a_cancelled_deallocation_is_not_acknowledged() {
    while !is_cancelled_in_time() {}
}

/// Returns false if the machine was so slow that the deallocation took effect before the reset.
fn is_cancelled_in_time() -> bool {
    let subsystem = subsystem_of("64M,timing=none,deallocate=20");
    let (mut admin, mut io) = queues(&subsystem);
    io.push(&deallocation(3), &DsmRange { cattr: 0, nlb: 1, slba: 5 }.encode());
    if io.connection.queue.in_flight() == 0 {
        return false;
    }
    admin.push(&PropertyAccess::set(Property::Cc, 0, 3), &[]);
    std::thread::sleep(Duration::from_millis(40));
    io.connection.turn().expect("the host takes the output");
    assert!(io.connection.session.is_over());
    drop(io.connection);
    assert_eq!(io.host.read(&mut [0; 24]).ok(), Some(0), "the deallocation gets no reply");
    true
}

/// Once a queue has ended, a later reset does not find the queue any more, and can't cancel its
/// deallocations. So they must be cancelled when the queue ends.
#[test]
fn the_end_of_a_queue_cancels_its_deallocations() {
    let subsystem = subsystem_of("64M,timing=none,deallocate=20");
    let (_admin, mut io) = queues(&subsystem);
    io.push(&deallocation(3), &DsmRange { cattr: 0, nlb: 1, slba: 5 }.encode());
    let mut disconnect = Command::new(opcode::FABRICS, 4);
    disconnect.nsid = opcode::fabrics::DISCONNECT.into();
    io.push(&disconnect, &[]);
    assert!(io.connection.session.is_over());
    let mut new = subsystem.open_queue();
    let write = Op::Write {
        lba: Lba(5),
        buffer: Buffer::zeroed(1),
        placement: PlacementId(0),
        durable: true,
    };
    new.begin(Token(1), write, Instant::now());
    std::thread::sleep(Duration::from_millis(40));
    new.begin(Token(2), Op::Flush, Instant::now());
    assert_eq!(subsystem.drive().with_ftl(slimio_ssd::Ftl::mapped_count), 1);
}

/// A change that the host requested before a reset must not take effect after the reset.
#[test]
fn a_reset_ends_admin_commands_whose_data_was_not_received() {
    let subsystem = subsystem();
    let (mut admin, _io) = queues(&subsystem);
    let mut enabled = [0; 24];
    admin.host.read_exact(&mut enabled).expect("the reply comes");
    let change = FeatureAccess::set(9, fid::FDP_EVENTS, 1 << 16, 0);
    admin.push(&change.sgl(Sgl::transport(4)), &[]);
    let mut asked = [0; 24];
    admin.host.read_exact(&mut asked).expect("the target asks for the data");
    assert_eq!(asked[0], pdu::Kind::R2t as u8);
    admin.push(&PropertyAccess::set(Property::Cc, 0, 10), &[]);
    let before = subsystem.watch.enabled_events(0);
    let mut data = Vec::new();
    let ttag = u16::from_le_bytes([asked[10], asked[11]]);
    let head = DataHead { cccid: 9, ttag, datao: 0, datal: 4 };
    let last = pdu::flags::LAST_PDU;
    pdu::push_data_head(&mut data, pdu::Kind::H2cData, last, &head, Digests::default(), 4);
    pdu::push_data(&mut data, &[0; 4], Digests::default());
    admin.send(&data);
    let mut replies = [0; 48];
    admin.host.read_exact(&mut replies).expect("both replies come");
    let refused = Head::completion(replies.last_chunk().expect("a completion has 24 bytes"));
    assert_eq!((refused.cid, refused.status.is_success()), (9, false));
    assert_eq!(subsystem.watch.enabled_events(0), before);
}

/// The old queue's connection may end long after the reset. The old queue's deallocation must not
/// remove data that was written after the reset.
#[test]
fn a_pending_deallocation_takes_nothing_away_after_a_reset() {
    while !is_reset_in_time() {}
}

/// Returns false if the machine was so slow that the deallocation took effect before the reset.
fn is_reset_in_time() -> bool {
    let subsystem = subsystem_of("64M,timing=none,deallocate=30");
    let (mut admin, mut old) = queues(&subsystem);
    let range = DsmRange { cattr: 0, nlb: 1, slba: 5 };
    old.push(&deallocation(2), &range.encode());
    if old.connection.queue.in_flight() == 0 {
        return false;
    }
    for value in [Configuration::default(), Configuration::ENABLED] {
        admin.push(&PropertyAccess::set(Property::Cc, value.0.into(), 2), &[]);
    }
    let mut new = subsystem.open_queue();
    let mut buffer = Buffer::zeroed(1);
    buffer.fill(7);
    let write = Op::Write { lba: Lba(5), buffer, placement: PlacementId(0), durable: true };
    new.begin(Token(1), write, Instant::now());
    std::thread::sleep(Duration::from_millis(60));
    new.begin(Token(2), Op::Read { lba: Lba(5), buffer: Buffer::zeroed(1) }, Instant::now());
    let mut found = Vec::new();
    new.poll(&mut found);
    let read =
        found.pop().and_then(|completion| completion.buffer).expect("the read has completed");
    assert_eq!(read[0], 7);
    true
}

/// A host must send its data within a time limit. A sync of the drive's disk may take longer than
/// this limit, but the host must not be cut off because of the sync.
#[test]
fn a_host_has_its_time_although_the_disk_had_none() {
    let subsystem = subsystem();
    let (_admin, mut io) = queues(&subsystem);
    let write =
        Command::new(opcode::nvm::WRITE, 2).nsid(1).blocks(0, 64).sgl(Sgl::transport(256 << 10));
    let mut bytes = Vec::new();
    pdu::push_command(&mut bytes, &write, &[], Digests::default(), 4);
    io.send(&bytes);
    let mut asked = [0; 24];
    io.host.read_exact(&mut asked).expect("the target asks for the data");
    let mut data = Vec::new();
    let ttag = u16::from_le_bytes([asked[10], asked[11]]);
    // The PDU is too long to be received at once.
    let head = DataHead { cccid: 2, ttag, datao: 0, datal: 128 << 10 };
    pdu::push_data_head(&mut data, pdu::Kind::H2cData, 0, &head, Digests::default(), 4);
    pdu::push_data(&mut data, &vec![1; 128 << 10], Digests::default());
    io.host.write_all(&data).expect("the socket takes the bytes");
    // Waits until bytes are in the target's socket, by a blocking peek.
    let wait = |io: &Pair| {
        io.connection.stream.set_nonblocking(false).expect("the kernel can change the mode");
        io.connection.stream.peek(&mut [0; 1]).expect("bytes have come");
        io.connection.stream.set_nonblocking(true).expect("the kernel can change the mode");
    };
    let silence = crate::limits::TRANSFER_TIME_MAX * 2;
    for part in ["the first part of the PDU", "a second part of the PDU"] {
        wait(&io);
        io.connection.clock.ahead += silence;
        assert!(io.connection.look().expect("the host takes the output"));
        assert!(!io.connection.session.is_over(), "the host had sent {part}");
    }
    // The rest of the PDU has arrived, and the kernel may return it in several parts. After the
    // last part, the host sends nothing more.
    for _ in 0..100 {
        io.connection.clock.ahead += silence;
        assert!(io.connection.look().expect("the host takes the output"));
    }
    assert!(io.connection.session.is_over(), "a host that sends nothing is cut off");
}

/// A host whose machine has lost its power never closes its connections, so the kernel must probe
/// it.
#[test]
fn the_kernel_finds_out_whether_a_silent_host_is_there() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("some port must be free");
    let address = listener.local_addr().expect("the listener has an address");
    let stream = TcpStream::connect(address).expect("the listener accepts connections");
    prepare(&stream).expect("the kernel has these options");
    assert_eq!(sockopt::socket_keepalive(&stream), Ok(true));
    let idle = sockopt::tcp_keepidle(&stream).expect("the option can be read");
    let pause = sockopt::tcp_keepintvl(&stream).expect("the option can be read");
    let count = sockopt::tcp_keepcnt(&stream).expect("the option can be read");
    assert_eq!(idle + pause * count, UNREACHABLE_TIME_MAX);
    assert_eq!(sockopt::tcp_user_timeout(&stream), Ok(UNREACHABLE_TIME_MAX.as_millis() as u32));
}
