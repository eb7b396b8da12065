//! Gives random bytes to every decoder, and checks three things. The decoder does not panic. What a
//! decoded head says about its PDU is possible. If a value is encoded and then decoded, the result
//! equals the value.

use fastrand::Rng;
use slimio_nvme::command::{DsmRange, WriteFlags};
use slimio_nvme::fabrics::{Capabilities, Connect, ConnectData, PropertyAccess};
use slimio_nvme::fdp::{self, IoManagement};
use slimio_nvme::feature::FeatureAccess;
use slimio_nvme::identify::{self, Controller, Identify, Namespace, descriptors, namespace_list};
use slimio_nvme::log::{DiscoveryEntry, EnduranceGroup, ErrorEntry, GetLogPage, Smart};
use slimio_nvme::pdu::{
    self, COMMON_SIZE, DIGEST_SIZE, DataHead, Digests, Head, IcReq, IcResp, Kind, R2t, TermReq,
    flags,
};
use slimio_nvme::{Command, Completion, Sgl, Status};
use slimio_testing::damage::{damage, fuzz};

const DATA_SIZE_MAX: usize = 8192;

#[test]
fn random_bytes_are_survived() {
    fuzz(|rng| match rng.u8(..8) {
        0 => structures(rng),
        1 => commands(rng),
        _ => pdus(rng),
    });
}

/// Decodes a PDU that may be damaged. Either the decoder refuses the PDU's head, or every part that
/// the head names is inside the PDU.
fn pdus(rng: &mut Rng) {
    let digests = Digests { header: rng.bool(), data: rng.bool() };
    let alignment = [4, 4, 8, 64, 128][rng.usize(..5)];
    let mut bytes = pdu(rng, digests, alignment);
    if rng.u8(..4) > 0 {
        let others = [pdu(rng, digests, alignment)];
        damage(rng, &mut bytes, &others);
    } else {
        let size = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]) as usize;
        assert_eq!(bytes.len(), size, "a PDU's head does not state the PDU's size");
        assert!(decoded(&bytes, digests, alignment), "a correct PDU was refused: {bytes:?}");
    }
    decoded(&bytes, digests, alignment);
}

/// Decodes a PDU as a connection would. Returns whether the PDU was correct.
fn decoded(bytes: &[u8], digests: Digests, alignment: usize) -> bool {
    let Some(common) = bytes.first_chunk::<COMMON_SIZE>() else { return false };
    let head = match Head::decode(common, digests, alignment, DATA_SIZE_MAX) {
        Ok(head) => head,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            let mut term = Vec::new();
            TermReq::push(&mut term, Kind::C2hTermReq, error, bytes);
            assert!(term.len() <= 24 + pdu::TERM_DATA_SIZE_MAX);
            return false;
        }
    };
    assert!(head.data_size <= DATA_SIZE_MAX, "a head with too much data was not refused");
    let digest_size = if head.has(flags::DDGSTF) { DIGEST_SIZE } else { 0 };
    assert!(head.header_size <= head.data_at && head.data_at + head.data_size <= head.size);
    assert!(head.data_size == 0 || head.data_at + head.data_size + digest_size == head.size);
    if bytes.len() < head.size {
        return false;
    }
    let bytes = &bytes[..head.size];
    if head.check_header(bytes).is_err() {
        return false;
    }
    let data = &bytes[head.data_at..][..head.data_size];
    match head.kind {
        Kind::IcReq => {
            return IcReq::decode(bytes).expect("the PDU has all its bytes").check().is_ok();
        }
        Kind::IcResp => {
            return IcResp::decode(bytes).expect("the PDU has all its bytes").check().is_ok();
        }
        Kind::CapsuleCmd => {
            look_at(&Head::command(bytes.first_chunk().expect("the PDU has all its bytes")));
        }
        Kind::CapsuleResp => {
            let completion =
                Head::completion(bytes.first_chunk().expect("the PDU has all its bytes"));
            assert!(!completion.status.to_string().is_empty());
        }
        Kind::H2cData | Kind::C2hData => {
            DataHead::decode(bytes).expect("the PDU has all its bytes");
        }
        Kind::R2t => {
            R2t::decode(bytes).expect("the PDU has all its bytes");
        }
        Kind::H2cTermReq | Kind::C2hTermReq => {
            TermReq::decode(bytes).expect("the PDU has all its bytes");
        }
    }
    !head.has(flags::DDGSTF) || bytes[head.size - DIGEST_SIZE..] == pdu::data_digest(data)
}

