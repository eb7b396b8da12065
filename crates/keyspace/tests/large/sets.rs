//! Commands on sets: members are drawn with equal chances, and long commands run in steps.

use std::collections::{BTreeMap, BTreeSet};

use slimio_resp::OwnedRequest;

use super::common::Driver;
use super::steps::{command, run_in_steps};

/// The strings of an array or set.
fn strings(reply: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(reply).into_owned();
    let lines = text.split("\r\n").filter(|line| !line.is_empty());
    lines
        .filter(|line| !["*", "~", "$"].iter().any(|head| line.starts_with(head)))
        .map(Into::into)
        .collect()
}

/// Members are drawn with equal chances in every case: one or several, with repetitions or without,
/// kept in the set or removed, and in each form of a set.
#[test]
fn members_are_drawn_with_equal_chances() {
    const ROUNDS: usize = 3000;
    let integers: Vec<_> = (0..30).map(|n| n.to_string()).collect();
    let texts: Vec<_> = (0..30).map(|n| format!("member {n}")).collect();
    let many: Vec<_> = (0..600).map(|n| format!("member {n}")).collect();
    for members in [integers, texts, many] {
        let len = members.len();
        let some = (len / 3).to_string();
        let few = (len / 20).to_string();
        let add: Vec<&str> =
            ["SADD", "s"].into_iter().chain(members.iter().map(|m| &**m)).collect();
        let mut driver = Driver::new(11);
        driver.run(&add);
        for words in [
            &["SRANDMEMBER", "s"][..],
            &["SRANDMEMBER", "s", &some],
            &["SRANDMEMBER", "s", &few],
            &["SRANDMEMBER", "s", "-7"],
            &["SPOP", "s"],
            &["SPOP", "s", &some],
            &["SPOP", "s", &few],
        ] {
            let (mut counts, mut drawn) = (BTreeMap::<String, usize>::new(), 0_usize);
            for _ in 0..ROUNDS * len / 600 + 600 {
                for member in strings(&driver.run(words)) {
                    *counts.entry(member).or_default() += 1;
                    drawn += 1;
                }
                if words[0] == "SPOP" {
                    driver.run(&add);
                }
            }
            let expected = drawn as f64 / len as f64;
            let off = |name: &String| counts.get(name).map_or(0.0, |c| *c as f64) - expected;
            let chi_squared: f64 = members.iter().map(|m| off(m) * off(m) / expected).sum();
            // Six standard deviations above the mean of the distribution.
            let limit = len as f64 + 6.0 * (2.0 * len as f64).sqrt();
            assert!(chi_squared < limit, "{words:?} of {len}: {chi_squared}, more than {limit}");
        }
    }
}

/// Commands on large sets run in steps, and give the same results as commands on small sets.
#[test]
fn large_sets_are_combined_in_steps() {
    let mut driver = Driver::new(5);
    let numbers =
        |step: usize| (0..20_000).step_by(step).map(|n| format!("m{n}")).collect::<BTreeSet<_>>();
    for (key, members) in [("two", numbers(2)), ("three", numbers(3)), ("all", numbers(1))] {
        let add: Vec<&str> =
            ["SADD", key].into_iter().chain(members.iter().map(|m| &**m)).collect();
        driver.run(&add);
    }
    let (two, three) = (numbers(2), numbers(3));
    let cases: [(&str, BTreeSet<String>); 4] = [
        ("INTER", two.intersection(&three).cloned().collect()),
        ("UNION", two.union(&three).cloned().collect()),
        ("DIFF", two.difference(&three).cloned().collect()),
        (
            "DIFF all",
            numbers(1).difference(&two).filter(|m| !three.contains(*m)).cloned().collect(),
        ),
    ];
    for (operation, expected) in cases {
        let (operation, first) = operation.split_once(' ').unwrap_or((operation, ""));
        let keys: Vec<&str> =
            [first, "two", "three"].into_iter().filter(|k| !k.is_empty()).collect();
        let name = format!("S{operation}");
        let read: Vec<&str> = [&[&*name][..], &keys].concat();
        let found: BTreeSet<_> = strings(&driver.run(&read)).into_iter().collect();
        assert!(found == expected, "{read:?}");
        let name = format!("S{operation}STORE");
        let stored: Vec<&str> = [&[&*name, "d"][..], &keys].concat();
        assert_eq!(driver.run(&stored), format!(":{}\r\n", expected.len()).as_bytes());
        let found: BTreeSet<_> = strings(&driver.run(&["SMEMBERS", "d"])).into_iter().collect();
        assert!(found == expected, "{stored:?}");
        driver.check();
    }
    let popped: BTreeSet<_> = strings(&driver.run(&["SPOP", "all", "15000"])).into_iter().collect();
    let left: BTreeSet<_> = strings(&driver.run(&["SMEMBERS", "all"])).into_iter().collect();
    assert_eq!((popped.len(), left.len()), (15_000, 5_000));
    assert!(popped.union(&left).cloned().collect::<BTreeSet<_>>() == numbers(1));
    driver.check();
}

