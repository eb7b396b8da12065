//! A path through io_uring, with a ring of its own and no worker thread.
//!
//! Submitted operations stay in the path until [`kick`](Device::kick) or [`wait`](Device::wait)
//! hands them to the kernel. If a caller waits without a timeout for a single operation and nothing
//! else is in flight, the path usually runs this operation as a plain system call
//! ([`would_run_here`](Device::would_run_here) checks the exact conditions). The reason is durable
//! writes to files: if the ring made such a write, the kernel would finish the write on another
//! thread, which costs a time slice when all cores are busy.

#![expect(unsafe_code, reason = "the trait `Memory` is unsafe to implement")]

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use slimio_planted::is_planted;
use slimio_ring::{Errno, Fd, Memory, OpId, Outcome, Ring, Width};

use crate::bulk::{Extras, Refusal, path_setup};
use crate::pool::{Pool, pooled_or_own};
use crate::target::{
    DEALLOCATE, Target, TargetKind, buffer_of, byte_offset, forgive_unsupported, is_unsupported,
};
use crate::{
    Buffer, Completion, Device, DeviceError, FilledHoles, Geometry, LBA_SIZE, Lba, LbaRange, Op,
    Polling, Token, WriteCache,
};

/// A path to a file or block device that uses io_uring.
pub(crate) struct UringPath {
    target: Target,
    polling: Polling,
    /// Buffers in memory that the ring has registered.
    pool: Option<Arc<Pool>>,
    ring: Ring<Pending, Buffer>,
    fd: Fd,
    /// Operations that were submitted, but were not kicked yet.
    queued: VecDeque<(Token, Op)>,
    in_flight: usize,
    /// Completions that wait for an operation of the ring: a flush, or an empty operation. When the
    /// operation of the ring ends, `poll` reports the completion.
    held: Vec<(OpId, Completion)>,
    /// Completions just reaped from the ring. The vector is kept so that its memory is reused.
    reaped: Vec<slimio_ring::Completion<Pending, Buffer>>,
}

/// What an operation of the ring is for: which operation of the path, and which step of it.
#[derive(Clone, Copy, Debug)]
struct Pending {
    token: Token,
    step: Step,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Read,
    Write {
        lba: Lba,
        durable: bool,
        stream: u8,
    },
    Flush,
    Deallocate,
    /// The last step of an operation whose completion is in `held`.
    Held,
}

// SAFETY: a buffer's bytes are initialised, belong to this buffer alone, and do not move when the
// buffer moves.
unsafe impl Memory for Buffer {
    fn address(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn size(&self) -> usize {
        self.len()
    }
}

fn new_ring(target: &Target, extras: &Extras) -> Result<Ring<Pending, Buffer>, Refusal> {
    let mut ring =
        Ring::new(path_setup(target.in_flight_max, extras.polling)).map_err(Refusal::Ring)?;
    if let Some(pool) = &extras.pool {
        pool.register(&mut ring).map_err(Refusal::Memory)?;
    }
    if let Some(claim) = &target.claim {
        claim.be_held_by(&mut ring)?;
    }
    Ok(ring)
}

impl UringPath {
    /// # Errors
    /// When the path can't get its ring. The error has the target and the reason.
    pub(crate) fn new(target: Target, extras: &Extras) -> Result<Self, (Target, Refusal)> {
        let made = new_ring(&target, extras).and_then(|ring| {
            let file = target.file.try_clone().map_err(|error| Refusal::of_file(&error));
            Ok((ring, OwnedFd::from(file?)))
        });
        let (mut ring, file) = match made {
            Ok(made) => made,
            Err(refusal) => return Err((target, refusal)),
        };
        let fd = ring.adopt(file);
        let Extras { polling, pool } = extras.clone();
        Ok(Self {
            target,
            polling,
            pool,
            ring,
            fd,
            queued: VecDeque::new(),
            in_flight: 0,
            held: Vec::new(),
            reaped: Vec::new(),
        })
    }

    fn enter(&mut self, min: usize, timeout: Option<Duration>) {
        enter(&mut self.ring, min, timeout);
    }

