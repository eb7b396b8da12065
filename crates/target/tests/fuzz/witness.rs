//! A witness reads the PDUs that a host and a session (the target's side of a connection) send to
//! each other. From these PDUs, the witness derives which operations the session may begin, and
//! which replies it may send.
//!
//! The witness has its own decoders, by the offsets in the specification, so that it does not
//! repeat a mistake of the target's decoders.

use std::collections::HashMap;

use slimio_device::{LBA_SIZE, Op};
use slimio_nvme::pdu::{Digests, crc32c};

/// Largest number of blocks that one operation of Write Zeroes may write.
const ZEROED_MAX: usize = 32;

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// The operations of the drive that a command asks for.
#[derive(Debug, PartialEq, Eq)]
enum Wish {
    /// The command needs no operation of the drive, or must be refused.
    Nothing,
    Read {
        lba: u64,
        lbas: usize,
    },
    Write {
        lba: u64,
        size: usize,
        placement: u16,
        durable: bool,
    },
    Zeros {
        next: u64,
        end: u64,
        placement: u16,
        durable: bool,
        may_deallocate: bool,
    },
    Deallocate(Vec<(u64, u64)>),
    Flush,
}

/// A command that the session has taken, and what has become of it.
#[derive(Debug)]
struct Asked {
    cid: u16,
    opcode: u8,
    /// Number of bytes that an R2T has asked for and that have not come yet.
    awaited: usize,
    wish: Wish,
    /// The ranges of blocks that the command may touch: each range's first block, and its end.
    blocks: Vec<(u64, u64)>,
    /// The command's data from the host, as far as it has come.
    data: Vec<u8>,
    /// Number of the command's operations that were begun and have not completed.
    running: usize,
    begun: usize,
    has_failed: bool,
    /// Whether a digest of the command's data was wrong.
    is_damaged: bool,
    is_answered: bool,
}

/// How far the opening of a connection has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    New,
    /// ICReq was taken.
    Initialized,
    /// Connect was granted.
    Connected,
}

/// The witness of a connection.
#[derive(Debug, Default)]
pub(crate) struct Witness {
    lba_count: u64,
    digests: Digests,
    stage: Stage,
    /// The number of the queue that a Connect asked for.
    qid: u16,
    asked: Vec<Asked>,
    /// The place in `asked` of each transfer's command, by the transfer's tag.
    transfers: HashMap<u16, usize>,
    /// The place in `asked` of each operation's command, by the operation's token.
    tokens: HashMap<u64, usize>,
    /// Whether commands with common blocks were in flight at the same time, so that it is unknown
    /// which operation belongs to which command.
    is_ambiguous: bool,
    /// Whether the session has sent a termination request.
    is_terminated: bool,
}

/// A transfer that the session has asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) ttag: u16,
    pub(crate) cid: u16,
    pub(crate) size: usize,
}

impl Witness {
    pub(crate) fn new(lba_count: u64) -> Self {
        Self { lba_count, ..Self::default() }
    }

    /// Whether the connection has an I/O queue.
    pub(crate) fn is_io(&self) -> bool {
        self.stage == Stage::Connected && self.qid > 0
    }

    /// Identifiers of the commands that must get a reply now. These are all unanswered commands,
    /// except those that wait for events or for the host's data.
    pub(crate) fn owed(&self) -> Vec<u16> {
        let is_event = |asked: &Asked| !self.is_io() && asked.opcode == 0x0c;
        let owed = self.asked.iter().filter(|asked| !asked.is_answered && asked.awaited == 0);
        owed.filter(|asked| !is_event(asked)).map(|asked| asked.cid).collect()
    }

    pub(crate) fn is_terminated(&self) -> bool {
        self.is_terminated
    }

