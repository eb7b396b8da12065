//! PDUs and commands that no host may send. The target must end the connection or refuse the
//! command, and tell the host why.

use slimio_nvme::fabrics::{CNTLID_ANY, Connect, ConnectData};
use slimio_nvme::pdu::{self, DataHead, Digests, Fes, IcReq, Kind, R2t, flags};
use slimio_nvme::{Command, Name, Sgl, Status, opcode};

use crate::host::{HOST, Host, Received, Target};

const NONE: Digests = Digests { header: false, data: false };

fn write_command(host: &mut Host, lbas: u32) -> Command {
    let sgl = Sgl::transport(lbas * 4096);
    Command::new(opcode::nvm::WRITE, host.next_cid()).nsid(1).sgl(sgl).blocks(0, lbas)
}

/// Checks that another host is served as usual, and that nothing was written.
fn check_others(target: &Target) {
    let (_admin, mut io) = target.queues();
    let command = Command::new(opcode::nvm::READ, 1).nsid(1).blocks(0, 1);
    assert!(io.fetch(command, 4096).is_ok());
    assert_eq!(target.host_bytes(), 0);
}

#[test]
fn a_wrong_common_header_is_answered_by_the_offset_of_its_field() {
    let target = Target::start();
    for (bytes, fei) in [
        ([0x0f, 0, 24, 0, 24, 0, 0, 0], 0),
        ([0x07, 0, 24, 0, 24, 0, 0, 0], 0),
        ([0x00, 0, 72, 0, 128, 0, 0, 0], 2),
        ([0x04, 1, 72, 0, 72, 0, 0, 0], 1),
        ([0x04, 0, 72, 3, 80, 0, 0, 0], 3),
        ([0x04, 0, 72, 0, 71, 0, 0, 0], 4),
        ([0x04, 0, 72, 72, 255, 255, 255, 255], 4),
        ([0x00, 0, 128, 0, 129, 0, 0, 0], 4),
    ] {
        let mut host = Host::raw(target.address());
        host.send(&bytes);
        assert_eq!(host.terminated(), (Some(Fes::InvalidHeader), fei), "{bytes:?}");
    }
    check_others(&target);
}

#[test]
fn a_wrong_initialization_is_refused() {
    let target = Target::start();
    for (request, fes, fei) in [
        (IcReq { pfv: 1, ..IcReq::default() }, Fes::UnsupportedParameter, 8),
        (IcReq { hpda: 32, ..IcReq::default() }, Fes::InvalidHeader, 10),
        (IcReq { dgst: 0x80, ..IcReq::default() }, Fes::InvalidHeader, 11),
    ] {
        let mut host = Host::raw(target.address());
        let mut bytes = Vec::new();
        request.push(&mut bytes);
        host.send(&bytes);
        assert_eq!(host.terminated(), (Some(fes), fei));
    }
}

#[test]
fn pdus_out_of_their_order_are_refused() {
    let target = Target::start();
    let mut early = Host::raw(target.address());
    early.send_command(&Command::new(opcode::nvm::FLUSH, 1), &[]);
    assert_eq!(early.terminated().0, Some(Fes::SequenceError));
    let mut twice = Host::open(target.address(), NONE);
    let mut bytes = Vec::new();
    IcReq::default().push(&mut bytes);
    twice.send(&bytes);
    assert_eq!(twice.terminated().0, Some(Fes::SequenceError));
    let mut unconnected = Host::open(target.address(), NONE);
    let flush = Command::new(opcode::nvm::FLUSH, 1).nsid(1);
    assert_eq!(unconnected.run(flush), Err(Status::COMMAND_SEQUENCE_ERROR.dnr().more()));
    let (mut admin, _io) = target.queues();
    let again = Connect { sqsize: 31, ..Connect::default() }.command(admin.next_cid());
    assert_eq!(admin.run(again), Err(Status::COMMAND_SEQUENCE_ERROR.dnr().more()));
    check_others(&target);
}

