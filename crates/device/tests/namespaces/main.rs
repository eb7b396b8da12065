//! Tests on namespaces of NVMe devices, which `cargo x lab` provides. The contents of the
//! namespaces are lost.
//!
//! Environment variables name the namespaces. Each test runs on namespaces of several kinds, and
//! prints a message if a kind is missing. A path is a [`Device`] that sends operations to a
//! namespace through a queue of its own.

use std::path::PathBuf;
use std::process::Command;

use slimio_device::{
    Buffer, Completion, Contents, Device, DeviceError, LBA_SIZE, Lba, LbaRange, NvmeDevice, Op,
    OpenError, PathOptions, PlacementId, Polling, Token, WholeDevice, WriteCache,
};
use slimio_sim::contract::check_all;

/// Kinds of namespaces. The environment variable for a kind is `SLIMIO_NVME_` followed by the kind.
const KINDS: [&str; 5] = ["FDP", "PLAIN", "B512", "SMALL_MDTS", "ONE_HANDLE"];

/// Makes the tests run one after the other, because only one test at a time can use a namespace.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Runs a test on each available namespace of these kinds.
fn with_each(kinds: &[&str], mut test: impl FnMut(&str, PathBuf)) {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for kind in kinds {
        match std::env::var_os(format!("SLIMIO_NVME_{kind}")) {
            Some(path) => {
                eprintln!("{kind}: {}", path.display());
                test(kind, path.into());
            }
            None => eprintln!("SKIPPED: SLIMIO_NVME_{kind} names no namespace"),
        }
    }
}

fn open(path: &std::path::Path) -> NvmeDevice {
    let options = PathOptions { in_flight_max: 16, ..PathOptions::default() };
    NvmeDevice::open(path, options).expect("the namespace is free")
}

fn run(device: &mut dyn Device, op: Op) -> Completion {
    device.submit(Token(0), op).expect("the queue is not full");
    let mut completions = Vec::new();
    while completions.is_empty() {
        device.wait(None, &mut completions);
    }
    completions.remove(0)
}

fn pattern(lbas: usize, seed: u8) -> Buffer {
    let mut buffer = Buffer::zeroed(lbas);
    for (index, byte) in buffer.iter_mut().enumerate() {
        *byte = (index / 512) as u8 ^ seed;
    }
    buffer
}

fn write(lba: u64, buffer: Buffer, placement: PlacementId) -> Op {
    Op::Write { lba: Lba(lba), buffer, placement, durable: true }
}

#[test]
fn it_keeps_the_contract_of_devices() {
    with_each(&KINDS, |_, path| {
        let mut device = open(&path);
        check_all(|| device.open_path().expect("a path can be opened") as Box<dyn Device>);
    });
}

/// On a `SMALL_MDTS` namespace, a transfer takes several commands. On a `B512` namespace, the
/// device's blocks are smaller than [`LBA_SIZE`].
#[test]
fn it_keeps_the_contract_with_registered_buffers() {
    with_each(&["SMALL_MDTS", "B512"], |_, path| {
        let options = PathOptions { in_flight_max: 16, ..PathOptions::default() };
        let mut device = NvmeDevice::open(&path, options).expect("the namespace is free");
        check_all(|| device.open_bulk_path().expect("a path can be opened") as Box<dyn Device>);
        let described = device.describe();
        let is_said = described.ends_with("; for snapshots it has registered buffers");
        assert!(is_said, "{described}; {:?}", device.notes());
        drop(device);
        let options = PathOptions { registered: false, ..options };
        let device = NvmeDevice::open(&path, options).expect("the namespace is free");
        assert!(!device.describe().contains("registered"), "{}", device.describe());
    });
}

/// Processor time that this thread has used, in ticks of 10 ms.
fn ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat")
        .expect("Linux has /proc/thread-self/stat");
    let behind_name = stat.rsplit(')').next().expect("the name is in parentheses");
    let fields = behind_name.split_whitespace().skip(11).take(2);
    fields.map(|ticks| ticks.parse::<u64>().expect("the field is a number")).sum()
}

