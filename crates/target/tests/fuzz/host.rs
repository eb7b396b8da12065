//! A random host, whose PDUs are mostly right.

use fastrand::Rng;
use slimio_nvme::command::{DIRECTIVE_DATA_PLACEMENT, DSM_DEALLOCATE, DsmRange, WriteFlags};
use slimio_nvme::fabrics::{
    CATTR_NO_SQ_FLOW_CONTROL, CNTLID_ANY, Configuration, Connect, ConnectData, Property,
    PropertyAccess,
};
use slimio_nvme::fdp::IoManagement;
use slimio_nvme::feature::FeatureAccess;
use slimio_nvme::identify::Identify;
use slimio_nvme::log::GetLogPage;
use slimio_nvme::pdu::{self, DataHead, Digests, IcReq, Kind, flags};
use slimio_nvme::{Command, DISCOVERY_NQN, Name, Sgl, opcode};

use crate::witness::Transfer;

pub(crate) const HOST: &str = "nqn.host";
pub(crate) const HOST_ID: [u8; 16] = [7; 16];
pub(crate) const LBA_SIZE: usize = 4096;

/// Numbers that may cause an overflow, or exceed a limit.
const NUMBERS: &[u64] = &[
    0,
    1,
    2,
    4,
    31,
    32,
    63,
    64,
    127,
    128,
    255,
    256,
    4095,
    4096,
    4097,
    8191,
    8192,
    8193,
    0xffff,
    0x1_0000,
    0x1_ffff,
    0x2_0000,
    0x7_ffff,
    0x8_0000,
    0x8_0001,
    0x7fff_ffff,
    0xffff_fff0,
    0xffff_ffff,
    1 << 32,
    u64::MAX - 1,
    u64::MAX,
];

/// A host, and the state of its connection.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) digests: Digests,
    pub(crate) is_io: bool,
    pub(crate) lba_count: u64,
    /// Percentage of PDUs that have a wrong field.
    pub(crate) wrong_percent: u32,
    /// Whether the host may connect to a discovery controller.
    pub(crate) may_discover: bool,
    cid: u16,
    /// Whether all PDUs that the host has sent so far were right.
    pub(crate) is_honest: bool,
}

impl Host {
    pub(crate) fn new(rng: &mut Rng, lba_count: u64, wrong_percent: u32) -> Self {
        // Digests cost time, so most hosts have none.
        let digests = match rng.u8(..8) {
            0 => Digests { header: true, data: true },
            1 => Digests { header: true, data: false },
            2 => Digests { header: false, data: true },
            _ => Digests::default(),
        };
        let (is_io, is_honest) = (rng.u8(..4) > 0, true);
        Self {
            digests,
            is_io,
            lba_count,
            wrong_percent,
            may_discover: true,
            cid: rng.u16(..),
            is_honest,
        }
    }

    fn is_wrong_now(&mut self, rng: &mut Rng) -> bool {
        let is_wrong = rng.u32(..100) < self.wrong_percent;
        self.is_honest &= !is_wrong;
        is_wrong
    }

    /// An ICReq, the first PDU of a connection.
    pub(crate) fn request(&self) -> Vec<u8> {
        let mut out = Vec::new();
        IcReq { pfv: 0, hpda: 0, dgst: self.digests.bits(), maxr2t: 0 }.push(&mut out);
        out
    }

    /// A Connect. If the host has an I/O queue, the queue belongs to controller `cntlid`.
    pub(crate) fn connect(&mut self, rng: &mut Rng, nqn: &str, cntlid: u16) -> Vec<u8> {
        let is_discovery = !self.is_io && self.may_discover && rng.u8(..8) == 0;
        let connect = Connect {
            recfmt: 0,
            qid: self.is_io.into(),
            sqsize: if rng.bool() { 127 } else { 31 },
            cattr: if rng.bool() { CATTR_NO_SQ_FLOW_CONTROL } else { 0 },
            kato: 0,
        };
        let mut data = ConnectData {
            hostid: HOST_ID,
            cntlid: if self.is_io { cntlid } else { CNTLID_ANY },
            subnqn: Name::new(if is_discovery { DISCOVERY_NQN } else { nqn })
                .expect("the name fits"),
            hostnqn: Name::new(HOST).expect("the name fits"),
        }
        .encode()
        .to_vec();
        let mut command = connect.command(self.next_cid(rng));
        if self.is_wrong_now(rng) {
            if rng.bool() {
                spoil(rng, &mut command);
            } else {
                let at = [0, 16, 17, 256, 260, 479, 511, 512, 520, 767][rng.usize(..10)];
                data[at] = rng.u8(..);
            }
        }
        self.capsule(&command.sgl(Sgl::in_capsule(1024)), &data)
    }

    /// The command that enables the controller.
    pub(crate) fn enable(&mut self, rng: &mut Rng) -> Vec<u8> {
        let value = Configuration::ENABLED.0.into();
        let command = PropertyAccess::set(Property::Cc, value, self.next_cid(rng));
        self.capsule(&command, &[])
    }