/// A step copies a bounded number of bytes, however long the members are.
#[test]
fn few_long_members_are_combined_in_steps() {
    let mut driver = Driver::new(5);
    for index in 0..400 {
        let member = format!("{index}{}", "x".repeat(100_000));
        driver.run(&["SADD", ["a", "b"][index % 2], &member]);
    }
    for words in [["SUNIONSTORE", "d", "a", "b"], ["SDIFFSTORE", "d", "a", "b"]] {
        let request = OwnedRequest::from_args(words);
        let (_, steps, _) = run_in_steps(&mut driver, command(&request), &request, |_, _| {});
        assert!(steps >= 6, "{words:?} takes {steps} steps");
        driver.check();
    }
}

/// One walk looks at a limited number of sets. If a command has more sets, they are combined group
/// by group.
#[test]
fn many_sets_are_combined_group_by_group() {
    let mut driver = Driver::new(5);
    let mut model = Vec::new();
    for key in 0..50 {
        // Set 0 has all numbers. Each of the other sets lacks one number, and has one number that
        // no other set has.
        let mut members: BTreeSet<_> = (0..3000).filter(|n| key == 0 || *n != key).collect();
        members.insert(10_000 + key);
        let members: BTreeSet<_> = members.into_iter().map(|n| format!("m{n}")).collect();
        let name = format!("s{key}");
        let add: Vec<&str> =
            ["SADD", &name].into_iter().chain(members.iter().map(|m| &**m)).collect();
        driver.run(&add);
        model.push(members);
    }
    let small: BTreeSet<_> = ["m7", "m40", "m10003", "m10049", "other"].map(String::from).into();
    let words: Vec<&str> = small.iter().map(|member| &**member).collect();
    driver.run(&[&["SADD", "small"], &words[..]].concat());
    let names: Vec<_> = (0..50).map(|key| format!("s{key}")).collect();
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    for count in [1, 16, 17, 18, 33, 50] {
        let sets = || model[1..count].iter();
        let common = model[0].iter().filter(|m| sets().all(|set| set.contains(*m)));
        let common: BTreeSet<String> = common.cloned().collect();
        let alone = small.iter().filter(|m| !model[..count].iter().any(|set| set.contains(*m)));
        let alone: BTreeSet<String> = alone.cloned().collect();
        let keys = &names[..count];
        for (operation, keys, expected) in
            [("SINTER", keys.to_vec(), &common), ("SDIFF", [&["small"], keys].concat(), &alone)]
        {
            let found = strings(&driver.run(&[&[operation], &keys[..]].concat()));
            assert!(found.iter().cloned().collect::<BTreeSet<_>>() == *expected, "{count}");
            assert_eq!(found.len(), expected.len(), "{operation} of {count}");
            let name = format!("{operation}STORE");
            driver.run(&[&[&*name, "d"], &keys[..]].concat());
            let stored = strings(&driver.run(&["SMEMBERS", "d"]));
            assert!(stored.into_iter().collect::<BTreeSet<_>>() == *expected, "{name} of {count}");
        }
        let number = count.to_string();
        let reply = driver.run(&[&["SINTERCARD", &number], keys].concat());
        assert_eq!(reply, format!(":{}\r\n", common.len()).as_bytes());
        driver.check();
    }
}