/// In a ring that polls for completions, waiting means spinning, and time limits are ignored. So a
/// ring that is dropped with a write in flight must wait in another way, and use little processor
/// time.
#[test]
fn a_path_that_is_polled_does_not_spin_when_it_is_dropped_in_flight() {
    with_each(&["PLAIN"], |kind, path| {
        let polling = Polling { submissions_idle: None, completions: true };
        let options = PathOptions { in_flight_max: 16, polling, ..PathOptions::default() };
        let mut device = NvmeDevice::open(&path, options).expect("the namespace is free");
        let mut io = device.open_bulk_path().expect("a path can be opened");
        assert!(device.describe().contains("(IOPOLL)"), "{}", device.describe());
        if !lab(&["hold", kind, "write"]) {
            return;
        }
        io.submit(Token(0), write(7, pattern(1, 1), PlacementId::default()))
            .expect("the queue is not full");
        io.kick();
        let before = ticks();
        drop(io);
        let used = ticks() - before;
        assert!(lab(&["resume", kind]));
        assert!(lab(&["heal", kind]));
        eprintln!("{used} ticks");
        assert!(used < 250, "the drop used {used} ticks of 10 ms of processor time");
    });
}

/// The paths must really poll, because the lab's kernel has queues for polling.
#[test]
fn it_keeps_the_contract_when_it_is_polled() {
    let idle = Some(std::time::Duration::from_millis(2));
    with_each(&["SMALL_MDTS", "PLAIN"], |kind, path| {
        let each = [(idle, true), (idle, false), (None, true)];
        let count = if kind == "PLAIN" { each.len() } else { 1 };
        for (submissions_idle, completions) in each.into_iter().take(count) {
            let polling = Polling { submissions_idle, completions };
            let options = PathOptions { in_flight_max: 16, polling, ..PathOptions::default() };
            let mut device = NvmeDevice::open(&path, options).expect("the namespace is free");
            let described = device.describe();
            assert!(described.ends_with(&format!(" polls for {polling}")), "{described}");
            check_all(|| device.open_bulk_path().expect("a path can be opened") as Box<dyn Device>);
        }
    });
}

#[test]
fn it_is_what_it_was_made_as() {
    with_each(&KINDS, |kind, path| {
        let device = open(&path);
        let described = device.describe();
        eprintln!("{described}; {}; {}", device.notes().join("; "), device.model());
        assert!(described.starts_with("NVMe passthrough on /dev/ng"), "{described}");
        let placements = device.placements().len();
        match kind {
            "FDP" => assert!(placements >= 4, "{placements} placements are too few"),
            "ONE_HANDLE" => assert_eq!(placements, 1),
            _ => {
                assert_eq!(placements, 0);
                assert!(described.contains("no FDP"), "{described}");
            }
        }
        let identity = device.identity().expect("the device has a serial number");
        assert!(identity.starts_with("nvme serial "), "{identity}");
        // The block device node opens the same namespace as the generic device node.
        let block = device.block().to_path_buf();
        drop(device);
        let again = open(&block);
        assert_eq!(again.identity().as_deref(), Some(&*identity));
        assert_eq!(again.describe(), described);
    });
}

#[test]
fn it_is_ours_alone() {
    with_each(&KINDS, |_, path| {
        let device = open(&path);
        let second =
            NvmeDevice::open(&path, PathOptions::default()).err().expect("the namespace is in use");
        assert!(matches!(second, OpenError::InUse { .. }), "{second}");
        drop(device);
        open(&path);
    });
}

#[test]
fn long_transfers_are_cut_to_what_a_command_may_be() {
    with_each(&KINDS, |kind, path| {
        let mut device = open(&path);
        let limit = device.command_size_max();
        eprintln!("a command has at most {limit} bytes");
        if kind == "SMALL_MDTS" {
            assert!(limit <= 64 << 10, "{limit}");
        }
        let mut path = device.open_path().expect("a path can be opened");
        let long = path.geometry().transfer_lbas_max as usize;
        assert!((long * LBA_SIZE) as u64 > limit, "the transfer fits into one command");
        let placement = PlacementId::default();
        let written = run(&mut *path, write(3, pattern(long, 5), placement));
        assert_eq!(written.result, Ok(()));
        let read = run(&mut *path, Op::Read { lba: Lba(3), buffer: Buffer::zeroed(long) });
        assert_eq!(read.result, Ok(()));
        let found = read.buffer.expect("a read returns its buffer");
        assert!(found[..] == pattern(long, 5)[..], "the data must be as it was written");
    });
}

