//! Data placement: directives, log pages, and the I/O Management commands.

use slimio_nvme::command::WriteFlags;
use slimio_nvme::fdp::{
    Configuration, ConfigurationsHead, Event, EventsHead, FDPA_VALID, HandleStatus,
    HandleStatusHead, IoManagement, Statistics, UsageHead,
};
use slimio_nvme::feature::{FeatureAccess, fid};
use slimio_nvme::log::{GetLogPage, lid};
use slimio_nvme::{Command, NSID_ALL, Status, opcode};

use crate::host::{Host, Target, named};

fn refused(status: Status) -> Status {
    status.dnr().more()
}

fn page(host: &mut Host, lid: u8, lsp: u8, size: u64) -> Result<Vec<u8>, Status> {
    let page = GetLogPage { lid, lsp, size, lsi: 1, ..GetLogPage::default() };
    let command = page.command(host.next_cid()).nsid(NSID_ALL);
    host.fetch(command, size as u32)
}

fn write_at(io: &mut Host, lba: u64, placement: u16) -> Result<(), Status> {
    let command = Command::new(opcode::nvm::WRITE, io.next_cid()).nsid(1).blocks(lba, 1);
    let flags = WriteFlags { directive: 2, directive_specific: placement, ..WriteFlags::default() };
    io.store(flags.on(command), &[placement as u8; 4096], true)
}

/// The placement id of each handle, and the number of blocks that can still be written to the
/// handle's unit.
fn blocks_left(io: &mut Host) -> Vec<(u16, u64)> {
    let command = IoManagement::status(io.next_cid(), 16 + 8 * 32).nsid(1);
    let status = io.fetch(command, 16 + 8 * 32).expect("the drive has placement");
    let count = HandleStatusHead::decode(&status).expect("the structure is whole").nruhsd;
    let handles = status[16..].chunks_exact(32).take(count.into());
    handles
        .map(|bytes| HandleStatus::decode(bytes).expect("the structure is whole"))
        .map(|handle| (handle.pid, handle.ruamw))
        .collect()
}

#[test]
fn a_write_goes_where_its_directive_says_and_is_counted_there() {
    let target = Target::start();
    let (mut admin, mut io) = target.queues();
    let before = blocks_left(&mut io);
    assert_eq!(before.len(), 8);
    for lba in 0..3 {
        write_at(&mut io, lba, 5).expect("the drive has eight handles");
    }
    let after = blocks_left(&mut io);
    for ((placement, left), (same, fresh)) in after.into_iter().zip(before) {
        assert_eq!(placement, same);
        assert_eq!(fresh - left, if placement == 5 { 3 } else { 0 }, "{placement}");
    }
    let statistics = page(&mut admin, lid::FDP_STATISTICS, 0, 64).expect("the log page exists");
    let statistics = Statistics::decode(&statistics).expect("the structure is whole");
    assert_eq!(statistics, Statistics { hbmw: 3 * 4096, mbmw: 3 * 4096, mbe: 0 });
}

#[test]
fn the_configuration_is_that_of_the_drive() {
    let target = Target::of("64M,timing=none,handles=4,isolation=initial", named("four"));
    let mut admin = target.admin();
    let log = page(&mut admin, lid::FDP_CONFIGURATIONS, 0, 96).expect("the log page exists");
    let head = ConfigurationsHead::decode(&log).expect("the structure is whole");
    assert_eq!((head.numfdpc, head.size), (0, 96));
    let configuration = Configuration::decode(&log[16..]).expect("the structure is whole");
    assert_eq!((configuration.dsze, configuration.fdpa), (64 + 16, FDPA_VALID));
    assert_eq!((configuration.nrg, configuration.nruh, configuration.maxpids), (1, 4, 3));
    let unit_size = target.subsystem.drive().with_ftl(|ftl| ftl.config().geometry.unit_size());
    assert_eq!(configuration.runs, unit_size);
    assert_eq!(log[80..], [1, 0, 0, 0].repeat(4), "each handle is initially isolated");
    let usage = page(&mut admin, lid::FDP_HANDLE_USAGE, 0, 8 + 4 * 8).expect("the log page exists");
    assert_eq!(UsageHead::decode(&usage).expect("the structure is whole").nruh, 4);
    assert_eq!(usage[8..], [1, 0, 0, 0, 0, 0, 0, 0].repeat(4));
    for (group, size) in [(0, 64), (2, 64)] {
        let other = GetLogPage { lid: lid::FDP_STATISTICS, lsi: group, size, ..Default::default() };
        let command = other.command(admin.next_cid());
        assert_eq!(admin.fetch(command, size as u32), Err(refused(Status::INVALID_FIELD)));
    }
}

