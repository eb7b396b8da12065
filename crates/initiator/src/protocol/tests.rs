//! Tests the protocol with hand-written byte streams.

use super::*;

const BOTH: Digests = Digests { header: true, data: true };

fn asking(digests: Digests) -> Protocol {
    let (alignment, in_flight_max, in_capsule_size_max) = (4, 3, 8192);
    Protocol::new(Transport { qid: 1, digests, alignment, in_flight_max, in_capsule_size_max })
}

fn sent(protocol: &mut Protocol) -> Vec<u8> {
    let bytes = protocol.output().to_vec();
    protocol.note_sent(bytes.len());
    bytes
}

/// A connection whose target has agreed to everything, and accepts up to 4096 bytes of data in an
/// H2CData.
fn initialized(digests: Digests) -> Protocol {
    let mut protocol = asking(digests);
    assert_eq!(sent(&mut protocol).len(), 128);
    let mut response = Vec::new();
    IcResp { pfv: 0, cpda: 0, dgst: digests.bits(), maxh2cdata: 4096 }.push(&mut response);
    assert_eq!(protocol.receive(&response).expect("the response is valid"), 128);
    assert!(protocol.is_initialized());
    protocol
}

fn submission(number: u8, data: Vec<u8>) -> Submission {
    Submission { token: Token(number.into()), command: Command::new(number, 0), data }
}

/// A PDU with data for the host.
fn data(cid: u16, at: u32, bytes: &[u8], flag: u8, digests: Digests) -> Vec<u8> {
    let mut out = Vec::new();
    let head = DataHead { cccid: cid, ttag: 0, datao: at, datal: bytes.len() as u32 };
    pdu::push_data_head(&mut out, Kind::C2hData, flag, &head, digests, 4);
    pdu::push_data(&mut out, bytes, digests);
    out
}

fn completion(cid: u16, digests: Digests) -> Vec<u8> {
    let mut out = Vec::new();
    pdu::push_completion(&mut out, &Completion { cid, ..Completion::default() }, digests);
    out
}

#[test]
fn a_connection_begins_by_asking_for_digests_and_alignment() {
    let mut protocol = Protocol::new(Transport {
        qid: 0,
        digests: BOTH,
        alignment: 16,
        in_flight_max: 1,
        in_capsule_size_max: 0,
    });
    let bytes = sent(&mut protocol);
    assert_eq!(bytes[..16], [0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 3, 3, 0, 0, 0, 0]);
    assert!(!protocol.is_initialized());
    let mut response = Vec::new();
    IcResp { pfv: 0, cpda: 1, dgst: 1, maxh2cdata: 4096 }.push(&mut response);
    assert_eq!(protocol.receive(&response[..127]).expect("an incomplete response is no error"), 0);
    assert_eq!(protocol.receive(&response).expect("the response is valid"), 128);
    assert_eq!(protocol.digests(), Digests { header: true, data: false });
}

#[test]
fn digests_that_were_not_asked_for_are_refused() {
    let mut protocol = asking(Digests::default());
    sent(&mut protocol);
    let mut response = Vec::new();
    IcResp { pfv: 0, cpda: 0, dgst: 2, maxh2cdata: 4096 }.push(&mut response);
    let error = protocol.receive(&response).expect_err("the host did not ask for this digest");
    assert_eq!(
        error.to_string(),
        "the target sent a wrong PDU: wrong field DGST, at byte 11 of \
                                   the header"
    );
    assert_eq!(sent(&mut protocol)[..2], [Kind::H2cTermReq as u8, 0]);
}