    /// Reads a PDU that the session has taken. Returns whether the connection may go on after this
    /// PDU.
    pub(crate) fn heard(&mut self, pdu: &[u8]) -> bool {
        let (kind, flags, hlen) = (pdu[0], pdu[1], usize::from(pdu[2]));
        let has_digest = self.stage != Stage::New && self.digests.header && kind != 2;
        let header = hlen + if has_digest { 4 } else { 0 };
        if kind == 2 {
            return false;
        }
        let is_sound = match kind {
            0 => self.stage == Stage::New && hlen == 128 && pdu.len() == 128,
            4 => self.stage != Stage::New && hlen == 72,
            6 => self.stage != Stage::New && hlen == 24,
            _ => false,
        };
        if !is_sound || pdu.len() < header || (flags & 1 != 0) != has_digest {
            return false;
        }
        if has_digest && crc32c(&pdu[..hlen]) != u32_at(pdu, hlen) {
            return false;
        }
        if kind == 0 {
            self.stage = Stage::Initialized;
            self.digests = Digests { header: pdu[11] & 1 != 0, data: pdu[11] & 2 != 0 };
            return u16_at(pdu, 8) == 0 && pdu[10] < 32 && pdu[11] < 4;
        }
        let (mut data, mut is_damaged) = (&[][..], false);
        if pdu.len() > header {
            let has_data_digest = self.digests.data;
            let at = usize::from(pdu[3]);
            let end = pdu.len() - if has_data_digest { 4 } else { 0 };
            if at < header || at % 4 != 0 || at >= end || (flags & 2 != 0) != has_data_digest {
                return false;
            }
            data = &pdu[at..end];
            is_damaged = has_data_digest && crc32c(data) != u32_at(pdu, end);
        }
        if kind == 4 {
            self.heard_command(&pdu[8..72], data, is_damaged);
            return true;
        }
        self.heard_data(pdu, data, is_damaged)
    }

    fn heard_command(&mut self, command: &[u8], data: &[u8], is_damaged: bool) {
        let (opcode, cid) = (command[0], u16_at(command, 2));
        if opcode == 0x7f && command[4] == 1 && self.stage != Stage::Connected {
            self.qid = u16_at(command, 42);
        }
        let (wish, data) = if self.is_io() && !is_damaged && command[1] == 0x40 {
            self.wish_of(command, data).unwrap_or((Wish::Nothing, Vec::new()))
        } else {
            (Wish::Nothing, Vec::new())
        };
        let blocks = wish.blocks();
        let is_near = |other: &Asked| {
            !other.is_answered && other.blocks.iter().any(|theirs| overlap(theirs, &blocks))
        };
        self.is_ambiguous |= self.asked.iter().any(is_near);
        self.asked.push(Asked {
            cid,
            blocks,
            opcode,
            awaited: 0,
            wish,
            data,
            running: 0,
            begun: 0,
            has_failed: false,
            is_damaged,
            is_answered: false,
        });
    }

    /// The operations that a command of an I/O queue asks for, and the data in its capsule. `None`
    /// if the command must be refused, or needs no operation.
    fn wish_of(&self, command: &[u8], data: &[u8]) -> Option<(Wish, Vec<u8>)> {
        let opcode = command[0];
        let nsid = u32_at(command, 4);
        if nsid != 1 && !(opcode == 0 && nsid == u32::MAX) {
            return None;
        }
        let (lba, cdw12) = (u64_at(command, 40), u32_at(command, 48));
        let lbas = (cdw12 & 0xffff) as usize + 1;
        let is_inside = lba.checked_add(lbas as u64).is_some_and(|end| end <= self.lba_count);
        let placement = match cdw12 >> 20 & 0xf {
            0 => Some(0),
            2 => Some(u16_at(command, 54)),
            _ => None,
        };
        let durable = cdw12 & 1 << 30 != 0;
        let size = lbas * LBA_SIZE;
        let no_data = Vec::new();
        match opcode {
            0x00 => Some((Wish::Flush, no_data)),
            0x02 | 0x05 if is_inside => Some((Wish::Read { lba, lbas }, no_data)),
            0x01 if is_inside => {
                let data = sgl_data(command, data)?;
                let is_whole = u32_at(command, 32) as usize == size;
                let placement = placement?;
                is_whole.then_some((Wish::Write { lba, size, placement, durable }, data))
            }
            0x08 if is_inside => {
                let end = lba + lbas as u64;
                let may_deallocate = cdw12 & 1 << 25 != 0;
                let placement = placement?;
                let wish = Wish::Zeros { next: lba, end, placement, durable, may_deallocate };
                Some((wish, no_data))
            }
            0x09 if u32_at(command, 44) & 4 != 0 => {
                let data = sgl_data(command, data)?;
                let count = usize::from(command[40]) + 1;
                let ranges = ranges_of(&data, count, self.lba_count)?;
                Some((Wish::Deallocate(ranges), data))
            }
            _ => None,
        }
    }

