//! The I/O commands that may need several operations of the drive: Write Zeroes and Dataset
//! Management.

use std::collections::VecDeque;

use slimio_device::{Buffer, Lba, LbaRange, Op};
use slimio_nvme::command::{DSM_DEALLOCATE, DSM_RANGES_MAX, DsmRange, WriteFlags};
use slimio_nvme::{Command, Status};
use slimio_planted::is_planted;
use slimio_ssd::trace::TraceEvent;

use super::Session;
use super::slots::{Work, range_of};
use crate::limits::{DEALLOCATED_AT_ONCE_LBAS, DEALLOCATIONS_MAX, ZEROED_AT_ONCE_LBAS};
use crate::refusal::Refusal;
use crate::trace;

impl Session {
    /// Begins the command Write Zeroes, by a deallocation or by writes.
    pub(super) fn write_zeroes(&mut self, slot: u16, command: &Command) -> Result<(), Refusal> {
        let flags = WriteFlags::of(command);
        let (lba, lbas) = (command.slba(), u64::from(command.block_count()));
        self.record(slot, &TraceEvent::WriteZeros { range: trace::range_of(lba, lbas) });
        let rest = range_of(lba, lbas);
        let durable = self.is_durable(flags);
        // The drive has no durable deallocation. So if the zeros must be durable, and the drive has
        // a volatile cache, the zeros are written.
        let is_volatile = durable && self.subsystem.has_cache;
        if flags.deallocate && self.subsystem.reads_zeros() && !is_volatile {
            self.begin_deallocations(slot, vec![rest]);
            return Ok(());
        }
        let placement = self.placement_of(command)?;
        self.wait_for_buffer(slot);
        self.slots.set_work(slot, Work::Zeroing { rest, placement, durable });
        Ok(())
    }

    /// Begins to write the zeros of a command, once the command has its buffer.
    pub(super) fn start_zeros(&mut self, slot: u16) {
        let mut buffer = self.slots.of(slot).buffer.take().expect("the command was given a buffer");
        buffer.fill(0);
        self.zero_more(slot, buffer);
    }

    /// Writes the next zeros of a command from a buffer of zeros, or ends the command.
    pub(super) fn zero_more(&mut self, slot: u16, mut buffer: Buffer) {
        let Work::Zeroing { rest, placement, durable } = &mut self.slots.of(slot).work else {
            unreachable!("only Write Zeroes writes zeros")
        };
        let lbas = (rest.end.0 - rest.start.0).min(ZEROED_AT_ONCE_LBAS);
        if lbas == 0 {
            self.buffers.give(buffer);
            self.finish(slot, 0, Status::SUCCESS);
            return;
        }
        let (lba, placement, durable) = (rest.start, *placement, *durable);
        rest.start = Lba(lba.0 + lbas);
        // The last operation may have fewer blocks.
        buffer.set_len_lbas(lbas as usize);
        // The target's `Counts` do not include these writes.
        self.push_operation(slot, Op::Write { lba, buffer, placement, durable });
    }

    /// Begins the command Dataset Management. All ranges are checked before any range is
    /// deallocated.
    pub(super) fn deallocate(
        &mut self,
        slot: u16,
        command: &Command,
        data: &[u8],
    ) -> Result<(), Refusal> {
        let count = (command.dword(10) & 0xff) as usize + 1;
        debug_assert!(count <= DSM_RANGES_MAX, "the number of ranges has eight bits");
        let mut ranges: Vec<LbaRange> = Vec::with_capacity(count);
        for bytes in data.chunks_exact(DsmRange::SIZE).take(count) {
            let range = DsmRange::decode(bytes).expect("a chunk is as long as a range");
            if !is_planted("target-ranges-unchecked") {
                self.check_range(range.slba, range.nlb.into(), Refusal::NOWHERE)?;
            }
            if range.nlb > 0 {
                ranges.push(range_of(range.slba, range.nlb.into()));
            }
        }
        if ranges.is_empty() || command.dword(11) & DSM_DEALLOCATE == 0 {
            self.finish(slot, 0, Status::SUCCESS);
            return Ok(());
        }
        for range in &ranges {
            let (lba, lbas) = (range.start.0, range.end.0 - range.start.0);
            self.record(slot, &TraceEvent::Deallocate { range: trace::range_of(lba, lbas) });
        }
        self.begin_deallocations(slot, ranges);
        Ok(())
    }

    fn begin_deallocations(&mut self, slot: u16, ranges: Vec<LbaRange>) {
        let ranges = VecDeque::from(ranges);
        self.slots.set_work(slot, Work::Deallocating { ranges, running: 0, failed: None });
        self.deallocating.push_back(slot);
        self.deallocate_more();
    }

    /// Begins deallocations, in the order of their commands, up to the limit of
    /// [`DEALLOCATIONS_MAX`] in flight.
    fn deallocate_more(&mut self) {
        while let Some(&slot) = self.deallocating.front()
            && (self.deallocations < DEALLOCATIONS_MAX
                || is_planted("target-deallocations-unbounded"))
        {
            let Work::Deallocating { ranges, running, .. } = &mut self.slots.of(slot).work else {
                unreachable!("only commands that deallocate are in `deallocating`")
            };
            let rest = ranges.front_mut().expect("a command in `deallocating` has a range left");
            let lbas = (rest.end.0 - rest.start.0).min(DEALLOCATED_AT_ONCE_LBAS);
            let range = range_of(rest.start.0, lbas);
            rest.start = range.end;
            if rest.start == rest.end {
                ranges.pop_front();
            }
            *running += 1;
            if ranges.is_empty() {
                self.deallocating.pop_front();
            }
            self.deallocations += 1;
            self.push_operation(slot, Op::Deallocate { range });
        }
    }

    /// Continues a command after one of its deallocations, and begins deallocations that wait.
    pub(super) fn end_deallocation(&mut self, slot: u16, status: Status) {
        let Work::Deallocating { ranges, running, failed } = &mut self.slots.of(slot).work else {
            unreachable!("the command of a deallocation is in this state")
        };
        *running -= 1;
        if !status.is_success() {
            *failed = Some(status);
        }
        let status = failed.unwrap_or(Status::SUCCESS);
        let is_last = *running == 0 && ranges.is_empty();
        self.deallocations -= 1;
        if is_last {
            self.finish(slot, 0, status);
        }
        self.deallocate_more();
    }
}
