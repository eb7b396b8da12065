//! Hosts that break the rules or disappear. Other hosts must not notice.

use std::time::Instant;

use slimio_initiator::{Error, Host, Options, Placed, RawConnection};
use slimio_nvme::command::WriteFlags;
use slimio_nvme::fabrics::{Connect, ConnectData};
use slimio_nvme::pdu::{self, DataHead, Digests, Fes, Head, Kind, R2t, TermReq, flags};
use slimio_nvme::{Command, Completion, Name, Sgl, Status, opcode};

use crate::target::{LBA_SIZE, TIME_MAX, Target, content};

/// A raw connection that is an I/O queue of a host's controller.
struct Raw {
    connection: RawConnection,
    digests: Digests,
}

impl Raw {
    /// Connects the queue. Tries again while the target has not noticed yet that the previous
    /// connection is closed.
    fn open(target: &Target, host: &Host, digests: Digests) -> Self {
        let begun = Instant::now();
        loop {
            match Self::try_open(target, host, digests) {
                Ok(raw) => return raw,
                Err(status) => assert!(
                    status.is_same(Status::COMMAND_SEQUENCE_ERROR) && begun.elapsed() < TIME_MAX,
                    "{status}"
                ),
            }
        }
    }

    fn try_open(target: &Target, host: &Host, digests: Digests) -> Result<Self, Status> {
        let options = target.options();
        let connection =
            RawConnection::open(options.address, TIME_MAX).expect("the target listens");
        let mut raw = Self { connection, digests };
        raw.connection.initialize(digests).expect("the target answers");
        let data = ConnectData {
            hostid: options.host_id,
            cntlid: host.cntlid(),
            subnqn: Name::new(&options.subsystem).expect("the name is not too long"),
            hostnqn: Name::new(&options.host).expect("the name is not too long"),
        };
        let connect = Connect { qid: 9, sqsize: 15, ..Connect::default() }.command(0);
        raw.send(&connect.sgl(Sgl::in_capsule(1024)), &data.encode());
        let status = raw.completion().status;
        if status.is_success() { Ok(raw) } else { Err(status) }
    }

    fn send(&mut self, command: &Command, data: &[u8]) {
        let mut out = Vec::new();
        pdu::push_command(&mut out, command, data, self.digests, 4);
        self.connection.send(&out).expect("the connection accepts the bytes");
    }

    fn completion(&mut self) -> Completion {
        let (head, bytes) = self.connection.receive().expect("the target sends a PDU");
        assert_eq!(head.kind, Kind::CapsuleResp);
        Head::completion(bytes.first_chunk().expect("the PDU is complete"))
    }

    fn r2t(&mut self) -> R2t {
        let (head, bytes) = self.connection.receive().expect("the target sends a PDU");
        assert_eq!(head.kind, Kind::R2t);
        R2t::decode(&bytes).expect("the PDU is complete")
    }

    /// Receives PDUs until the target says why it ends the connection.
    fn terminated(&mut self) -> Option<Fes> {
        loop {
            let (head, bytes) = self
                .connection
                .receive()
                .expect("the target sends PDUs until it ends the connection");
            if head.kind == Kind::C2hTermReq {
                let error = self
                    .connection
                    .receive()
                    .expect_err("nothing follows the PDU that ends the connection");
                assert!(matches!(error, Error::Closed), "{error}");
                return Fes::of(TermReq::decode(&bytes).expect("the PDU is complete").fes);
            }
        }
    }

    fn data_pdu(&self, r2t: &R2t, at: usize, data: &[u8], is_last: bool) -> Vec<u8> {
        let flag = if is_last { flags::LAST_PDU } else { 0 };
        let head = DataHead {
            cccid: r2t.cccid,
            ttag: r2t.ttag,
            datao: at as u32,
            datal: data.len() as u32,
        };
        let mut out = Vec::new();
        pdu::push_data_head(&mut out, Kind::H2cData, flag, &head, self.digests, 4);
        pdu::push_data(&mut out, data, self.digests);
        out
    }
}

fn write(cid: u16, lba: u64, lbas: u32) -> Command {
    let command = Command::new(opcode::nvm::WRITE, cid).nsid(1).blocks(lba, lbas);
    let fua = WriteFlags { fua: true, ..WriteFlags::default() };
    fua.on(command).sgl(Sgl::transport(lbas * LBA_SIZE as u32))
}