#[test]
fn a_wrong_header_digest_ends_the_connection_and_a_wrong_data_digest_the_command() {
    let target = Target::start();
    let both = Digests { header: true, data: true };
    let (mut admin, mut io) = target.queues_with(both);
    let mut bytes = Vec::new();
    let command = Command::new(opcode::nvm::WRITE, 5).nsid(1).blocks(0, 1);
    let command = command.sgl(Sgl::in_capsule(4096));
    pdu::push_command(&mut bytes, &command, &[1; 4096], both, 4);
    let end = bytes.len();
    bytes[end - 1] ^= 0x80;
    io.send(&bytes);
    let completion = io.completion();
    let status = completion.status;
    assert!(status.is_same(Status::TRANSIENT_TRANSPORT_ERROR) && !status.is_dnr(), "{status}");

    // Now the wrong data digest is in an H2CData instead of a capsule.
    let command = write_command(&mut io, 4);
    io.send_command(&command, &[]);
    let Received::R2t(r2t) = io.receive() else { panic!("the target must send an R2T") };
    let mut bytes = Vec::new();
    let head = DataHead { cccid: r2t.cccid, ttag: r2t.ttag, datao: 0, datal: 4 * 4096 };
    pdu::push_data_head(&mut bytes, Kind::H2cData, flags::LAST_PDU, &head, both, 4);
    pdu::push_data(&mut bytes, &[2; 4 * 4096], both);
    let end = bytes.len();
    bytes[end - 100] ^= 1;
    io.send(&bytes);
    assert!(io.completion().status.is_same(Status::TRANSIENT_TRANSPORT_ERROR));

    let mut bytes = Vec::new();
    pdu::push_command(&mut bytes, &Command::new(opcode::admin::KEEP_ALIVE, 9), &[], both, 4);
    bytes[40] ^= 1;
    admin.send(&bytes);
    let digest = u32::from_le_bytes(bytes[72..76].try_into().expect("four bytes"));
    assert_eq!(admin.terminated(), (Some(Fes::HeaderDigestError), digest));
    assert!(matches!(io.receive(), Received::Closed), "the I/O queue ends with its controller");
    check_others(&target);
}

/// Sends an H2CData for a command of four blocks, after `change` has made the PDU wrong.
fn wrong_data(change: impl FnOnce(&mut DataHead, &mut u8, &mut usize)) -> (Option<Fes>, u32) {
    let target = Target::start();
    let (_admin, mut io) = target.queues();
    let command = write_command(&mut io, 4);
    io.send_command(&command, &[]);
    let Received::R2t(R2t { cccid, ttag, r2to: 0, r2tl: 0x4000 }) = io.receive() else {
        panic!("the target must ask for all the data")
    };
    let mut head = DataHead { cccid, ttag, datao: 0, datal: 4096 };
    let (mut flags, mut size) = (0, 4096);
    change(&mut head, &mut flags, &mut size);
    let mut bytes = Vec::new();
    let datal = std::mem::replace(&mut head.datal, size as u32);
    pdu::push_data_head(&mut bytes, Kind::H2cData, flags, &head, NONE, 4);
    bytes[16..20].copy_from_slice(&datal.to_le_bytes());
    bytes.resize(bytes.len() + size, 7);
    io.send(&bytes);
    let found = io.terminated();
    check_others(&target);
    found
}

#[test]
fn data_that_was_not_asked_for_is_refused() {
    let field = |fei| (Some(Fes::InvalidHeader), fei);
    assert_eq!(wrong_data(|head, _, _| head.ttag += 1), field(10));
    assert_eq!(wrong_data(|head, _, _| head.ttag = 0xffff), field(10));
    assert_eq!(wrong_data(|head, _, _| head.cccid += 1), field(8));
    assert_eq!(wrong_data(|head, _, _| head.datao = 4096), field(12));
    assert_eq!(wrong_data(|head, _, _| head.datal = 4092), field(16));
    assert_eq!(wrong_data(|_, flags, _| *flags = flags::LAST_PDU), field(1));
    let beyond = (Some(Fes::DataOutOfRange), 0);
    assert_eq!(wrong_data(|head, _, _| head.datao = 0x4000), beyond);
    assert_eq!(wrong_data(|head, _, _| head.datao = u32::MAX - 3), beyond);
    let too_long = wrong_data(|head, _, size| {
        *size = 0x2_0004;
        head.datal = 0x2_0004;
    });
    assert_eq!(too_long, (Some(Fes::LimitExceeded), 0));
}

