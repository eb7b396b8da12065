//! The commands that a host sends before it uses a namespace.

use slimio_nvme::fabrics::{
    Capabilities, Configuration, Connect, ConnectData, ControllerStatus, InvalidParameter,
    Property, PropertyAccess,
};
use slimio_nvme::feature::{FeatureAccess, fid, queue_counts};
use slimio_nvme::identify::{
    Controller, Identify, Namespace, cns, cntrltype, ctratt, descriptors, namespace_list,
};
use slimio_nvme::log::{
    DiscoveryEntry, DiscoveryHead, EnduranceGroup, ErrorEntry, GetLogPage, Smart, lid,
};
use slimio_nvme::pdu::Digests;
use slimio_nvme::{Command, DISCOVERY_NQN, NSID_ALL, Name, Status, opcode};
use slimio_target::SubsystemOptions;

use crate::host::{HOST, Host, Target};

fn identify(host: &mut Host, cns: u8, nsid: u32) -> Result<Vec<u8>, Status> {
    let identify = Identify { cns, ..Identify::default() };
    let command = identify.command(host.next_cid()).nsid(nsid);
    host.fetch(command, 4096)
}

fn log_page(host: &mut Host, page: GetLogPage) -> Result<Vec<u8>, Status> {
    let command = page.command(host.next_cid()).nsid(NSID_ALL);
    host.fetch(command, page.size as u32)
}

#[test]
fn a_controller_comes_up_as_linux_wants_it() {
    let target = Target::start();
    let mut host = Host::open(target.address(), Digests::default());
    let (result, status) = host.connect(target.nqn(), 0, 0xffff, 31);
    assert!(status.is_success(), "{status}");
    let cap =
        Capabilities::of_bits(host.property(Property::Cap).expect("the property can be read"));
    assert!(cap.mqes >= 31 && cap.cqr && cap.css & 1 != 0, "{cap:?}");
    assert_eq!(host.property(Property::Vs), Ok(0x0002_0100));
    // Version 2 of the specification requires this capability, and the property CRTO.
    assert!(cap.crwms);
    assert_eq!(host.property(Property::Crto), Ok(cap.to.into()));
    let status = |host: &mut Host| {
        ControllerStatus::of_bits(
            host.property(Property::Csts).expect("the property can be read") as u32
        )
    };
    assert!(!status(&mut host).rdy);
    assert_eq!(
        identify(&mut host, cns::CONTROLLER, 0),
        Err(refused(Status::COMMAND_SEQUENCE_ERROR))
    );
    host.enable();

    let controller = identify(&mut host, cns::CONTROLLER, 0).expect("Identify succeeds");
    let controller = Controller::decode(&controller).expect("the structure is whole");
    assert_eq!(u64::from(controller.cntlid), result & 0xffff);
    assert_eq!(controller.subnqn.text(), Some(target.nqn()));
    assert_eq!((controller.cntrltype, controller.nn), (cntrltype::IO, 1));
    assert_eq!(controller.icdoff, 0, "Linux takes no other value");
    assert_eq!(controller.sgls & 3, 1, "Linux requires SGLs");
    assert!(controller.ioccsz * 16 >= 64 + 4096, "a write of 4 KiB must need no R2T");
    assert!(controller.kas > 0 && controller.maxcmd > 0 && controller.msdbd > 0);
    let wanted = ctratt::FDPS | ctratt::ENDURANCE_GROUPS | ctratt::HOST_ID_128;
    assert_eq!(controller.ctratt & wanted, wanted);
    assert_eq!((controller.endgidmax, controller.nsetidmax), (1, 0));

    let value = u32::from(u16::MAX - 1);
    let set = FeatureAccess::set(host.next_cid(), fid::NUMBER_OF_QUEUES, value << 16 | value, 0);
    let queues = host.run(set).expect("the controller grants queues");
    assert!(queue_counts(queues as u32).0 >= 8, "{queues:#x}");

    let list = identify(&mut host, cns::ACTIVE_NAMESPACES, 0).expect("Identify succeeds");
    assert_eq!(namespace_list(&list).collect::<Vec<_>>(), [1]);
    let list = identify(&mut host, cns::ACTIVE_NAMESPACES, 1).expect("Identify succeeds");
    assert_eq!(namespace_list(&list).count(), 0);
    let names = identify(&mut host, cns::NAMESPACE_DESCRIPTORS, 1).expect("Identify succeeds");
    let kinds: Vec<(u8, usize)> =
        descriptors(&names).map(|(kind, name)| (kind, name.len())).collect();
    assert_eq!(kinds, [(2, 16), (3, 16), (4, 1)]);
    let namespace = identify(&mut host, cns::NAMESPACE, 1).expect("Identify succeeds");
    let namespace = Namespace::decode(&namespace).expect("the structure is whole");
    assert_eq!((namespace.nsze, namespace.nuse), (target.lba_count(), 0));
    assert_eq!((namespace.lbaf0, namespace.endgid), ([0, 0, 12, 0], 1));
    for structure in [cns::COMMAND_SET_NAMESPACE, cns::INDEPENDENT_NAMESPACE] {
        assert!(identify(&mut host, structure, 1).is_ok(), "{structure:#x}");
    }
    assert!(identify(&mut host, cns::COMMAND_SET_CONTROLLER, 0).is_ok());
    assert!(identify(&mut host, cns::COMMAND_SETS, 0).is_ok());
}