    fn begin(&mut self, token: Token, op: Op) {
        if let Err(error) = self.target.check(&op) {
            self.hold(Completion { token, buffer: buffer_of(op), result: Err(error) });
            return;
        }
        if is_empty(&op) {
            self.hold(Completion { token, buffer: None, result: Ok(()) });
            return;
        }
        // A ring that polls for completions accepts only reads and writes, so this thread runs all
        // other operations itself.
        if self.polling.completions && matches!(op, Op::Flush | Op::Deallocate { .. }) {
            let (buffer, result) = self.target.run(op);
            self.hold(Completion { token, buffer, result });
            return;
        }
        let (ring, fd) = (&mut self.ring, self.fd);
        match op {
            Op::Read { lba, buffer } => {
                let pending = Pending { token, step: Step::Read };
                ring.read(fd, buffer, byte_offset(lba), pending);
            }
            Op::Write { lba, buffer, durable, placement } => {
                self.write(token, lba, buffer, durable, self.target.stream(placement));
            }
            Op::Flush => {
                ring.flush(fd, false, Pending { token, step: Step::Flush });
            }
            Op::Deallocate { range } => {
                let size = (range.end.0 - range.start.0) * LBA_SIZE as u64;
                let pending = Pending { token, step: Step::Deallocate };
                ring.allocate(fd, DEALLOCATE, byte_offset(range.start), size, pending);
            }
        }
    }

    fn write(&mut self, token: Token, lba: Lba, buffer: Buffer, durable: bool, stream: u8) {
        let pending = Pending { token, step: Step::Write { lba, durable, stream } };
        let at_once = durable && self.target.has_durable_writes;
        let offset = byte_offset(lba);
        self.ring.write_to_stream(self.fd, buffer, offset, at_once, stream, pending);
    }

    /// Completes an operation that is not handed to the kernel. In its place, the ring gets an
    /// empty operation. The end of the empty operation makes the ring's descriptor readable, and
    /// `poll` then returns the completion.
    fn hold(&mut self, completion: Completion) {
        let pending = Pending { token: completion.token, step: Step::Held };
        let op = self.ring.nothing(self.fd, pending);
        self.held.push((op, completion));
    }

    /// The completion to report for a step that has ended; `None` when another step follows.
    fn settle(&mut self, op: OpId, step: Step, mut completion: Completion) -> Option<Completion> {
        match step {
            Step::Read | Step::Flush => {}
            Step::Deallocate => completion.result = forgive_unsupported(completion.result),
            Step::Write { lba, durable: true, stream } if is_unsupported(&completion.result) => {
                self.target.has_durable_writes = false;
                let buffer = completion.buffer.expect("a write brings its buffer back");
                self.write(completion.token, lba, buffer, true, stream);
                return None;
            }
            Step::Write { durable, .. } => {
                if durable && !self.target.has_durable_writes && completion.result.is_ok() {
                    if self.polling.completions {
                        completion.result = self.target.flush();
                        return Some(completion);
                    }
                    let pending = Pending { token: completion.token, step: Step::Held };
                    let flush = self.ring.flush(self.fd, false, pending);
                    self.held.push((flush, completion));
                    return None;
                }
            }
            Step::Held => {
                let place = self.held.iter().position(|(held, _)| *held == op);
                let (_, held) = self.held.swap_remove(place.expect("the completion is held"));
                let result = held.result.and(completion.result);
                return Some(Completion { result, ..held });
            }
        }
        Some(completion)
    }
}

impl Device for UringPath {
    fn geometry(&self) -> Geometry {
        self.target.geometry()
    }

    fn buffer(&mut self, lbas: usize) -> Buffer {
        pooled_or_own(self.pool.as_ref(), lbas)
    }

    fn submit(&mut self, token: Token, op: Op) -> Result<(), Op> {
        if self.in_flight >= self.target.in_flight_max as usize {
            return Err(op);
        }
        self.in_flight += 1;
        self.queued.push_back((token, op));
        Ok(())
    }