/// Adds members to a set, and returns them.
fn add(driver: &mut Driver, key: &str, numbers: impl Iterator<Item = usize>) -> BTreeSet<String> {
    let members: BTreeSet<_> = numbers.map(|n| format!("m{n}")).collect();
    let words: Vec<&str> = ["SADD", key].into_iter().chain(members.iter().map(|m| &**m)).collect();
    driver.run(&words);
    members
}

/// A command that reads sets sees all of them as of one moment, although it runs in steps. Writes
/// between the steps do not show in the reply.
#[test]
fn all_sets_are_found_at_one_moment() {
    for count in [65, 200, 1000] {
        let mut driver = Driver::new(5);
        let all = add(&mut driver, "s0", 0..5000);
        let last = format!("s{}", count - 1);
        let keys: Vec<_> = (0..count).map(|key| format!("s{key}")).collect();
        let keys: Vec<&str> = keys.iter().map(|key| &**key).collect();
        let number = count.to_string();
        let fill_others = |driver: &mut Driver, others: &BTreeSet<String>| {
            for key in &keys[1..] {
                driver.run(&["DEL", key]);
                let members = others.iter().map(|m| &**m);
                driver.run(&["SADD", key].into_iter().chain(members).collect::<Vec<_>>());
            }
        };
        let few: BTreeSet<_> = all.iter().take(20).cloned().collect();
        let other: BTreeSet<_> = ["other".to_owned()].into();
        for (head, others, write, expected) in [
            (vec!["SUNION"], &other, ["SADD", &last, "late"], all.union(&other).collect()),
            (vec!["SDIFF"], &other, ["SADD", &last, "m4000"], all.iter().collect()),
            (vec!["SINTER"], &few, ["SREM", &last, "m0"], few.iter().collect::<Vec<_>>()),
        ] {
            fill_others(&mut driver, others);
            let request = OwnedRequest::from_args([&head[..], &keys].concat());
            let (reply, steps, _) =
                run_in_steps(&mut driver, command(&request), &request, |driver, step| {
                    if step == 1 {
                        assert_eq!(driver.run(&write), b":1\r\n", "{write:?}");
                    }
                });
            let found: BTreeSet<_> = strings(&reply).into_iter().collect();
            assert!(steps > 1 || head == ["SINTER"], "{head:?} took one step");
            assert!(found.iter().eq(expected), "{head:?} of {count} saw {write:?}");
        }
        fill_others(&mut driver, &few);
        let request = [&["SINTERCARD", &number], &keys[..]].concat();
        assert_eq!(driver.run(&request), b":20\r\n");
    }
}

/// Small sets and hashes are read in one step. The count of members does not change how many
/// allocations a command makes.
#[test]
fn small_sets_are_combined_in_one_step() {
    let mut driver = Driver::new(5);
    for (key, numbers) in [("a", 0..600), ("b", 300..900), ("c", 0..2000), ("d", 500..700)] {
        add(&mut driver, key, numbers);
    }
    let fields: Vec<_> = (0..1000).map(|n| format!("f{n}")).collect();
    let pairs = fields.iter().flat_map(|field| [&**field, "v"]);
    driver.run(&["HSET", "h"].into_iter().chain(pairs).collect::<Vec<_>>());
    for words in [
        &["SUNION", "a", "b"][..],
        &["SUNION", "a", "c"],
        &["SUNION", "a", "b", "d", "none"],
        &["SINTER", "a", "b"],
        &["SINTER", "a", "b", "c"],
        &["SDIFF", "a", "b"],
        &["SDIFF", "a", "b", "d"],
        &["SMEMBERS", "c"],
        &["HGETALL", "h"],
    ] {
        let request = OwnedRequest::from_args(words);
        let (_, steps, _) = run_in_steps(&mut driver, command(&request), &request, |_, _| ());
        assert_eq!(steps, 1, "{words:?}");
    }
    let mut allocations = |words: &[&str]| {
        let request = OwnedRequest::from_args(words);
        let info = allocation_counter::measure(|| drop(driver.run_request(&request)));
        info.count_total
    };
    let few = allocations(&["SINTERCARD", "2", "d", "c"]);
    let many = allocations(&["SINTERCARD", "2", "a", "c"]);
    assert_eq!(few, many, "allocations of 200 and of 600 members");
}
