//! Commands of I/O queues.

use std::time::Instant;

use slimio_device::{
    Buffer, Completion as DriveCompletion, DeviceError, LBA_SIZE, Lba, Op, PlacementId, Token,
};
use slimio_nvme::command::{DIRECTIVE_DATA_PLACEMENT, DsmRange, WriteFlags};
use slimio_nvme::feature::event;
use slimio_nvme::log::lid;
use slimio_nvme::{Command, NSID_ALL, Status, fdp, opcode};
use slimio_planted::is_planted;
use slimio_ssd::FtlError;
use slimio_ssd::trace::TraceEvent;

use super::slots::Work;
use super::transfer::DataSize;
use super::{Operation, Phase, Session};
use crate::limits::TRANSFER_SIZE_MAX;
use crate::refusal::Refusal;
use crate::reply::Reply;
use crate::subsystem::NSID;
use crate::{logs, trace};

/// Offsets in the command of three fields that a refusal can name: the first block, the number of
/// blocks, and the directive.
const SLBA_AT: u16 = 40;
const NLB_AT: u16 = 48;
const DTYPE_AT: u16 = 50;
/// Offsets in the I/O Management commands of two such fields: the operation, and its parameter.
const MO_AT: u16 = 40;
const MOS_AT: u16 = 42;

impl Session {
    /// The direction and size of the data of an I/O queue's command, if the command is possible.
    pub(super) fn io_data_size(&self, command: &Command) -> Result<DataSize, Refusal> {
        use opcode::nvm;

        let is_known = match command.opcode {
            nvm::FLUSH
            | nvm::WRITE
            | nvm::READ
            | nvm::COMPARE
            | nvm::WRITE_ZEROES
            | nvm::DATASET_MANAGEMENT => true,
            nvm::IO_MANAGEMENT_RECEIVE | nvm::IO_MANAGEMENT_SEND => self.subsystem.has_fdp(),
            _ => false,
        };
        if !is_known {
            return Err(Refusal::opcode());
        }
        let is_for_all = command.opcode == nvm::FLUSH && command.nsid == NSID_ALL;
        if command.nsid != NSID && !is_for_all {
            return Err(Refusal::namespace());
        }
        match command.opcode {
            nvm::READ => Ok(DataSize::ToHost(self.transfer_size(command)?)),
            nvm::WRITE | nvm::COMPARE => {
                let size = self.transfer_size(command)?;
                self.placement_of(command)?;
                Ok(DataSize::FromHost(size))
            }
            nvm::WRITE_ZEROES => {
                // The largest Write Zeroes is as long as the longest transfer: WZSL equals MDTS.
                self.transfer_size(command)?;
                self.placement_of(command)?;
                Ok(DataSize::None)
            }
            nvm::DATASET_MANAGEMENT => {
                let count = (command.dword(10) & 0xff) as usize + 1;
                Ok(DataSize::FromHostAtLeast(count * DsmRange::SIZE))
            }
            nvm::IO_MANAGEMENT_RECEIVE => {
                let asked = fdp::IoManagement::of(command);
                check_operation(&asked)?;
                if asked.size > TRANSFER_SIZE_MAX as u64 {
                    return Err(Refusal::field(44));
                }
                Ok(DataSize::ToHost(asked.size as usize))
            }
            nvm::IO_MANAGEMENT_SEND => {
                let asked = fdp::IoManagement::of(command);
                check_operation(&asked)?;
                let count = usize::from(asked.specific) + 1;
                if count > fdp::PLACEMENTS_MAX {
                    return Err(Refusal::field(MOS_AT));
                }
                Ok(DataSize::FromHostAtLeast(count * 2))
            }
            _ => Ok(DataSize::None),
        }
    }

    /// Number of bytes that a command reads or writes. The command is refused if its range is not
    /// within the namespace, or is longer than the longest transfer.
    fn transfer_size(&self, command: &Command) -> Result<usize, Refusal> {
        let lbas = command.block_count();
        let size = lbas as usize * LBA_SIZE;
        if size > TRANSFER_SIZE_MAX {
            return Err(Refusal::field(NLB_AT));
        }
        self.check_range(command.slba(), lbas.into(), SLBA_AT)?;
        Ok(size)
    }

    pub(super) fn check_range(&self, lba: u64, lbas: u64, byte: u16) -> Result<(), Refusal> {
        match lba.checked_add(lbas) {
            Some(end) if end <= self.subsystem.lba_count => Ok(()),
            Some(_) if is_planted("range-not-checked") => Ok(()),
            _ => Err(Refusal::at(Status::LBA_OUT_OF_RANGE, byte)),
        }
    }