#[test]
fn a_read_takes_its_data_in_parts_and_ends_with_a_response() {
    for digests in [Digests::default(), BOTH] {
        let mut protocol = initialized(digests);
        protocol.submit(submission(opcode::nvm::READ, vec![0; 8])).expect("the queue is not full");
        let bytes = sent(&mut protocol);
        let command = Head::command(bytes.first_chunk().expect("the capsule has a header"));
        assert_eq!((command.cid, command.sgl), (0, Sgl::transport(8)));
        let mut answer = data(0, 0, &[1; 4], 0, digests);
        answer.extend(data(0, 4, &[2; 4], flags::LAST_PDU, digests));
        answer.extend(completion(0, digests));
        // The bytes arrive one by one. Only whole PDUs are taken.
        let (mut taken, mut end) = (0, 0);
        while end < answer.len() {
            end += 1;
            taken += protocol.receive(&answer[taken..end]).expect("the PDUs are valid");
        }
        assert_eq!(taken, answer.len());
        let outcome = protocol.next_outcome().expect("the command has ended");
        assert_eq!(outcome.token, Token(opcode::nvm::READ.into()));
        assert_eq!(outcome.data, [1, 1, 1, 1, 2, 2, 2, 2]);
        assert_eq!(protocol.in_flight(), 0);
    }
}

#[test]
fn a_flag_stands_for_the_response() {
    let mut protocol = initialized(Digests::default());
    protocol.submit(submission(opcode::nvm::READ, vec![0; 4])).expect("the queue is not full");
    let answer = data(0, 0, &[7; 4], flags::LAST_PDU | flags::SUCCESS, Digests::default());
    protocol.receive(&answer).expect("the PDUs are valid");
    assert_eq!(protocol.next_outcome().map(|outcome| outcome.data), Some(vec![7; 4]));
}

#[test]
fn small_data_is_in_the_capsule_and_larger_waits_to_be_asked_for() {
    let mut protocol = initialized(BOTH);
    protocol.submit(submission(opcode::nvm::WRITE, vec![5; 8192])).expect("the queue is not full");
    let bytes = sent(&mut protocol);
    assert_eq!(bytes.len(), 76 + 8192 + 4);
    let command = Head::command(bytes.first_chunk().expect("the capsule has a header"));
    assert_eq!(command.sgl, Sgl::in_capsule(8192));

    let content: Vec<u8> = (0..8196_u32).map(|at| (at / 32) as u8).collect();
    protocol
        .submit(submission(opcode::nvm::WRITE, content.clone()))
        .expect("the queue is not full");
    let bytes = sent(&mut protocol);
    assert_eq!(bytes.len(), 76);
    let command = Head::command(bytes.first_chunk().expect("the capsule has a header"));
    assert_eq!((command.cid, command.sgl), (1, Sgl::transport(8196)));
    let mut ask = Vec::new();
    R2t { cccid: 1, ttag: 9, r2to: 0, r2tl: 8192 }.push(&mut ask, BOTH);
    R2t { cccid: 1, ttag: 8, r2to: 8192, r2tl: 4 }.push(&mut ask, BOTH);
    protocol.receive(&ask).expect("the PDUs are valid");
    let bytes = sent(&mut protocol);
    let (mut at, mut received) = (0, Vec::new());
    for (ttag, datao, datal, is_last) in
        [(9, 0, 4096, false), (9, 4096, 4096, true), (8, 8192, 4, true)]
    {
        let pdu = &bytes[at..];
        let head = Head::decode(pdu.first_chunk().expect("a PDU"), BOTH, 4, 4096).expect("a PDU");
        assert_eq!(head.check_header(pdu), Ok(()));
        let fields = DataHead::decode(pdu).expect("a PDU has its header");
        assert_eq!(fields, DataHead { cccid: 1, ttag, datao, datal });
        assert_eq!(head.has(flags::LAST_PDU), is_last);
        let data = &pdu[head.data_at..][..head.data_size];
        assert_eq!(pdu[head.size - 4..head.size], pdu::data_digest(data));
        received.extend(data);
        at += head.size;
    }
    assert_eq!((received, at), (content, bytes.len()));
}

#[test]
fn a_full_queue_hands_submissions_back_and_outcomes_make_room() {
    let mut protocol = initialized(Digests::default());
    for _ in 0..3 {
        protocol.submit(submission(opcode::nvm::FLUSH, Vec::new())).expect("the queue is not full");
    }
    let back = protocol.submit(submission(opcode::nvm::FLUSH, Vec::new()));
    assert_eq!(back, Err(submission(opcode::nvm::FLUSH, Vec::new())));
    protocol.receive(&completion(1, Digests::default())).expect("the PDUs are valid");
    assert_eq!(protocol.in_flight(), 2);
    protocol.submit(submission(opcode::nvm::FLUSH, Vec::new())).expect("the queue is not full");
}

