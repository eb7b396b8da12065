//! The contract of every [`Device`], as checks that run on any implementation.
//!
//! If a simulated device and a real device both pass these checks, either can replace the other.
//! The effect of a power cut is not part of the contract, because only simulated devices can lose
//! power.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use slimio_device::{
    Buffer, Completion, Device, DeviceError, LBA_SIZE, Lba, LbaRange, Op, POOLED_COUNT,
    POOLED_LBAS, PlacementId, Token, is_readable,
};

use crate::Random;

/// The smallest number of blocks of a device under test.
pub const CONTRACT_LBAS: u64 = 512;

/// The longest time that a check waits for something that must happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs every check. Each call of `make` returns a new device with at least [`CONTRACT_LBAS`]
/// blocks. The blocks may have any contents.
///
/// # Panics
/// If a device breaks the contract.
pub fn check_all(mut make: impl FnMut() -> Box<dyn Device>) {
    reads_what_was_written(&mut *make());
    buffers_come_home(&mut *make());
    its_own_buffers_do_as_well(&mut *make());
    refuses_what_is_outside(&mut *make());
    hands_back_what_is_too_much(&mut *make());
    takes_every_kind_of_write_and_flush(&mut *make());
    deallocated_blocks_can_be_used_again(&mut *make());
    grows_or_stays_as_it_is(&mut *make());
    a_wait_ends(&mut *make());
    readiness_tells_of_completions(&mut *make());
    what_is_queued_runs_after_a_kick(&mut *make());
    may_be_dropped_in_flight(&mut make);
    for seed in 1..=3 {
        is_like_an_array(&mut *make(), seed);
    }
}

/// A buffer in which each byte depends on `seed` and on the byte's position.
fn pattern(lbas: usize, seed: u64) -> Buffer {
    let mut buffer = Buffer::zeroed(lbas);
    let mut random = Random::new(seed);
    for bytes in buffer.chunks_exact_mut(8) {
        bytes.copy_from_slice(&random.next_u64().to_le_bytes());
    }
    buffer
}

fn write(lba: u64, buffer: Buffer, durable: bool) -> Op {
    Op::Write { lba: Lba(lba), buffer, placement: PlacementId(0), durable }
}

/// Runs one operation to its end.
fn run(device: &mut dyn Device, op: Op) -> Completion {
    assert_eq!(device.in_flight(), 0, "no other operation is in flight");
    device.submit(Token(77), op).expect("nothing is in flight");
    let mut completions = drain(device);
    assert_eq!(completions.len(), 1, "one operation has one completion");
    let completion = completions.remove(0);
    assert_eq!(completion.token, Token(77));
    completion
}

/// Waits until no operation is in flight.
fn drain(device: &mut dyn Device) -> Vec<Completion> {
    let mut completions = Vec::new();
    while device.in_flight() > 0 {
        let before = (completions.len(), device.in_flight());
        device.wait(Some(PATIENCE), &mut completions);
        let finished = completions.len() - before.0;
        assert!(finished > 0, "none of {} operations in flight completes", before.1);
        assert_eq!(
            device.in_flight(),
            before.1 - finished,
            "each completion lowers the number in flight by one"
        );
    }
    completions
}

fn read(device: &mut dyn Device, lba: u64, lbas: usize) -> Buffer {
    let completion = run(device, Op::Read { lba: Lba(lba), buffer: Buffer::zeroed(lbas) });
    assert_eq!(completion.result, Ok(()), "a read of {lbas} blocks at {lba} fails");
    completion.buffer.expect("a read brings its buffer back")
}

fn reads_what_was_written(device: &mut dyn Device) {
    let last = device.geometry().lba_count - 1;
    assert!(last >= CONTRACT_LBAS - 1, "the device has too few blocks");
    for (lba, lbas) in [(0, 1), (1, 3), (100, 50), (last - 6, 7), (last, 1)] {
        let written = pattern(lbas, lba + 1);
        let completion = run(device, write(lba, pattern(lbas, lba + 1), false));
        assert_eq!(completion.result, Ok(()));
        assert!(read(device, lba, lbas)[..] == written[..], "{lbas} blocks at {lba} differ");
    }
    // A write that overlaps an earlier write replaces the blocks that both cover. No other block of
    // the earlier write changes.
    run(device, write(10, pattern(4, 1), false));
    run(device, write(12, pattern(4, 2), true));
    let found = read(device, 10, 6);
    assert!(found[..2 * LBA_SIZE] == pattern(4, 1)[..2 * LBA_SIZE]);
    assert!(found[2 * LBA_SIZE..] == pattern(4, 2)[..]);
}

