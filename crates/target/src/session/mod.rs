//! One connection's protocol, without its socket. A session takes bytes and completions, and
//! returns bytes and operations.
//!
//! ```text
//!  host ── bytes ──► receive ──► next_operation ──► drive
//!                      │                              │
//!  host ◄── output ◄── done ◄──────── complete ◄──────┘
//! ```
//!
//! A session has no thread, and reads no clock: its caller says what time it is. Whatever bytes
//! come, [`limits`](crate::limits) bound the memory of a session. While too many bytes wait to be
//! sent, the session takes no input.

mod admin;
mod fabrics;
mod io;
mod ranges;
mod slots;
mod time;
mod transfer;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use slimio_device::{Completion as DriveCompletion, Op, Token};
use slimio_nvme::log::ErrorEntry;
use slimio_nvme::pdu::{
    self, COMMON_SIZE, DataHead, Digests, Head, IcReq, IcResp, Kind as PduKind, PduError, TermReq,
    flags,
};
use slimio_nvme::{Command, Completion, Status};
use slimio_planted::is_planted;

use self::slots::{Slots, Work};
use crate::buffers::Buffers;
use crate::controller::Controller;
use crate::limits::{H2C_DATA_SIZE_MAX, IN_CAPSULE_SIZE_MAX, OUTBOX_SIZE_MAX};
use crate::link::Link;
use crate::refusal::Refusal;
use crate::subsystem::Subsystem;

/// An operation for the drive.
#[derive(Debug)]
pub struct Operation {
    /// Identifies the operation. The operation's completion returns the token.
    pub token: Token,
    /// The operation itself.
    pub op: Op,
    /// When the command and all its data had arrived.
    pub arrived: Instant,
}

/// A connection's state.
#[derive(Debug)]
pub struct Session {
    subsystem: Arc<Subsystem>,
    /// The address that the host has connected to.
    address: Option<SocketAddr>,
    link: Option<Arc<Link>>,
    phase: Phase,
    digests: Digests,
    /// The alignment in bytes that the host wants for data.
    alignment: usize,
    /// Whether successful reads need no response capsule, because there is no flow control.
    is_without_flow_control: bool,
    sq_head: u16,
    slots: Slots,
    buffers: Buffers,
    /// Slots of commands that wait for a buffer, in the order in which they came.
    waiting: VecDeque<u16>,
    /// Slots of commands that have ranges left to deallocate, in the order in which they came.
    deallocating: VecDeque<u16>,
    /// Number of deallocations that were passed to the drive and have not completed.
    deallocations: usize,
    operations: VecDeque<Operation>,
    /// Number of operations that the caller has taken, and that have not completed.
    running: usize,
    /// Slots of commands that have ended, but whose replies are not made yet.
    done: VecDeque<u16>,
    out: Vec<u8>,
    /// Number of bytes of `out` that were sent.
    sent: usize,
    /// The latest time at which bytes were sent, or at which no bytes waited to be sent.
    sent_at: Instant,
    began_at: Instant,
    /// The latest time at which the host sent data that the target had requested, or at which the
    /// target requested data while no transfer was running.
    data_at: Instant,
    /// When the session next looks for stalled transfers. `None` if it need not look.
    look_at: Option<Instant>,
}

#[derive(Clone, Debug)]
enum Phase {
    /// ICReq has not come yet.
    Request,
    /// Connect has not succeeded yet.
    Connect,
    /// The connection has an admin queue.
    Admin(Arc<Controller>),
    /// The connection has an I/O queue, connected after this many resets of its controller.
    Io { controller: Arc<Controller>, qid: u16, resets: u64 },
    /// Nothing is received any more. Bytes that still wait are sent.
    Over,
}

impl Session {
    /// A new connection, to `address`.
    pub fn new(subsystem: Arc<Subsystem>, address: Option<SocketAddr>, now: Instant) -> Self {
        let buffers = Buffers::new(subsystem.data_budget.clone());
        Self {
            subsystem,
            address,
            link: None,
            phase: Phase::Request,
            digests: Digests::default(),
            alignment: 4,
            is_without_flow_control: false,
            sq_head: 0,
            // Connect sets the queue's depth. No other command comes before Connect.
            slots: Slots::new(2),
            buffers,
            waiting: VecDeque::new(),
            deallocating: VecDeque::new(),
            deallocations: 0,
            operations: VecDeque::new(),
            running: 0,
            done: VecDeque::new(),
            out: Vec::new(),
            sent: 0,
            sent_at: now,
            began_at: now,
            data_at: now,
            look_at: None,
        }
    }

