//! A queue's commands that have not been answered yet.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use slimio_device::{Buffer, Lba, LbaRange, PlacementId};
use slimio_nvme::{Command, Status};

/// A command and its state.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) command: Command,
    /// When the command and all its data had arrived.
    pub(super) arrived: Instant,
    pub(super) work: Work,
    /// Data from the host or for the host.
    pub(super) buffer: Option<Buffer>,
    /// For a comparison: a buffer for the drive's data, which is compared with the host's data.
    pub(super) found: Option<Buffer>,
    /// Data for the host that does not come from the drive.
    pub(super) data: Vec<u8>,
    /// Whether the command's data goes to the host.
    pub(super) is_to_host: bool,
}

/// The state of a command.
#[derive(Debug)]
pub(super) enum Work {
    /// The slot has no command.
    Free,
    /// The command has begun, and its next step is not decided yet.
    Begun,
    /// The command waits for a buffer.
    Waiting,
    /// The host is sending the command's data.
    Receiving {
        received: usize,
        /// Whether the command fails once all its data has come, because a data digest was wrong or
        /// the controller was reset meanwhile.
        is_void: bool,
        /// When data of this command last came, or when the host was asked for the data.
        touched: Instant,
    },
    /// The command's only operation was passed to the drive.
    Running,
    /// The drive reads data that will be compared with `host`.
    Comparing { host: Buffer },
    /// The drive writes zeros. `rest` is the range that is left after the present operation.
    Zeroing { rest: LbaRange, placement: PlacementId, durable: bool },
    /// The drive deallocates ranges, in `running` operations at once. `ranges` are the ranges that
    /// are left. `failed` is the status of an operation that has failed.
    Deallocating { ranges: VecDeque<LbaRange>, running: usize, failed: Option<Status> },
    /// The command is a request for an asynchronous event, and waits for an event.
    Event,
    /// The command has ended.
    Done { result: u64, status: Status },
}

/// All slots of a queue. A slot's number is its place in `all`.
#[derive(Debug)]
pub(super) struct Slots {
    all: Vec<Slot>,
    free: Vec<u16>,
    /// A bit for each command identifier that is in use.
    cids: Box<[u64; 1024]>,
    receiving: usize,
}

fn bit_of(cid: u16) -> (usize, u64) {
    (usize::from(cid) / 64, 1 << (cid % 64))
}

impl Slots {
    /// The slots of a queue with `depth` entries.
    pub(super) fn new(depth: u16) -> Self {
        Self {
            all: Vec::new(),
            free: (0..depth).rev().collect(),
            cids: Box::new([0; 1024]),
            receiving: 0,
        }
        .filled(depth)
    }

    fn filled(mut self, depth: u16) -> Self {
        let now = Instant::now();
        self.all.resize_with(depth.into(), || Slot {
            command: Command::default(),
            arrived: now,
            work: Work::Free,
            buffer: None,
            found: None,
            data: Vec::new(),
            is_to_host: false,
        });
        self
    }

    /// Number of the queue's entries.
    pub(super) fn depth(&self) -> u16 {
        self.all.len() as u16
    }

    /// Adds slots, up to `depth`. Commands keep their slots.
    pub(super) fn grow(&mut self, depth: u16) {
        let before = self.depth();
        assert!(depth >= before, "a queue only grows");
        self.free.extend((before..depth).rev());
        let more = Self::new(0).filled(depth - before).all;
        self.all.extend(more);
    }

    /// Whether a command with this identifier is in flight.
    pub(super) fn has_cid(&self, cid: u16) -> bool {
        let (word, bit) = bit_of(cid);
        self.cids[word] & bit != 0
    }