    fn heard_data(&mut self, pdu: &[u8], data: &[u8], is_damaged: bool) -> bool {
        let (cid, ttag) = (u16_at(pdu, 8), u16_at(pdu, 10));
        let (at, size) = (u32_at(pdu, 12) as usize, u32_at(pdu, 16) as usize);
        let Some(&index) = self.transfers.get(&ttag) else { return false };
        let lba_count = self.lba_count;
        let asked = &mut self.asked[index];
        let is_last = pdu[1] & 4 != 0;
        if asked.cid != cid || size != data.len() || size > asked.awaited {
            return false;
        }
        asked.awaited -= size;
        asked.is_damaged |= is_damaged;
        if is_last != (asked.awaited == 0) {
            return false;
        }
        if asked.data.len() != at {
            return false;
        }
        asked.data.extend(data);
        if asked.awaited == 0 {
            self.transfers.remove(&ttag);
            if asked.is_damaged {
                asked.wish = Wish::Nothing;
            } else if let Wish::Deallocate(ranges) = &mut asked.wish {
                // Before the data came, only the number of ranges was known. `ranges` had that many
                // empty ranges.
                let count = ranges.len();
                *ranges = ranges_of(&asked.data, count, lba_count).unwrap_or_default();
                asked.blocks.clone_from(ranges);
                let blocks = asked.blocks.clone();
                let is_near = |(at, other): (usize, &Asked)| {
                    let theirs = &other.blocks;
                    at != index
                        && !other.is_answered
                        && theirs.iter().any(|theirs| overlap(theirs, &blocks))
                };
                self.is_ambiguous |= self.asked.iter().enumerate().any(is_near);
            }
        }
        true
    }

    /// Checks that some command has asked for an operation that the session begins.
    pub(crate) fn began(&mut self, token: u64, op: &Op) {
        let index = self.asked.iter_mut().position(|asked| !asked.is_answered && asked.takes(op));
        if self.is_ambiguous && index.is_none() {
            return;
        }
        let index = index.unwrap_or_else(|| panic!("no command has asked for {op:?}"));
        self.asked[index].running += 1;
        self.asked[index].begun += 1;
        self.tokens.insert(token, index);
    }

    /// Notes whether an operation has succeeded.
    pub(crate) fn completed(&mut self, token: u64, is_success: bool) {
        // All operations of a command have the same token, so the token stays in `tokens` when one
        // of them completes.
        let Some(&index) = self.tokens.get(&token) else {
            assert!(self.is_ambiguous, "an operation has completed that was never begun");
            return;
        };
        if self.is_ambiguous && self.asked[index].running == 0 {
            return;
        }
        self.asked[index].running -= 1;
        self.asked[index].has_failed |= !is_success;
    }

    /// Reads a PDU that the session has sent. If the PDU asks for a transfer, returns the transfer.
    pub(crate) fn said(&mut self, pdu: &[u8]) -> Option<Transfer> {
        assert!(!self.is_terminated, "a PDU follows a termination request");
        let hlen = usize::from(pdu[2]);
        if self.stage != Stage::New && self.digests.header && !matches!(pdu[0], 1 | 3) {
            assert_eq!(pdu[1] & 1, 1);
            assert_eq!(crc32c(&pdu[..hlen]), u32_at(pdu, hlen));
        }
        match pdu[0] {
            1 => assert_eq!(pdu[11], self.digest_bits()),
            3 => self.is_terminated = true,
            5 => self.said_reply(u16_at(pdu, 20), u16_at(pdu, 22) >> 1),
            7 => {
                let (cid, size) = (u16_at(pdu, 8), u32_at(pdu, 16) as usize);
                let at = usize::from(pdu[3]);
                if self.digests.data {
                    assert_eq!(crc32c(&pdu[at..at + size]), u32_at(pdu, at + size));
                }
                if pdu[1] & 8 != 0 {
                    self.said_reply(cid, 0);
                } else {
                    let is_owed = |asked: &Asked| asked.cid == cid && !asked.is_answered;
                    assert!(self.asked.iter().any(is_owed), "no command has asked for this data");
                }
            }
            9 => {
                let (cid, ttag) = (u16_at(pdu, 8), u16_at(pdu, 10));
                let size = u32_at(pdu, 16) as usize;
                let is_new = |asked: &Asked| {
                    asked.cid == cid && !asked.is_answered && asked.awaited == 0 && asked.begun == 0
                };
                let index = self.asked.iter().position(is_new).expect("each R2T is for a command");
                self.asked[index].awaited = size;
                let before = self.transfers.insert(ttag, index);
                assert!(before.is_none(), "two transfers have the same tag at the same time");
                return Some(Transfer { ttag, cid, size });
            }
            kind => panic!("a target does not send {kind:02x}h"),
        }
        None
    }

