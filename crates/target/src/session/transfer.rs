//! The data of commands. Data for a command comes in the command's capsule, or an R2T asks the host
//! for the data.

use std::time::Instant;

use slimio_device::LBA_SIZE;
use slimio_nvme::pdu::{self, DataHead, Fes, Head, PduError, R2t, flags};
use slimio_nvme::{Command, SglKind, Status, opcode};
use slimio_planted::is_planted;

use super::slots::Work;
use super::{Phase, Session};
use crate::limits::{TRANSFER_SIZE_MAX, ZEROED_AT_ONCE_LBAS};
use crate::refusal::Refusal;

/// The direction and size of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataSize {
    /// The command has no data.
    None,
    /// The host sends exactly this many bytes.
    FromHost(usize),
    /// The host sends at least this many bytes. Further bytes are ignored.
    FromHostAtLeast(usize),
    /// The host gets exactly this many bytes.
    ToHost(usize),
    /// The host gets as many bytes as it has room for.
    ToHostUpTo,
}

/// Offsets, within the command, of the length and the kind in its SGL descriptor. Errors name these
/// offsets.
const LENGTH_AT: u16 = 32;
const KIND_AT: u16 = 39;

impl Session {
    /// Finds out how a command gets its data. Carries out the command if the data is already here,
    /// or if the host sends no data for it. Otherwise, lets the command wait for a buffer.
    pub(super) fn route_data(
        &mut self,
        slot: u16,
        command: &Command,
        size: DataSize,
        data: &[u8],
        now: Instant,
    ) -> Result<(), Refusal> {
        let length = command.sgl.length as usize;
        let wrong_length = Err(Refusal::at(Status::DATA_SGL_LENGTH_INVALID, LENGTH_AT));
        if length > TRANSFER_SIZE_MAX {
            return wrong_length;
        }
        match size {
            DataSize::None => return self.execute(slot, &[], now),
            DataSize::ToHost(bytes) if bytes != length => return wrong_length,
            DataSize::ToHost(_) | DataSize::ToHostUpTo => {
                if command.sgl.kind() != SglKind::Transport {
                    return Err(Refusal::at(Status::SGL_TYPE_INVALID, KIND_AT));
                }
                self.slots.of(slot).is_to_host = true;
                return self.execute(slot, &[], now);
            }
            DataSize::FromHost(bytes) if bytes != length => return wrong_length,
            DataSize::FromHostAtLeast(bytes) if bytes > length => return wrong_length,
            DataSize::FromHost(_) | DataSize::FromHostAtLeast(_) => {}
        }
        match command.sgl.kind() {
            SglKind::InCapsule { offset } => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let Some(rest) = data.get(start..) else {
                    return Err(Refusal::at(Status::SGL_OFFSET_INVALID, 24));
                };
                match rest.get(..length) {
                    Some(data) => self.execute(slot, data, now),
                    None => wrong_length,
                }
            }
            // The capsule has data, but the descriptor does not refer to that data.
            SglKind::Transport if !data.is_empty() => {
                Err(Refusal::at(Status::SGL_TYPE_INVALID, KIND_AT))
            }
            SglKind::Transport if length == 0 => self.execute(slot, &[], now),
            SglKind::Transport => {
                self.wait_for_buffer(slot);
                Ok(())
            }
            SglKind::Other => Err(Refusal::at(Status::SGL_TYPE_INVALID, KIND_AT)),
        }
    }

    /// Lets a command wait for a buffer, behind the commands that wait already.
    pub(super) fn wait_for_buffer(&mut self, slot: u16) {
        self.slots.set_work(slot, Work::Waiting);
        self.waiting.push_back(slot);
    }

    /// Gives buffers to the commands that wait for one. The command that has waited longest comes
    /// first.
    pub(super) fn grant(&mut self, now: Instant) {
        let is_io = matches!(self.phase, Phase::Io { .. });
        while let Some(&number) = self.waiting.front() {
            let slot = self.slots.of(number);
            let length = slot.command.sgl.length as usize;
            let lbas = match &slot.work {
                Work::Zeroing { rest, .. } => (rest.end.0 - rest.start.0).min(ZEROED_AT_ONCE_LBAS),
                _ => length.div_ceil(LBA_SIZE) as u64,
            };
            let Some(buffer) = self.buffers.take(lbas as usize) else { return };
            if is_io && slot.command.opcode == opcode::nvm::COMPARE {
                // A comparison needs two buffers. Both are taken before the host is asked for its
                // data.
                let Some(found) = self.buffers.take(lbas as usize) else {
                    self.buffers.give(buffer);
                    return;
                };
                slot.found = Some(found);
            }
            self.waiting.pop_front();
            slot.buffer = Some(buffer);
            if slot.is_to_host {
                self.start_read(number);
                continue;
            }
            if matches!(slot.work, Work::Zeroing { .. }) {
                self.start_zeros(number);
                continue;
            }
            let cccid = slot.command.cid;
            if !self.slots.is_receiving() {
                self.data_at = now;
            }
            let work = Work::Receiving { received: 0, is_void: false, touched: now };
            self.slots.set_work(number, work);
            let r2t = R2t { cccid, ttag: number, r2to: 0, r2tl: length as u32 };
            r2t.push(&mut self.out, self.digests);
        }
    }

    /// Handles an H2CData, which has data that the host was asked for. Source: NVMe/TCP transport
    /// specification 1.1, section 3.3.2.2.
    pub(super) fn take_data(
        &mut self,
        head: &Head,
        pdu: &[u8],
        now: Instant,
    ) -> Result<(), PduError> {
        if matches!(self.phase, Phase::Connect) && !self.slots.is_receiving() {
            return Err(PduError::sequence("H2CData before Connect"));
        }
        let fields = DataHead::decode(pdu).expect("a whole PDU has its header");
        let data = &pdu[head.data_at..][..head.data_size];
        let slot = self.slots.get(fields.ttag).ok_or(PduError::field("TTAG", 10))?;
        let Work::Receiving { received, is_void, touched } = &mut slot.work else {
            return Err(PduError::field("TTAG", 10));
        };
        if slot.command.cid != fields.cccid {
            return Err(PduError::field("CCCID", 8));
        }
        if data.len() != fields.datal as usize || data.is_empty() {
            return Err(PduError::field("DATAL", 16));
        }
        let length = slot.command.sgl.length as usize;
        let start = fields.datao as usize;
        let end = start + data.len();
        if end > length {
            let what = "H2CData beyond its R2T";
            return Err(PduError { fes: Fes::DataOutOfRange, fei: 0, what });
        }
        if start != *received && !is_planted("target-offset-unchecked") {
            return Err(PduError::field("DATAO", 12));
        }
        if head.has(flags::LAST_PDU) != (end == length) {
            return Err(PduError::field("FLAGS.LAST_PDU", 1));
        }
        if head.has(flags::DDGSTF) && pdu[head.size - 4..] != pdu::data_digest(data) {
            *is_void = true;
        }
        *received = end;
        *touched = now;
        if !is_planted("target-slow-cut-off") {
            self.data_at = now;
        }
        let buffer = slot.buffer.as_mut().expect("a transfer has its buffer");
        buffer[start..end].copy_from_slice(data);
        if end < length {
            return Ok(());
        }
        let is_void = *is_void;
        slot.arrived = now;
        self.slots.set_work(fields.ttag, Work::Begun);
        let executed = if is_void && !is_planted("damaged-data-written") {
            Err(Status::TRANSIENT_TRANSPORT_ERROR.into())
        } else {
            self.execute_received(fields.ttag, now)
        };
        if let Err(refusal) = executed {
            self.refuse(fields.ttag, refusal);
        }
        Ok(())
    }

    /// Carries out a command whose data has come and is in its buffer.
    fn execute_received(&mut self, number: u16, now: Instant) -> Result<(), Refusal> {
        let slot = self.slots.of(number);
        let length = slot.command.sgl.length as usize;
        let Some(buffer) = slot.buffer.take() else { unreachable!("a transfer has its buffer") };
        if self.is_for_drive(number) {
            return self.execute_on_drive(number, buffer);
        }
        let executed = self.execute(number, &buffer[..length], now);
        self.buffers.give(buffer);
        executed
    }
}