    /// Gives a command a slot, and returns the slot's number. `None` if the queue is full.
    pub(super) fn take(&mut self, command: Command, now: Instant) -> Option<u16> {
        let number = self.free.pop()?;
        let (word, bit) = bit_of(command.cid);
        self.cids[word] |= bit;
        let slot = &mut self.all[usize::from(number)];
        slot.command = command;
        slot.arrived = now;
        slot.work = Work::Begun;
        slot.is_to_host = false;
        Some(number)
    }

    /// Frees a slot, and returns its contents.
    pub(super) fn free(&mut self, number: u16) -> Slot {
        let slot = &mut self.all[usize::from(number)];
        assert!(!matches!(slot.work, Work::Free), "only a slot that has a command is freed");
        let (word, bit) = bit_of(slot.command.cid);
        self.cids[word] &= !bit;
        self.free.push(number);
        self.receiving -= usize::from(matches!(slot.work, Work::Receiving { .. }));
        Slot {
            command: slot.command,
            arrived: slot.arrived,
            work: std::mem::replace(&mut slot.work, Work::Free),
            buffer: slot.buffer.take(),
            found: slot.found.take(),
            data: std::mem::take(&mut slot.data),
            is_to_host: slot.is_to_host,
        }
    }

    pub(super) fn command(&self, number: u16) -> Command {
        self.all[usize::from(number)].command
    }

    pub(super) fn get(&mut self, number: u16) -> Option<&mut Slot> {
        self.all.get_mut(usize::from(number))
    }

    /// The slot with this number. Panics if the slot does not exist, so the number must not come
    /// from the host.
    pub(super) fn of(&mut self, number: u16) -> &mut Slot {
        &mut self.all[usize::from(number)]
    }

    pub(super) fn set_work(&mut self, number: u16, work: Work) {
        let slot = &mut self.all[usize::from(number)];
        self.receiving += usize::from(matches!(work, Work::Receiving { .. }));
        self.receiving -= usize::from(matches!(slot.work, Work::Receiving { .. }));
        slot.work = work;
    }

    /// Whether the host was asked for the data of at least one command, and has not sent all of it.
    pub(super) fn is_receiving(&self) -> bool {
        self.receiving > 0
    }

    /// Whether some transfer has got no data for at least `limit`.
    pub(super) fn is_stalled(&self, now: Instant, limit: Duration) -> bool {
        self.all.iter().any(|slot| match slot.work {
            Work::Receiving { touched, .. } => now >= touched + limit,
            _ => false,
        })
    }

    /// The slot of some command that waits for an asynchronous event or for a buffer.
    pub(super) fn waiting(&self) -> Option<u16> {
        let waits = |slot: &Slot| matches!(slot.work, Work::Event | Work::Waiting);
        self.all.iter().position(waits).map(|number| number as u16)
    }

    /// Marks all commands whose data the host is still sending, so that they fail once their data
    /// has come.
    pub(super) fn void_received(&mut self) {
        for slot in &mut self.all {
            if let Work::Receiving { is_void, .. } = &mut slot.work {
                *is_void = true;
            }
        }
    }

    /// The slot of some command that asks for an asynchronous event.
    pub(super) fn event(&self) -> Option<u16> {
        let is_event = |slot: &Slot| matches!(slot.work, Work::Event);
        self.all.iter().position(is_event).map(|number| number as u16)
    }

    /// Number of commands that ask for an asynchronous event.
    pub(super) fn event_count(&self) -> usize {
        self.all.iter().filter(|slot| matches!(slot.work, Work::Event)).count()
    }

    /// The slot of the command with this identifier, if it asks for an asynchronous event.
    pub(super) fn event_with(&self, cid: u16) -> Option<u16> {
        let is_it = |slot: &Slot| matches!(slot.work, Work::Event) && slot.command.cid == cid;
        self.all.iter().position(is_it).map(|number| number as u16)
    }
}

/// The range of `lbas` blocks from `lba` on.
pub(super) fn range_of(lba: u64, lbas: u64) -> LbaRange {
    LbaRange { start: Lba(lba), end: Lba(lba + lbas) }
}