/// A correct PDU of a random kind.
fn pdu(rng: &mut Rng, digests: Digests, alignment: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let data: Vec<u8> = (0..rng.usize(..40)).map(|_| rng.u8(..)).collect();
    let entry: [u8; 64] = std::array::from_fn(|_| rng.u8(..));
    match rng.u8(..8) {
        0 => IcReq { pfv: 0, hpda: rng.u8(..32), dgst: rng.u8(..4), maxr2t: rng.u32(..) }
            .push(&mut out),
        1 => IcResp { pfv: 0, cpda: rng.u8(..32), dgst: rng.u8(..4), maxh2cdata: 4096 }
            .push(&mut out),
        2 => {
            let error = pdu::PduError::field("HLEN", 2);
            let kind = if rng.bool() { Kind::H2cTermReq } else { Kind::C2hTermReq };
            TermReq::push(&mut out, kind, error, &data);
        }
        3 | 4 => {
            let command = Command::decode(&entry).sgl(Sgl::in_capsule(data.len() as u32));
            pdu::push_command(&mut out, &command, &data, digests, alignment);
        }
        5 => {
            let completion = Completion::decode(entry.first_chunk().expect("16 bytes fit into 64"));
            pdu::push_completion(&mut out, &completion, digests);
        }
        6 => {
            let [cccid, ttag] = [rng.u16(..), rng.u16(..)];
            R2t { cccid, ttag, r2to: rng.u32(..), r2tl: rng.u32(..) }.push(&mut out, digests);
        }
        _ => {
            let data = if data.is_empty() { vec![1] } else { data };
            let datal = data.len() as u32;
            let head = DataHead { cccid: rng.u16(..), ttag: rng.u16(..), datao: 0, datal };
            let kind = if rng.bool() { Kind::H2cData } else { Kind::C2hData };
            let flag = if rng.bool() { flags::LAST_PDU } else { 0 };
            pdu::push_data_head(&mut out, kind, flag, &head, digests, alignment);
            pdu::push_data(&mut out, &data, digests);
        }
    }
    out
}

fn commands(rng: &mut Rng) {
    let mut entry: [u8; 64] = std::array::from_fn(|_| rng.u8(..));
    entry[36..39].fill(0);
    let command = Command::decode(&entry);
    assert_eq!(command.encode(), entry);
    look_at(&command);
    let bytes: [u8; 16] = std::array::from_fn(|_| rng.u8(..));
    let completion = Completion::decode(&bytes);
    assert_eq!(Completion::decode(&completion.encode()), completion);
    assert!(!Status::from_bits(rng.u16(..)).to_string().is_empty());
}

/// Decodes a command as every kind of command. If a decoded value is encoded and decoded again, the
/// result equals the value.
fn look_at(command: &Command) {
    let flags = WriteFlags::of(command);
    let again = flags.on(*command);
    assert_eq!(WriteFlags::of(&again), flags);
    assert!((1..=0x1_0000).contains(&command.block_count()));
    let connect = Connect::of(command);
    assert_eq!(Connect::of(&connect.command(command.cid)), connect);
    assert_eq!(PropertyAccess::of(command).value as u32, command.dword(12));
    let page = GetLogPage::of(command);
    assert!(page.size.is_multiple_of(4) && page.size > 0);
    assert_eq!(GetLogPage::of(&page.command(command.cid)), page);
    let identify = Identify::of(command);
    assert_eq!(Identify::of(&identify.command(command.cid)), identify);
    assert_eq!(FeatureAccess::of(command).cdw11, command.dword(11));
    assert!(IoManagement::of(command).size > 0);
}

fn structures(rng: &mut Rng) {
    let mut bytes = vec![0; rng.usize(..=identify::IDENTIFY_SIZE)];
    for byte in bytes.iter_mut().take(rng.usize(..1200)) {
        *byte = rng.u8(..);
    }
    // If a decoded value is encoded and decoded again, the result must equal the value.
    macro_rules! all {
        ($($structure:ty)*) => {
            $(match <$structure>::decode(&bytes) {
                Ok(found) => assert_eq!(<$structure>::decode(&found.encode()), Ok(found)),
                Err(error) => {
                    assert_eq!((error.needed, error.found), (<$structure>::SIZE, bytes.len()));
                    assert!(bytes.len() < <$structure>::SIZE);
                }
            })*
        };
    }
    all!(Controller Namespace ConnectData Smart ErrorEntry EnduranceGroup DiscoveryEntry DsmRange);
    all!(fdp::Configuration fdp::Statistics fdp::Event fdp::HandleStatus);
    assert!(namespace_list(&bytes).count() <= bytes.len() / 4);
    let named: usize = descriptors(&bytes).map(|(_, name)| name.len() + 4).sum();
    assert!(named <= bytes.len());
    Capabilities::of_bits(rng.u64(..));
}