fn buffers_come_home(device: &mut dyn Device) {
    let outside = device.geometry().lba_count;
    for lba in [3, outside] {
        let mut buffer = pattern(4, 9);
        // This buffer is shorter than its capacity. The device must transfer only the buffer's
        // length, and must not change that length.
        buffer.set_len_lbas(2);
        let address = buffer.as_ptr();
        let completion = run(device, write(lba, buffer, false));
        let mut buffer = completion.buffer.expect("a write brings its buffer back");
        assert_eq!(
            (buffer.as_ptr(), buffer.len_lbas()),
            (address, 2),
            "the write returns the same buffer"
        );
        buffer.set_len_lbas(4);
        assert!(buffer[..] == pattern(4, 9)[..], "the write has changed its buffer");
        let completion = run(device, Op::Read { lba: Lba(lba), buffer });
        let buffer = completion.buffer.expect("a read brings its buffer back");
        assert_eq!(buffer.as_ptr(), address, "the read returns the same buffer");
    }
    assert!(run(device, Op::Flush).buffer.is_none());
}

/// Puts more buffers in flight at once than the pool of a path holds, if the device takes that many
/// operations. The buffers have several lengths.
fn its_own_buffers_do_as_well(device: &mut dyn Device) {
    let count = (device.geometry().in_flight_max as usize).min(POOLED_COUNT + 2);
    for round in 0..2 {
        let places = (0..count).map(|index| (index as u64 * 80, [1, 7, 80][index % 3]));
        let expected = |lba, lbas| pattern(lbas, lba + round);
        for (lba, lbas) in places.clone() {
            let mut buffer = device.buffer(lbas);
            assert_eq!(buffer.len_lbas(), lbas);
            buffer.copy_from_slice(&expected(lba, lbas));
            device.submit(Token(lba), write(lba, buffer, lbas == 7)).expect("there is room");
        }
        for done in drain(device) {
            assert_eq!(done.result, Ok(()));
            let buffer = done.buffer.expect("a write brings its buffer back");
            assert!(
                buffer[..] == expected(done.token.0, buffer.len_lbas())[..],
                "the write changed its buffer"
            );
        }
        for (lba, lbas) in places.clone() {
            assert!(
                read(device, lba, lbas)[..] == expected(lba, lbas)[..],
                "{lbas} blocks at {lba} differ"
            );
            let buffer = device.buffer(lbas);
            device.submit(Token(lba), Op::Read { lba: Lba(lba), buffer }).expect("there is room");
            let done = drain(device).remove(0);
            assert_eq!(done.result, Ok(()));
            let buffer = done.buffer.expect("a read brings its buffer back");
            assert!(
                buffer[..] == expected(lba, lbas)[..],
                "{lbas} blocks at {lba} differ in a buffer of the device"
            );
        }
    }
    // This buffer is longer than the pooled buffers.
    let lbas = POOLED_LBAS + 1;
    let mut buffer = device.buffer(lbas);
    buffer.copy_from_slice(&pattern(lbas, 3));
    assert_eq!(run(device, write(0, buffer, false)).result, Ok(()));
    assert!(read(device, 0, lbas)[..] == pattern(lbas, 3)[..]);
}

