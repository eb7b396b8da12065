//! Commands on large hashes. No step of a command takes time in proportion to the size of the hash.
//! A command that reads a hash in steps sees the hash as it was when the command began.

use slimio_keyspace::{DbIndex, Element, Garbage, Outcome, Steps, ValueRef};
use slimio_resp::{BLOB_PIECE_SIZE, OwnedRequest, ReplyBuf};

use crate::common::Driver;
use crate::steps;

const FIELDS: usize = 50_000;

/// Makes a hash of many fields at the key `h`.
fn fill(driver: &mut Driver) {
    for index in 0..FIELDS {
        driver.run(&["HSET", "h", &format!("field:{index:08}"), &format!("value {index}")]);
    }
}

/// Runs the first or next step of a command.
fn step(
    driver: &mut Driver,
    request: &OwnedRequest,
    before: Option<Box<dyn Steps>>,
    reply: &mut ReplyBuf,
) -> Outcome {
    let (outcome, effects) = steps::step(driver, steps::command(request), request, before, reply);
    assert!(effects.is_empty(), "a read must have no effects");
    outcome
}

/// Runs a command to its end, and calls `between` between its steps. Returns the reply and the step
/// count.
fn run_in_steps(
    driver: &mut Driver,
    args: &[&str],
    between: impl FnMut(&mut Driver, usize),
) -> (String, usize) {
    let request = OwnedRequest::from_args(args);
    let run = steps::command(&request);
    let (reply, steps, has_effects) = steps::run_in_steps(driver, run, &request, between);
    assert!(!has_effects, "a read must have no effects");
    (String::from_utf8(reply).expect("text"), steps)
}

/// The strings of a reply.
fn strings(reply: &str) -> Vec<&str> {
    reply.split("\r\n").filter(|line| !line.is_empty() && !line.starts_with(['*', '$'])).collect()
}

#[test]
fn a_large_hash_is_read_as_it_was_when_the_command_began() {
    let mut driver = Driver::new(1);
    fill(&mut driver);
    let change = |driver: &mut Driver, step: usize| {
        for index in (0..FIELDS).skip(step).step_by(501) {
            driver.run(&["HSET", "h", &format!("field:{index:08}"), "changed"]);
            driver.run(&["HDEL", "h", &format!("field:{:08}", index / 2)]);
            driver.run(&["HSET", "h", &format!("new:{index}"), "new"]);
        }
    };
    for (name, per_field) in [("HGETALL", 2), ("HKEYS", 1), ("HVALS", 1)] {
        driver.run(&["DEL", "h"]);
        fill(&mut driver);
        let (reply, steps) = run_in_steps(&mut driver, &[name, "h"], change);
        // A step reads about 2048 fields at most (`ELEMENTS_AT_ONCE_MAX`).
        assert!(steps > FIELDS / 2500, "{steps} steps of {name}");
        assert!(reply.starts_with(&format!("*{}\r\n", FIELDS * per_field)), "{}", &reply[..20]);
        let mut found = strings(&reply);
        assert_eq!(found.len(), FIELDS * per_field);
        assert!(found.iter().all(|text| !text.starts_with("new") && *text != "changed"));
        if name == "HGETALL" {
            for pair in found.chunks(2) {
                let index: usize = pair[0]["field:".len()..].parse().expect("a number");
                assert_eq!(pair[1], format!("value {index}"));
            }
        }
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), FIELDS * per_field, "{name}");
    }
}