/// The status with two bits set: a retry is useless, and the error log has more information.
fn refused(status: Status) -> Status {
    status.dnr().more()
}

#[test]
fn what_identify_does_not_know_is_refused() {
    let target = Target::start();
    let mut host = target.admin();
    assert_eq!(identify(&mut host, 0x7f, 0), Err(refused(Status::INVALID_FIELD)));
    for structure in [cns::NAMESPACE, cns::NAMESPACE_DESCRIPTORS, cns::INDEPENDENT_NAMESPACE] {
        let found = identify(&mut host, structure, 2);
        assert_eq!(found, Err(refused(Status::INVALID_NAMESPACE)), "{structure:#x}");
    }
    let other = Identify { cns: cns::COMMAND_SET_NAMESPACE, csi: 2, ..Identify::default() };
    let command = other.command(host.next_cid()).nsid(1);
    assert_eq!(host.fetch(command, 4096), Err(refused(Status::INVALID_FIELD)));
    let short = Identify { cns: cns::CONTROLLER, ..Identify::default() };
    let command = short.command(host.next_cid());
    assert_eq!(host.fetch(command, 512), Err(refused(Status::DATA_SGL_LENGTH_INVALID)));
    let unknown = Command::new(0xc5, host.next_cid());
    assert_eq!(host.run(unknown), Err(refused(Status::INVALID_OPCODE)));
    let mut prp = Command::new(opcode::admin::KEEP_ALIVE, host.next_cid());
    prp.flags = 0;
    assert_eq!(host.run(prp), Err(refused(Status::INVALID_FIELD)));
}

#[test]
fn the_discovery_controller_says_where_the_subsystem_is() {
    let target = Target::start();
    let mut host = Host::open(target.address(), Digests::default());
    let (_, status) = host.connect(DISCOVERY_NQN, 0, 0xffff, 31);
    assert!(status.is_success(), "{status}");
    host.enable();
    let controller = identify(&mut host, cns::CONTROLLER, 0).expect("Identify succeeds");
    let controller = Controller::decode(&controller).expect("the structure is whole");
    assert_eq!(controller.cntrltype, cntrltype::DISCOVERY);
    let page = GetLogPage { lid: lid::DISCOVERY, size: 2048, ..GetLogPage::default() };
    let log = log_page(&mut host, page).expect("the log page exists");
    assert_eq!(DiscoveryHead::decode(&log).expect("the structure is whole").numrec, 1);
    let entry = DiscoveryEntry::decode(&log[1024..]).expect("the structure is whole");
    assert_eq!((entry.trtype, entry.adrfam, entry.subtype), (3, 1, 2));
    assert_eq!(entry.subnqn.text(), Some(target.nqn()));
    assert_eq!(entry.traddr.text(), "127.0.0.1");
    assert_eq!(entry.trsvcid.text(), target.address().port().to_string());
    let smart = GetLogPage { lid: lid::SMART, size: 512, ..GetLogPage::default() };
    assert_eq!(log_page(&mut host, smart), Err(refused(Status::INVALID_LOG_PAGE)));
    assert_eq!(identify(&mut host, cns::NAMESPACE, 1), Err(refused(Status::INVALID_FIELD)));
    let mut io = Host::open(target.address(), Digests::default());
    let (result, status) = io.connect(target.nqn(), 1, host.cntlid, 31);
    assert_eq!(status, Status::CONNECT_INVALID_PARAMETERS.dnr());
    assert_eq!(InvalidParameter::of_result(result), InvalidParameter::CNTLID);
}

