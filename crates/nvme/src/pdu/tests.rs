//! Compares encoded PDUs with bytes that were written by hand from the specification's drawings.

use super::*;
use crate::{Command, Completion, Sgl, Status, opcode};

const NONE: Digests = Digests { header: false, data: false };
const BOTH: Digests = Digests { header: true, data: true };

fn head_of(bytes: &[u8], digests: Digests) -> Result<Head, PduError> {
    Head::decode(bytes.first_chunk().expect("a PDU has a common header"), digests, 4, 8192)
}

#[test]
fn crc32c_is_that_of_rfc_3720() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(data_digest(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
    assert_eq!(data_digest(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
}

#[test]
fn a_connection_begins_with_128_bytes_each_way() {
    let request = IcReq { pfv: 0, hpda: 0, dgst: 3, maxr2t: 15 };
    let mut bytes = Vec::new();
    request.push(&mut bytes);
    assert_eq!(bytes.len(), 128);
    assert_eq!(bytes[..16], [0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 3, 15, 0, 0, 0]);
    assert_eq!(head_of(&bytes, BOTH).map(|head| head.kind), Ok(Kind::IcReq));
    assert_eq!(IcReq::decode(&bytes).map(|found| found.check()), Ok(Ok(BOTH)));
    let response = IcResp { pfv: 0, cpda: 0, dgst: 1, maxh2cdata: 0x1_0000 };
    bytes.clear();
    response.push(&mut bytes);
    assert_eq!(bytes[..16], [1, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0]);
    let digests = Digests { header: true, data: false };
    assert_eq!(IcResp::decode(&bytes).map(|found| found.check()), Ok(Ok(digests)));
}

#[test]
fn a_wrong_parameter_of_a_connection_is_named_by_its_offset() {
    let good = IcReq::default();
    let field = |request: IcReq| request.check().map_err(|error| (error.fes, error.fei));
    assert_eq!(field(IcReq { pfv: 1, ..good }), Err((Fes::UnsupportedParameter, 8)));
    assert_eq!(field(IcReq { hpda: 32, ..good }), Err((Fes::InvalidHeader, 10)));
    assert_eq!(field(IcReq { dgst: 4, ..good }), Err((Fes::InvalidHeader, 11)));
    let good = IcResp { maxh2cdata: 4096, ..IcResp::default() };
    let field = |response: IcResp| response.check().map_err(|error| (error.fes, error.fei));
    assert_eq!(field(good), Ok(NONE));
    assert_eq!(field(IcResp { pfv: 1, ..good }), Err((Fes::UnsupportedParameter, 8)));
    assert_eq!(field(IcResp { cpda: 32, ..good }), Err((Fes::InvalidHeader, 10)));
    assert_eq!(field(IcResp { dgst: 4, ..good }), Err((Fes::InvalidHeader, 11)));
    assert_eq!(field(IcResp { maxh2cdata: 4092, ..good }), Err((Fes::InvalidHeader, 12)));
    assert_eq!(field(IcResp { maxh2cdata: 4098, ..good }), Err((Fes::InvalidHeader, 12)));
}

#[test]
fn a_command_with_data_is_laid_out_as_the_drawing() {
    let command = Command::new(opcode::nvm::WRITE, 5).sgl(Sgl::in_capsule(8));
    for (digests, alignment, flags, data_at, size) in [
        (NONE, 4, 0, 72, 80),
        (BOTH, 4, 3, 76, 88),
        (BOTH, 128, 3, 128, 140),
        (Digests { header: false, data: true }, 16, 2, 80, 92),
    ] {
        let mut bytes = Vec::new();
        push_command(&mut bytes, &command, b"12345678", digests, alignment);
        assert_eq!(bytes.len(), size);
        assert_eq!(bytes[..8], [4, flags, 72, data_at as u8, size as u8, 0, 0, 0]);
        let head = Head::decode(bytes.first_chunk().unwrap(), digests, alignment, 8).unwrap();
        assert_eq!((head.data_at, head.data_size, head.size), (data_at, 8, size));
        assert_eq!(head.check_header(&bytes), Ok(()));
        assert_eq!(Head::command(bytes.first_chunk().unwrap()), command);
        assert_eq!(&bytes[data_at..data_at + 8], b"12345678");
        if digests.data {
            assert_eq!(bytes[data_at + 8..], data_digest(b"12345678"));
        }
    }
}

#[test]
fn without_data_there_is_no_offset_and_no_data_digest() {
    let mut bytes = Vec::new();
    push_command(&mut bytes, &Command::new(opcode::nvm::FLUSH, 5), &[], BOTH, 128);
    assert_eq!(bytes[..8], [4, 1, 72, 0, 76, 0, 0, 0]);
    let head = head_of(&bytes, BOTH).unwrap();
    assert_eq!((head.header_size, head.data_size, head.size), (76, 0, 76));
}

#[test]
fn the_other_kinds_are_as_their_figures_have_them() {
    let mut bytes = Vec::new();
    let completion = Completion { cid: 9, status: Status::SUCCESS, ..Completion::default() };
    push_completion(&mut bytes, &completion, NONE);
    assert_eq!(bytes[..8], [5, 0, 24, 0, 24, 0, 0, 0]);
    assert_eq!(Head::completion(bytes.first_chunk().unwrap()), completion);
    bytes.clear();
    let r2t = R2t { cccid: 1, ttag: 2, r2to: 3, r2tl: 4 };
    r2t.push(&mut bytes, NONE);
    assert_eq!(bytes, [9, 0, 24, 0, 24, 0, 0, 0, 1, 0, 2, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(R2t::decode(&bytes), Ok(r2t));
    bytes.clear();
    let head = DataHead { cccid: 1, ttag: 2, datao: 3, datal: 4 };
    push_data_head(&mut bytes, Kind::C2hData, flags::LAST_PDU | flags::SUCCESS, &head, NONE, 4);
    push_data(&mut bytes, b"data", NONE);
    assert_eq!(bytes[..8], [7, 0x0c, 24, 24, 28, 0, 0, 0]);
    assert_eq!(bytes[8..20], [1, 0, 2, 0, 3, 0, 0, 0, 4, 0, 0, 0]);
    assert_eq!(&bytes[24..], b"data");
    assert_eq!(DataHead::decode(&bytes), Ok(head));
    bytes.clear();
    TermReq::push(&mut bytes, Kind::C2hTermReq, PduError::field("HLEN", 2), &[7; 200]);
    assert_eq!(bytes.len(), 24 + 128);
    assert_eq!(bytes[..14], [3, 0, 24, 0, 152, 0, 0, 0, 1, 0, 2, 0, 0, 0]);
    let head = head_of(&bytes, BOTH).unwrap();
    assert_eq!((head.kind, head.data_size), (Kind::C2hTermReq, 128));
    assert_eq!(TermReq::decode(&bytes).map(|term| Fes::of(term.fes)), Ok(Some(Fes::InvalidHeader)));
}

#[test]
fn each_wrong_field_is_named_by_its_offset() {
    let mut good = Vec::new();
    let command = Command::new(opcode::nvm::WRITE, 5).sgl(Sgl::in_capsule(8));
    push_command(&mut good, &command, &[0; 8], BOTH, 4);
    assert!(head_of(&good, BOTH).is_ok());
    for (at, value, what, fei) in [
        (0, 0x08, "PDU-Type", 0),
        (0, 0x0a, "PDU-Type", 0),
        (0, 0x05, "HLEN", 2),
        (1, 0x02, "FLAGS.HDGSTF", 1),
        (1, 0x01, "FLAGS.DDGSTF", 1),
        (2, 71, "HLEN", 2),
        (3, 72, "PDO", 3),
        (3, 78, "PDO", 3),
        (3, 88, "PDO", 3),
        (4, 75, "PLEN", 4),
        (5, 0x21, "PLEN", 4),
        (7, 0xff, "PLEN", 4),
    ] {
        let mut bytes = good.clone();
        bytes[at] = value;
        let wrong = head_of(&bytes, BOTH).unwrap_err();
        assert_eq!((wrong.what, wrong.fei), (what, fei), "byte {at} as {value:#x}");
        assert_eq!(wrong.fes, Fes::InvalidHeader);
    }
    assert_eq!(head_of(&good, NONE), Err(PduError::field("FLAGS.HDGSTF", 1)));
    let none = Digests { header: true, data: false };
    assert_eq!(head_of(&good, none), Err(PduError::field("FLAGS.DDGSTF", 1)));
}

#[test]
fn a_wrong_header_digest_is_said_as_it_was() {
    let mut bytes = Vec::new();
    R2t { cccid: 1, ..R2t::default() }.push(&mut bytes, BOTH);
    let head = head_of(&bytes, BOTH).unwrap();
    assert_eq!(head.check_header(&bytes), Ok(()));
    bytes[8] ^= 1;
    let found = u32::from_le_bytes(bytes[24..28].try_into().unwrap());
    let wrong = head.check_header(&bytes).unwrap_err();
    assert_eq!((wrong.fes, wrong.fei), (Fes::HeaderDigestError, found));
}

#[test]
fn any_eight_bytes_are_decoded_or_refused_and_the_parts_are_inside() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut decoded = 0;
    for _ in 0..200_000 {
        let kind = random.u8(..11);
        let hlen = if random.bool() { 24 } else { [72, 128][random.usize(..2)] };
        let plen = random.u32(..300).to_le_bytes();
        let bytes = [
            kind,
            random.u8(..16),
            hlen,
            random.u8(..132),
            plen[0],
            plen[1],
            plen[2],
            random.u8(..) / 255,
        ];
        let digests = Digests { header: random.bool(), data: random.bool() };
        let Ok(head) = Head::decode(&bytes, digests, 4, 8192) else { continue };
        decoded += 1;
        let digest = usize::from(head.has(flags::DDGSTF)) * DIGEST_SIZE;
        assert!(head.header_size <= head.data_at);
        assert_eq!(head.data_at + head.data_size + digest, head.size);
    }
    assert!(decoded > 1000, "only {decoded} headers were right");
}