#[test]
fn wrong_data_digests_fail_the_command_and_wrong_header_digests_the_connection() {
    let mut protocol = initialized(BOTH);
    protocol.submit(submission(opcode::nvm::READ, vec![0; 4])).expect("the queue is not full");
    let mut answer = data(0, 0, &[7; 4], flags::LAST_PDU, BOTH);
    let last = answer.len() - 1;
    answer[last] ^= 1;
    answer.extend(completion(0, BOTH));
    protocol.receive(&answer).expect("a wrong data digest does not end the connection");
    let error = protocol
        .next_outcome()
        .expect("the command has ended")
        .checked()
        .expect_err("the command failed");
    assert_eq!(error.to_string(), "read: transient transport error (0:22h)");
    let mut answer = completion(0, BOTH);
    answer[9] ^= 1;
    let error = protocol.receive(&answer).expect_err("the header is damaged");
    assert!(error.to_string().contains("wrong header digest"), "{error}");
}

#[test]
fn what_a_target_must_not_send_ends_the_connection() {
    let none = Digests::default();
    let r2t = |r2t: R2t| {
        let mut out = Vec::new();
        r2t.push(&mut out, none);
        out
    };
    let good = R2t { cccid: 1, ttag: 0, r2to: 0, r2tl: 9000 };
    let mut again = Vec::new();
    IcResp { pfv: 0, cpda: 0, dgst: 0, maxh2cdata: 4096 }.push(&mut again);
    let mut ours = Vec::new();
    pdu::push_command(&mut ours, &Command::new(0, 0), &[], none, 4);
    let mut said = Vec::new();
    TermReq::push(&mut said, Kind::C2hTermReq, PduError::field("HLEN", 2), &[]);
    // Command 0 is a read of 8 bytes, and command 1 is a write of 9000 bytes. No other command is
    // in flight.
    for (answer, text) in [
        (completion(2, none), "SQE.CID"),
        (completion(99, none), "SQE.CID"),
        (data(2, 0, &[1; 4], 0, none), "CCCID"),
        (data(1, 0, &[1; 4], 0, none), "CCCID"),
        (data(0, 4, &[1; 4], 0, none), "DATAO"),
        (data(0, 0, &[1; 9], 0, none), "beyond the command's data"),
        (data(0, 0, &[1; 4], flags::SUCCESS, none), "FLAGS.SUCCESS"),
        (r2t(R2t { cccid: 0, ..good }), "CCCID"),
        (r2t(R2t { cccid: 2, ..good }), "CCCID"),
        (r2t(R2t { r2to: 1, ..good }), "R2TO"),
        (r2t(R2t { r2tl: 9001, ..good }), "R2TL"),
        (r2t(R2t { r2tl: 0, ..good }), "R2TL"),
        ([r2t(good), r2t(good)].concat(), "R2TO"),
        (again, "ICResp"),
        (ours, "PDU-Type"),
        (vec![0x55; 8], "PDU-Type"),
        (said, "InvalidHeader (1), information 0x2"),
    ] {
        let mut protocol = initialized(none);
        protocol.submit(submission(opcode::nvm::READ, vec![0; 8])).expect("the queue is not full");
        protocol
            .submit(submission(opcode::nvm::WRITE, vec![0; 9000]))
            .expect("the queue is not full");
        sent(&mut protocol);
        let error = protocol.receive(&answer).expect_err(text);
        assert!(error.to_string().contains(text), "{text}: {error}");
        let is_said = matches!(error, Error::Terminated(_));
        let bytes = sent(&mut protocol);
        let says = |at: usize| bytes[at..].starts_with(&[Kind::H2cTermReq as u8, 0, 24]);
        assert!(is_said || (0..bytes.len()).any(says), "{text}");
    }
}
