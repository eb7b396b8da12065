//! One queue's protocol, without its socket: submissions and bytes in, bytes and outcomes out.
//!
//! What it holds is bounded by what was submitted: a target can make it neither grow nor wait.

use std::collections::VecDeque;

use slimio_nvme::pdu::{
    self, COMMON_SIZE, DataHead, Digests, Fes, Head, IcReq, IcResp, Kind, PduError, R2t, TermReq,
    flags,
};
use slimio_nvme::{Command, Completion, Sgl, Status, opcode};

use crate::Error;
use crate::error::name_of;

/// Most bytes of data in one PDU of the target, and of one command.
pub const DATA_SIZE_MAX: usize = 4 << 20;
/// Most bytes of a PDU of the target that is taken.
pub(crate) const PDU_SIZE_MAX: usize = DATA_SIZE_MAX + 256;

/// Caller's name for a command in flight; comes back in its [`Outcome`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// A command to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// Names it in its outcome.
    pub token: Token,
    /// The command. Its identifier and its data descriptor are set when it is submitted.
    pub command: Command,
    /// Data for the target; or room for the data that the target returns. The opcode says which.
    pub data: Vec<u8>,
}

/// What became of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The name that the caller gave it.
    pub token: Token,
    /// The command, as it was sent.
    pub command: Command,
    /// The queue that it was submitted to: 0 is the admin queue.
    pub qid: u16,
    /// Its completion queue entry.
    pub completion: Completion,
    /// The data that was submitted, or its room, filled if the command returned data.
    pub data: Vec<u8>,
}

impl Outcome {
    /// The same, if the command was successful.
    ///
    /// # Errors
    /// When it was not.
    pub fn checked(self) -> Result<Self, Error> {
        let Completion { status, result, .. } = self.completion;
        if status.is_success() {
            return Ok(self);
        }
        let command = name_of(&self.command, self.qid == 0);
        Err(Error::Status { command, status, result })
    }
}

/// What a connection asks for when it begins.
#[derive(Clone, Copy, Debug)]
pub struct Transport {
    /// The queue's number: 0 is the admin queue.
    pub qid: u16,
    /// The digests that are asked for.
    pub digests: Digests,
    /// What data to this host is to be aligned to, in bytes: 4 to 128, a multiple of 4.
    pub alignment: usize,
    /// Commands in flight at once. A queue has one more entry, which is always empty.
    pub in_flight_max: u16,
    /// Most in-capsule data, in bytes.
    pub in_capsule_size_max: usize,
}

/// The state of one queue.
#[derive(Debug)]
pub struct Protocol {
    is_initialized: bool,
    transport: Transport,
    digests: Digests,
    /// What the target wants data to be aligned to, in bytes.
    target_alignment: usize,
    /// Most bytes of an H2CData.
    h2c_data_size_max: usize,
    /// By their identifiers.
    in_flight: Vec<Option<InFlight>>,
    free: Vec<u16>,
    out: Vec<u8>,
    /// Bytes of `out` that were sent.
    sent: usize,
    outcomes: VecDeque<Outcome>,
}

#[derive(Debug)]
struct InFlight {
    submission: Submission,
    /// Bytes of data that went either way; the next ones follow.
    moved: usize,
    /// A data digest was wrong. As a host does then: the command fails, and the connection goes on.
    is_damaged: bool,
}

/// Which way a command's data goes.
fn is_to_host(command: &Command) -> bool {
    let number =
        if command.opcode == opcode::FABRICS { command.nsid as u8 } else { command.opcode };
    opcode::is_to_host(number)
}

impl Protocol {
    /// A new connection, which first asks for what `transport` says.
    ///
    /// # Panics
    /// When the alignment is impossible.
    pub fn new(transport: Transport) -> Self {
        let Transport { digests, alignment, in_flight_max, .. } = transport;
        assert!(
            alignment.is_multiple_of(4) && (4..=pdu::ALIGNMENT_MAX).contains(&alignment),
            "{alignment} is no alignment of NVMe/TCP"
        );
        let mut out = Vec::new();
        let hpda = (alignment / 4 - 1) as u8;
        IcReq { pfv: 0, hpda, dgst: digests.bits(), maxr2t: 0 }.push(&mut out);
        Self {
            is_initialized: false,
            transport,
            digests: Digests::default(),
            target_alignment: 4,
            h2c_data_size_max: 0,
            in_flight: (0..in_flight_max).map(|_| None).collect(),
            free: (0..in_flight_max).rev().collect(),
            out,
            sent: 0,
            outcomes: VecDeque::new(),
        }
    }