fn refuses_what_is_outside(device: &mut dyn Device) {
    let count = device.geometry().lba_count;
    let before = pattern(1, 4);
    run(device, write(count - 1, pattern(1, 4), false));
    for (lba, lbas) in [(count, 1), (count - 1, 2), (u64::MAX, 1), (u64::MAX / 4096, 3)] {
        let outcomes = [
            run(device, write(lba, pattern(lbas, 1), false)).result,
            run(device, write(lba, pattern(lbas, 1), true)).result,
            run(device, Op::Read { lba: Lba(lba), buffer: Buffer::zeroed(lbas) }).result,
        ];
        let all_refused = outcomes.iter().all(|result| *result == Err(DeviceError::OutOfRange));
        assert!(
            all_refused,
            "some operation on {lbas} blocks at {lba} of {count} is not refused: {outcomes:?}"
        );
    }
    let range = LbaRange { start: Lba(count - 1), end: Lba(count + 1) };
    let refused = run(device, Op::Deallocate { range }).result;
    assert_eq!(refused, Err(DeviceError::OutOfRange));
    assert!(read(device, count - 1, 1)[..] == before[..], "a refused operation changed a block");
    assert_eq!(device.geometry().lba_count, count);
}

fn hands_back_what_is_too_much(device: &mut dyn Device) {
    let most = u64::from(device.geometry().in_flight_max);
    assert!(most >= 1);
    for round in 0..2 {
        for token in 0..most {
            // Reads may overlap.
            let op = Op::Read { lba: Lba(token % CONTRACT_LBAS), buffer: Buffer::zeroed(1) };
            device.submit(Token(token), op).expect("there is room up to in_flight_max");
            assert_eq!(device.in_flight() as u64, token + 1);
        }
        let refused = device.submit(Token(most), write(0, pattern(1, 5), false));
        let Err(Op::Write { buffer, .. }) = refused else {
            panic!("round {round}: the device took more than in_flight_max operations")
        };
        assert!(buffer[..] == pattern(1, 5)[..], "the buffer comes back as it was");
        assert_eq!(device.in_flight() as u64, most);
        let mut tokens: Vec<u64> = drain(device).iter().map(|done| done.token.0).collect();
        tokens.sort_unstable();
        assert!(tokens.into_iter().eq(0..most), "each operation completes once");
    }
}

fn takes_every_kind_of_write_and_flush(device: &mut dyn Device) {
    // A flush works if nothing was written, and also twice in a row.
    assert_eq!(run(device, Op::Flush).result, Ok(()));
    assert_eq!(run(device, Op::Flush).result, Ok(()));
    for durable in [false, true] {
        for placement in [0, 1] {
            let placement = PlacementId(placement);
            let op = Op::Write { lba: Lba(7), buffer: pattern(2, 6), placement, durable };
            assert_eq!(run(device, op).result, Ok(()));
        }
        assert_eq!(run(device, Op::Flush).result, Ok(()));
    }
    // A flush is submitted while several durable writes are in flight.
    let some = u64::from(device.geometry().in_flight_max.min(8));
    for token in 0..some - 1 {
        device
            .submit(Token(token), write(token * 2, pattern(2, token), true))
            .expect("there is room");
    }
    device.submit(Token(some - 1), Op::Flush).expect("there is room");
    let completions = drain(device);
    assert_eq!(completions.len() as u64, some);
    assert!(completions.iter().all(|done| done.result == Ok(())));
    for token in 0..some - 1 {
        assert!(read(device, token * 2, 2)[..] == pattern(2, token)[..]);
    }
}

fn deallocated_blocks_can_be_used_again(device: &mut dyn Device) {
    run(device, write(20, pattern(30, 1), true));
    let range = LbaRange { start: Lba(25), end: Lba(45) };
    assert_eq!(run(device, Op::Deallocate { range }).result, Ok(()));
    let empty = LbaRange { start: Lba(25), end: Lba(25) };
    assert_eq!(run(device, Op::Deallocate { range: empty }).result, Ok(()));
    // The contents of deallocated blocks are undefined, but can be read. The blocks beside them are
    // untouched.
    let found = read(device, 20, 30);
    assert!(found[..5 * LBA_SIZE] == pattern(30, 1)[..5 * LBA_SIZE]);
    assert!(found[25 * LBA_SIZE..] == pattern(30, 1)[25 * LBA_SIZE..]);
    assert_eq!(run(device, write(30, pattern(4, 2), true)).result, Ok(()));
    assert!(read(device, 30, 4)[..] == pattern(4, 2)[..]);
}

