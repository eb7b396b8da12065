//! The protocol of one queue, without its socket. Submissions and received bytes go in; bytes to
//! send and outcomes come out.
//!
//! The memory that a [`Protocol`] uses is limited by what the caller submits, whatever a target
//! sends. No call waits for a target.

use std::collections::VecDeque;

use slimio_nvme::pdu::{
    self, COMMON_SIZE, DataHead, Digests, Fes, Head, IcReq, IcResp, Kind, PduError, R2t, TermReq,
    flags,
};
use slimio_nvme::{Command, Completion, Sgl, Status, opcode};

use crate::Error;
use crate::error::name_of;

/// The largest number of data bytes in one PDU from the target, and in one command.
pub const DATA_SIZE_MAX: usize = 4 << 20;
/// The largest number of bytes in a PDU from the target. Longer PDUs are refused.
pub(crate) const PDU_SIZE_MAX: usize = DATA_SIZE_MAX + 256;

/// The caller's name for a command in flight. It comes back in the command's [`Outcome`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// A command to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// The name that the command's outcome will have.
    pub token: Token,
    /// The command. Its identifier and its data descriptor are set when it is submitted.
    pub command: Command,
    /// Data for the target, or a buffer for the data that the target returns. The opcode decides
    /// which of the two it is.
    pub data: Vec<u8>,
}

/// A command that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The name that the caller gave the command.
    pub token: Token,
    /// The command, as it was sent.
    pub command: Command,
    /// The queue that the command was submitted to: 0 is the admin queue.
    pub qid: u16,
    /// The command's completion queue entry.
    pub completion: Completion,
    /// The submitted buffer. If the command returns data, the buffer now has this data.
    pub data: Vec<u8>,
}

impl Outcome {
    /// Returns the outcome if the command was successful.
    ///
    /// # Errors
    /// If the command was not successful.
    pub fn checked(self) -> Result<Self, Error> {
        let Completion { status, result, .. } = self.completion;
        if status.is_success() {
            return Ok(self);
        }
        let command = name_of(&self.command, self.qid == 0);
        Err(Error::Status { command, status, result })
    }
}

/// What the host asks for at the start of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Transport {
    /// The queue's number: 0 is the admin queue.
    pub qid: u16,
    /// The digests that the host asks for.
    pub digests: Digests,
    /// The alignment in bytes that the host wants for the data in PDUs from the target. It is a
    /// multiple of 4, from 4 to 128.
    pub alignment: usize,
    /// The largest number of commands in flight. The queue has one entry more, which always stays
    /// empty.
    pub in_flight_max: u16,
    /// The largest number of bytes of in-capsule data in one command.
    pub in_capsule_size_max: usize,
}

/// The state of one queue.
#[derive(Debug)]
pub struct Protocol {
    is_initialized: bool,
    transport: Transport,
    digests: Digests,
    /// The alignment in bytes that the target wants for the data in PDUs from the host.
    target_alignment: usize,
    /// The largest number of data bytes in an H2CData PDU.
    h2c_data_size_max: usize,
    /// The commands in flight, by command identifier.
    in_flight: Vec<Option<InFlight>>,
    free: Vec<u16>,
    out: Vec<u8>,
    /// How many bytes of `out` were sent.
    sent: usize,
    outcomes: VecDeque<Outcome>,
}

#[derive(Debug)]
struct InFlight {
    submission: Submission,
    /// How many bytes of data were transferred so far, in the command's direction. Transfers are in
    /// order.
    moved: usize,
    /// Whether a data digest was wrong. If so, the command will fail, but the connection goes on.
    is_damaged: bool,
}

/// Whether the command's data goes from the target to the host.
fn is_to_host(command: &Command) -> bool {
    let number =
        if command.opcode == opcode::FABRICS { command.nsid as u8 } else { command.opcode };
    opcode::is_to_host(number)
}

impl Protocol {
    /// Starts a connection: the first output asks the target for the settings in `transport`.
    ///
    /// # Panics
    /// If the alignment is no multiple of 4 from 4 to 128.
    pub fn new(transport: Transport) -> Self {
        let Transport { digests, alignment, in_flight_max, .. } = transport;
        assert!(
            alignment.is_multiple_of(4) && (4..=pdu::ALIGNMENT_MAX).contains(&alignment),
            "NVMe/TCP has no alignment of {alignment} bytes"
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

    /// Whether the target has answered the connection's first request. Before that, nothing can be
    /// submitted.
    pub fn is_initialized(&self) -> bool {
        self.is_initialized
    }

    /// The digests that the connection uses.
    pub fn digests(&self) -> Digests {
        self.digests
    }

    /// Number of commands in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len() - self.free.len()
    }

    /// Whether the number of commands in flight is at its limit.
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Adds a command to the output. Hands the command back if the queue is full.
    ///
    /// # Errors
    /// The submission, if the queue is full.
    ///
    /// # Panics
    /// If the connection is not initialized, or if the data is longer than [`DATA_SIZE_MAX`].
    pub fn submit(&mut self, mut submission: Submission) -> Result<(), Submission> {
        assert!(self.is_initialized, "the target has not answered yet");
        let Submission { command, data, .. } = &mut submission;
        assert!(data.len() <= DATA_SIZE_MAX, "{} bytes of data are beyond the limit", data.len());
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

    /// The bytes that are to be sent.
    pub fn output(&self) -> &[u8] {
        &self.out[self.sent..]
    }

    /// Records that the first `bytes` bytes of the output were sent.
    pub fn note_sent(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
    }

    /// Takes the outcome of the next command that has ended.
    pub fn next_outcome(&mut self) -> Option<Outcome> {
        self.outcomes.pop_front()
    }

    /// Takes the complete PDUs at the start of `bytes`, and returns their size in bytes. The caller
    /// keeps the rest, and passes it again together with the bytes that follow. A call with fewer
    /// than [`wanted`](Self::wanted) bytes takes nothing.
    ///
    /// # Errors
    /// If the target breaks the protocol, or says that this host broke it. If the target broke the
    /// protocol, the output then ends with a request that tells the target the reason. After an
    /// error, the caller must not pass any more bytes.
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

    /// Size of the PDU that `bytes` begin with. If `bytes` are too few to know this size, returns
    /// the size of the common header.
    ///
    /// # Errors
    /// If `bytes` do not begin with a PDU.
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

    /// If the target broke the protocol, tells the target what is wrong, by a request in the
    /// output. Returns the error.
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

    /// Handles a PDU with data for the host. Source: TCP transport 1.1, 3.3.2.1.
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

    /// Handles a completion: the command has ended.
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