/// The key is deleted while the command runs. From then on, only the command holds the hash. When
/// the command ends or is given up, it must hand out the hash as garbage, not free it.
#[test]
fn what_only_a_long_command_holds_is_freed_elsewhere() {
    let cases: [&[&str]; 3] =
        [&["HGETALL", "h"], &["HRANDFIELD", "h", "45000"], &["HRANDFIELD", "h", "-20000"]];
    for args in cases {
        for is_given_up in [false, true] {
            let mut driver = Driver::new(1);
            fill(&mut driver);
            let request = OwnedRequest::from_args(args);
            let mut reply = ReplyBuf::default();
            let mut outcome = step(&mut driver, &request, None, &mut reply);
            driver.run(&["DEL", "h"]);
            drop(driver.keyspace.take_garbage().expect("the hash"));
            let mut given_up = None;
            let info = allocation_counter::measure(|| {
                while let Outcome::Yield(yielded) = std::mem::replace(&mut outcome, Outcome::Reply)
                {
                    if is_given_up {
                        driver.keyspace.take_garbage();
                        given_up = Some(Garbage::from(yielded));
                        return;
                    }
                    outcome = step(&mut driver, &request, Some(yielded), &mut reply);
                }
            });
            // The fields take some megabytes, so this check fails if the command has freed them.
            assert!(info.bytes_current > -100_000, "{args:?} freed {}", info.bytes_current);
            let garbage = given_up.or_else(|| driver.keyspace.take_garbage());
            assert!(garbage.is_some_and(|garbage| !garbage.is_empty()), "{args:?}");
        }
    }
}

#[test]
fn commands_on_a_large_hash_touch_little_of_it() {
    let mut driver = Driver::new(1);
    fill(&mut driver);
    let limit = 16 * 1024;
    let copy = ["COPY", "h", "copy"];
    let cases: [&[&str]; 12] = [
        &copy,
        &["HSET", "h", "field:00000007", "other"],
        &["HSET", "copy", "field:00000007", "another"],
        &["HSET", "copy", "new field", "new value"],
        &["HINCRBY", "copy", "number", "5"],
        &["HDEL", "copy", "field:00000009"],
        &["HGET", "copy", "field:00000010"],
        &["HLEN", "copy"],
        &["HSCAN", "copy", "0"],
        &["HRANDFIELD", "copy", "5", "WITHVALUES"],
        &["RENAME", "copy", "renamed"],
        &["EXPIRE", "renamed", "100"],
    ];
    for args in cases {
        let args: Vec<&[u8]> = args.iter().map(|arg| arg.as_bytes()).collect();
        let (reply, cost) = crate::allocated(&mut driver, &args);
        assert!(cost < limit, "{cost} bytes for {args:?}");
        assert!(!reply.starts_with(b"-"), "{args:?}");
    }
    assert_eq!(driver.run(&["HGET", "h", "field:00000007"]), b"$5\r\nother\r\n");
    assert_eq!(driver.run(&["HGET", "renamed", "field:00000007"]), b"$7\r\nanother\r\n");
    assert_eq!(driver.run(&["HLEN", "h"]), b":50000\r\n");
    assert_eq!(driver.run(&["HLEN", "renamed"]), b":50001\r\n");
}

#[test]
fn what_is_large_is_handed_out_to_be_freed() {
    let value = vec![b'v'; BLOB_PIECE_SIZE + 1];
    let cases: [&[&str]; 6] = [
        &["DEL", "h"],
        &["SET", "h", "small"],
        &["EXPIRE", "h", "-1"],
        &["HSET", "h", "f", "small"],
        &["HDEL", "h", "f"],
        &["FLUSHALL"],
    ];
    for args in cases {
        let mut driver = Driver::new(1);
        driver.run(&[b"HSET", &b"h"[..], b"f", &value]);
        driver.run(&["HSET", "h", "g", "stays"]);
        assert!(driver.keyspace.take_garbage().is_none());
        let request = OwnedRequest::from_args(args);
        let info = allocation_counter::measure(|| drop(driver.run_request(&request)));
        assert!(info.bytes_current > -100_000, "{args:?} freed {}", info.bytes_current);
        let garbage = driver.keyspace.take_garbage();
        assert!(garbage.is_some_and(|garbage| !garbage.is_empty()), "{args:?}");
    }
}