fn grows_or_stays_as_it_is(device: &mut dyn Device) {
    let count = device.geometry().lba_count;
    run(device, write(count - 1, pattern(1, 8), false));
    for less in [0, 1, count] {
        assert_eq!(device.grow(less), Ok(()), "a device that is large enough stays as it is");
        assert_eq!(device.geometry().lba_count, count);
    }
    for too_much in [1 << 50, u64::MAX / LBA_SIZE as u64, u64::MAX] {
        assert_eq!(
            device.grow(too_much),
            Err(DeviceError::NoSpace),
            "a growth to {too_much} blocks is not refused"
        );
        assert_eq!(device.geometry().lba_count, count, "a refused growth has changed the size");
    }
    match device.grow(count + 100) {
        Ok(()) => {
            assert!(device.geometry().lba_count >= count + 100);
            assert_eq!(run(device, write(count + 97, pattern(3, 9), true)).result, Ok(()));
            assert!(read(device, count + 97, 3)[..] == pattern(3, 9)[..]);
        }
        Err(DeviceError::NoSpace) => assert_eq!(device.geometry().lba_count, count),
        Err(other) => panic!("growing fails: {other}"),
    }
    assert!(
        read(device, count - 1, 1)[..] == pattern(1, 8)[..],
        "the old blocks keep their contents"
    );
}

fn a_wait_ends(device: &mut dyn Device) {
    let mut completions = Vec::new();
    // Nothing is in flight, so these calls must return at once.
    device.wait(None, &mut completions);
    device.wait(Some(PATIENCE), &mut completions);
    device.poll(&mut completions);
    assert!(completions.is_empty());
    device.submit(Token(1), write(1, pattern(1, 1), true)).expect("nothing is in flight");
    let deadline = Instant::now() + PATIENCE;
    while completions.is_empty() {
        assert!(Instant::now() < deadline, "the write never completes");
        device.wait(Some(Duration::ZERO), &mut completions);
    }
    // A wait keeps the entries that `completions` has already.
    device.submit(Token(2), write(1, pattern(1, 2), true)).expect("nothing is in flight");
    device.wait(None, &mut completions);
    let tokens: Vec<Token> = completions.iter().map(|done| done.token).collect();
    assert_eq!(tokens, [Token(1), Token(2)]);
}

fn readiness_tells_of_completions(device: &mut dyn Device) {
    let readable = |device: &mut dyn Device, timeout| {
        device.readiness().map(|readiness| is_readable(readiness, timeout))
    };
    if device.readiness().is_none() {
        return;
    }
    let mut completions = Vec::new();
    let outside = device.geometry().lba_count;
    for round in 0..20_u64 {
        assert_eq!(
            readable(device, Duration::ZERO),
            Some(false),
            "round {round}: there is no completion yet"
        );
        // Every third operation is out of range, so it fails without I/O. Its completion must make
        // the descriptor readable, too.
        let lba = if round % 3 == 2 { outside } else { round };
        device.submit(Token(round), write(lba, pattern(1, round), true)).expect("there is room");
        device.kick();
        assert_eq!(
            readable(device, PATIENCE),
            Some(true),
            "round {round}: the descriptor never becomes readable"
        );
        let deadline = Instant::now() + PATIENCE;
        while completions.len() as u64 <= round {
            assert!(
                Instant::now() < deadline,
                "round {round}: the descriptor is readable, but a poll finds nothing"
            );
            device.poll(&mut completions);
        }
    }
    // The descriptor stays readable until every completion was taken.
    let some = device.geometry().in_flight_max.min(4);
    for token in 0..some {
        let lba = u64::from(token);
        device.submit(Token(lba), write(lba, pattern(1, lba), false)).expect("there is room");
    }
    device.kick();
    completions.clear();
    while completions.len() < some as usize {
        assert_eq!(
            readable(device, PATIENCE),
            Some(true),
            "the descriptor is not readable after {} of {some} completions",
            completions.len()
        );
        device.poll(&mut completions);
    }
    assert_eq!(readable(device, Duration::ZERO), Some(false));
}