    /// The placement id of a write. Source: base specification 2.1, 8.1.10.
    pub(super) fn placement_of(&self, command: &Command) -> Result<PlacementId, Refusal> {
        let flags = WriteFlags::of(command);
        match flags.directive {
            0 => Ok(PlacementId(0)),
            DIRECTIVE_DATA_PLACEMENT if self.subsystem.has_fdp() => {
                Ok(PlacementId(flags.directive_specific))
            }
            _ => Err(Refusal::field(DTYPE_AT)),
        }
    }

    /// Whether the drive writes a command's data from the host, or the data is compared with the
    /// drive's data.
    pub(super) fn is_for_drive(&self, slot: u16) -> bool {
        let command = self.slots.command(slot);
        matches!(self.phase, Phase::Io { .. })
            && matches!(command.opcode, opcode::nvm::WRITE | opcode::nvm::COMPARE)
    }

    /// Carries out a command of an I/O queue. `data` is the command's data from the host.
    pub(super) fn io(&mut self, slot: u16, command: &Command, data: &[u8]) -> Result<(), Refusal> {
        match command.opcode {
            opcode::nvm::READ => {
                self.wait_for_buffer(slot);
                Ok(())
            }
            opcode::nvm::WRITE | opcode::nvm::COMPARE => {
                let mut buffer = self.buffers.take_in_capsule(data.len() / LBA_SIZE);
                buffer.copy_from_slice(data);
                self.execute_on_drive(slot, buffer)
            }
            opcode::nvm::FLUSH => {
                self.record(slot, &TraceEvent::Flush);
                self.slots.set_work(slot, Work::Running);
                self.push_operation(slot, Op::Flush);
                Ok(())
            }
            opcode::nvm::WRITE_ZEROES => self.write_zeroes(slot, command),
            opcode::nvm::DATASET_MANAGEMENT => self.deallocate(slot, command, data),
            opcode::nvm::IO_MANAGEMENT_RECEIVE => {
                let status = logs::handle_status(&self.subsystem)?;
                self.answer(slot, command, Reply::data(status));
                Ok(())
            }
            _ => self.update_handles(slot, command, data),
        }
    }

    /// Begins a write or a comparison whose data is in `buffer`.
    pub(super) fn execute_on_drive(&mut self, slot: u16, buffer: Buffer) -> Result<(), Refusal> {
        let command = self.slots.command(slot);
        let lba = Lba(command.slba());
        if command.opcode == opcode::nvm::COMPARE {
            let found = self.slots.of(slot).found.take();
            // If the host's data was in the capsule, the buffer for the drive's data was not taken
            // yet.
            let lbas = buffer.len_lbas();
            let found = found.unwrap_or_else(|| self.buffers.take_in_capsule(lbas));
            self.slots.set_work(slot, Work::Comparing { host: buffer });
            self.push_operation(slot, Op::Read { lba, buffer: found });
            return Ok(());
        }
        let placement = self.placement_of(&command)?;
        let durable = self.is_durable(WriteFlags::of(&command));
        let range = trace::range_of(lba.0, buffer.len_lbas() as u64);
        let stream = trace::stream_of(placement.0);
        self.record(slot, &TraceEvent::Write { stream, range });
        self.slots.set_work(slot, Work::Running);
        self.push_operation(slot, Op::Write { lba, buffer, placement, durable });
        Ok(())
    }

    /// Whether a write must be durable when it completes. This is so if the command says so, or if
    /// the host has turned off the volatile write cache. Source: base specification 2.1, "Volatile
    /// Write Cache" feature.
    pub(super) fn is_durable(&self, flags: WriteFlags) -> bool {
        let is_uncached = || {
            self.subsystem.has_cache
                && self.controller().is_some_and(|controller| {
                    !controller.features(|features| features.is_cache_enabled)
                })
        };
        flags.fua || is_uncached()
    }

    /// Begins a read, once the command has its buffer.
    pub(super) fn start_read(&mut self, slot: u16) {
        let entry = self.slots.of(slot);
        let lba = Lba(entry.command.slba());
        let buffer = entry.buffer.take().expect("the command was given a buffer");
        self.slots.set_work(slot, Work::Running);
        self.push_operation(slot, Op::Read { lba, buffer });
    }

    /// Moves the command's handles to fresh reclaim units. Either all of them move, or none.
    fn update_handles(&mut self, slot: u16, command: &Command, data: &[u8]) -> Result<(), Refusal> {
        let count = usize::from(fdp::IoManagement::of(command).specific) + 1;
        let placements: Vec<PlacementId> = data
            .chunks_exact(2)
            .take(count)
            .map(|id| PlacementId(u16::from_le_bytes(id.try_into().expect("a pair of bytes"))))
            .collect();
        let link = self.link.clone();
        let open = link.as_ref().map(|link| link.enter());
        if matches!(open, Some(None)) {
            // The controller was reset before this command could begin.
            self.end();
            return Ok(());
        }
        match self.subsystem.watch.update_handles(&placements) {
            Ok(()) => {
                self.finish(slot, 0, Status::SUCCESS);
                Ok(())
            }
            Err(FtlError::NotStored) => Err(Status::INTERNAL_ERROR.into()),
            Err(_) => Err(Refusal::at(Status::INVALID_FIELD, MOS_AT)),
        }
    }