#[test]
fn a_connect_that_is_not_for_us_is_refused_and_the_field_is_named() {
    let allowed = SubsystemOptions {
        name: "test".into(),
        allowed: vec![HOST.to_owned()],
        ..SubsystemOptions::default()
    };
    let target = Target::of("64M,timing=none", allowed);
    let good = Connect { sqsize: 31, ..Connect::default() };
    let name = |text| Name::new(text).expect("the name is short");
    let data = ConnectData {
        hostid: [1; 16],
        cntlid: 0xffff,
        subnqn: name(target.nqn()),
        hostnqn: name(HOST),
    };
    let attempt = |connect: Connect, data: ConnectData| {
        Host::open(target.address(), Digests::default()).connect_with(&connect, &data)
    };
    let field = |connect, data| {
        let (result, status) = attempt(connect, data);
        assert_eq!(status, Status::CONNECT_INVALID_PARAMETERS.dnr());
        InvalidParameter::of_result(result)
    };
    assert!(attempt(good, data).1.is_success());
    let other = ConnectData { subnqn: name("nqn.other"), ..data };
    assert_eq!(field(good, other), InvalidParameter::SUBNQN);
    let nameless = ConnectData { hostnqn: Name::default(), ..data };
    assert_eq!(field(good, nameless), InvalidParameter::HOSTNQN);
    assert_eq!(field(good, ConnectData { cntlid: 1, ..data }), InvalidParameter::CNTLID);
    for sqsize in [0, 128, 0xffff] {
        assert_eq!(field(Connect { sqsize, ..good }, data), InvalidParameter::SQSIZE, "{sqsize}");
    }
    let foreign = ConnectData { hostnqn: name("nqn.stranger"), ..data };
    assert_eq!(attempt(good, foreign).1, Status::CONNECT_INVALID_HOST.dnr());
    let format = Connect { recfmt: 1, ..good };
    assert_eq!(attempt(format, data).1, Status::CONNECT_INCOMPATIBLE_FORMAT.dnr());
    let late = Connect { kato: u32::MAX, ..good };
    assert_eq!(attempt(late, data).1, Status::KEEP_ALIVE_INVALID.dnr());
    let io = Connect { qid: 1, ..good };
    // The controller may just have ended. So the status must allow a retry: the host then makes a
    // new association.
    let (result, status) = attempt(io, ConnectData { cntlid: 999, ..data });
    assert_eq!(status, Status::CONNECT_INVALID_PARAMETERS);
    assert_eq!(InvalidParameter::of_result(result), InvalidParameter::CNTLID);
}