    fn digest_bits(&self) -> u8 {
        u8::from(self.digests.header) | u8::from(self.digests.data) << 1
    }

    fn said_reply(&mut self, cid: u16, status: u16) {
        let status = status & 0x7ff;
        // This status refuses a command whose identifier is in use by another command in flight.
        // The reply is for the later one of the two commands.
        let is_conflict = status == 0x003;
        let is_it = |asked: &Asked| asked.cid == cid && !asked.is_answered;
        let index = if is_conflict {
            self.asked.iter().rposition(is_it)
        } else {
            // A reset of the controller ends requests for events, and sends no reply for them. So
            // `asked` may still hold such a request as unanswered. If another unanswered command
            // has the same identifier, the reply is for that command.
            let is_owed = |asked: &Asked| is_it(asked) && asked.opcode != 0x0c;
            self.asked.iter().position(is_owed).or_else(|| self.asked.iter().position(is_it))
        };
        let index = index.expect("a reply answers a command");
        self.tell_apart(index, status == 0);
        let asked = &mut self.asked[index];
        assert_eq!(asked.awaited, 0, "a command got its reply before all its data came: {asked:?}");
        asked.is_answered = true;
        // The first Fabrics command (7Fh) that succeeds on a connection is its Connect.
        if status == 0 && asked.opcode == 0x7f {
            self.stage = Stage::Connected;
        }
        if self.is_ambiguous {
            return;
        }
        assert_eq!(asked.running, 0, "a command got its reply while its operations ran: {asked:?}");
        if status != 0 {
            let is_compared = asked.opcode == 5 && status == 0x285;
            assert!(
                asked.begun == 0 || asked.has_failed || is_compared,
                "a command was carried out, but its reply refuses it: {asked:?}"
            );
            return;
        }
        assert!(
            !asked.has_failed,
            "an operation has failed, but the reply reports success: {asked:?}"
        );
        let is_done = match &asked.wish {
            Wish::Nothing => true,
            Wish::Read { .. } | Wish::Write { .. } | Wish::Flush => asked.begun == 1,
            Wish::Zeros { next, end, .. } => next == end,
            Wish::Deallocate(ranges) => ranges.iter().all(|(lba, end)| lba == end),
        };
        assert!(is_done, "a reply reports success before the command was carried out: {asked:?}");
    }
}

impl Wish {
    /// The ranges of blocks that the command may touch: each range's first block, and its end.
    fn blocks(&self) -> Vec<(u64, u64)> {
        match self {
            Self::Nothing | Self::Flush => Vec::new(),
            Self::Read { lba, lbas } => vec![(*lba, lba + *lbas as u64)],
            Self::Write { lba, size, .. } => vec![(*lba, lba + (size / LBA_SIZE) as u64)],
            Self::Zeros { next, end, .. } => vec![(*next, *end)],
            Self::Deallocate(ranges) => ranges.clone(),
        }
    }
}

/// Whether a range has blocks in common with other ranges.
fn overlap(range: &(u64, u64), others: &[(u64, u64)]) -> bool {
    others.iter().any(|other| range.0.max(other.0) < range.1.min(other.1))
}