fn kinds_of(events: &[u8]) -> Vec<u8> {
    let count = EventsHead::decode(events).expect("the structure is whole").nevents as usize;
    let kind = |bytes| Event::decode(bytes).expect("the structure is whole").kind;
    events[64..].chunks_exact(64).take(count).map(kind).collect()
}

#[test]
fn an_unknown_placement_is_the_default_one_and_an_event() {
    let target = Target::start();
    let (mut admin, mut io) = target.queues();
    let before = blocks_left(&mut io);
    write_at(&mut io, 0, 77).expect("the write succeeds nevertheless");
    assert_eq!(blocks_left(&mut io)[0].1, before[0].1 - 1);
    let events = page(&mut admin, lid::FDP_EVENTS, 1, 64 + 63 * 64).expect("the log page exists");
    assert_eq!(kinds_of(&events), [3]);
    let event = Event::decode(&events[64..]).expect("the structure is whole");
    assert_eq!((event.flags & 3, event.pid, event.nsid), (3, 77, 1));
    assert_ne!(event.timestamp, 0);
    let events = page(&mut admin, lid::FDP_EVENTS, 0, 64 + 63 * 64).expect("the log page exists");
    assert_eq!(kinds_of(&events), [], "the write causes no controller event");
}

fn update(io: &mut Host, placements: &[u16]) -> Result<(), Status> {
    let data: Vec<u8> = placements.iter().flat_map(|id| id.to_le_bytes()).collect();
    let command = IoManagement::update(io.next_cid(), placements.len()).nsid(1);
    io.store(command, &data, true)
}

#[test]
fn handles_are_moved_to_fresh_units_all_or_none() {
    let target = Target::start();
    let (_admin, mut io) = target.queues();
    let fresh = blocks_left(&mut io);
    for placement in [1, 2] {
        write_at(&mut io, u64::from(placement), placement).expect("the drive has eight handles");
    }
    let written = blocks_left(&mut io);
    assert_eq!(update(&mut io, &[1, 99]), Err(refused(Status::INVALID_FIELD)));
    assert_eq!(blocks_left(&mut io), written, "no handle was moved");
    assert_eq!(update(&mut io, &[1, 2]), Ok(()));
    assert_eq!(blocks_left(&mut io), fresh);
    let unknown = Command::new(opcode::nvm::IO_MANAGEMENT_SEND, io.next_cid()).nsid(1).cdw10(7);
    assert_eq!(io.run(unknown), Err(refused(Status::INVALID_FIELD)));
    let unknown = Command::new(opcode::nvm::IO_MANAGEMENT_RECEIVE, io.next_cid()).nsid(1).cdw10(7);
    assert_eq!(io.fetch(unknown, 4), Err(refused(Status::INVALID_FIELD)));
}

#[test]
fn events_can_be_turned_off_and_placement_can_not() {
    let target = Target::start();
    let (mut admin, mut io) = target.queues();
    let get = FeatureAccess::get(admin.next_cid(), fid::FDP, 1);
    assert_eq!(admin.run(get), Ok(1));
    let get = FeatureAccess::get(admin.next_cid(), fid::FDP, 2);
    assert_eq!(admin.run(get), Err(refused(Status::INVALID_FIELD)));
    let set = FeatureAccess::set(admin.next_cid(), fid::FDP, 1, 0);
    assert_eq!(admin.run(set), Err(refused(Status::COMMAND_SEQUENCE_ERROR)));

    let get = |admin: &mut Host| {
        let command = FeatureAccess::get(admin.next_cid(), fid::FDP_EVENTS, 2 << 16).nsid(1);
        admin.fetch(command, 4).expect("the events can be read")
    };
    assert_eq!(get(&mut admin), [0, 1, 2, 1], "the first two types are enabled");
    // This command is for placement handle 0 and for one event type, which is in the data.
    let mut set = FeatureAccess::set(admin.next_cid(), fid::FDP_EVENTS, 1 << 16, 0).nsid(1);
    admin.store(set, &[0], true).expect("the event can be turned off");
    assert_eq!(get(&mut admin), [0, 0, 2, 1]);
    set.cid = admin.next_cid();
    assert_eq!(admin.store(set, &[0x42], true), Err(refused(Status::INVALID_FIELD)));
    set.cid = admin.next_cid();
    let foreign = set.nsid(3);
    assert_eq!(admin.store(foreign, &[0], true), Err(refused(Status::INVALID_NAMESPACE)));
    write_at(&mut io, 0, 0).expect("the drive has eight handles");
    update(&mut io, &[0]).expect("the drive has this handle");
    let events = page(&mut admin, lid::FDP_EVENTS, 1, 64 + 63 * 64).expect("the log page exists");
    assert_eq!(kinds_of(&events), [], "leaving a unit that is not full causes no event any more");
}

