//! Commands on large lists either run in steps, or take no longer than on small lists.

use slimio_keyspace::{DbIndex, command_table};
use slimio_resp::OwnedRequest;

use super::common::Driver;
use super::steps::{command, run_in_steps};
use super::{MB, allocated};

const LEN: usize = 200_000;

/// Makes a list of `len` numbered elements of 16 bytes.
fn fill(driver: &mut Driver, key: &str, len: usize) {
    for start in (0..len).step_by(1_000) {
        let elements: Vec<_> = (start..len.min(start + 1_000)).map(element).collect();
        let words: Vec<&str> =
            ["RPUSH", key].into_iter().chain(elements.iter().map(|it| &**it)).collect();
        driver.run(&words);
    }
}

fn element(number: usize) -> String {
    format!("element:{number:08}")
}

/// The strings of an array.
fn strings(reply: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(reply);
    let lines = text.split("\r\n").filter(|line| !line.is_empty());
    lines
        .filter(|line| !["*", "$"].iter().any(|head| line.starts_with(head)))
        .map(Into::into)
        .collect()
}

fn integer(number: usize) -> Vec<u8> {
    format!(":{number}\r\n").into_bytes()
}

/// A read of a large list sees the list as it was when the read began, whatever is written between
/// the read's steps.
#[test]
fn large_lists_are_read_in_steps() {
    let mut driver = Driver::new(5);
    fill(&mut driver, "l", LEN);
    let middle = element(LEN / 2);
    let last = element(LEN - 1);
    let all: Vec<_> = (0..LEN).map(element).collect();
    for (words, expected) in [
        (&["LRANGE", "l", "0", "-1"][..], all),
        (&["LRANGE", "l", "100000", "-50000"], (100_000..150_001).map(element).collect()),
        (&["LPOS", "l", &last], vec![format!(":{}", LEN - 1)]),
        (&["LPOS", "l", &middle, "RANK", "-1", "COUNT", "0"], vec![format!(":{}", LEN / 2)]),
        (&["LPOS", "l", "none"], vec![]),
    ] {
        let request = OwnedRequest::from_args(words);
        let (reply, steps, _) =
            run_in_steps(&mut driver, command(&request), &request, |driver, step| {
                if step == 1 {
                    driver.run(&["LPUSH", "l", "new"]);
                    driver.run(&["LSET", "l", "-1", "new"]);
                    driver.run(&["LTRIM", "l", "0", "1000"]);
                }
            });
        assert!(steps > 3, "{words:?} takes {steps} steps");
        assert!(strings(&reply) == expected, "{words:?}");
        driver.run(&["DEL", "l"]);
        driver.keyspace.take_garbage();
        fill(&mut driver, "l", LEN);
    }
    driver.check();
}

/// A write that searches a large list does so in steps, and finds the same elements as in a small
/// list.
#[test]
fn large_lists_are_searched_in_steps() {
    for (words, reply, change) in [
        (["LINSERT", "l", "AFTER", &element(LEN - 1), "x"], integer(LEN + 1), (LEN, Some("x"))),
        (
            ["LINSERT", "l", "BEFORE", &element(LEN - 2), "x"],
            integer(LEN + 1),
            (LEN - 2, Some("x")),
        ),
        (["LINSERT", "l", "BEFORE", "none", "x"], b":-1\r\n".to_vec(), (0, None)),
        (["LREM", "l", "0", &element(LEN - 1), ""], integer(1), (LEN - 1, None)),
        (["LREM", "l", "-1", &element(0), ""], integer(1), (0, None)),
        (["LREM", "l", "1", "none", ""], integer(0), (0, None)),
    ] {
        let mut driver = Driver::new(5);
        fill(&mut driver, "l", LEN);
        let mut model: Vec<_> = (0..LEN).map(element).collect();
        match (reply == integer(1), change) {
            (true, (at, _)) => drop(model.remove(at)),
            (false, (at, Some(new))) => model.insert(at, new.to_owned()),
            _ => {}
        }
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        let request = OwnedRequest::from_args(&words);
        let (found, steps, _) = run_in_steps(&mut driver, command(&request), &request, |_, _| {});
        assert_eq!(found, reply, "{words:?}");
        assert!(steps > 3, "{words:?} takes {steps} steps");
        assert!(strings(&driver.run(&["LRANGE", "l", "0", "-1"])) == model, "{words:?}");
        driver.check();
    }
}

/// `LREM` of many elements removes some of them in each step.
#[test]
fn many_elements_are_removed_in_steps() {
    for (count, left) in [("0", 0..0), ("60000", 60_000..LEN), ("-60000", 0..LEN - 60_000)] {
        let mut driver = Driver::new(5);
        for _ in 0..LEN / 1_000 {
            driver.run(&[&["RPUSH", "l"], &["same"; 1_000][..]].concat());
        }
        driver.run(&["RPUSH", "l", "other"]);
        driver.run(&["LPUSH", "l", "first"]);
        let request = OwnedRequest::from_args(["LREM", "l", count, "same"]);
        let (reply, steps, _) = run_in_steps(&mut driver, command(&request), &request, |_, _| {});
        assert_eq!(reply, integer(LEN - left.len()), "{count}");
        assert!(steps > 3, "{count} takes {steps} steps");
        let expected = [&["first"], &vec!["same"; left.len()][..], &["other"]].concat();
        assert!(strings(&driver.run(&["LRANGE", "l", "0", "-1"])) == expected, "{count}");
        driver.check();
    }
}