    fn next_cid(&mut self, rng: &mut Rng) -> u16 {
        if self.wrong_percent > 0 && rng.u8(..32) == 0 {
            // A command in flight may still use this identifier.
            self.is_honest = false;
            return self.cid.wrapping_sub(rng.u16(..4));
        }
        self.cid = self.cid.wrapping_add(1);
        self.cid
    }

    fn capsule(&self, command: &Command, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        pdu::push_command(&mut out, command, data, self.digests, 4);
        out
    }

    /// A random command for the host's queue.
    pub(crate) fn command(&mut self, rng: &mut Rng) -> Vec<u8> {
        let cid = self.next_cid(rng);
        let (mut command, data) =
            if self.is_io { self.io_command(rng, cid) } else { admin_command(rng, cid) };
        let is_from_host = !data.is_empty();
        // Data from the host is either in the capsule, or the target asks for it by an R2T.
        let is_in_capsule = is_from_host && data.len() <= 8192 && rng.u8(..4) > 0;
        if is_from_host {
            let size = data.len() as u32;
            command = command.sgl(if is_in_capsule {
                Sgl::in_capsule(size)
            } else {
                Sgl::transport(size)
            });
        }
        let mut data = if is_in_capsule { data } else { Vec::new() };
        if self.is_wrong_now(rng) {
            match rng.u8(..8) {
                0 => data.truncate(rng.usize(..=data.len()) & !3),
                1 => data.resize((data.len() + rng.usize(..64)).min(8192), 1),
                _ => spoil(rng, &mut command),
            }
        }
        self.capsule(&command, &data)
    }

    fn io_command(&self, rng: &mut Rng, cid: u16) -> (Command, Vec<u8>) {
        let lbas = if rng.u8(..16) == 0 { rng.u32(1..=24) } else { rng.u32(1..=2) };
        let lba = rng.u64(..=self.lba_count - u64::from(lbas));
        let flags = WriteFlags {
            fua: rng.bool(),
            directive: if rng.bool() { DIRECTIVE_DATA_PLACEMENT } else { 0 },
            directive_specific: rng.u16(..8),
            ..WriteFlags::default()
        };
        let size = lbas as usize * LBA_SIZE;
        let of = |opcode: u8| Command::new(opcode, cid).nsid(1);
        match rng.u8(..16) {
            0..5 => {
                let command = flags.on(of(opcode::nvm::WRITE).blocks(lba, lbas));
                (command, content(rng, size))
            }
            5..8 => {
                let command = of(opcode::nvm::READ).blocks(lba, lbas);
                (command.sgl(Sgl::transport(size as u32)), Vec::new())
            }
            8 => (of(opcode::nvm::COMPARE).blocks(lba, lbas), content(rng, size)),
            9 => (of(opcode::nvm::FLUSH), Vec::new()),
            10 | 11 => {
                let flags = WriteFlags { deallocate: rng.bool(), ..flags };
                let lbas = rng.u32(1..=100);
                let lba = rng.u64(..=self.lba_count - u64::from(lbas));
                (flags.on(of(opcode::nvm::WRITE_ZEROES).blocks(lba, lbas)), Vec::new())
            }
            12 | 13 => {
                let count = if rng.u8(..8) == 0 { 256 } else { rng.u32(1..=4) };
                let mut data = Vec::new();
                for _ in 0..count {
                    let nlb = rng.u32(..64);
                    let slba = rng.u64(..=self.lba_count - u64::from(nlb));
                    data.extend(DsmRange { cattr: 0, nlb, slba }.encode());
                }
                let ad = if rng.u8(..8) == 0 { 0 } else { DSM_DEALLOCATE };
                (of(opcode::nvm::DATASET_MANAGEMENT).cdw(10, count - 1).cdw(11, ad), data)
            }
            14 => {
                let size = rng.u32(1..=32) * 16;
                let command = IoManagement::status(cid, size).nsid(1);
                (command.sgl(Sgl::transport(size)), Vec::new())
            }
            _ => {
                let count = rng.usize(1..=8);
                let data = (0..count).flat_map(|_| rng.u16(..8).to_le_bytes()).collect();
                (IoManagement::update(cid, count).nsid(1), data)
            }
        }
    }