#[test]
fn a_command_beyond_the_queues_depth_ends_the_connection() {
    let target = Target::start();
    let admin = target.admin();
    let mut io = Host::open(target.address(), NONE);
    assert!(io.connect(target.nqn(), 1, admin.cntlid, 3).1.is_success());
    // Each of these five commands waits for its data, but the queue has only four entries.
    for _ in 0..5 {
        let command = write_command(&mut io, 1);
        io.send_command(&command, &[]);
    }
    assert_eq!(io.terminated().0, Some(Fes::SequenceError));
    check_others(&target);
}

#[test]
fn a_second_connect_on_a_connection_is_refused_also_if_both_wait_for_their_data() {
    let target = Target::start();
    let mut host = Host::open(target.address(), NONE);
    for sqsize in [31, 1] {
        let connect = Connect { sqsize, ..Connect::default() };
        let command = connect.command(host.next_cid()).sgl(Sgl::transport(1024));
        host.send_command(&command, &[]);
    }
    let data = ConnectData {
        hostid: [7; 16],
        cntlid: CNTLID_ANY,
        subnqn: Name::new(target.nqn()).expect("the name is short"),
        hostnqn: Name::new(HOST).expect("the name is short"),
    };
    let asked = [host.receive(), host.receive()];
    for (r2t, is_first) in asked.into_iter().zip([true, false]) {
        let Received::R2t(r2t) = r2t else { panic!("{r2t:?}") };
        host.send_data(&r2t, &data.encode());
        assert_eq!(host.completion().status.is_success(), is_first);
    }
    check_others(&target);
}

#[test]
fn a_command_whose_name_is_in_use_is_refused_and_the_first_goes_on() {
    let target = Target::start();
    let (_admin, mut io) = target.queues();
    let command = write_command(&mut io, 1);
    io.send_command(&command, &[]);
    let Received::R2t(r2t) = io.receive() else { panic!("the target must send an R2T") };
    assert_eq!(io.run(command), Err(Status::COMMAND_ID_CONFLICT.dnr()));
    io.send_data(&r2t, &[1; 4096]);
    let completion = io.completion();
    assert!(completion.status.is_success() && completion.cid == command.cid);
}

#[test]
fn descriptors_that_do_not_fit_are_refused() {
    let target = Target::start();
    let (_admin, mut io) = target.queues();
    let write = Command::new(opcode::nvm::WRITE, 1).nsid(1).blocks(0, 1);
    let mut attempt = |sgl: Sgl, data: &[u8]| {
        io.send_command(&write.sgl(sgl), data);
        io.completion().status
    };
    let refused = |status: Status| status.dnr().more();
    let good = Sgl::in_capsule(4096);
    let data = [1; 4096];
    assert_eq!(attempt(good, &data[..2048]), refused(Status::DATA_SGL_LENGTH_INVALID));
    let shifted = Sgl { address: 4, ..good };
    assert_eq!(attempt(shifted, &data), refused(Status::DATA_SGL_LENGTH_INVALID));
    let beyond = Sgl { address: u64::MAX, ..good };
    assert_eq!(attempt(beyond, &data), refused(Status::SGL_OFFSET_INVALID));
    assert_eq!(attempt(Sgl::in_capsule(8192), &data), refused(Status::DATA_SGL_LENGTH_INVALID));
    assert_eq!(attempt(Sgl::transport(4096), &data), refused(Status::SGL_TYPE_INVALID));
    let keyed = Sgl { identifier: 0x40, ..good };
    assert_eq!(attempt(keyed, &data), refused(Status::SGL_TYPE_INVALID));
    let huge = Sgl::transport(u32::MAX);
    assert_eq!(attempt(huge, &[]), refused(Status::DATA_SGL_LENGTH_INVALID));
    let read = Command::new(opcode::nvm::READ, 2).nsid(1).blocks(0, 1).sgl(good);
    io.send_command(&read, &[]);
    assert_eq!(io.completion().status, refused(Status::SGL_TYPE_INVALID));
    check_others(&target);
}

#[test]
fn cut_pdus_write_nothing() {
    let target = Target::start();
    let mut whole = Vec::new();
    let write = Command::new(opcode::nvm::WRITE, 1).nsid(1).blocks(0, 1);
    pdu::push_command(&mut whole, &write.sgl(Sgl::in_capsule(4096)), &[1; 4096], NONE, 4);
    for size in [1, 7, 8, 71, 72, 100, whole.len() - 1] {
        let (_admin, mut io) = target.queues();
        io.send(&whole[..size]);
        drop(io);
    }
    check_others(&target);
}
