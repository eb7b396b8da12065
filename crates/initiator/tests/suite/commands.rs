//! Tests what each command does, and when the target refuses a command.

use slimio_initiator::{Error, Host, Options, Placed};
use slimio_nvme::feature::fid;
use slimio_nvme::identify::{Identify, cns, ctratt};
use slimio_nvme::log::{GetLogPage, lid};
use slimio_nvme::{Command, Status, opcode};

use crate::target::{LBA_SIZE, Target, all_digests, connect, content};

fn status<T: std::fmt::Debug>(result: Result<T, Error>) -> Status {
    result
        .expect_err("the target refuses the command")
        .status()
        .expect("a refusal does not end the connection")
}

fn refused<T: std::fmt::Debug>(result: Result<T, Error>, wanted: Status) {
    let found = status(result);
    assert!(found.is_same(wanted), "the status is {found}, but should be {wanted}");
}

#[test]
fn blocks_come_back_by_every_way_that_data_can_go() {
    let target = Target::start();
    let mut seed = 0;
    for digests in all_digests() {
        for (has_flow_control, in_capsule_size_max, alignment) in
            [(true, usize::MAX, 4), (false, usize::MAX, 64), (true, 0, 128), (false, 0, 8)]
        {
            let options = Options {
                digests,
                has_flow_control,
                in_capsule_size_max,
                alignment,
                ..target.options()
            };
            let (host, mut queue) = connect(&options);
            assert_eq!(queue.queue().protocol().digests(), digests);
            for lbas in [1, 2, 3, 33, 128] {
                seed += 1;
                let data = content(seed, lbas);
                let durable = seed % 2 == 0;
                let placed = Placed { durable, placement: Some((seed % 8) as u16) };
                queue.write(100, &data, placed).expect("the blocks are written");
                assert!(
                    queue.read(100, lbas as u32).expect("the blocks are read") == data,
                    "{options:?}"
                );
            }
            queue.disconnect().expect("the queue is disconnected");
            host.shut_down().expect("the controller is shut down");
        }
    }
}

#[test]
fn zeros_comparisons_flushes_and_deallocations_do_what_they_say() {
    let target = Target::start();
    let (_host, mut queue) = target.connect();
    let data = content(1, 8);
    queue.write(0, &data, Placed::default()).expect("the blocks are written");
    queue.flush().expect("the drive is flushed");
    queue.compare(0, &data).expect("the blocks equal the data");
    refused(queue.compare(0, &content(2, 8)), Status::COMPARE_FAILURE);
    queue.write_zeroes(2, 2, false, Placed::default()).expect("the zeros are written");
    let mut wanted = data;
    wanted[2 * LBA_SIZE..4 * LBA_SIZE].fill(0);
    assert!(queue.read(0, 8).expect("the blocks are read") == wanted);
    // 128 blocks are the most that the controller accepts in one command.
    queue.write(4000, &content(3, 1), Placed::default()).expect("the blocks are written");
    queue.write_zeroes(3900, 128, true, Placed::default()).expect("the zeros are written");
    assert!(queue.read(4000, 1).expect("the blocks are read").iter().all(|&byte| byte == 0));
    let mapped = || target.subsystem.drive().with_ftl(slimio_ssd::Ftl::mapped_count);
    let before = mapped();
    queue.deallocate(&[(0, 1), (7, 1), (100, 0)]).expect("the blocks are deallocated");
    assert_eq!(mapped(), before - 2);
    assert!(queue.read(1, 6).expect("the blocks are read") == wanted[LBA_SIZE..7 * LBA_SIZE]);
}

#[test]
fn what_is_beyond_the_namespace_or_a_limit_is_refused() {
    let target = Target::start();
    let (mut host, mut queue) = target.connect();
    let end = target.lba_count();
    refused(queue.read(end, 1), Status::LBA_OUT_OF_RANGE);
    refused(queue.read(end - 1, 2), Status::LBA_OUT_OF_RANGE);
    refused(queue.write(u64::MAX, &content(1, 1), Placed::default()), Status::LBA_OUT_OF_RANGE);
    refused(queue.write_zeroes(end - 1, 2, false, Placed::default()), Status::LBA_OUT_OF_RANGE);
    refused(queue.deallocate(&[(0, 1), (end, 1)]), Status::LBA_OUT_OF_RANGE);
    let mdts = 1_u32 << host.controller().mdts;
    assert_eq!(
        queue.read(0, mdts).expect("a read of the maximum length succeeds").len(),
        mdts as usize * LBA_SIZE
    );
    refused(queue.read(0, mdts + 1), Status::INVALID_FIELD);
    refused(
        queue.write(0, &content(1, mdts as usize + 1), Placed::default()),
        Status::INVALID_FIELD,
    );
    for nsid in [0, 2, u32::MAX] {
        let command = queue.read_command(0, 1).nsid(nsid);
        refused(queue.queue().run(command, vec![0; LBA_SIZE]), Status::INVALID_NAMESPACE);
    }
    // There is room for two blocks, but the command returns one.
    let command = queue.read_command(0, 1);
    refused(queue.queue().run(command, vec![0; 8192]), Status::DATA_SGL_LENGTH_INVALID);
    for opcode in [0x04, 0x0d, 0x33, 0x80, 0xff] {
        let command = Command::new(opcode, 0).nsid(1);
        refused(queue.queue().run(command, Vec::new()), Status::INVALID_OPCODE);
        refused(host.admin().run(command, Vec::new()), Status::INVALID_OPCODE);
    }
    let error = queue.read(end, 1).expect_err("the block is beyond the end");
    assert_eq!(error.to_string(), "read: LBA out of range (0:80h, do not retry)");
    queue.write(0, &content(1, 1), Placed::default()).expect("a refusal does not end the queue");
}