    /// Whether the target has answered the request that begins a connection. Nothing can be
    /// submitted before that.
    pub fn is_initialized(&self) -> bool {
        self.is_initialized
    }

    /// The digests that the connection has.
    pub fn digests(&self) -> Digests {
        self.digests
    }

    /// Commands in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len() - self.free.len()
    }

    /// Whether as many commands are in flight as may be.
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Sends a command. Hands it back if as many are in flight as may be.
    ///
    /// # Errors
    /// The submission, when the queue is full.
    ///
    /// # Panics
    /// When the connection is not initialized, or the data is beyond [`DATA_SIZE_MAX`].
    pub fn submit(&mut self, mut submission: Submission) -> Result<(), Submission> {
        assert!(self.is_initialized, "the target has not answered yet");
        let Submission { command, data, .. } = &mut submission;
        assert!(data.len() <= DATA_SIZE_MAX, "{} bytes are beyond the limit", data.len());
        let Some(cid) = self.free.pop() else { return Err(submission) };
        command.cid = cid;
        let size = data.len() as u32;
        // The data of Connect is always in its capsule. Source: TCP transport 1.1, 3.3.
        let is_connect = command.opcode == opcode::FABRICS;
        let is_in_capsule = !data.is_empty()
            && !is_to_host(command)
            && (data.len() <= self.transport.in_capsule_size_max || is_connect);
        let in_capsule = if is_in_capsule { &data[..] } else { &[] };
        command.sgl = if is_in_capsule { Sgl::in_capsule(size) } else { Sgl::transport(size) };
        pdu::push_command(&mut self.out, command, in_capsule, self.digests, self.target_alignment);
        self.in_flight[usize::from(cid)] =
            Some(InFlight { submission, moved: 0, is_damaged: false });
        Ok(())
    }

    /// What is to be sent.
    pub fn output(&self) -> &[u8] {
        &self.out[self.sent..]
    }

    /// Notes that the first bytes of the output were sent.
    pub fn note_sent(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
    }

    /// The outcome of the next command that has ended.
    pub fn next_outcome(&mut self) -> Option<Outcome> {
        self.outcomes.pop_front()
    }

    /// Takes whole PDUs of the target, and returns how many bytes they had. The rest is to be given
    /// again, with more behind it: at least [`wanted`](Self::wanted) bytes.
    ///
    /// # Errors
    /// When the target breaks the protocol, or says that we do. The output then ends with why, and
    /// nothing may be received any more.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        let mut taken = 0;
        while let Some(head) = self.head_of(&bytes[taken..])? {
            let pdu = &bytes[taken..];
            if pdu.len() < head.size {
                break;
            }
            let pdu = &pdu[..head.size];
            let result = head.check_header(pdu).map_err(Error::from);
            if let Err(error) = result.and_then(|()| self.take(&head, pdu)) {
                return Err(self.terminated(error, &pdu[..head.kind.header_size()]));
            }
            taken += head.size;
        }
        Ok(taken)
    }

    /// Bytes of the PDU that `bytes` begin with, if it is known yet.
    ///
    /// # Errors
    /// When it is no PDU.
    pub fn wanted(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        Ok(self.head_of(bytes)?.map_or(COMMON_SIZE, |head| head.size))
    }

    fn head_of(&mut self, bytes: &[u8]) -> Result<Option<Head>, Error> {
        let Some(common) = bytes.first_chunk::<COMMON_SIZE>() else { return Ok(None) };
        let head = Head::decode(common, self.digests, self.transport.alignment, DATA_SIZE_MAX)
            .and_then(|head| {
                let is_ours = head.kind.is_of_host();
                if is_ours { Err(PduError::field("PDU-Type", 0)) } else { Ok(head) }
            });
        head.map(Some).map_err(|error| self.terminated(error.into(), common))
    }

    /// Tells the target what is wrong, if it has not done so itself.
    fn terminated(&mut self, error: Error, wrong: &[u8]) -> Error {
        if let Error::Pdu(error) = &error {
            TermReq::push(&mut self.out, Kind::H2cTermReq, *error, wrong);
        }
        error
    }

    fn take(&mut self, head: &Head, pdu: &[u8]) -> Result<(), Error> {
        match (head.kind, self.is_initialized) {
            (Kind::C2hTermReq, _) => {
                Err(Error::Terminated(TermReq::decode(pdu).expect("a PDU has its header")))
            }
            (Kind::IcResp, false) => Ok(self.initialize(pdu)?),
            (Kind::IcResp, true) => Err(PduError::sequence("ICResp").into()),
            (_, false) => Err(PduError::sequence("before ICResp").into()),
            (Kind::CapsuleResp, true) => {
                let header = pdu.first_chunk().expect("a PDU has its header");
                Ok(self.end(Head::completion(header))?)
            }
            (Kind::C2hData, true) => Ok(self.take_data(head, pdu)?),
            _ => Ok(self.send_data(&R2t::decode(pdu).expect("a PDU has its header"))?),
        }
    }

    fn initialize(&mut self, pdu: &[u8]) -> Result<(), PduError> {
        let response = IcResp::decode(pdu).expect("a PDU has its header");
        let digests = response.check()?;
        let asked = self.transport.digests;
        if (digests.header && !asked.header) || (digests.data && !asked.data) {
            return Err(PduError::field("DGST", 11));
        }
        self.digests = digests;
        self.target_alignment = (usize::from(response.cpda) + 1) * 4;
        self.h2c_data_size_max = response.maxh2cdata as usize;
        self.is_initialized = true;
        Ok(())
    }

    fn in_flight_as(&mut self, cid: u16) -> Option<&mut InFlight> {
        self.in_flight.get_mut(usize::from(cid))?.as_mut()
    }

    /// Takes data for the host. Source: TCP transport 1.1, 3.3.2.1.
    fn take_data(&mut self, head: &Head, pdu: &[u8]) -> Result<(), PduError> {
        let fields = DataHead::decode(pdu).expect("a PDU has its header");
        let data = &pdu[head.data_at..][..head.data_size];
        let flow = self.in_flight_as(fields.cccid).ok_or(PduError::field("CCCID", 8))?;
        let room = &mut flow.submission.data;
        if !is_to_host(&flow.submission.command) {
            return Err(PduError::field("CCCID", 8));
        }
        if data.is_empty() || data.len() != fields.datal as usize {
            return Err(PduError::field("DATAL", 16));
        }
        if fields.datao as usize != flow.moved {
            return Err(PduError::field("DATAO", 12));
        }
        let end = flow.moved + data.len();
        if end > room.len() {
            let what = "C2HData beyond the command's data";
            return Err(PduError { fes: Fes::DataOutOfRange, fei: 0, what });
        }
        if head.has(flags::SUCCESS) && !head.has(flags::LAST_PDU) {
            return Err(PduError::field("FLAGS.SUCCESS", 1));
        }
        room[flow.moved..end].copy_from_slice(data);
        flow.moved = end;
        flow.is_damaged |=
            head.has(flags::DDGSTF) && pdu[head.size - 4..] != pdu::data_digest(data);
        if head.has(flags::SUCCESS) {
            return self.end(Completion { cid: fields.cccid, ..Completion::default() });
        }
        Ok(())
    }

    /// Sends the data that the target asks for. Source: TCP transport 1.1, 3.3.2.2.
    fn send_data(&mut self, r2t: &R2t) -> Result<(), PduError> {
        let flow = self.in_flight.get_mut(usize::from(r2t.cccid)).and_then(Option::as_mut);
        let flow = flow.ok_or(PduError::field("CCCID", 8))?;
        let data = &flow.submission.data;
        if is_to_host(&flow.submission.command) {
            return Err(PduError::field("CCCID", 8));
        }
        if r2t.r2to as usize != flow.moved {
            return Err(PduError::field("R2TO", 12));
        }
        let (mut at, end) = (flow.moved, flow.moved + r2t.r2tl as usize);
        if end > data.len() || at == end {
            return Err(PduError::field("R2TL", 16));
        }
        flow.moved = end;
        while at < end {
            let size = self.h2c_data_size_max.min(end - at);
            let flag = if at + size == end { flags::LAST_PDU } else { 0 };
            let head =
                DataHead { cccid: r2t.cccid, ttag: r2t.ttag, datao: at as u32, datal: size as u32 };
            let (digests, alignment) = (self.digests, self.target_alignment);
            pdu::push_data_head(&mut self.out, Kind::H2cData, flag, &head, digests, alignment);
            pdu::push_data(&mut self.out, &data[at..at + size], digests);
            at += size;
        }
        Ok(())
    }

    /// Ends a command.
    fn end(&mut self, mut completion: Completion) -> Result<(), PduError> {
        let cid = completion.cid;
        let ended = self.in_flight.get_mut(usize::from(cid)).and_then(Option::take);
        let ended = ended.ok_or(PduError::field("SQE.CID", 20))?;
        self.free.push(cid);
        let Submission { token, command, data } = ended.submission;
        if ended.is_damaged {
            completion.status = Status::TRANSIENT_TRANSPORT_ERROR;
        }
        self.outcomes.push_back(Outcome {
            token,
            command,
            qid: self.transport.qid,
            completion,
            data,
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests;