/// A scan finds all fields that exist during the whole scan, whatever is added and deleted between
/// its calls.
#[test]
fn a_scan_of_a_hash_survives_splits_and_merges() {
    for grows in [true, false] {
        let mut driver = Driver::new(3);
        for index in 0..2_000 {
            driver.run(&["HSET", "h", &format!("stays:{index}"), "v"]);
        }
        for index in 0..if grows { 0 } else { 30_000 } {
            driver.run(&["HSET", "h", &format!("goes:{index}"), "v"]);
        }
        let (mut cursor, mut met, mut calls, mut other) = ("0".to_owned(), Vec::new(), 0, 0);
        loop {
            let reply = driver.run(&["HSCAN", "h", &cursor, "COUNT", "50", "MATCH", "stays:*"]);
            let reply = String::from_utf8(reply).expect("text");
            let found = strings(&reply);
            met.extend(found[1..].iter().filter(|text| **text != "v").map(|&text| text.to_owned()));
            calls += 1;
            cursor = found[0].to_owned();
            if cursor == "0" {
                break;
            }
            for _ in 0..if grows { 200 } else { 60 } {
                let field = format!("goes:{other}");
                let args = ["HSET", "h", &field, "v"];
                let args: &[&str] = if grows { &args } else { &["HDEL", "h", &field] };
                driver.run(args);
                other += 1;
            }
        }
        assert!(calls > 30, "{calls} calls");
        met.sort();
        met.dedup();
        assert_eq!(met.len(), 2_000);
    }
}

#[test]
fn random_fields_are_any_of_them() {
    let mut driver = Driver::new(5);
    for fields in [5_usize, 100, 3_000] {
        driver.run(&["DEL", "h"]);
        for index in 0..fields {
            driver.run(&["HSET", "h", &index.to_string(), "v"]);
        }
        // Every field is equally likely in each case: one field per draw, fields with repetitions,
        // a few of many fields, or almost all fields.
        let few = (fields as isize / 20).max(1);
        for (asked, distinct) in
            [(0, false), (-1000, false), (few, true), (fields as isize - 1, true)]
        {
            let mut counts = vec![0_usize; fields];
            let wanted = 60 * fields;
            let mut drawn = 0;
            while drawn < wanted {
                let count = asked.to_string();
                let args: &[&str] =
                    if asked == 0 { &["HRANDFIELD", "h"] } else { &["HRANDFIELD", "h", &count] };
                let reply = String::from_utf8(driver.run(args)).expect("text");
                let found = strings(&reply);
                assert_eq!(found.len(), asked.unsigned_abs().max(1));
                for field in &found {
                    counts[field.parse::<usize>().expect("a number")] += 1;
                }
                drawn += found.len();
                let mut unique = found.clone();
                unique.sort_unstable();
                unique.dedup();
                assert!(!distinct || unique.len() == found.len());
            }
            let mean = drawn / fields;
            let off = counts.iter().map(|count| count.abs_diff(mean)).max();
            // A field is drawn about 60 times, with a standard deviation of about 8. The bound is
            // 4/5 of 60, so it is about six standard deviations.
            assert!(off < Some(mean * 4 / 5), "{fields} fields, {asked}: {off:?} off {mean}");
        }
    }
}

#[test]
fn elements_say_what_they_are() {
    let mut driver = Driver::new(1);
    driver.run(&["HSET", "h", "12", "-7", "text", "", "long", &"x".repeat(700)]);
    let hash = driver.keyspace.get(DbIndex(0), b"h", 1).and_then(ValueRef::as_hash);
    let hash = hash.expect("a hash");
    assert_eq!((hash.len(), hash.as_collection().encoding_name()), (3, "hashtable"));
    let find = |name: &[u8]| hash.iter().find(|(field, _)| *field.to_bytes() == *name);
    let (field, value) = find(b"12").expect("the field exists");
    assert_eq!((field.to_i64(), value.to_i64(), value.size()), (Some(12), Some(-7), 2));
    let (_, value) = find(b"long").expect("the field exists");
    assert!(matches!(value, Element::Piece(piece) if piece.len() == 700));
    driver.run(&["HSET", "small", "12", "-7"]);
    let small = driver.keyspace.get(DbIndex(0), b"small", 1).and_then(ValueRef::as_hash);
    let small = small.expect("a hash");
    assert_eq!(small.as_collection().encoding_name(), "listpack");
    assert!(matches!(small.iter().next(), Some((Element::Integer(12), Element::Integer(-7)))));
}