/// A command that pops many elements removes all of them in its first step. Further steps make the
/// reply.
#[test]
fn many_elements_are_popped_in_steps() {
    let all: Vec<_> = (0..LEN).map(element).collect();
    for (words, popped, left) in [
        (&["LPOP", "l", "50000"][..], all[..50_000].to_vec(), &all[50_000..]),
        (&["RPOP", "l", "50000"], all[150_000..].iter().rev().cloned().collect(), &all[..150_000]),
        (&["LPOP", "l", "999999"], all.clone(), &[]),
        (&["RPOP", "l", "200000"], all.iter().rev().cloned().collect(), &[]),
        (
            &["LMPOP", "2", "none", "l", "RIGHT", "COUNT", "50000"],
            [&["l".to_owned()], &*all[150_000..].iter().rev().cloned().collect::<Vec<_>>()]
                .concat(),
            &all[..150_000],
        ),
    ] {
        let mut driver = Driver::new(5);
        fill(&mut driver, "l", LEN);
        let request = OwnedRequest::from_args(words);
        let (reply, steps, _) = run_in_steps(&mut driver, command(&request), &request, |_, _| {});
        assert!(steps > 3, "{words:?} takes {steps} steps");
        assert!(strings(&reply) == popped, "{words:?}");
        assert!(strings(&driver.run(&["LRANGE", "l", "0", "-1"])) == left, "{words:?}");
        driver.check();
    }
}

/// Trimming a list, reading an element in its middle, and working at its ends take no longer if the
/// list has more elements.
#[test]
fn a_trim_costs_no_more_for_more_elements() {
    let mut driver = Driver::new(5);
    fill(&mut driver, "l", LEN);
    driver.run(&["COPY", "l", "copy"]);
    for words in [
        &["LTRIM", "l", "100", "-100"][..],
        &["LTRIM", "l", "90000", "-1"],
        &["LTRIM", "l", "0", "40000"],
        &["LINDEX", "l", "20000"],
        &["LSET", "l", "20000", "x"],
        &["LPUSH", "l", "x"],
        &["RPOP", "l"],
        &["LMOVE", "l", "l", "LEFT", "RIGHT"],
        &["RPOP", "l", "1000"],
    ] {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let (_, cost) = allocated(&mut driver, &words);
        assert!(cost < 300_000, "{} bytes for {}", cost, String::from_utf8_lossy(words[0]));
        driver.keyspace.take_garbage();
    }
    assert_eq!(driver.run(&["LLEN", "copy"]), integer(LEN));
    assert_eq!(driver.run(&["LLEN", "l"]), integer(39_001));
    driver.check();
}

/// A large element is shared with the reply and with another list, not copied.
#[test]
fn a_large_element_is_not_copied() {
    let mut driver = Driver::new(5);
    let large = vec![b'x'; 10 * MB];
    driver.run(&[b"RPUSH", &b"l"[..], b"small", &large]);
    for words in [
        &[&b"LINDEX"[..], b"l", b"1"][..],
        &[b"RPOPLPUSH", b"l", b"other"],
        &[b"LMOVE", b"other", b"l", b"LEFT", b"RIGHT"],
        &[b"LREM", b"l", b"1", b"none"],
    ] {
        let request = OwnedRequest::from_args(words);
        let mut steps = 0;
        let info = allocation_counter::measure(|| steps = driver.run_request(&request).1.len());
        // The test itself copies the reply.
        let copied = if words[0].starts_with(b"LREM") { 0 } else { 3 * 10 * MB };
        let most = copied + MB;
        assert!((info.bytes_total as usize) < most, "{words:?}: {} bytes", info.bytes_total);
        assert!(steps <= 1);
    }
    driver.run(&["RPOP", "l"]);
    assert!(driver.keyspace.take_garbage().is_some(), "a large element becomes garbage");
    driver.check();
}

/// A step compares a bounded number of bytes, however long the elements are, and copies no element.
#[test]
fn long_elements_are_compared_in_steps() {
    let mut driver = Driver::new(5);
    let element = |last: u8| [&vec![b'x'; 500_000][..], &[last]].concat();
    for number in 0..200 {
        driver.run(&[b"RPUSH", &b"l"[..], &element(number)]);
    }
    for words in [
        &[&b"LPOS"[..], b"l", &element(199)][..],
        &[b"LINSERT", b"l", b"BEFORE", &element(199), b"x"],
        &[b"LREM", b"l", b"1", &element(199)],
    ] {
        let request = OwnedRequest::from_args(words);
        let mut steps = 0;
        let info = allocation_counter::measure(|| {
            (_, steps, _) = run_in_steps(&mut driver, command(&request), &request, |_, _| {});
        });
        assert!(steps >= 3, "{} takes {steps} steps", String::from_utf8_lossy(words[0]));
        assert!(info.bytes_total < 1_000_000, "{} bytes are copied", info.bytes_total);
    }
    driver.check();
}

