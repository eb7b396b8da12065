//! Commands on collections so large that changing one element takes a few microseconds.

use slimio_keyspace::{CollectionRef, DbIndex, ValueRef};
use slimio_resp::OwnedRequest;

use super::steps::{command, run_in_steps};
use crate::common::Driver;

/// Number of elements of each huge collection. The name of each element has 60 bytes.
const COUNT: usize = 300_000;

fn name(index: usize) -> String {
    format!("{index:060}")
}

/// Makes a huge set `set`, a huge hash `hash`, and a small set `small`.
fn driver() -> Driver {
    let mut driver = Driver::new(3);
    for from in (0..COUNT).step_by(1000) {
        let names: Vec<String> = (from..from + 1000).map(name).collect();
        let members = names.iter().map(String::as_str);
        driver.run(&["SADD", "set"].into_iter().chain(members.clone()).collect::<Vec<_>>());
        let fields = members.flat_map(|name| [name, "v"]);
        driver.run(&["HSET", "hash"].into_iter().chain(fields).collect::<Vec<_>>());
    }
    driver.run(&["SADD", "small", "a", "b"]);
    driver
}

/// Runs a command. Returns its step count and its reply.
fn steps(
    driver: &mut Driver,
    words: &[&str],
    names: impl Iterator<Item = usize>,
) -> (usize, String) {
    let names: Vec<String> = names.map(name).collect();
    let is_hset = words[0] == "HSET";
    let args = names.iter().flat_map(|name| [&**name].into_iter().chain(is_hset.then_some("new")));
    let request = OwnedRequest::from_args(words.iter().copied().chain(args));
    let (reply, steps, _) = run_in_steps(driver, command(&request), &request, |_, _| {});
    (steps, String::from_utf8(reply).expect("text"))
}

#[test]
fn many_elements_of_one_are_changed_in_steps() {
    let mut driver = driver();
    let few = 0..120;
    let many = 0..400;
    for (words, removes) in
        [(["SADD", "set"], false), (["SREM", "set"], true), (["HDEL", "hash"], true)]
    {
        let (count, _) = steps(&mut driver, &words, few.clone());
        assert_eq!(count, 1, "{words:?} of few elements takes one step");
        let (count, reply) = steps(&mut driver, &words, many.clone());
        assert!(count >= 5, "{words:?} takes {count} steps");
        let expected = if removes { many.len() - few.len() } else { 0 };
        assert_eq!(reply, format!(":{expected}\r\n"));
    }
    let (count, _) = steps(&mut driver, &["HSET", "hash"], many.clone());
    assert!(count >= 10, "HSET takes {count} steps");
    // Changes of a small collection, and reads, are not split into steps.
    assert_eq!(steps(&mut driver, &["SADD", "small"], many.clone()).0, 1);
    assert_eq!(steps(&mut driver, &["SMISMEMBER", "set"], many.clone()).0, 1);
    assert_eq!(steps(&mut driver, &["HMGET", "hash"], many).0, 1);
    driver.check();
}

/// If elements are drawn one by one, each of them needs a walk through the tree. So one step draws
/// only a few of them. All steps together draw as many elements as the command asks for.
#[test]
fn elements_of_one_are_drawn_in_short_steps() {
    let mut driver = driver();
    let wanted = 10_000;
    let (count, reply) =
        steps(&mut driver, &["SRANDMEMBER", "set", &wanted.to_string()], std::iter::empty());
    assert!(reply.starts_with(&format!("*{wanted}\r\n")));
    assert!(count >= wanted / 256, "{count} steps");
    let garbage = driver.keyspace.take_garbage();
    let freed = -allocation_counter::measure(|| drop(garbage)).bytes_current;
    let list = (wanted * size_of::<usize>()) as i64;
    assert!(
        freed >= list,
        "only {freed} bytes are garbage, so the command itself freed the list of drawn elements"
    );
    let value = driver.keyspace.get(DbIndex(0), b"set", 1);
    assert_eq!(value.and_then(ValueRef::as_collection).map(CollectionRef::len), Some(COUNT));
}
