//! Tests that replies have the right bytes. A reply shares a large string instead of copying it.
//! The tests check that this does not change a byte.

use std::sync::Arc;

use proptest::prelude::*;
use slimio_resp::{
    BLOB_PIECE_SIZE, Blob, Piece, Protocol, ReplyBuf, SHARED_REPLY_SIZE_MIN, reply_size,
};

fn bytes(reply: &ReplyBuf) -> Vec<u8> {
    let segments: Vec<&[u8]> = reply.segments(0..reply.len()).collect();
    assert!(segments.iter().all(|segment| !segment.is_empty()));
    segments.concat()
}

/// Writes one kind of reply into a buffer.
type WriteReply = fn(&mut ReplyBuf);

#[test]
fn replies_look_as_in_both_protocols() {
    let cases: [(WriteReply, &str, &str); 26] = [
        (|r| r.ok(), "+OK\r\n", "+OK\r\n"),
        (|r| r.simple("PONG"), "+PONG\r\n", "+PONG\r\n"),
        (|r| r.error("ERR a\r\nb\r\n"), "-ERR a  b\r\n", "-ERR a  b\r\n"),
        (|r| r.integer(0), ":0\r\n", ":0\r\n"),
        (|r| r.integer(1), ":1\r\n", ":1\r\n"),
        (|r| r.integer(i64::MIN), ":-9223372036854775808\r\n", ":-9223372036854775808\r\n"),
        (|r| r.bulk(b""), "$0\r\n\r\n", "$0\r\n\r\n"),
        (|r| r.bulk(b"123456789"), "$9\r\n123456789\r\n", "$9\r\n123456789\r\n"),
        (|r| r.bulk(b"1234567890"), "$10\r\n1234567890\r\n", "$10\r\n1234567890\r\n"),
        (|r| r.bulk(b"a\r\n"), "$3\r\na\r\n\r\n", "$3\r\na\r\n\r\n"),
        (|r| r.bulk_integer(-12), "$3\r\n-12\r\n", "$3\r\n-12\r\n"),
        (|r| r.bulk_blob(&Blob::from_bytes(b"abc"), 1..3), "$2\r\nbc\r\n", "$2\r\nbc\r\n"),
        (|r| r.null(), "$-1\r\n", "_\r\n"),
        (|r| r.null_array(), "*-1\r\n", "_\r\n"),
        (|r| r.array(2), "*2\r\n", "*2\r\n"),
        (|r| r.map(2), "*4\r\n", "%2\r\n"),
        (|r| r.set(2), "*2\r\n", "~2\r\n"),
        (|r| r.push(2), "*2\r\n", ">2\r\n"),
        (|r| r.double(1.5), "$3\r\n1.5\r\n", ",1.5\r\n"),
        (|r| r.double(f64::NEG_INFINITY), "$4\r\n-inf\r\n", ",-inf\r\n"),
        (|r| r.boolean(true), ":1\r\n", "#t\r\n"),
        (|r| r.boolean(false), ":0\r\n", "#f\r\n"),
        (|r| r.verbatim("txt", b"hi"), "$2\r\nhi\r\n", "=6\r\ntxt:hi\r\n"),
        (|r| r.big_number("123"), "$3\r\n123\r\n", "(123\r\n"),
        (|r| r.bulk_piece(&Arc::new(b"xyz".to_vec()), 0..2), "$2\r\nxy\r\n", "$2\r\nxy\r\n"),
        (|r| r.error_bytes(b"\n"), "-\r\n", "-\r\n"),
    ];
    for (write, resp2, resp3) in cases {
        for (protocol, expected) in [(Protocol::Resp2, resp2), (Protocol::Resp3, resp3)] {
            let mut reply = ReplyBuf::new(protocol);
            write(&mut reply);
            assert_eq!(String::from_utf8_lossy(&bytes(&reply)), expected);
        }
    }
}