    fn kick(&mut self) {
        while let Some((token, op)) = self.queued.pop_front() {
            self.begin(token, op);
        }
        self.enter(0, None);
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let mut reaped = std::mem::take(&mut self.reaped);
        self.ring.reap(&mut reaped);
        for slimio_ring::Completion { op, payload, outcome, .. } in reaped.drain(..) {
            let (buffer, result) = match outcome {
                Outcome::Transferred { memory, result } => {
                    (Some(memory), result.map_err(DeviceError::from))
                }
                Outcome::Done(result) => (None, result.map_err(DeviceError::from)),
                other => unreachable!("no operation of a path ends like this: {other:?}"),
            };
            let result = untaken(&self.ring, result);
            let completion = Completion { token: payload.token, buffer, result };
            if let Some(completion) = self.settle(op, payload.step, completion) {
                self.in_flight -= 1;
                completions.push(completion);
            }
        }
        self.reaped = reaped;
        // Hands the next steps of operations to the kernel, and also the operations for which the
        // kernel had no memory before.
        if self.has_unsubmitted() && !is_planted("untaken-rests") {
            self.enter(0, None);
        }
    }

    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        if timeout.is_none()
            && self.would_run_here()
            && let Some((token, op)) = self.queued.pop_front()
        {
            let (buffer, result) = self.target.run(op);
            self.in_flight = 0;
            completions.push(Completion { token, buffer, result });
            return;
        }
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let before = completions.len();
        while let Some((token, op)) = self.queued.pop_front() {
            self.begin(token, op);
        }
        while self.in_flight > 0 {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            self.enter(1, left);
            self.poll(completions);
            if completions.len() > before || left.is_some_and(|left| left.is_zero()) {
                return;
            }
        }
    }

    fn would_run_here(&self) -> bool {
        let front = self.queued.front();
        self.in_flight == 1
            && !self.polling.is_any()
            && front.is_some_and(|(_, op)| costs_less_as_plain_call(&self.target, op))
    }

    fn has_unsubmitted(&mut self) -> bool {
        self.ring.has_unsubmitted()
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.ring.readiness()
    }

    fn grow(&mut self, lba_count: u64) -> Result<(), DeviceError> {
        self.target.grow(lba_count)
    }

    fn shrink(&mut self, lba_count: u64) -> Result<(), DeviceError> {
        self.target.shrink(lba_count)
    }

    fn fill_holes(&mut self, range: LbaRange) -> Result<FilledHoles, DeviceError> {
        self.target.fill_holes(range)
    }

    fn free_space(&self) -> Option<u64> {
        self.target.free_space()
    }

    fn empty_holes(&mut self, filled: &FilledHoles) {
        self.target.empty_holes(filled);
    }
}

/// Once the kernel accepts no more operations, a waiting path pauses for this long before it looks
/// for completions again.
const LOOK_PAUSE: Duration = Duration::from_millis(1);

/// Hands to the kernel all operations that are queued in a ring. Then waits for `min` completions,
/// at most for `timeout`. Every path with a ring uses this function.
pub(crate) fn enter<T: Copy, M: Memory, W: Width>(
    ring: &mut Ring<T, M, W>,
    min: usize,
    timeout: Option<Duration>,
) {
    // If the kernel has no memory for an operation at the moment, the operation stays queued for
    // the next call. If the kernel accepts no operations at all any more, the queued operations end
    // with an error. From then on, the call below no longer waits for operations that the kernel
    // already has, so this thread sleeps a moment instead.
    if ring.submit_and_wait(min, timeout).is_err()
        && ring.refused().is_some()
        && min > 0
        && timeout != Some(Duration::ZERO)
    {
        std::thread::sleep(LOOK_PAUSE);
    }
}

/// If the kernel did not accept the operation, replaces the error by [`DeviceError::Untaken`].
pub(crate) fn untaken<T: Copy, M: Memory, W: Width>(
    ring: &Ring<T, M, W>,
    result: Result<(), DeviceError>,
) -> Result<(), DeviceError> {
    match (result, ring.refused().map(Errno::number)) {
        (Err(DeviceError::Io { errno }), Some(refused)) if errno == refused => {
            Err(DeviceError::Untaken { errno })
        }
        (result, _) => result,
    }
}

