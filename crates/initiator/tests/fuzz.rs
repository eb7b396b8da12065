//! Runs the initiator's protocol against random targets. The protocol must not panic and must come
//! to an end. The number of bytes that it sends is limited by the commands that were submitted.

use fastrand::Rng;
use slimio_initiator::{Protocol, Submission, Token, Transport};
use slimio_nvme::pdu::{self, DataHead, Digests, IcResp, Kind, R2t, flags};
use slimio_nvme::{Command, Completion, Status, opcode};
use slimio_testing::damage::{damage, fuzz};

const DEPTH: u16 = 8;
const DATA_SIZE: usize = 12 << 10;

#[test]
fn random_targets_are_survived() {
    fuzz(one_target);
}

fn one_target(rng: &mut Rng) {
    let digests = Digests { header: rng.bool(), data: rng.bool() };
    let mut protocol = Protocol::new(Transport {
        qid: rng.u16(..2),
        digests,
        alignment: 4,
        in_flight_max: DEPTH,
        in_capsule_size_max: 4096,
    });
    let mut response = Vec::new();
    IcResp { pfv: 0, cpda: 0, dgst: digests.bits(), maxh2cdata: 4096 }.push(&mut response);
    if rng.u8(..16) == 0 {
        damage(rng, &mut response, &[]);
    }
    let (mut inbox, mut submitted, mut ended) = (response, 0, 0);
    // A command's data is never sent twice. So the submissions limit the number of bytes that are
    // sent.
    let mut sent_max = 1 << 10;
    let mut sent = 0;
    for _ in 0..rng.usize(1..40) {
        let taken = protocol.receive(&inbox);
        sent += protocol.output().len();
        protocol.note_sent(protocol.output().len());
        assert!(
            sent <= sent_max,
            "{sent} bytes were sent, but the submissions allow only {sent_max}"
        );
        while let Some(outcome) = protocol.next_outcome() {
            ended += 1;
            assert!(outcome.token.0 < submitted && ended <= submitted);
            assert!(outcome.data.len() <= DATA_SIZE);
            drop(outcome.checked().map_err(|error| assert!(!error.to_string().is_empty())));
        }
        match taken {
            Ok(taken) => drop(inbox.drain(..taken)),
            Err(error) => {
                assert!(!error.to_string().is_empty());
                return;
            }
        }
        if !protocol.is_initialized() {
            return;
        }
        if rng.bool() {
            let opcode =
                [opcode::nvm::READ, opcode::nvm::WRITE, opcode::nvm::FLUSH][rng.usize(..3)];
            let data = vec![3; rng.usize(..=DATA_SIZE / 4) * 4];
            let size = data.len();
            let command = Command::new(opcode, 0);
            let submission = Submission { token: Token(submitted), command, data };
            if protocol.submit(submission).is_ok() {
                submitted += 1;
                // In the worst case, every four bytes of the data travel in a separate PDU.
                sent_max += 256 + size * 12;
            }
            assert!(protocol.in_flight() <= usize::from(DEPTH));
        }
        inbox.extend(answer(rng, digests));
    }
}

/// A PDU that a target may send. Its fields may be wrong, and its bytes may be damaged.
fn answer(rng: &mut Rng, digests: Digests) -> Vec<u8> {
    let mut out = Vec::new();
    let cid = rng.u16(..=DEPTH);
    let at = if rng.u8(..4) == 0 { rng.u32(..4) * 4096 } else { 0 };
    let size = rng.u32(1..=DATA_SIZE as u32 / 4) * 4;
    match rng.u8(..4) {
        0 => {
            let status = if rng.bool() { Status::SUCCESS } else { Status::from_bits(rng.u16(..)) };
            let completion = Completion { cid, status, ..Completion::default() };
            pdu::push_completion(&mut out, &completion, digests);
        }
        1 => R2t { cccid: cid, ttag: rng.u16(..), r2to: at, r2tl: size }.push(&mut out, digests),
        _ => {
            let data = vec![9; size as usize];
            let flag = [0, flags::LAST_PDU, flags::LAST_PDU | flags::SUCCESS][rng.usize(..3)];
            let head = DataHead { cccid: cid, ttag: 0, datao: at, datal: size };
            pdu::push_data_head(&mut out, Kind::C2hData, flag, &head, digests, 4);
            pdu::push_data(&mut out, &data, digests);
        }
    }
    if rng.u8(..16) == 0 {
        damage(rng, &mut out, &[]);
    }
    out
}