#[test]
fn placements_and_their_counters_are_seen_by_the_host() {
    let target = Target::start();
    let (mut host, mut queue) = target.connect();
    let wanted = ctratt::FDPS | ctratt::ENDURANCE_GROUPS;
    assert_eq!(host.controller().ctratt & wanted, wanted);
    let handles = queue.handle_status().expect("the namespace has handles");
    assert_eq!(handles.len(), 8);
    let placement = Some(handles[3].pid);
    let before = host.statistics(1).expect("the target has counters");
    queue
        .write(0, &content(1, 16), Placed { durable: false, placement })
        .expect("the blocks are written");
    let after = host.statistics(1).expect("the target has counters");
    assert_eq!(after.hbmw - before.hbmw, 16 * LBA_SIZE as u128);
    let now = queue.handle_status().expect("the namespace has handles");
    assert_eq!(now[3].ruamw, handles[3].ruamw - 16);
    assert_eq!(now[4].ruamw, handles[4].ruamw);
    queue.update_handles(&[handles[3].pid]).expect("the handle gets a fresh unit");
    let now = queue.handle_status().expect("the namespace has handles");
    assert_eq!(now[3].ruamw, handles[3].ruamw);
    refused(queue.update_handles(&[handles[4].pid, 999]), Status::INVALID_FIELD);
    host.fdp_events(1, true).expect("there is a log of the host's events");
    host.fdp_events(1, false).expect("there is a log of the controller's events");
    let written = host.smart().expect("the target has a SMART log").host_write_commands;
    assert_eq!(written, 1);
}

#[test]
fn features_and_log_pages_that_are_not_there_are_refused() {
    let target = Target::start();
    let (mut host, _queue) = target.connect();
    assert!(host.set_queue_count(4).expect("the controller allows queues") >= 4);
    host.set_feature(fid::TEMPERATURE_THRESHOLD, 0, 300, 0, Vec::new())
        .expect("the threshold can be set");
    let (value, _) =
        host.feature(fid::TEMPERATURE_THRESHOLD, 0, 0, 0).expect("the threshold can be read");
    assert_eq!(value, 300);
    let (_, stamp) = host.feature(fid::TIMESTAMP, 0, 0, 8).expect("the timestamp can be read");
    assert_eq!(stamp.len(), 8);
    refused(host.feature(0x7f, 0, 0, 0), Status::INVALID_FIELD);
    let page = GetLogPage { lid: 0xee, ..GetLogPage::default() };
    refused(host.log_page(page, 0, 64), Status::INVALID_LOG_PAGE);
    let which = Identify { cns: 0x77, ..Identify::default() };
    refused(host.identify(which, 0), Status::INVALID_FIELD);
    let errors = GetLogPage { lid: lid::ERROR, ..GetLogPage::default() };
    let log = host.log_page(errors, u32::MAX, 64).expect("the target has an error log");
    assert_eq!(log[..8], 3_u64.to_le_bytes(), "the log counts the three refused commands");
    let which = Identify { cns: cns::NAMESPACE, ..Identify::default() };
    let other = host.identify(which, 2).ok();
    assert!(other.is_none_or(|bytes| bytes.iter().all(|&byte| byte == 0)));
}

#[test]
fn requests_for_events_wait_and_are_limited() {
    let target = Target::start();
    let (mut host, _queue) = target.connect();
    let allowed = usize::from(host.controller().aerl) + 1;
    for _ in 0..allowed {
        host.request_event().expect("the request can be sent");
    }
    assert_eq!(host.take_events(), []);
    host.keep_alive().expect("a Keep Alive does not wait behind the requests");
    // The refusal may come while the request is sent, or a little later.
    let until = std::time::Instant::now() + crate::target::TIME_MAX;
    let result = host.request_event().and_then(|()| host.idle_until(until));
    refused(result, Status::ASYNC_EVENT_LIMIT_EXCEEDED);
    let abort = Command::new(opcode::admin::ABORT, 0).cdw(10, 0xffff << 16);
    let outcome =
        host.admin().run(abort, Vec::new()).expect("an abort succeeds even if no command matches");
    assert_eq!(outcome.completion.result & 1, 1);
}

#[test]
fn the_discovery_controller_names_the_subsystem() {
    let target = Target::start();
    let entries =
        Host::discover(&target.options()).expect("every host may ask the discovery controller");
    let names: Vec<Option<&str>> = entries.iter().map(|entry| entry.subnqn.text()).collect();
    assert!(names.contains(&Some(target.subsystem.nqn())), "{names:?}");
    let port = target.server.address().port().to_string();
    assert!(entries.iter().all(|entry| entry.trsvcid.text() == port), "{entries:?}");
}