/// Whether a single operation costs less as a plain system call than through the ring.
fn costs_less_as_plain_call(target: &Target, op: &Op) -> bool {
    // A plain call can't name a write stream.
    if target.write_streams > 0 {
        return false;
    }
    // If a durable write to a block device goes through the ring, the kernel uses only FUA. For a
    // plain call, the kernel also flushes. The flush is a second command for the device, and this
    // thread sleeps a second time.
    let flushes_needlessly =
        target.kind == TargetKind::BlockDevice && target.write_cache != WriteCache::Stable;
    !(flushes_needlessly && matches!(op, Op::Write { durable: true, .. }))
}

/// Whether an operation has an empty range, which the kernel would reject.
fn is_empty(op: &Op) -> bool {
    matches!(op, Op::Deallocate { range } if range.start == range.end)
}

#[cfg(test)]
mod tests {
    use std::fs::{File, TryLockError};
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::claim::Claim;
    use crate::{CLAIM_FILE_NAME, PlacementId};

    /// A path to a file of eight blocks. Its target says that the kernel can't make a write durable
    /// without a flush.
    fn path() -> Option<UringPath> {
        let file = tempfile::tempfile().expect("a file for the test");
        file.set_len(8 * LBA_SIZE as u64).expect("the file can be made longer");
        let target = Target {
            write_streams: 0,
            file,
            claim: None,
            path: "file".into(),
            kind: TargetKind::File,
            lba_count: Arc::new(AtomicU64::new(8)),
            mapped: Arc::default(),
            write_cache: WriteCache::Unknown,
            in_flight_max: 4,
            overwrites_in_place: true,
            has_durable_writes: false,
        };
        match UringPath::new(target, &Extras::default()) {
            Ok(path) => Some(path),
            Err((_, refused)) => {
                eprintln!("SKIPPED: {refused}");
                None
            }
        }
    }

    fn write(path: &mut UringPath, lba: u64, byte: u8) {
        let mut buffer = Buffer::zeroed(1);
        buffer.fill(byte);
        let placement = PlacementId::default();
        let op = Op::Write { lba: Lba(lba), buffer, placement, durable: true };
        path.submit(Token(lba), op).expect("the queue is not full");
    }

    #[test]
    fn what_the_kernel_has_not_taken_is_handed_over_again() {
        let Some(mut path) = path() else { return };
        let (mut completions, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(5));
        write(&mut path, 1, 7);
        // The two calls below put the operation into the state of a kicked operation for which the
        // kernel had no memory.
        let (token, op) = path.queued.pop_front().expect("the operation was submitted");
        path.begin(token, op);
        while completions.is_empty() {
            assert!(Instant::now() < deadline, "the kernel did not get the operation within 5 s");
            path.poll(&mut completions);
            std::thread::yield_now();
        }
        assert_eq!(path.in_flight(), 0);
    }