    /// Sets the link through which the session's controller wakes the connection when there is
    /// news.
    pub(crate) fn set_link(&mut self, link: Arc<Link>) {
        self.link = Some(link);
    }

    /// Whether the session takes no input any more. The connection closes when the output is sent.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// Whether the host has connected the connection's queue.
    pub(crate) fn is_connected(&self) -> bool {
        matches!(self.phase, Phase::Admin(_) | Phase::Io { .. })
    }

    /// Whether [`receive`](Self::receive) would take more bytes.
    pub fn wants_input(&self) -> bool {
        !self.is_over() && self.done.is_empty() && self.output().len() < OUTBOX_SIZE_MAX
    }

    /// Whether `bytes` begin with a whole PDU or with a wrong header, either of which
    /// [`receive`](Self::receive) can handle.
    pub fn has_left(&self, bytes: &[u8]) -> bool {
        let Some(common) = bytes.first_chunk::<COMMON_SIZE>() else { return false };
        self.decode_head(*common).map_or(true, |head| head.size <= bytes.len())
    }

    /// Takes whole PDUs, and returns how many bytes they had. Later, the caller must pass the
    /// remaining bytes again, followed by further bytes. Valid PDUs have at most
    /// [`INBOX_SIZE`](crate::limits::INBOX_SIZE) bytes.
    pub fn receive(&mut self, bytes: &[u8], now: Instant) -> usize {
        self.note_time(now);
        let mut taken = 0;
        loop {
            if !self.done.is_empty() {
                self.settle(now);
            }
            if !self.wants_input() {
                break;
            }
            if !bytes[taken..].is_empty() && self.is_orphaned() && !is_planted("reset-forgotten") {
                self.end();
                break;
            }
            let rest = &bytes[taken..];
            let Some(common) = rest.first_chunk::<COMMON_SIZE>() else { break };
            match self.decode_head(*common) {
                Ok(head) if head.size > rest.len() => break,
                Ok(head) => {
                    taken += head.size;
                    let pdu = &rest[..head.size];
                    let result =
                        head.check_header(pdu).and_then(|()| self.take_pdu(&head, pdu, now));
                    if let Err(error) = result {
                        self.terminate(error, &pdu[..head.kind.header_size()], now);
                    }
                }
                Err(error) => self.terminate(error, &rest[..rest.len().min(COMMON_SIZE)], now),
            }
        }
        if taken > 0
            && let Some(controller) = self.controller()
        {
            controller.note_active(now);
        }
        self.settle(now);
        taken
    }

    /// Takes the next operation for the drive. The caller must begin the operation, and later pass
    /// its completion to [`complete`](Self::complete). If the controller was reset, there is no
    /// operation, and the connection ends, because after a reset the host expects no further effect
    /// from commands of its old queues.
    pub fn next_operation(&mut self) -> Option<Operation> {
        if !self.operations.is_empty() && self.is_orphaned() && !is_planted("reset-half-forgotten")
        {
            self.end();
        }
        let operation = self.operations.pop_front()?;
        self.running += 1;
        Some(operation)
    }

    /// Whether operations for the drive wait to be taken.
    pub fn has_operations(&self) -> bool {
        !self.operations.is_empty()
    }

    /// Number of operations that the caller has taken, and that have not completed.
    pub fn running(&self) -> usize {
        self.running
    }

    /// Takes the completion of an operation from the drive, and continues the operation's command.
    pub fn complete(&mut self, completion: DriveCompletion, now: Instant) {
        self.note_time(now);
        self.running -= 1;
        // The end of a queue cancels deallocations. Cancelled deallocations complete like others,
        // but must not be acknowledged.
        let may_be_cancelled = completion.buffer.is_none();
        if may_be_cancelled && self.is_orphaned() && !is_planted("cancelled-acknowledged") {
            self.end();
        }
        self.complete_operation(completion);
        self.settle(now);
    }

    /// The bytes that wait to be sent.
    pub fn output(&self) -> &[u8] {
        &self.out[self.sent..]
    }