fn what_is_queued_runs_after_a_kick(device: &mut dyn Device) {
    device.submit(Token(1), write(5, pattern(2, 3), false)).expect("nothing is in flight");
    device.kick();
    device.kick();
    let deadline = Instant::now() + PATIENCE;
    let mut completions = Vec::new();
    while completions.is_empty() {
        assert!(Instant::now() < deadline, "the write never completes after a kick");
        device.wait(Some(PATIENCE), &mut completions);
    }
    assert_eq!(completions[0].result, Ok(()));
    assert_eq!(device.in_flight(), 0);
}

fn may_be_dropped_in_flight(make: &mut dyn FnMut() -> Box<dyn Device>) {
    for kicked in [false, true] {
        let mut device = make();
        let most = u64::from(device.geometry().in_flight_max.min(16));
        for token in 0..most {
            run(&mut *device, write(token * 16, pattern(16, token), false));
        }
        for token in 0..most {
            let lba = token * 16;
            let op = if token % 2 == 0 {
                write(lba, pattern(16, token), token % 4 == 0)
            } else {
                Op::Read { lba: Lba(lba), buffer: Buffer::zeroed(16) }
            };
            device.submit(Token(token), op).expect("there is room");
        }
        if kicked {
            device.kick();
        }
        drop(device);
        // Suppose that the device freed a buffer while a read could still write into its memory.
        // Then one of these new buffers may get that memory, and the read would change the new
        // buffer.
        let fresh: Vec<Buffer> = (0..most as usize).map(|_| Buffer::zeroed(16)).collect();
        reads_what_was_written(&mut *make());
        assert!(fresh.iter().all(|buffer| buffer.iter().all(|&byte| byte == 0)));
    }
}

/// Compares the device with an array of blocks. Many operations are in flight at the same time. No
/// two of them overlap.
fn is_like_an_array(device: &mut dyn Device, seed: u64) {
    const OPERATIONS: u64 = 600;
    let mut random = Random::new(seed);
    let geometry = device.geometry();
    let depth = geometry.in_flight_max.min(16) as usize;
    // The seed of the last write to each block, and the block's position in that write.
    let mut array: HashMap<u64, (u64, usize)> = HashMap::new();
    let mut in_flight: HashMap<Token, (LbaRange, Option<u64>)> = HashMap::new();
    let mut completions = Vec::new();
    let mut token = 0;
    while token < OPERATIONS || !in_flight.is_empty() {
        while token < OPERATIONS && in_flight.len() < depth {
            let lbas = 1 + random.below(12);
            let start = random.below(CONTRACT_LBAS - lbas);
            let range = LbaRange { start: Lba(start), end: Lba(start + lbas) };
            let overlaps = |other: &LbaRange| range.start < other.end && other.start < range.end;
            if in_flight.values().any(|(other, _)| overlaps(other)) {
                break;
            }
            token += 1;
            let name = Token(token);
            let (op, written) = if random.below(2) == 0 {
                (Op::Read { lba: range.start, buffer: Buffer::zeroed(lbas as usize) }, None)
            } else {
                let durable = random.below(4) == 0;
                (write(start, pattern(lbas as usize, token), durable), Some(token))
            };
            device.submit(name, op).expect("there is room up to in_flight_max");
            in_flight.insert(name, (range, written));
            if random.below(3) == 0 {
                device.kick();
            }
        }
        if random.below(2) == 0 {
            device.kick();
            device.poll(&mut completions);
        } else {
            device.wait((random.below(2) == 0).then_some(PATIENCE), &mut completions);
        }
        for completion in completions.drain(..) {
            let (range, written) =
                in_flight.remove(&completion.token).expect("an operation completes once");
            assert_eq!(completion.result, Ok(()), "seed {seed}: an operation on {range:?} fails");
            let buffer = completion.buffer.expect("the buffer comes back");
            for (place, lba) in (range.start.0..range.end.0).enumerate() {
                let found = &buffer[place * LBA_SIZE..][..LBA_SIZE];
                if let Some(written) = written {
                    array.insert(lba, (written, place));
                } else if let Some((written, place)) = array.get(&lba) {
                    let expected = &pattern(place + 1, *written)[place * LBA_SIZE..];
                    assert!(found == expected, "seed {seed}: block {lba} differs");
                }
            }
        }
    }
    assert!(array.len() > CONTRACT_LBAS as usize / 2, "the test must cover most blocks");
}