    #[test]
    fn a_ring_alone_keeps_the_claim() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let other = File::create(place.path().join(CLAIM_FILE_NAME)).expect("the file can be made");
        let is_held = || matches!(other.try_lock(), Err(TryLockError::WouldBlock));
        let idle = Some(Duration::from_millis(2));
        for submissions_idle in [None, idle] {
            let polling = Polling { submissions_idle, completions: false };
            let Some(UringPath { mut target, .. }) = path() else { return };
            target.claim = Some(Claim::of_directory(place.path()).expect("the claim is free"));
            let path = UringPath::new(target, &Extras { polling, pool: None });
            let mut path = path.map_err(|(_, refusal)| refusal).expect("a ring can be made again");
            // Now only the ring keeps the claim, as after the end of a process with an operation in
            // flight.
            path.target.claim = None;
            assert!(is_held(), "a ring that polls for {polling} has lost the claim");
            drop(path);
            assert!(!is_held(), "the claim outlives a ring that polls for {polling}");
            other.unlock().expect("`is_held` has locked the file");
        }
    }

    #[test]
    fn a_placement_is_a_stream_if_the_device_has_that_many() {
        let Some(mut path) = path() else { return };
        assert_eq!(path.target.stream(PlacementId(1)), 0, "the device has no streams");
        path.target.write_streams = 2;
        let streams = [0, 1, 2, 3, 256].map(|id| path.target.stream(PlacementId(id)));
        assert_eq!(streams, [0, 1, 2, 0, 0]);
        // The write below names a stream, but a file ignores streams.
        write(&mut path, 1, 7);
        let mut completions = Vec::new();
        while completions.is_empty() {
            path.wait(None, &mut completions);
        }
        assert_eq!(completions[0].result, Ok(()));
    }

    /// Whether a single operation goes through the ring. To find out, `/dev/null` replaces the
    /// path's file: the ring still has the original file, but a plain call uses `/dev/null` and
    /// fails.
    fn goes_through_the_ring(path: &mut UringPath, op: Op) -> bool {
        path.target.file = std::fs::File::open("/dev/null").expect("Linux has /dev/null");
        path.submit(Token(0), op).expect("the queue is not full");
        let mut completions = Vec::new();
        while completions.is_empty() {
            path.wait(None, &mut completions);
        }
        completions.remove(0).result.is_ok()
    }

    #[test]
    fn a_durable_write_to_a_block_device_goes_through_the_ring() {
        let Some(mut path) = path() else { return };
        path.target.has_durable_writes = true;
        let path = &mut path;
        let write = |durable| Op::Write {
            lba: Lba(0),
            buffer: Buffer::zeroed(1),
            placement: PlacementId::default(),
            durable,
        };
        assert!(!goes_through_the_ring(path, write(true)), "a write to a file is a plain call");
        path.target.kind = TargetKind::BlockDevice;
        assert!(goes_through_the_ring(path, write(true)));
        assert!(!goes_through_the_ring(path, write(false)));
        assert!(!goes_through_the_ring(path, Op::Flush));
        path.target.write_cache = WriteCache::Stable;
        assert!(!goes_through_the_ring(path, write(true)), "a stable cache needs no flush");
        path.target.write_streams = 2;
        assert!(goes_through_the_ring(path, write(false)), "only the ring can name a stream");
    }

    #[test]
    fn a_flush_follows_where_a_write_can_not_be_durable() {
        let Some(mut path) = path() else { return };
        for lba in 0..4 {
            write(&mut path, lba, 1);
        }
        path.kick();
        let mut completions = Vec::new();
        let mut flushes = 0;
        while completions.len() < 4 {
            path.wait(Some(Duration::ZERO), &mut completions);
            flushes = flushes.max(path.held.len());
            assert_eq!(path.in_flight() + completions.len(), 4);
        }
        assert!(flushes > 0, "some write waits for a flush");
        assert!(path.held.is_empty());
        for completion in completions {
            assert_eq!(completion.result, Ok(()));
            assert_eq!(completion.buffer.expect("a write returns its buffer")[..], [1; LBA_SIZE]);
        }
    }

    #[test]
    fn a_write_that_is_refused_as_durable_is_done_otherwise() {
        let Some(mut path) = path() else { return };
        path.target.has_durable_writes = true;
        let refused = Completion {
            token: Token(3),
            buffer: Some(Buffer::zeroed(1)),
            result: Err(DeviceError::Io { errno: libc::EOPNOTSUPP }),
        };
        let other = Completion { token: Token(9), buffer: None, result: Ok(()) };
        path.hold(other);
        path.in_flight += 2;
        let step = Step::Write { lba: Lba(3), durable: true, stream: 0 };
        assert!(
            path.settle(path.held[0].0, step, refused).is_none(),
            "an ordinary write and a flush follow, so there is no completion yet"
        );
        assert!(!path.target.has_durable_writes, "the path stops asking for durable writes");
        let mut completions = Vec::new();
        while path.in_flight() > 0 {
            path.wait(None, &mut completions);
        }
        completions.sort_by_key(|completion| completion.token);
        assert_eq!(completions[0].token, Token(3));
        assert_eq!(completions[0].result, Ok(()));
        assert!(completions[0].buffer.is_some());
    }
}