#[test]
fn many_deallocations_go_down_as_one() {
    with_each(&KINDS, |_, path| {
        let mut device = open(&path);
        let options = PathOptions { in_flight_max: 1000, ..PathOptions::default() };
        drop(device);
        device = NvmeDevice::open(&path, options).expect("the namespace is free");
        let mut path = device.open_path().expect("a path can be opened");
        let placement = PlacementId::default();
        run(&mut *path, write(0, pattern(1400, 1), placement));
        let range = |index: u64| LbaRange { start: Lba(2 * index), end: Lba(2 * index + 1) };
        for index in 0..700 {
            path.submit(Token(index), Op::Deallocate { range: range(index) })
                .expect("the queue is not full");
        }
        let mut completions = Vec::new();
        while completions.len() < 700 {
            path.wait(None, &mut completions);
        }
        completions.sort_by_key(|completion| completion.token);
        assert!(completions.iter().zip(0..).all(|(one, index)| one.token == Token(index)));
        assert!(completions.iter().all(|completion| completion.result == Ok(())));
        // The blocks between the deallocated blocks must be unchanged.
        let read = run(&mut *path, Op::Read { lba: Lba(0), buffer: Buffer::zeroed(1400) });
        let found = read.buffer.expect("a read returns its buffer");
        let expected = pattern(1400, 1);
        for lba in (1..1400).step_by(2) {
            let place = lba * LBA_SIZE..(lba + 1) * LBA_SIZE;
            assert!(found[place.clone()] == expected[place], "block {lba} was deallocated");
        }
    });
}

#[test]
fn what_is_on_it_is_seen() {
    with_each(&KINDS, |_, path| {
        let mut device = open(&path);
        let last = device.lba_count() - 64;
        let mut io = device.open_path().expect("a path can be opened");
        for lba in [0, last] {
            run(&mut *io, write(lba, Buffer::zeroed(64), PlacementId::default()));
        }
        assert_eq!(device.contents().expect("the namespace can be read"), Contents::Nothing);
        // New contents must be seen at once, although `device` has read the old contents before.
        let mut magic = Buffer::zeroed(1);
        magic[0x438..0x43a].copy_from_slice(&[0x53, 0xef]);
        run(&mut *io, write(0, magic, PlacementId::default()));
        let ext4 = Contents::Known("an ext2, ext3 or ext4 file system");
        assert_eq!(device.contents().expect("the namespace can be read"), ext4);
        run(&mut *io, write(0, Buffer::zeroed(1), PlacementId::default()));
        run(&mut *io, write(last + 63, pattern(1, 1), PlacementId::default()));
        assert_eq!(device.contents().expect("the namespace can be read"), Contents::Unknown);
    });
}

#[test]
fn a_mounted_namespace_is_refused_by_the_name_of_its_place() {
    with_each(&["PLAIN"], |_, path| {
        let block = open(&path).block().to_path_buf();
        let made = Command::new("mkfs.ext4").arg("-qF").arg(&block).status();
        if !made.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: mkfs.ext4 can't be run");
            return;
        }
        let place = std::env::temp_dir().join("slimio-mounted");
        std::fs::create_dir_all(&place).expect("the directory can be made");
        let mounted = Command::new("mount").arg(&block).arg(&place).status();
        assert!(mounted.is_ok_and(|status| status.success()), "the namespace can be mounted");
        let refused = NvmeDevice::open(&path, PathOptions::default()).err();
        let unmounted = Command::new("umount").arg(&place).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "the namespace can be unmounted");
        let refused = refused.expect("the namespace is mounted").to_string();
        let wanted = format!("{} is mounted at {}", block.display(), place.display());
        assert!(refused.contains(&wanted), "{refused}");
    });
}