#[test]
fn a_host_that_is_not_allowed_is_told_so() {
    let target = Target::allowing(&["nqn.friend"]);
    let error = Host::connect(&target.options())
        .expect_err("the target rejects a host that is not on its list");
    assert!(error.status().is_some_and(|it| it.is_same(Status::CONNECT_INVALID_HOST)), "{error}");
    let options = Options { host: "nqn.friend".into(), ..target.options() };
    Host::connect(&options).expect("the target accepts a host that is on its list");
    let options = Options { subsystem: "nqn.other".into(), ..options };
    let error = Host::connect(&options).expect_err("the target has no subsystem of this name");
    let text = "connect: connect invalid parameters (1:82h, do not retry)";
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_write_whose_data_did_not_come_whole_never_happened() {
    let target = Target::start();
    let (host, mut queue) = target.connect();
    let before = content(1, 16);
    queue.write(0, &before, Placed::default()).expect("the blocks can be written");
    let (begun, part) = (content(2, 16), 6 * LBA_SIZE);
    for sent in [0, LBA_SIZE, part] {
        let mut raw = Raw::open(&target, &host, Digests::default());
        raw.send(&write(1, 0, 16), &[]);
        let r2t = raw.r2t();
        assert_eq!((r2t.cccid, r2t.r2tl as usize), (1, begun.len()));
        if sent > 0 {
            let whole = raw.data_pdu(&r2t, 0, &begun[..part], false);
            // The host closes the connection in the middle of the data PDU, or after it.
            let bytes = if sent == part { whole.len() } else { sent };
            raw.connection.send(&whole[..bytes]).expect("the connection accepts the bytes");
        }
        drop(raw);
    }
    // None of these writes has changed the drive. A complete write, on a new connection, does.
    let mut raw = Raw::open(&target, &host, Digests::default());
    assert!(queue.read(0, 16).expect("the blocks can be read") == before);
    raw.send(&write(1, 0, 16), &[]);
    let r2t = raw.r2t();
    let bytes = raw.data_pdu(&r2t, 0, &begun, true);
    raw.connection.send(&bytes).expect("the connection accepts the bytes");
    assert!(raw.completion().status.is_success());
    assert!(queue.read(0, 16).expect("the blocks can be read") == begun);
}

#[test]
fn wrong_digests_are_found_and_nothing_is_written() {
    let target = Target::start();
    let (host, mut queue) = target.connect();
    let before = content(1, 1);
    queue.write(0, &before, Placed::default()).expect("the blocks can be written");
    let mut raw = Raw::open(&target, &host, Digests { header: true, data: true });

    // If a data digest is wrong, the command fails, but the connection stays. The first wrong
    // digest is in a capsule, the second one in an H2CData PDU.
    let mut bytes = Vec::new();
    let data = content(2, 1);
    let command = write(1, 0, 1).sgl(Sgl::in_capsule(LBA_SIZE as u32));
    pdu::push_command(&mut bytes, &command, &data, raw.digests, 4);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    raw.connection.send(&bytes).expect("the connection accepts the bytes");
    let status = raw.completion().status;
    assert!(status.is_same(Status::TRANSIENT_TRANSPORT_ERROR) && !status.is_dnr(), "{status}");
    raw.send(&write(2, 0, 1), &[]);
    let r2t = raw.r2t();
    let mut bytes = raw.data_pdu(&r2t, 0, &data, true);
    bytes[100] ^= 1;
    raw.connection.send(&bytes).expect("the connection accepts the bytes");
    assert!(raw.completion().status.is_same(Status::TRANSIENT_TRANSPORT_ERROR));
    assert!(queue.read(0, 1).expect("the blocks can be read") == before);

    // A wrong header digest ends the connection.
    let mut bytes = Vec::new();
    pdu::push_command(&mut bytes, &write(3, 0, 1), &[], raw.digests, 4);
    bytes[20] ^= 1;
    raw.connection.send(&bytes).expect("the connection accepts the bytes");
    assert_eq!(raw.terminated(), Some(Fes::HeaderDigestError));
    assert!(queue.read(0, 1).expect("the blocks can be read") == before);
}

#[test]
fn a_host_that_is_asked_for_data_and_sends_none_holds_nobody_up() {
    let target = Target::start();
    let (host, mut queue) = target.connect();
    let mut raw = Raw::open(&target, &host, Digests::default());
    for cid in 0..15 {
        raw.send(&write(cid, 0, 128), &[]);
    }
    assert_eq!(raw.r2t().cccid, 0);
    let data = content(3, 32);
    queue.write(0, &data, Placed::default()).expect("another queue still works");
    assert!(queue.read(0, 32).expect("the blocks can be read") == data);
    target.connect().1.flush().expect("another host still works");
}

#[test]
fn a_host_that_takes_no_replies_holds_nobody_up() {
    let target = Target::start();
    let (host, mut queue) = target.connect();
    let mut raw = Raw::open(&target, &host, Digests::default());
    let read = |cid: u16| {
        let command = Command::new(opcode::nvm::READ, cid).nsid(1).blocks(0, 128);
        command.sgl(Sgl::transport(128 * LBA_SIZE as u32))
    };
    for cid in 0..15 {
        raw.send(&read(cid), &[]);
    }
    let data = content(3, 32);
    for _ in 0..20 {
        queue.write(1000, &data, Placed::default()).expect("another queue still works");
        assert!(queue.read(1000, 32).expect("the blocks can be read") == data);
    }
    // The host reads its replies only now. All of them must come.
    let (mut read, mut ended) = (0, 0);
    while ended < 15 {
        let (head, _) =
            raw.connection.receive().expect("the replies come although the host reads them late");
        read += if head.kind == Kind::C2hData { head.data_size } else { 0 };
        ended += usize::from(head.kind == Kind::CapsuleResp);
    }
    assert_eq!(read, 15 * 128 * LBA_SIZE);
}

#[test]
fn what_breaks_the_protocol_ends_the_connection_and_no_other() {
    let target = Target::start();
    let (host, mut queue) = target.connect();
    let good = write(1, 0, 1);
    let plain = |command: &Command, data: &[u8]| {
        let mut out = Vec::new();
        pdu::push_command(&mut out, command, data, Digests::default(), 4);
        out
    };
    let with = |at: usize, byte: u8| {
        let mut out = plain(&good, &[]);
        out[at] = byte;
        out
    };
    let data = |ttag: u16| {
        let head = DataHead { cccid: 1, ttag, datao: 0, datal: 4 };
        let mut out = Vec::new();
        pdu::push_data_head(&mut out, Kind::H2cData, 0, &head, Digests::default(), 4);
        pdu::push_data(&mut out, &[1; 4], Digests::default());
        out
    };
    // These are 20 commands for a queue of 16 entries. One entry has to stay empty, so the host may
    // have 15 commands in the queue. But a target may have room for one more.
    let beyond: Vec<u8> = (0..20).flat_map(|cid| plain(&write(cid, 0, 1), &[])).collect();
    let mut again = Vec::new();
    pdu::IcReq::default().push(&mut again);
    let capsule = plain(&good.sgl(Sgl::in_capsule(12 << 10)), &content(1, 3));
    for (bytes, fes) in [
        (vec![0xaa; 8], Fes::InvalidHeader),
        (with(0, 5), Fes::InvalidHeader),
        (with(1, 1), Fes::InvalidHeader),
        (with(2, 71), Fes::InvalidHeader),
        (with(4, 71), Fes::InvalidHeader),
        (with(7, 0x7f), Fes::InvalidHeader),
        (capsule, Fes::InvalidHeader),
        (data(77), Fes::InvalidHeader),
        (again, Fes::SequenceError),
        (beyond, Fes::SequenceError),
    ] {
        let mut raw = Raw::open(&target, &host, Digests::default());
        raw.connection.send(&bytes).expect("the connection accepts the bytes");
        assert_eq!(raw.terminated(), Some(fes), "{:?}", &bytes[..8]);
        queue.flush().expect("another queue still works");
    }
    // A host that sends a part of a PDU and then closes its side is disconnected.
    let mut raw = Raw::open(&target, &host, Digests::default());
    raw.connection.send(&plain(&good, &[])[..40]).expect("the connection accepts the bytes");
    raw.connection.finish_sending().expect("the host can close its side of the connection");
    let error = raw
        .connection
        .receive()
        .expect_err("the target sends nothing after the host closed its side");
    assert!(matches!(error, Error::Closed), "{error}");
}