    /// PDUs with the data that an R2T has asked for. The data may be split into several PDUs.
    pub(crate) fn data(&mut self, rng: &mut Rng, transfer: Transfer) -> Vec<Vec<u8>> {
        let data = content(rng, transfer.size);
        let mut pdus = Vec::new();
        let mut at = 0;
        while at < data.len() {
            let rest = data.len() - at;
            let size = if rng.bool() { rest } else { rng.usize(1..=rest).next_multiple_of(4) };
            let size = size.min(rest);
            let mut head = DataHead {
                cccid: transfer.cid,
                ttag: transfer.ttag,
                datao: at as u32,
                datal: size as u32,
            };
            let mut flag = if at + size == data.len() { flags::LAST_PDU } else { 0 };
            let mut part = data[at..at + size].to_vec();
            if self.is_wrong_now(rng) {
                match rng.u8(..6) {
                    0 => head.cccid = head.cccid.wrapping_add(rng.u16(..3)),
                    1 => head.ttag = rng.u16(..129),
                    2 => head.datao = number(rng) as u32,
                    3 => flag ^= flags::LAST_PDU,
                    4 => part.resize(rng.usize(4..=part.len().max(8)) & !3, 0),
                    _ => part.extend([0; 64]),
                }
                head.datal = part.len() as u32;
            }
            let mut out = Vec::new();
            pdu::push_data_head(&mut out, Kind::H2cData, flag, &head, self.digests, 4);
            pdu::push_data(&mut out, &part, self.digests);
            pdus.push(out);
            at += size;
        }
        pdus
    }
}

fn number(rng: &mut Rng) -> u64 {
    NUMBERS[rng.usize(..NUMBERS.len())]
}

/// Bytes that differ from block to block.
fn content(rng: &mut Rng, size: usize) -> Vec<u8> {
    let mut data = vec![rng.u8(..); size];
    for block in data.chunks_mut(LBA_SIZE) {
        block[0] = rng.u8(..);
    }
    data
}

fn admin_command(rng: &mut Rng, cid: u16) -> (Command, Vec<u8>) {
    match rng.u8(..12) {
        0 | 1 => {
            let cns = [0, 1, 2, 3, 5, 6, 7, 8, 0x19, 0x1c][rng.usize(..10)];
            let identify = Identify { cns, ..Identify::default() };
            let command = identify.command(cid).nsid(rng.u32(..3));
            (command.sgl(Sgl::transport(4096)), Vec::new())
        }
        2 | 3 => {
            let lid = [0, 1, 2, 3, 4, 5, 9, 0x12, 0x20, 0x21, 0x22, 0x23, 0x70][rng.usize(..13)];
            let size = 4 * rng.u64(1..=1100);
            let offset = if rng.bool() { 0 } else { 4 * rng.u64(..300) };
            let page =
                GetLogPage { lid, lsp: rng.u8(..2), size, lsi: 1, offset, ..GetLogPage::default() };
            let command = page.command(cid).nsid(u32::MAX);
            (command.sgl(Sgl::transport(size as u32)), Vec::new())
        }
        4..7 => {
            let fid = [1, 2, 4, 5, 6, 7, 0xa, 0xb, 0xe, 0xf, 0x16, 0x1d, 0x1e, 0x81];
            let fid = fid[rng.usize(..fid.len())];
            let cdw11 = if rng.bool() { rng.u32(..0x400) } else { number(rng) as u32 };
            let nsid = rng.u32(..2);
            if rng.bool() {
                let get = FeatureAccess::get(cid, fid, cdw11).nsid(nsid);
                return (get.sgl(Sgl::transport(rng.u32(..=512))), Vec::new());
            }
            // No keep alive timeout is set. A timeout would end controllers that are still in use.
            let cdw11 = if fid == 0xf { 0 } else { cdw11 };
            let set = FeatureAccess::set(cid, fid, cdw11, rng.u32(..2)).nsid(nsid);
            (set, if matches!(fid, 0xe | 0x16 | 0x1e) { content(rng, 512) } else { Vec::new() })
        }
        7 => (Command::new(opcode::admin::ASYNC_EVENT_REQUEST, cid), Vec::new()),
        8 => {
            let sqid_and_cid = u32::from(cid.wrapping_sub(rng.u16(..8))) << 16;
            (Command::new(opcode::admin::ABORT, cid).cdw(10, sqid_and_cid), Vec::new())
        }
        9 => (Command::new(opcode::admin::KEEP_ALIVE, cid), Vec::new()),
        10 => {
            let property = [Property::Cap, Property::Vs, Property::Cc, Property::Csts];
            (PropertyAccess::get(property[rng.usize(..4)], cid), Vec::new())
        }
        _ => {
            let enabled = Configuration::ENABLED;
            let values = [enabled, enabled, enabled.with_shn(1), Configuration::default()];
            let value = values[rng.usize(..4)].0.into();
            (PropertyAccess::set(Property::Cc, value, cid), Vec::new())
        }
    }
}

/// Puts a random value, which may be wrong, into a random field of a command.
fn spoil(rng: &mut Rng, command: &mut Command) {
    let value = if rng.bool() { number(rng) } else { rng.u64(..) };
    match rng.u8(..12) {
        0 => command.opcode = rng.u8(..),
        1 => command.flags = rng.u8(..),
        2 => command.nsid = value as u32,
        3 => command.sgl.length = value as u32,
        4 => command.sgl.address = value,
        5 => command.sgl.identifier = [0x00, 0x01, 0x5a, 0x10, 0x51, 0xff][rng.usize(..6)],
        _ => command.cdw10_to_15[rng.usize(..6)] = value as u32,
    }
}