#[test]
fn placements_lead_to_handles_of_their_own() {
    with_each(&["FDP"], |_, path| {
        let mut device = open(&path);
        let account = device.fdp().expect("FDP is on");
        let configuration = device.fdp_configuration().expect("root may read the configuration");
        assert!(configuration.unit_size > 0 && configuration.handle_count >= 4);
        let placements = device.placements().to_vec();
        let before = account.handles().expect("the device reports its handles");
        assert_eq!(before.len(), placements.len());
        assert!(
            account.handles_used().expect("the device reports the used handles")
                >= placements.len()
        );
        let counted = account.statistics().expect("the device reports its counters");
        let mut io = device.open_path().expect("a path can be opened");
        let block_size = device.block_size();
        for (index, &placement) in placements.iter().enumerate() {
            let lbas = 8 * (index + 1);
            let written = run(&mut *io, write(256 * index as u64, pattern(lbas, 3), placement));
            assert_eq!(written.result, Ok(()));
        }
        let after = account.handles().expect("the device reports its handles");
        let unit_blocks = configuration.unit_size / block_size;
        for (index, (old, new)) in before.iter().zip(&after).enumerate() {
            let blocks = (8 * (index + 1) * LBA_SIZE) as u64 / block_size;
            let used = (old.unit_blocks_left + unit_blocks - new.unit_blocks_left) % unit_blocks;
            assert_eq!(used, blocks, "placement {} uses another handle", old.placement);
        }
        let written: usize = (1..=placements.len()).map(|count| 8 * count * LBA_SIZE).sum();
        let host_bytes = account.statistics().expect("the device reports its counters").host_bytes
            - counted.host_bytes;
        assert_eq!(host_bytes, written as u128);
        // A handle gets a fresh reclaim unit on request.
        account.start_fresh_unit(placements[1]).expect("the handle can be updated");
        let fresh = account.handles().expect("the device reports its handles");
        assert_eq!(fresh[1].unit_blocks_left, unit_blocks);
        assert_eq!(fresh[2].unit_blocks_left, after[2].unit_blocks_left);
    });
}

#[test]
fn a_placement_that_is_not_the_devices_is_never_named() {
    with_each(&["FDP", "ONE_HANDLE"], |_, path| {
        let mut device = open(&path);
        let account = device.fdp().expect("FDP is on");
        let invalid = || {
            let events = account.host_events().expect("the device reports its events");
            events.iter().filter(|event| event.name() == "invalid placement id").count()
        };
        let before = invalid();
        let mut io = device.open_path().expect("a path can be opened");
        let written = run(&mut *io, write(0, pattern(1, 1), PlacementId(0x7fff)));
        assert_eq!(written.result, Ok(()));
        assert_eq!(invalid(), before);
    });
}

#[test]
fn a_durable_write_costs_one_command_where_there_is_a_cache() {
    with_each(&KINDS, |_, path| {
        let mut device = open(&path);
        let io = device.open_path().expect("a path can be opened");
        let cache = io.geometry().write_cache;
        assert!(matches!(cache, WriteCache::VolatileWithFua | WriteCache::Stable), "{cache}");
    });
}

#[test]
fn what_is_no_whole_namespace_is_refused_with_a_sentence() {
    for (path, said) in [
        ("/dev/null", "it is no NVMe generic device"),
        ("/dev", "it is no device"),
        ("/dev/ng99n99", "does not exist"),
    ] {
        let refused = NvmeDevice::open(path.as_ref(), PathOptions::default()).err();
        let refused = refused.expect("the path names no whole namespace").to_string();
        assert!(refused.contains(said), "{refused}");
    }
}

#[test]
fn a_mapped_range_and_commands_do_not_disturb_each_other() {
    with_each(&["FDP", "B512"], |_, path| {
        const SIZE: usize = 8 * LBA_SIZE;
        let mut device = open(&path);
        let mut io = device.open_path().expect("a path can be opened");
        let mut mapped =
            device.map(100 * LBA_SIZE as u64, SIZE).expect("the namespace has this range");
        let mut buffers = mapped.buffers(2 * LBA_SIZE);
        for (index, buffer) in buffers.iter_mut().enumerate() {
            buffer.fill(index as u8 + 1);
        }
        let last = buffers.pop().expect("the mapping has four buffers");
        for (lba, buffer) in [(108, last), (98, pattern(2, 9))] {
            let written = run(&mut *io, write(lba, buffer, PlacementId::default()));
            assert_eq!(written.result, Ok(()));
        }
        let expected: Vec<u8> = (0..SIZE).map(|byte| (byte / (2 * LBA_SIZE)) as u8 + 1).collect();
        assert_eq!(mapped.read_all().expect("the namespace can be read"), expected);
        let read = run(&mut *io, Op::Read { lba: Lba(108), buffer: Buffer::zeroed(2) });
        assert_eq!(read.buffer.expect("a read returns its buffer")[..], [4; 2 * LBA_SIZE]);
        let error = run(&mut *io, Op::Read { lba: Lba(u64::MAX), buffer: Buffer::zeroed(1) });
        assert_eq!(error.result, Err(DeviceError::OutOfRange));
    });
}