    pub(super) fn push_operation(&mut self, slot: u16, op: Op) {
        let arrived = self.slots.of(slot).arrived;
        self.operations.push_back(Operation { token: Token(slot.into()), op, arrived });
    }

    pub(super) fn record(&mut self, slot: u16, event: &TraceEvent) {
        if let Some(recorder) = &self.subsystem.recorder {
            recorder.push(self.slots.of(slot).arrived, event);
        }
    }

    /// Continues a command after one of its operations has completed.
    pub(super) fn complete_operation(&mut self, completion: DriveCompletion) {
        let DriveCompletion { token, buffer, result } = completion;
        let slot = token.0 as u16;
        if self.is_over() {
            return;
        }
        let command = self.slots.command(slot);
        let status = match &result {
            Ok(()) => Status::SUCCESS,
            Err(error) => {
                let status = status_of(error, command.opcode);
                self.note_failure(&command, status, error);
                status.more()
            }
        };
        let entry = self.slots.of(slot);
        match &mut entry.work {
            Work::Running => match buffer {
                Some(buffer) if entry.is_to_host => {
                    if status.is_success() {
                        self.subsystem.counts.read(buffer.len());
                    }
                    entry.buffer = Some(buffer);
                    self.finish(slot, 0, status);
                }
                Some(buffer) => {
                    if status.is_success() {
                        self.subsystem.counts.wrote(buffer.len());
                    }
                    self.buffers.give(buffer);
                    self.finish(slot, 0, status);
                }
                None => self.finish(slot, 0, status),
            },
            Work::Comparing { host } => {
                let found = buffer.expect("a read gives its buffer back");
                let is_same = *found == **host;
                let Work::Comparing { host } = std::mem::replace(&mut entry.work, Work::Begun)
                else {
                    unreachable!("the command is a comparison")
                };
                if status.is_success() {
                    self.subsystem.counts.read(found.len());
                }
                self.buffers.give(host);
                self.buffers.give(found);
                if status.is_success() && !is_same {
                    self.refuse(slot, Refusal::from(Status::COMPARE_FAILURE.dnr()));
                } else {
                    self.finish(slot, 0, status);
                }
            }
            Work::Zeroing { .. } => {
                let buffer = buffer.expect("a write gives its buffer back");
                if status.is_success() {
                    self.zero_more(slot, buffer);
                } else {
                    self.buffers.give(buffer);
                    self.finish(slot, 0, status);
                }
            }
            Work::Deallocating { .. } => self.end_deallocation(slot, status),
            other => unreachable!("a command in the state {other:?} has no operation"),
        }
    }

    /// Adds a failed operation of the drive to the error log. Tells the host of the entry by an
    /// event, unless the operation failed only because the drive is full.
    fn note_failure(&self, command: &Command, status: Status, error: &DeviceError) {
        let why = format_args!("the drive failed a command: {error}");
        self.subsystem.warnings.say(why, Instant::now());
        if matches!(error, DeviceError::NoSpace) {
            // The drive is only full and not broken, so the host gets no event.
            self.note_error(command, Refusal { status, byte: Refusal::NOWHERE });
            return;
        }
        self.subsystem.counts.media_errors.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.note_error(command, Refusal { status, byte: Refusal::NOWHERE });
        if let Some(controller) = self.controller() {
            // Source: base specification 2.1, figure 148.
            controller.raise(event::result(event::ERROR, event::ERROR_TRANSIENT, lid::ERROR));
        }
    }
}

fn check_operation(asked: &fdp::IoManagement) -> Result<(), Refusal> {
    if asked.operation == fdp::OPERATION_HANDLES { Ok(()) } else { Err(Refusal::field(MO_AT)) }
}

/// The status with which a command ends after an error of the drive.
fn status_of(error: &DeviceError, opcode: u8) -> Status {
    match error {
        DeviceError::NoSpace => Status::CAPACITY_EXCEEDED,
        DeviceError::OutOfRange => Status::LBA_OUT_OF_RANGE.dnr(),
        _ => match opcode {
            opcode::nvm::READ | opcode::nvm::COMPARE => Status::UNRECOVERED_READ_ERROR,
            opcode::nvm::FLUSH => Status::INTERNAL_ERROR,
            _ => Status::WRITE_FAULT,
        },
    }
}