impl Witness {
    /// If several commands ask for the same operations, the witness can't know which operation
    /// belongs to which command. So it may have counted an operation for the wrong command. If a
    /// command's reply does not fit its counts, the witness looks for another unanswered command
    /// that asks for the same operations, and whose counts fit the reply. The two commands then
    /// exchange their counts and their tokens.
    fn tell_apart(&mut self, index: usize, is_success: bool) {
        let fits =
            |asked: &Asked| asked.running == 0 && asked.begun > 0 && asked.has_failed != is_success;
        let it = &self.asked[index];
        if matches!(it.wish, Wish::Nothing) || fits(it) {
            return;
        }
        let is_same = |other: &Asked| {
            !other.is_answered && other.wish == it.wish && other.data == it.data && fits(other)
        };
        let Some(other) = self.asked.iter().position(is_same) else { return };
        let [a, b] = self.asked.get_disjoint_mut([index, other]).expect("the two places differ");
        std::mem::swap(&mut a.running, &mut b.running);
        std::mem::swap(&mut a.begun, &mut b.begun);
        std::mem::swap(&mut a.has_failed, &mut b.has_failed);
        for place in self.tokens.values_mut() {
            if *place == index {
                *place = other;
            } else if *place == other {
                *place = index;
            }
        }
    }
}

impl Asked {
    /// Whether the command asks for `op`, and no earlier operation has done this part of the
    /// command. If so, takes `op` off the zeros or ranges that are still to do.
    fn takes(&mut self, op: &Op) -> bool {
        let (is_first, is_whole) = (self.begun == 0, self.awaited == 0);
        match (&mut self.wish, op) {
            (Wish::Flush, Op::Flush) => is_first,
            (Wish::Read { lba, lbas }, Op::Read { lba: at, buffer }) => {
                is_first && at.0 == *lba && buffer.len_lbas() == *lbas
            }
            (
                Wish::Write { lba, size, placement, durable },
                Op::Write { lba: at, buffer, placement: to, durable: is_durable },
            ) => {
                is_first
                    && is_whole
                    && at.0 == *lba
                    && buffer.len() == *size
                    && **buffer == *self.data
                    && to.0 == *placement
                    && *is_durable == *durable
            }
            (
                Wish::Zeros { next, end, placement, durable, .. },
                Op::Write { lba: at, buffer, placement: to, durable: is_durable },
            ) => {
                let lbas = buffer.len_lbas();
                let takes = at.0 == *next
                    && lbas <= ZEROED_MAX
                    && *next + lbas as u64 <= *end
                    && buffer.iter().all(|&byte| byte == 0)
                    && to.0 == *placement
                    && *is_durable == *durable;
                if takes {
                    *next += lbas as u64;
                }
                takes
            }
            (Wish::Zeros { next, end, may_deallocate: true, .. }, Op::Deallocate { range }) => {
                let takes = is_first && range.start.0 == *next && range.end.0 == *end;
                if takes {
                    *next = *end;
                }
                takes
            }
            (Wish::Deallocate(ranges), Op::Deallocate { range }) => {
                let wanted = (range.start.0, range.end.0);
                let place = ranges.iter_mut().find(|known| is_whole && **known == wanted);
                place.is_some_and(|place| {
                    place.0 = place.1;
                    true
                })
            }
            _ => false,
        }
    }
}

/// The data in a command's capsule. The data is empty if an R2T must ask for it, and `None` if the
/// descriptor is wrong.
fn sgl_data(command: &[u8], data: &[u8]) -> Option<Vec<u8>> {
    let length = u32_at(command, 32) as usize;
    match command[39] {
        0x01 => {
            let start = usize::try_from(u64_at(command, 24)).ok()?;
            Some(data.get(start..)?.get(..length)?.to_vec())
        }
        0x5a if data.is_empty() => Some(Vec::new()),
        _ => None,
    }
}

/// The ranges that a Dataset Management command names: each range's first block, and its end. If
/// the data is yet to come, returns `count` empty ranges. `None` if a range is missing or beyond
/// the drive.
fn ranges_of(data: &[u8], count: usize, lba_count: u64) -> Option<Vec<(u64, u64)>> {
    if data.is_empty() {
        return Some(vec![(0, 0); count]);
    }
    let range = |at: usize| {
        let range = data.get(at * 16..at * 16 + 16)?;
        let start = u64_at(range, 8);
        let end = start.checked_add(u32_at(range, 4).into())?;
        (end <= lba_count).then_some((start, end))
    };
    (0..count).map(range).collect()
}