    /// Notes that the first `bytes` bytes of the output were sent.
    pub fn note_sent(&mut self, bytes: usize, now: Instant) {
        self.sent += bytes;
        if bytes > 0 {
            self.sent_at = now;
        }
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        } else if self.sent >= OUTBOX_SIZE_MAX {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        self.settle(now);
    }

    fn controller(&self) -> Option<&Arc<Controller>> {
        match &self.phase {
            Phase::Admin(controller) | Phase::Io { controller, .. } => Some(controller),
            Phase::Request | Phase::Connect | Phase::Over => None,
        }
    }

    fn decode_head(&self, common: [u8; COMMON_SIZE]) -> Result<Head, PduError> {
        let is_data = common[0] == PduKind::H2cData as u8;
        let data_size_max = if is_data { H2C_DATA_SIZE_MAX } else { IN_CAPSULE_SIZE_MAX };
        let head = Head::decode(&common, self.digests, 4, data_size_max)?;
        if head.kind.is_of_host() { Ok(head) } else { Err(PduError::field("PDU-Type", 0)) }
    }

    /// Handles a whole PDU whose header is right.
    fn take_pdu(&mut self, head: &Head, pdu: &[u8], now: Instant) -> Result<(), PduError> {
        match (head.kind, &self.phase) {
            (PduKind::IcReq, Phase::Request) => self.initialize(pdu),
            (PduKind::IcReq, _) => Err(PduError::sequence("ICReq")),
            (PduKind::H2cTermReq, _) => {
                let why = format_args!("a host ended its connection, because it rejected a PDU");
                self.subsystem.warnings.say(why, now);
                self.end();
                Ok(())
            }
            (_, Phase::Request) => Err(PduError::sequence("a PDU before ICReq")),
            (PduKind::CapsuleCmd, _) => self.take_command(head, pdu, now),
            (PduKind::H2cData, _) => self.take_data(head, pdu, now),
            _ => Err(PduError::sequence("hosts do not send this type")),
        }
    }

    fn initialize(&mut self, pdu: &[u8]) -> Result<(), PduError> {
        let request = IcReq::decode(pdu).expect("a whole PDU has its header");
        let digests = request.check()?;
        self.alignment = (usize::from(request.hpda) + 1) * 4;
        let response =
            IcResp { pfv: 0, cpda: 0, dgst: digests.bits(), maxh2cdata: H2C_DATA_SIZE_MAX as u32 };
        response.push(&mut self.out);
        self.digests = digests;
        self.phase = Phase::Connect;
        Ok(())
    }

    fn take_command(&mut self, head: &Head, pdu: &[u8], now: Instant) -> Result<(), PduError> {
        let header = pdu.first_chunk().expect("a whole PDU has its header");
        let command = Head::command(header);
        let data = &pdu[head.data_at..][..head.data_size];
        if !self.is_without_flow_control {
            self.sq_head = (self.sq_head + 1) % self.slots.depth();
        }
        if self.slots.has_cid(command.cid) {
            let conflict = Refusal::at(Status::COMMAND_ID_CONFLICT, 2);
            self.note_error(&command, conflict);
            self.push_completion(command.cid, 0, conflict.status);
            return Ok(());
        }
        let Some(slot) = self.slots.take(command, now) else {
            return Err(PduError::sequence("a command beyond the queue's depth"));
        };
        let is_damaged = head.has(flags::DDGSTF)
            && pdu[head.size - 4..] != pdu::data_digest(data)
            && !is_planted("target-digest-unchecked");
        let begun = if is_damaged {
            Err(Status::TRANSIENT_TRANSPORT_ERROR.into())
        } else {
            self.begin(slot, &command, data, now)
        };
        if let Err(refusal) = begun {
            self.refuse(slot, refusal);
        }
        Ok(())
    }

    /// Begins a command whose in-capsule data is `data`.
    fn begin(
        &mut self,
        slot: u16,
        command: &Command,
        data: &[u8],
        now: Instant,
    ) -> Result<(), Refusal> {
        // Fused commands are not supported, and NVMe over Fabrics has no PRPs.
        if command.flags != slimio_nvme::command::PSDT_SGL {
            return Err(Refusal::field(1));
        }
        let size = self.data_size(command)?;
        self.route_data(slot, command, size, data, now)
    }