/// Sends a command to the lab's host, with the program `lab`. Returns false if the program can't be
/// run.
fn lab(words: &[&str]) -> bool {
    match Command::new("lab").args(words).status() {
        Ok(status) => {
            assert!(status.success(), "lab {} failed", words.join(" "));
            true
        }
        Err(error) => {
            eprintln!("SKIPPED: the program `lab` can't be run: {error}");
            false
        }
    }
}

#[test]
fn each_kind_of_failure_has_its_name_and_brings_its_buffer_back() {
    with_each(&["PLAIN"], |kind, path| {
        let mut device = open(&path);
        let mut io = device.open_path().expect("a path can be opened");
        let placement = PlacementId::default();
        // Deallocations are left out: they are hints, so the lab's device never fails them.
        for (word, op, said) in [
            ("write", write(7, pattern(1, 1), placement), "a write: Write Fault (2:80h)"),
            (
                "read",
                Op::Read { lba: Lba(7), buffer: Buffer::zeroed(1) },
                "a read: Unrecovered Read Error (2:81h)",
            ),
            ("flush", Op::Flush, "a flush: "),
        ] {
            // The lab's device fails a flush only if the flush has something to make stable. So the
            // write `before` runs first.
            let before =
                Op::Write { lba: Lba(9), buffer: pattern(1, 2), placement, durable: false };
            let has_buffer = matches!(op, Op::Read { .. } | Op::Write { .. });
            if !lab(&["fail", kind, word]) {
                return;
            }
            if word == "flush" {
                assert_eq!(run(&mut *io, before).result, Ok(()));
            }
            let failed = run(&mut *io, op);
            assert!(lab(&["heal", kind]));
            let error = failed.result.expect_err(word);
            assert!(matches!(error, DeviceError::Nvme { .. }), "{error:?}");
            let text = error.to_string();
            assert!(text.starts_with(&format!("the device failed {said}")), "{text}");
            assert_eq!(failed.buffer.is_some(), has_buffer);
        }
        let healed = run(&mut *io, write(7, pattern(1, 3), placement));
        assert_eq!(healed.result, Ok(()));
    });
}

#[test]
fn everything_in_flight_comes_home_when_the_device_goes_away() {
    // This test unplugs the namespace for good, so the test runs only if `SLIMIO_NVME_UNPLUG` is
    // set.
    if std::env::var_os("SLIMIO_NVME_UNPLUG").is_none() {
        eprintln!(
            "SKIPPED: SLIMIO_NVME_UNPLUG is not set, and this test unplugs a namespace for good"
        );
        return;
    }
    with_each(&["SMALL_MDTS"], |kind, path| {
        let mut device = open(&path);
        let mut io = device.open_path().expect("a path can be opened");
        let placement = PlacementId::default();
        let submit_some = |io: &mut dyn Device| {
            for index in 0..8 {
                let op = write(64 * index, pattern(64, 1), placement);
                io.submit(Token(index), op).expect("the queue is not full");
            }
            io.kick();
        };
        submit_some(&mut *io);
        if !lab(&["unplug", kind]) {
            return;
        }
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            assert!(std::time::Instant::now() < deadline, "the device is still there");
            let mut completions = Vec::new();
            while io.in_flight() > 0 {
                io.wait(None, &mut completions);
            }
            assert_eq!(completions.len(), 8);
            assert!(completions.iter().all(|completion| completion.buffer.is_some()));
            let errors: Vec<_> =
                completions.iter().filter_map(|one| one.result.clone().err()).collect();
            if errors.len() == 8 {
                let last = errors.last().expect("all eight operations failed");
                eprintln!("{last}");
                if matches!(last, DeviceError::Gone) {
                    break;
                }
            }
            submit_some(&mut *io);
        }
    });
}