#[test]
fn features_are_what_they_were_set_to_and_unknown_ones_are_refused() {
    let target = Target::start();
    let mut host = target.admin();
    let get = |host: &mut Host, fid| {
        let command = FeatureAccess::get(host.next_cid(), fid, 0);
        host.run(command)
    };
    let set = |host: &mut Host, fid, value| {
        let command = FeatureAccess::set(host.next_cid(), fid, value, 0);
        host.run(command)
    };
    for (id, value) in [
        (fid::ARBITRATION, 7),
        (fid::TEMPERATURE_THRESHOLD, 300),
        (fid::WRITE_ATOMICITY, 1),
        (fid::ASYNC_EVENTS, 0x8000_0100),
        (fid::KEEP_ALIVE, 60_000),
    ] {
        assert!(set(&mut host, id, value).is_ok(), "{id:#x}");
        assert_eq!(get(&mut host, id), Ok(value.into()), "{id:#x}");
        let saved = FeatureAccess::get(host.next_cid(), id, 0);
        let default =
            host.run(saved.cdw10(saved.dword(10) | 2 << 8)).expect("the saved value can be read");
        assert_ne!(default, value.into(), "{id:#x}: the new value must not be saved");
    }
    let access = |host: &mut Host, nsid, value: Option<u32>| {
        let cid = host.next_cid();
        host.run(match value {
            Some(value) => FeatureAccess::set(cid, fid::ERROR_RECOVERY, value, 0).nsid(nsid),
            None => FeatureAccess::get(cid, fid::ERROR_RECOVERY, 0).nsid(nsid),
        })
    };
    for nsid in [0, 2] {
        let unknown = Err(refused(Status::INVALID_NAMESPACE));
        assert_eq!(access(&mut host, nsid, Some(9)), unknown, "the namespace must be checked");
        assert_eq!(access(&mut host, nsid, None), unknown);
    }
    assert_eq!(access(&mut host, NSID_ALL, Some(9)), Ok(0));
    assert_eq!(access(&mut host, 1, None), Ok(9));
    assert_eq!(get(&mut host, 0x7e), Err(refused(Status::INVALID_FIELD)));
    assert_eq!(set(&mut host, 0x7e, 0), Err(refused(Status::INVALID_FIELD)));
    assert_eq!(set(&mut host, fid::POWER_MANAGEMENT, 1), Err(refused(Status::INVALID_FIELD)));
    assert_eq!(
        get(&mut host, fid::VOLATILE_WRITE_CACHE),
        Err(refused(Status::INVALID_FIELD)),
        "a drive without a cache must not have this feature"
    );
    assert_eq!(set(&mut host, fid::ASYNC_EVENTS, 1 << 20), Err(refused(Status::INVALID_FIELD)));
    assert_eq!(set(&mut host, fid::HOST_ID, 0), Err(refused(Status::FEATURE_NOT_CHANGEABLE)));
    let saved = FeatureAccess::set(host.next_cid(), fid::ARBITRATION, 0, 0);
    let saved = saved.cdw10(saved.dword(10) | 1 << 31);
    assert_eq!(host.run(saved), Err(refused(Status::FEATURE_NOT_SAVEABLE)));
    let of_namespace = FeatureAccess::set(host.next_cid(), fid::ARBITRATION, 0, 0).nsid(1);
    assert_eq!(host.run(of_namespace), Err(refused(Status::FEATURE_NOT_NAMESPACE_SPECIFIC)));
    let can = FeatureAccess::get(host.next_cid(), fid::ARBITRATION, 0);
    assert_eq!(host.run(can.cdw10(can.dword(10) | 3 << 8)), Ok(4));

    let stamp = FeatureAccess::set(host.next_cid(), fid::TIMESTAMP, 0, 0);
    host.store(stamp, &[0, 0, 0, 0, 0, 1, 0, 0], true).expect("the time can be set");
    let command = FeatureAccess::get(host.next_cid(), fid::TIMESTAMP, 0);
    let stamp = host.fetch(command, 8).expect("the time can be read");
    assert_eq!((stamp[5], stamp[6]), (1, 2), "the time must be the host's: {stamp:?}");
}