/// However long equal strings are, a step compares a bounded part of them.
#[test]
fn one_long_element_is_compared_in_several_steps() {
    const SIZE: usize = 32 << 20;
    let mut driver = Driver::new(6);
    let long = vec![b'x'; SIZE];
    for _ in 0..3 {
        driver.run(&[b"RPUSH", &b"l"[..], &long]);
    }
    let mut wanted = vec![b'x'; SIZE];
    wanted[SIZE - 1] = b'y';
    driver.run(&[b"RPUSH", &b"l"[..], &wanted]);
    for (words, reply, comparisons) in [
        (&[&b"LPOS"[..], b"l", &wanted][..], integer(3), 4),
        (
            &[b"LPOS", b"l", &long, b"RANK", b"-2", b"COUNT", b"0"],
            b"*2\r\n:1\r\n:0\r\n".to_vec(),
            4,
        ),
        (&[b"LINSERT", b"l", b"BEFORE", &wanted, b"x"], integer(5), 4),
        (&[b"LREM", b"l", b"-2", &long], integer(2), 3),
        (&[b"LREM", b"l", b"0", &long], integer(1), 2),
    ] {
        let request = OwnedRequest::from_args(words);
        let (outcome, steps, _) = run_in_steps(&mut driver, command(&request), &request, |_, _| {});
        let name = String::from_utf8_lossy(words[0]);
        assert_eq!(outcome, reply, "{name}");
        // A step compares about two megabytes.
        assert!(steps >= comparisons * 12, "{name} takes {steps} steps");
    }
    driver.check();
}

/// Even a few elements are read and popped in steps if they are large.
#[test]
fn large_elements_are_read_and_popped_in_steps() {
    const SIZE: usize = 8 << 20;
    let large = |digit: usize| vec![b'0' + digit as u8; SIZE];
    for (words, first, count) in [
        (&["LRANGE", "l", "0", "-1"][..], 0, 8),
        (&["LRANGE", "l", "2", "5"], 2, 4),
        (&["LPOP", "l", "6"], 0, 6),
        (&["LPOP", "l", "8"], 0, 8),
        (&["LMPOP", "1", "l", "LEFT", "COUNT", "3"], 0, 3),
    ] {
        let mut driver = Driver::new(7);
        for digit in 0..8 {
            driver.run(&[b"RPUSH", &b"l"[..], &large(digit)]);
        }
        let request = OwnedRequest::from_args(words);
        let (reply, steps, _) = run_in_steps(&mut driver, command(&request), &request, |_, _| {});
        assert!(steps >= count, "{words:?} takes {steps} steps");
        let mut expected: Vec<u8> = format!("*{count}\r\n").into();
        for digit in first..first + count {
            expected.extend_from_slice(format!("${SIZE}\r\n").as_bytes());
            expected.extend_from_slice(&large(digit));
            expected.extend_from_slice(b"\r\n");
        }
        assert!(reply.ends_with(&expected), "{words:?}");
        driver.check();
    }
}

/// The weight of an `LMPOP` is the number of elements that it may remove, or 0 if its count is 1
/// (the default). Before the command runs, nobody knows from which of its lists it will pop. So the
/// longest list decides the weight.
#[test]
fn a_pop_from_several_lists_weighs_the_longest() {
    let mut driver = Driver::new(8);
    fill(&mut driver, "long", LEN);
    driver.run(&["RPUSH", "short", "a", "b"]);
    for (words, expected) in [
        (&["LMPOP", "2", "short", "long", "LEFT", "COUNT", "5000"][..], 5_000),
        (&["LMPOP", "2", "none", "short", "LEFT", "COUNT", "5000"], 2),
        (&["LMPOP", "3", "none", "short", "long", "RIGHT", "COUNT", "9999999"], LEN),
        (&["LMPOP", "2", "short", "long", "LEFT"], 0),
    ] {
        let request = OwnedRequest::from_args(words);
        let weigh = command_table().lookup(words[0].as_bytes()).and_then(|row| row.weigh);
        let weight = weigh.unwrap()(&driver.keyspace, DbIndex(0), request.args());
        assert_eq!(weight.elements, expected, "{words:?}");
    }
}

/// The lowest integer is refused as a rank, because negating it would overflow. Redis has refused
/// it since 7.2.
#[test]
fn the_lowest_rank_is_refused() {
    let mut driver = Driver::new(9);
    driver.run(&["RPUSH", "l", "a", "b", "a"]);
    let lpos =
        |driver: &mut Driver, rank: i64| driver.run(&["LPOS", "l", "a", "RANK", &rank.to_string()]);
    assert_eq!(lpos(&mut driver, -2), integer(0));
    assert_eq!(lpos(&mut driver, -i64::MAX), b"$-1\r\n");
    let refused = lpos(&mut driver, i64::MIN);
    assert!(refused.starts_with(b"-ERR value is out of range"), "{refused:?}");
}