#[test]
fn directive_receive_tells_that_writes_may_name_placements() {
    let target = Target::start();
    let mut admin = target.admin();
    let receive = |admin: &mut Host, nsid, cdw11| {
        let command = Command::new(opcode::admin::DIRECTIVE_RECEIVE, admin.next_cid());
        admin.fetch(command.nsid(nsid).cdw(10, 4096 / 4 - 1).cdw(11, cdw11), 4096)
    };
    let bits = receive(&mut admin, 1, 1).expect("the drive has directives");
    assert_eq!((bits[0], bits[32], bits[64]), (0b101, 0b101, 0b100));
    assert_eq!(receive(&mut admin, 2, 1), Err(refused(Status::INVALID_NAMESPACE)));
    assert_eq!(receive(&mut admin, 1, 0x0101), Err(refused(Status::INVALID_FIELD)));
    let send = Command::new(opcode::admin::DIRECTIVE_SEND, admin.next_cid()).nsid(1);
    assert_eq!(admin.run(send.cdw(11, 1)), Err(refused(Status::INVALID_FIELD)));
    let conventional = Target::of("64M,timing=none,fdp=off", named("conventional"));
    let mut admin = conventional.admin();
    assert_eq!(receive(&mut admin, 1, 1), Err(refused(Status::INVALID_OPCODE)));
}

/// The feature FDP Events takes a placement handle. Unlike a placement id, a handle names no group.
/// So the setting must apply to all groups.
#[test]
fn events_are_turned_off_for_a_handle_in_all_groups() {
    let target = Target::of("64M,timing=none,groups=2,handles=2", named("groups"));
    let (mut admin, mut io) = target.queues();
    let set = |admin: &mut Host, handle: u32| {
        let cid = admin.next_cid();
        let set = FeatureAccess::set(cid, fid::FDP_EVENTS, 1 << 16 | handle, 0).nsid(1);
        admin.store(set, &[0], true)
    };
    assert_eq!(set(&mut admin, 0x8001), Err(refused(Status::INVALID_FIELD)));
    assert_eq!(set(&mut admin, 2), Err(refused(Status::INVALID_FIELD)));
    assert_eq!(set(&mut admin, 1), Ok(()));
    write_at(&mut io, 0, 0x8001).expect("the drive has this placement");
    update(&mut io, &[0x8001]).expect("the drive has this placement");
    let events = page(&mut admin, lid::FDP_EVENTS, 1, 64 + 63 * 64).expect("the log page exists");
    assert_eq!(kinds_of(&events), []);
}

#[test]
fn a_conventional_drive_has_none_of_it() {
    let target = Target::of("64M,timing=none,fdp=off", named("conventional"));
    let (mut admin, mut io) = target.queues();
    assert_eq!(write_at(&mut io, 0, 0), Err(refused(Status::INVALID_FIELD)));
    assert_eq!(update(&mut io, &[0]), Err(refused(Status::INVALID_OPCODE)));
    let found = page(&mut admin, lid::FDP_STATISTICS, 0, 64);
    assert_eq!(found, Err(refused(Status::INVALID_LOG_PAGE)));
    let get = FeatureAccess::get(admin.next_cid(), fid::FDP, 1);
    assert_eq!(admin.run(get), Err(refused(Status::INVALID_FIELD)));
}

#[test]
fn groups_take_the_upper_bits_of_a_placement() {
    let target = Target::of("64M,timing=none,groups=2,handles=2,initial=1-1", named("groups"));
    let (mut admin, mut io) = target.queues();
    let log = page(&mut admin, lid::FDP_CONFIGURATIONS, 0, 88).expect("the log page exists");
    let configuration = Configuration::decode(&log[16..]).expect("the structure is whole");
    assert_eq!((configuration.fdpa & 0xf, configuration.nrg), (1, 2));
    assert_eq!((configuration.nruh, configuration.maxpids), (2, 3));
    assert_eq!(log[80..], [2, 0, 0, 0, 1, 0, 0, 0]);
    let before = blocks_left(&mut io);
    let placements: Vec<u16> = before.iter().map(|(placement, _)| *placement).collect();
    assert_eq!(placements, [0, 1, 0x8000, 0x8001]);
    write_at(&mut io, 9, 0x8001).expect("the drive has this placement");
    let changed: Vec<u64> =
        blocks_left(&mut io).iter().zip(&before).map(|(now, then)| then.1 - now.1).collect();
    assert_eq!(changed, [0, 0, 0, 1]);
}