#[test]
fn log_pages_come_in_parts_and_errors_are_in_the_log() {
    let target = Target::start();
    let (mut host, mut io) = target.queues();
    let write = Command::new(opcode::nvm::WRITE, io.next_cid()).nsid(1).blocks(0, 1);
    io.store(write, &[1; 4096], true).expect("the blocks are within the drive");
    let beyond = target.lba_count();
    let read = Command::new(opcode::nvm::READ, 77).nsid(1).blocks(beyond, 1);
    assert_eq!(io.fetch(read, 4096), Err(refused(Status::LBA_OUT_OF_RANGE)));

    let page = GetLogPage { lid: lid::ERROR, size: 128, ..GetLogPage::default() };
    let log = log_page(&mut host, page).expect("the log page exists");
    let first = ErrorEntry::decode(&log).expect("the structure is whole");
    assert_eq!((first.sqid, first.cid, first.lba, first.nsid), (1, 77, beyond, 1));
    assert_eq!(Status::from_bits(first.status), Status::LBA_OUT_OF_RANGE.dnr());
    assert_eq!((first.error_count, first.parameter_location), (1, 40));
    assert_eq!(ErrorEntry::decode(&log[64..]).expect("the structure is whole").error_count, 0);

    let page = GetLogPage { lid: lid::SMART, size: 512, ..GetLogPage::default() };
    let whole = log_page(&mut host, page).expect("the log page exists");
    let smart = Smart::decode(&whole).expect("the structure is whole");
    assert_eq!((smart.host_write_commands, smart.host_read_commands), (1, 0));
    assert_eq!((smart.data_units_written, smart.error_log_entries), (1, 1));
    let part = GetLogPage { offset: 48, size: 16, ..page };
    assert_eq!(log_page(&mut host, part).expect("the log page exists"), whole[48..64]);
    let behind = GetLogPage { offset: 500, size: 16, ..page };
    let found = log_page(&mut host, behind).expect("the page has some of these bytes");
    assert_eq!(found[12..], [0; 4]);
    for wrong in [GetLogPage { offset: 516, ..page }, GetLogPage { offset: 2, ..page }] {
        assert_eq!(log_page(&mut host, wrong), Err(refused(Status::INVALID_FIELD)));
    }
    let unknown = GetLogPage { lid: 0x7e, ..page };
    assert_eq!(log_page(&mut host, unknown), Err(refused(Status::INVALID_LOG_PAGE)));

    let group = GetLogPage { lid: lid::ENDURANCE_GROUP, lsi: 1, size: 512, ..page };
    let group = log_page(&mut host, group).expect("the log page exists");
    let group = EnduranceGroup::decode(&group).expect("the structure is whole");
    assert_eq!(group.total_capacity, u128::from(target.lba_count()) * 4096);
    let supported = GetLogPage { lid: lid::SUPPORTED, size: 1024, ..page };
    let supported = log_page(&mut host, supported).expect("the log page exists");
    for id in (0..=u8::MAX).filter(|id| *id != lid::SUPPORTED) {
        let is_said = supported[usize::from(id) * 4] & 1 != 0;
        let page = GetLogPage { lid: id, lsi: 1, size: 4, ..GetLogPage::default() };
        assert_eq!(log_page(&mut host, page).is_ok(), is_said, "{id:#x}");
    }
    let effects = GetLogPage { lid: lid::EFFECTS, size: 4096, ..page };
    let effects = log_page(&mut host, effects).expect("the log page exists");
    assert_eq!(effects[1024 + 4], 3, "a write must be supported, and must change blocks");
}

#[test]
fn properties_have_their_size_and_a_reset_ends_the_io_queues() {
    let target = Target::start();
    let (mut host, mut io) = target.queues();
    let mut wrong = PropertyAccess::get(Property::Csts, host.next_cid());
    wrong = wrong.cdw10(1);
    assert_eq!(host.run(wrong), Err(refused(Status::INVALID_FIELD)));
    let unknown = PropertyAccess::get(Property::Csts, host.next_cid()).cdw(11, 0x30);
    assert_eq!(host.run(unknown), Err(refused(Status::INVALID_FIELD)));
    let read_only = PropertyAccess::set(Property::Csts, 0, host.next_cid());
    assert_eq!(host.run(read_only), Err(refused(Status::INVALID_FIELD)));
    let shutdown = u64::from(Configuration::ENABLED.with_shn(1).0);
    let set = PropertyAccess::set(Property::Cc, shutdown, host.next_cid());
    host.run(set).expect("the controller can shut down");
    assert_eq!(host.property(Property::Csts), Ok(0b1001));
    let set = PropertyAccess::set(Property::Cc, 0, host.next_cid());
    host.run(set).expect("the controller can be reset");
    assert_eq!(host.property(Property::Csts), Ok(0));
    assert!(matches!(io.receive(), crate::host::Received::Closed));
    host.enable();
}
