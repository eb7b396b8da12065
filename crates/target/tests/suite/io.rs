//! Commands of I/O queues.

use slimio_nvme::command::{DSM_DEALLOCATE, DsmRange, WriteFlags};
use slimio_nvme::fabrics::{CATTR_NO_SQ_FLOW_CONTROL, Connect, ConnectData};
use slimio_nvme::identify::{Identify, NvmController, cns};
use slimio_nvme::pdu::{Digests, flags};
use slimio_nvme::{Command, NSID_ALL, Name, Sgl, Status, opcode};

use crate::host::{HOST, Host, Received, Target, named};

fn pattern(seed: u64, lbas: usize) -> Vec<u8> {
    let mut bytes = vec![0; lbas * 4096];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

fn write(host: &mut Host, lba: u64, data: &[u8], is_in_capsule: bool) -> Result<(), Status> {
    let lbas = (data.len() / 4096) as u32;
    let command = Command::new(opcode::nvm::WRITE, host.next_cid()).nsid(1).blocks(lba, lbas);
    host.store(command, data, is_in_capsule)
}

fn read(host: &mut Host, lba: u64, lbas: u32) -> Result<Vec<u8>, Status> {
    let command = Command::new(opcode::nvm::READ, host.next_cid()).nsid(1).blocks(lba, lbas);
    host.fetch(command, lbas * 4096)
}

fn refused(status: Status) -> Status {
    status.dnr().more()
}

#[test]
fn what_is_written_is_read_in_the_capsule_and_by_r2t_with_all_digests() {
    for header in [false, true] {
        for data in [false, true] {
            let digests = Digests { header, data };
            let target = Target::start();
            let (_admin, mut io) = target.queues_with(digests);
            let (small, large) = (pattern(1, 2), pattern(2, 128));
            write(&mut io, 3, &small, true).expect("the blocks are within the drive");
            write(&mut io, 1000, &large, false).expect("the blocks are within the drive");
            write(&mut io, 5, &small, false).expect("the blocks are within the drive");
            assert_eq!(read(&mut io, 3, 2).as_deref(), Ok(&small[..]), "{digests:?}");
            assert_eq!(read(&mut io, 5, 2).as_deref(), Ok(&small[..]), "{digests:?}");
            assert_eq!(read(&mut io, 1000, 128).as_deref(), Ok(&large[..]), "{digests:?}");
        }
    }
}

#[test]
fn ranges_sizes_and_namespaces_that_are_wrong_are_refused() {
    let target = Target::start();
    let (_admin, mut io) = target.queues();
    let count = target.lba_count();
    for (lba, lbas) in [(count, 1), (count - 1, 2), (u64::MAX, 1)] {
        let data = pattern(1, lbas);
        assert_eq!(write(&mut io, lba, &data, true), Err(refused(Status::LBA_OUT_OF_RANGE)));
        let found = read(&mut io, lba, lbas as u32);
        assert_eq!(found, Err(refused(Status::LBA_OUT_OF_RANGE)));
    }
    assert_eq!(read(&mut io, 0, 129), Err(refused(Status::INVALID_FIELD)), "beyond MDTS");
    for nsid in [0, 2, NSID_ALL] {
        let command = Command::new(opcode::nvm::READ, io.next_cid()).nsid(nsid).blocks(0, 1);
        assert_eq!(io.fetch(command, 4096), Err(refused(Status::INVALID_NAMESPACE)), "{nsid}");
    }
    let command = Command::new(opcode::nvm::READ, io.next_cid()).nsid(1).blocks(0, 2);
    assert_eq!(io.fetch(command, 4096), Err(refused(Status::DATA_SGL_LENGTH_INVALID)));
    let command = Command::new(0x7d, io.next_cid()).nsid(1);
    assert_eq!(io.run(command), Err(refused(Status::INVALID_OPCODE)));
    let command = Command::new(opcode::nvm::WRITE, io.next_cid()).nsid(1).blocks(0, 1);
    let streams = WriteFlags { directive: 1, ..WriteFlags::default() }.on(command);
    assert_eq!(io.store(streams, &[0; 4096], true), Err(refused(Status::INVALID_FIELD)));
    assert_eq!(target.host_bytes(), 0, "a refused command has written");
}

#[test]
fn a_flush_and_a_durable_write_are_done() {
    let target = Target::of("64M,timing=none,cache=1M", named("cached"));
    let (_admin, mut io) = target.queues();
    let command = Command::new(opcode::nvm::WRITE, io.next_cid()).nsid(1).blocks(0, 1);
    let durable = WriteFlags { fua: true, ..WriteFlags::default() }.on(command);
    io.store(durable, &[5; 4096], true).expect("the blocks are within the drive");
    for nsid in [1, NSID_ALL] {
        let flush = Command::new(opcode::nvm::FLUSH, io.next_cid()).nsid(nsid);
        assert_eq!(io.run(flush), Ok(0));
    }
    let flush = Command::new(opcode::nvm::FLUSH, io.next_cid()).nsid(2);
    assert_eq!(io.run(flush), Err(refused(Status::INVALID_NAMESPACE)));
}

#[test]
fn zeros_are_written_also_more_than_one_operation_has() {
    let target = Target::start();
    let (_admin, mut io) = target.queues();
    let data = pattern(3, 128);
    for part in 0..2 {
        write(&mut io, part * 128, &data, false).expect("the blocks are within the drive");
    }
    let zero = Command::new(opcode::nvm::WRITE_ZEROES, io.next_cid()).nsid(1).blocks(1, 125);
    assert_eq!(io.run(zero), Ok(0));
    assert_eq!(read(&mut io, 0, 2).expect("the blocks can be read")[..4096], data[..4096]);
    for lba in [1, 32, 33, 100, 125] {
        assert_eq!(read(&mut io, lba, 1).expect("the blocks can be read"), [0; 4096], "{lba}");
    }
    assert_eq!(read(&mut io, 126, 1).expect("the blocks can be read"), data[126 * 4096..][..4096]);
    let beyond = target.lba_count() - 10;
    let zero = Command::new(opcode::nvm::WRITE_ZEROES, io.next_cid()).nsid(1).blocks(beyond, 11);
    assert_eq!(io.run(zero), Err(refused(Status::LBA_OUT_OF_RANGE)));
}

#[test]
fn more_zeros_than_identify_tells_are_refused() {
    let target = Target::start();
    let (mut admin, mut io) = target.queues();
    let identify = Identify { cns: cns::COMMAND_SET_CONTROLLER, ..Identify::default() };
    let command = identify.command(admin.next_cid());
    let found = admin.fetch(command, 4096).expect("the controller has this structure");
    let lbas = 1 << NvmController::decode(&found).expect("the structure is whole").wzsl;
    assert_eq!(lbas, 128);
    for (count, wanted) in [(lbas, Ok(0)), (lbas + 1, Err(refused(Status::INVALID_FIELD)))] {
        for deallocate in [false, true] {
            let zero = Command::new(opcode::nvm::WRITE_ZEROES, io.next_cid()).nsid(1);
            let flags = WriteFlags { deallocate, ..WriteFlags::default() };
            assert_eq!(io.run(flags.on(zero.blocks(0, count))), wanted, "{count}");
        }
    }
}

#[test]
fn comparisons_find_what_differs() {
    let target = Target::start();
    let (_admin, mut io) = target.queues();
    let mut data = pattern(4, 16);
    write(&mut io, 8, &data, false).expect("the blocks are within the drive");
    let mut compare = |data: &[u8], is_in_capsule| {
        let lbas = (data.len() / 4096) as u32;
        let command = Command::new(opcode::nvm::COMPARE, io.next_cid()).nsid(1).blocks(8, lbas);
        io.store(command, data, is_in_capsule)
    };
    assert_eq!(compare(&data, false), Ok(()));
    assert_eq!(compare(&data[..4096], true), Ok(()));
    data[4095] ^= 1;
    assert_eq!(compare(&data, false), Err(refused(Status::COMPARE_FAILURE)));
    assert_eq!(compare(&data[..4096], true), Err(refused(Status::COMPARE_FAILURE)));
}

fn deallocate(io: &mut Host, ranges: &[DsmRange], attributes: u32) -> Result<(), Status> {
    let bytes: Vec<u8> = ranges.iter().flat_map(DsmRange::encode).collect();
    let command = Command::new(opcode::nvm::DATASET_MANAGEMENT, io.next_cid())
        .nsid(1)
        .cdw10(ranges.len() as u32 - 1)
        .cdw(11, attributes);
    io.store(command, &bytes, true)
}

#[test]
fn all_ranges_are_deallocated_or_none() {
    let target = Target::start();
    let (_admin, mut io) = target.queues();
    write(&mut io, 0, &pattern(5, 64), false).expect("the blocks are within the drive");
    assert_eq!(target.mapped_count(), 64);
    let range = |slba, nlb| DsmRange { cattr: 0, nlb, slba };
    let beyond = range(target.lba_count() - 1, 2);
    let wrong = deallocate(&mut io, &[range(0, 8), beyond], DSM_DEALLOCATE);
    assert_eq!(wrong, Err(refused(Status::LBA_OUT_OF_RANGE)));
    assert_eq!(target.mapped_count(), 64, "a range was deallocated");
    assert_eq!(deallocate(&mut io, &[range(0, 8)], 0), Ok(()));
    assert_eq!(target.mapped_count(), 64, "blocks were deallocated unasked");
    let ranges: Vec<DsmRange> = (0..16).map(|index| range(index * 4, 2)).collect();
    assert_eq!(deallocate(&mut io, &ranges, DSM_DEALLOCATE), Ok(()));
    assert_eq!(target.mapped_count(), 32);
    assert_eq!(
        deallocate(&mut io, &[range(0, 0)], DSM_DEALLOCATE),
        Ok(()),
        "an empty range must not be an error"
    );
    // Linux always sends 4096 bytes, however many ranges there are.
    let mut bytes = range(2, 2).encode().to_vec();
    bytes.resize(4096, 0xff);
    let command = Command::new(opcode::nvm::DATASET_MANAGEMENT, io.next_cid()).nsid(1);
    io.store(command.cdw(11, DSM_DEALLOCATE), &bytes, true)
        .expect("the bytes after the range are ignored");
    assert_eq!(target.mapped_count(), 30);
}

#[test]
fn without_flow_control_a_successful_read_needs_no_response() {
    let target = Target::start();
    let admin = target.admin();
    let mut io = Host::open(target.address(), Digests::default());
    let connect =
        Connect { qid: 1, sqsize: 7, cattr: CATTR_NO_SQ_FLOW_CONTROL, ..Connect::default() };
    let data = ConnectData {
        hostid: [7; 16],
        cntlid: admin.cntlid,
        subnqn: Name::new(target.nqn()).expect("the name is short"),
        hostnqn: Name::new(HOST).expect("the name is short"),
    };
    assert!(io.connect_with(&connect, &data).1.is_success());
    let read = Command::new(opcode::nvm::READ, 3).nsid(1).blocks(0, 1);
    io.send_command(&read.sgl(Sgl::transport(4096)), &[]);
    let Received::Data(head, data, bits) = io.receive() else { panic!("the target sent no data") };
    assert_eq!((head.cccid, data.len()), (3, 4096));
    assert_eq!(bits, flags::LAST_PDU | flags::SUCCESS);
    let beyond = Command::new(opcode::nvm::READ, 3).nsid(1).blocks(u64::MAX, 1);
    assert_eq!(io.fetch(beyond, 4096), Err(refused(Status::LBA_OUT_OF_RANGE)));
}

#[test]
fn zeros_may_be_deallocated_if_such_blocks_read_as_zeros() {
    for (spec, left) in [("64M,timing=none", 0), ("64M,timing=none,deallocated=pattern", 64)] {
        let target = Target::of(spec, named(spec));
        let (_admin, mut io) = target.queues();
        write(&mut io, 0, &pattern(6, 64), false).expect("the blocks are within the drive");
        let zero = Command::new(opcode::nvm::WRITE_ZEROES, io.next_cid()).nsid(1).blocks(0, 64);
        let flags = WriteFlags { deallocate: true, ..WriteFlags::default() };
        assert_eq!(io.run(flags.on(zero)), Ok(0));
        assert_eq!(target.mapped_count(), left, "{spec}");
        assert_eq!(
            read(&mut io, 0, 64).expect("the blocks can be read"),
            vec![0; 64 * 4096],
            "{spec}"
        );
    }
}

/// Until a deallocation takes effect, it takes room in the drive's journal. Other hosts must still
/// be able to write meanwhile.
#[test]
fn pending_deallocations_of_a_host_leave_others_room_to_write() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let file = folder.path().join("drive");
    let spec = format!("{},size=64M,timing=none,deallocate=1000000", file.display());
    let target = Target::of(&spec, named("slow"));
    let (_admin, mut io) = target.queues();
    let ranges: Vec<u8> =
        (0..256).flat_map(|slba| DsmRange { cattr: 0, nlb: 1, slba }.encode()).collect();
    for cid in 1000..1120 {
        let command = Command::new(opcode::nvm::DATASET_MANAGEMENT, cid).nsid(1);
        let command = command.cdw10(255).cdw(11, DSM_DEALLOCATE);
        io.send_command(&command.sgl(Sgl::in_capsule(ranges.len() as u32)), &ranges);
    }
    // The read comes after the deallocations. So once the reply to the read has come, the target
    // has begun as many deallocations as it allows.
    read(&mut io, 0, 1).expect("the blocks are within the drive");
    let (_other_admin, mut other) = target.queues();
    write(&mut other, 1000, &pattern(1, 1), true).expect("the journal has room for a write");
}