#[test]
fn large_strings_are_shared() {
    let piece: Piece = Arc::new(vec![b'x'; SHARED_REPLY_SIZE_MIN]);
    let mut reply = ReplyBuf::default();
    reply.bulk_piece(&piece, 0..piece.len());
    assert_eq!(Arc::strong_count(&piece), 2);
    let segments: Vec<_> = reply.segments(0..reply.len()).collect();
    assert!(std::ptr::eq(segments[1].as_ptr(), piece.as_ptr()));
    assert_eq!(reply_size(&bytes(&reply)), Ok(Some(reply.len())));
    reply.clear();
    assert_eq!((reply.len(), Arc::strong_count(&piece)), (0, 1));

    let blob = Blob::from_bytes(&vec![b'y'; 2 * BLOB_PIECE_SIZE + 10]);
    reply.bulk_blob(&blob, 0..blob.size());
    assert_eq!(reply.segments(0..reply.len()).count(), 4);
    assert_eq!(Arc::strong_count(&blob.pieces()[1]), 2);
}

#[test]
fn what_is_taken_is_whole_and_the_rest_goes_on() {
    let piece: Piece = Arc::new(vec![b'x'; SHARED_REPLY_SIZE_MIN]);
    let mut reply = ReplyBuf::new(Protocol::Resp3);
    reply.bulk_piece(&piece, 0..piece.len());
    let taken = reply.take(ReplyBuf::default());
    assert_eq!(reply.protocol(), Protocol::Resp3);
    assert!(reply.is_empty());
    assert_eq!(taken.len(), piece.len() + "$16384\r\n\r\n".len());
    reply.append(&taken);
    assert_eq!(bytes(&reply), bytes(&taken));
}

#[test]
fn the_end_of_a_reply_is_found() {
    let mut reply = ReplyBuf::new(Protocol::Resp3);
    reply.attribute(1);
    reply.bulk(b"key");
    reply.integer(3);
    reply.map(2);
    reply.array(1);
    reply.null();
    reply.boolean(true);
    reply.double(0.25);
    reply.null_array();
    let bytes = bytes(&reply);
    let all = [&bytes[..], b"+next\r\n"].concat();
    assert_eq!(reply_size(&all), Ok(Some(bytes.len())));
    for cut in 0..bytes.len() {
        assert_eq!(reply_size(&bytes[..cut]), Ok(None), "cut at {cut}");
    }
    assert!(reply_size(b"hello\r\n").is_err());
    assert!(reply_size(&b"*1\r\n".repeat(100)).is_err());
    assert_eq!(reply_size(b"%9223372036854775807\r\n"), Ok(None));
    assert_eq!(reply_size(b"$9223372036854775807\r\n"), Ok(None));
}

/// Sizes of strings. Some of the strings are long enough to be shared.
fn sizes() -> impl Strategy<Value = Vec<usize>> {
    let size = prop_oneof![0usize..50, SHARED_REPLY_SIZE_MIN - 2..SHARED_REPLY_SIZE_MIN + 50];
    prop::collection::vec(size, 0..6)
}

fn reply_of(sizes: &[usize]) -> ReplyBuf {
    let mut reply = ReplyBuf::default();
    for (index, &size) in sizes.iter().enumerate() {
        let piece: Piece = Arc::new((0..size).map(|i| (i + index) as u8).collect());
        reply.bulk_piece(&piece, 0..size);
    }
    reply
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_range_can_be_sent(sizes in sizes(), a in any::<usize>(), b in any::<usize>()) {
        let reply = reply_of(&sizes);
        let whole = bytes(&reply);
        let (a, b) = (a % (whole.len() + 1), b % (whole.len() + 1));
        let range = a.min(b)..a.max(b);
        let segments: Vec<&[u8]> = reply.segments(range.clone()).collect();
        prop_assert!(segments.concat() == whole[range]);
    }

    #[test]
    fn any_front_can_be_split_off(sizes in sizes(), at in any::<usize>()) {
        let mut reply = reply_of(&sizes);
        let whole = bytes(&reply);
        let at = at % (whole.len() + 1);
        let front = reply.split_front(at);
        prop_assert!(bytes(&front) == whole[..at]);
        prop_assert!(bytes(&reply) == whole[at..]);
        prop_assert_eq!(reply.len(), whole.len() - at);
    }

    #[test]
    fn what_was_written_last_can_be_taken_back(first in sizes(), last in sizes()) {
        let mut reply = reply_of(&first);
        let (before, len) = (bytes(&reply), reply.len());
        reply.append(&reply_of(&last));
        reply.truncate(len);
        prop_assert!(bytes(&reply) == before);
        prop_assert_eq!(reply.len(), len);
    }
}