    /// Ends a command with a refusal, which is also added to the error log.
    fn refuse(&mut self, slot: u16, refusal: Refusal) {
        let command = self.slots.command(slot);
        self.note_error(&command, refusal);
        self.finish(slot, 0, refusal.status.more());
    }

    /// Adds a command's refusal to the error log.
    fn note_error(&self, command: &Command, refusal: Refusal) {
        let sqid = match &self.phase {
            Phase::Io { qid, .. } => *qid,
            _ => 0,
        };
        let entry = ErrorEntry {
            sqid,
            cid: command.cid,
            status: refusal.status.bits(),
            parameter_location: refusal.byte,
            lba: if sqid > 0 { command.slba() } else { 0 },
            nsid: if command.opcode == slimio_nvme::opcode::FABRICS { 0 } else { command.nsid },
            ..ErrorEntry::default()
        };
        self.subsystem.errors.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
    }

    /// Ends a command. Its reply is made when the output has room for it.
    fn finish(&mut self, slot: u16, result: u64, status: Status) {
        self.slots.set_work(slot, Work::Done { result, status });
        self.done.push_back(slot);
    }

    /// Hands out buffers and events, and makes replies while the output has room.
    fn settle(&mut self, now: Instant) {
        self.grant(now);
        self.deliver_events();
        while self.output().len() < OUTBOX_SIZE_MAX
            && let Some(slot) = self.done.pop_front()
        {
            self.reply(slot);
            // The command's buffer is free now, and another command may wait for a buffer.
            self.grant(now);
        }
        self.watch_transfers(now);
    }

    /// Makes the reply of a command that has ended, and frees its slot.
    fn reply(&mut self, slot: u16) {
        let ended = self.slots.free(slot);
        let Work::Done { result, status } = ended.work else {
            unreachable!("only a command that has ended gets a reply")
        };
        let cid = ended.command.cid;
        let bytes = match (&ended.buffer, &ended.data) {
            _ if !status.is_success() || !ended.is_to_host => &[][..],
            (Some(buffer), _) => buffer,
            (None, data) => data,
        };
        let is_whole = !bytes.is_empty() && self.is_without_flow_control && result == 0;
        if !bytes.is_empty() {
            let success = if is_whole { flags::SUCCESS } else { 0 };
            let head = DataHead { cccid: cid, ttag: 0, datao: 0, datal: bytes.len() as u32 };
            let kind = PduKind::C2hData;
            let last = flags::LAST_PDU | success;
            pdu::push_data_head(&mut self.out, kind, last, &head, self.digests, self.alignment);
            pdu::push_data(&mut self.out, bytes, self.digests);
        }
        for buffer in [ended.buffer, ended.found].into_iter().flatten() {
            self.buffers.give(buffer);
        }
        if !is_whole {
            self.push_completion(cid, result, status);
        }
    }

    fn push_completion(&mut self, cid: u16, result: u64, status: Status) {
        let sq_head = if self.is_without_flow_control { 0xffff } else { self.sq_head };
        let completion = Completion { result, sq_head, sq_id: 0, cid, status };
        pdu::push_completion(&mut self.out, &completion, self.digests);
    }

    /// Ends the connection because of a wrong PDU. Tells the host why.
    fn terminate(&mut self, error: PduError, wrong: &[u8], now: Instant) {
        self.subsystem.warnings.say(format_args!("the target ends a connection: {error}"), now);
        TermReq::push(&mut self.out, PduKind::C2hTermReq, error, wrong);
        self.end();
    }

    /// Ends the connection. Bytes that wait are still sent, but no further operation begins.
    fn end(&mut self) {
        self.leave();
        self.phase = Phase::Over;
        self.operations.clear();
        self.waiting.clear();
        self.deallocating.clear();
        self.done.clear();
    }

    /// Gives up the connection's queue. With an admin queue, this ends the controller.
    fn leave(&mut self) {
        match &self.phase {
            Phase::Admin(controller) => self.subsystem.end_controller(controller),
            Phase::Io { controller, qid, resets } => {
                // From now on, a reset of the controller does not find this queue, so the queue's
                // deallocations are cancelled here.
                if let Some(link) = &self.link {
                    link.cancel();
                }
                controller.give_queue(*qid, *resets);
            }
            Phase::Request | Phase::Connect | Phase::Over => {}
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.leave();
    }
}
