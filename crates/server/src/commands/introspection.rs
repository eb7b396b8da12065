//! `COMMAND` and its subcommands. Their replies are made from the table of commands.

use std::iter;

use slimio_keyspace::{Command, Glob, KeySpec};
use slimio_resp::{Args, OwnedRequest, ReplyBuf};

use super::{Entry, Run, table};
use crate::clients::Client;
use crate::engine::Engine;

pub(super) fn all(_engine: &mut Engine, client: &mut Client, _: Args<'_>) {
    let rows = table().rows();
    client.out.array(rows.len());
    for row in rows {
        describe(row, &mut client.out);
    }
}

pub(super) fn count(_engine: &mut Engine, client: &mut Client, _: Args<'_>) {
    client.out.integer(table().rows().len() as i64);
}

pub(super) fn info(engine: &mut Engine, client: &mut Client, args: Args<'_>) {
    if args.len() == 2 {
        all(engine, client, args);
        return;
    }
    client.out.array(args.len() - 2);
    for index in 2..args.len() {
        match find(engine, &args.bytes(index)) {
            Some(row) => describe(row, &mut client.out),
            None => client.out.null(),
        }
    }
}

/// Finds a command, or a subcommand written as `config|get`.
pub(super) fn find(_engine: &Engine, name: &[u8]) -> Option<&'static Command<Entry>> {
    let mut words = name.split(|byte| *byte == b'|');
    let row = table().lookup(words.next()?)?;
    match (words.next(), words.next()) {
        (None, _) => Some(row),
        (Some(sub), None) => subcommand(row, sub),
        _ => None,
    }
}

fn subcommand(row: &Command<Entry>, name: &[u8]) -> Option<&'static Command<Entry>> {
    subcommands(row).iter().find(|row| row.name.as_bytes().eq_ignore_ascii_case(name))
}

fn subcommands(row: &Command<Entry>) -> &'static [Command<Entry>] {
    if let Run::Container(subcommands) = row.run.run { subcommands } else { &[] }
}

fn describe(row: &Command<Entry>, out: &mut ReplyBuf) {
    out.array(10);
    out.bulk(row.run.name.as_bytes());
    out.integer(i64::from(row.arity));
    set_of(row.flags.names(), out);
    out.integer(i64::from(row.keys.first));
    out.integer(i64::from(row.keys.last));
    out.integer(i64::from(row.keys.step));
    set_of(row.categories(), out);
    out.set(row.tips.len());
    for tip in row.tips {
        out.bulk(tip.as_bytes());
    }
    out.set(row.key_specs.len());
    for spec in row.key_specs {
        describe_keys(spec, out);
    }
    let subcommands = subcommands(row);
    out.array(subcommands.len());
    for sub in subcommands {
        describe(sub, out);
    }
}

fn set_of<'a>(words: impl Iterator<Item = &'a str>, out: &mut ReplyBuf) {
    let words: Vec<_> = words.collect();
    out.set(words.len());
    for word in words {
        out.simple(word);
    }
}

fn describe_keys(spec: &KeySpec, out: &mut ReplyBuf) {
    let has_notes = !spec.notes.is_empty();
    out.map(3 + usize::from(has_notes));
    if has_notes {
        out.bulk(b"notes");
        out.bulk(spec.notes.as_bytes());
    }
    out.bulk(b"flags");
    set_of(spec.flag_names(), out);
    out.bulk(b"begin_search");
    out.map(2);
    out.bulk(b"type");
    out.bulk(b"index");
    out.bulk(b"spec");
    out.map(1);
    out.bulk(b"index");
    out.integer(i64::from(spec.begin));
    out.bulk(b"find_keys");
    out.map(2);
    out.bulk(b"type");
    out.bulk(if spec.is_counted { b"keynum" } else { b"range" });
    out.bulk(b"spec");
    out.map(3);
    let fields = if spec.is_counted {
        [("keynumidx", 0), ("firstkey", 1), ("keystep", 1)]
    } else {
        [("lastkey", spec.last), ("keystep", spec.step), ("limit", spec.limit)]
    };
    for (name, value) in fields {
        out.bulk(name.as_bytes());
        out.integer(i64::from(value));
    }
}

pub(super) fn docs(engine: &mut Engine, client: &mut Client, args: Args<'_>) {
    let rows: Vec<&Command<Entry>> = if args.len() == 2 {
        table().rows().iter().collect()
    } else {
        (2..args.len()).filter_map(|index| find(engine, &args.bytes(index))).collect()
    };
    client.out.map(rows.len());
    for row in rows {
        document(row, &mut client.out);
    }
}

fn document(row: &Command<Entry>, out: &mut ReplyBuf) {
    let subcommands = subcommands(row);
    out.bulk(row.run.name.as_bytes());
    out.map(4 + usize::from(!subcommands.is_empty()));
    for (name, text) in [
        ("summary", row.summary),
        ("since", row.since),
        ("group", row.group),
        ("complexity", row.complexity),
    ] {
        out.bulk(name.as_bytes());
        out.bulk(text.as_bytes());
    }
    if !subcommands.is_empty() {
        out.bulk(b"subcommands");
        out.map(subcommands.len());
        for sub in subcommands {
            document(sub, out);
        }
    }
}

pub(super) fn list(_engine: &mut Engine, client: &mut Client, args: Args<'_>) {
    let is_filtered = args.len() == 5 && args.get(2).is("filterby");
    let value = if is_filtered { args.bytes(4).to_ascii_lowercase() } else { Vec::new() };
    let (category, pattern) = ([b"@", &value[..]].concat(), Glob::new(&value));
    let is_wanted: &dyn Fn(&Command<Entry>) -> bool = if args.len() == 2 {
        &|_| true
    } else if is_filtered && args.get(3).is("pattern") {
        &|row| pattern.as_ref().is_ok_and(|pattern| pattern.matches(row.run.name.as_bytes()))
    } else if is_filtered && args.get(3).is("aclcat") {
        &|row| row.categories().any(|name| name.as_bytes() == category)
    } else if is_filtered && args.get(3).is("module") {
        &|_| false
    } else {
        client.out.error("ERR syntax error");
        return;
    };
    let all = table().rows().iter().flat_map(|row| iter::once(row).chain(subcommands(row)));
    let names: Vec<_> = all.filter(|row| is_wanted(row)).map(|row| row.run.name).collect();
    client.out.array(names.len());
    for name in names {
        client.out.bulk(name.as_bytes());
    }
}

pub(super) fn getkeys(engine: &mut Engine, client: &mut Client, args: Args<'_>) {
    let Some(keys) = keys_and_flags(engine, client, args) else { return };
    client.out.array(keys.len());
    for (index, _) in keys {
        client.out.bulk(&args.bytes(index + 2));
    }
}

pub(super) fn getkeysandflags(engine: &mut Engine, client: &mut Client, args: Args<'_>) {
    let Some(keys) = keys_and_flags(engine, client, args) else { return };
    client.out.array(keys.len());
    for (index, flags) in keys {
        client.out.array(2);
        client.out.bulk(&args.bytes(index + 2));
        let flags = if flags.contains("variable_flags") { flags_of_set(args) } else { flags };
        set_of(flags.split_whitespace(), &mut client.out);
    }
}

/// The key flags of `SET`, the only command whose flags depend on its arguments.
fn flags_of_set(args: Args<'_>) -> &'static str {
    let has_get = (5..args.len()).any(|index| args.get(index).is("get"));
    if has_get { "RW access update" } else { "OW update" }
}

/// The arguments from the third on are a request of their own. Returns the keys of that request,
/// with the flags of each key. An index counts from the start of that request. If these arguments
/// are not a valid request with keys, replies with the error and returns `None`.
fn keys_and_flags(
    _engine: &Engine,
    client: &mut Client,
    args: Args<'_>,
) -> Option<Vec<(usize, &'static str)>> {
    let named = table().lookup(&args.bytes(2));
    let row = named.and_then(|row| match subcommands(row) {
        [] => Some(row),
        _ => subcommand(row, &args.bytes(3)),
    });
    let error = match row {
        None => "ERR Invalid command specified",
        Some(row) if row.key_specs.is_empty() => "ERR The command has no key arguments",
        Some(row) if !row.accepts(args.len() - 2) => {
            "ERR Invalid number of arguments specified for command"
        }
        Some(row) => {
            let request = OwnedRequest::from_args((2..args.len()).map(|index| args.bytes(index)));
            let mut keys = Vec::new();
            let are_valid = row.key_specs.iter().all(|spec| {
                let range = spec.range_in(request.args());
                let indices = range.into_iter().flat_map(|range| range.indices(args.len() - 2));
                keys.extend(indices.map(|index| (index, spec.flags)));
                range.is_some()
            });
            if are_valid {
                return Some(keys);
            }
            "ERR Invalid arguments specified for command"
        }
    };
    client.out.error(error);
    None
}

pub(super) fn help(_: &mut Engine, client: &mut Client, _: Args<'_>) {
    super::help(
        client,
        &[
            "COMMAND <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
            "(no subcommand)",
            "    Return details about all Redis commands.",
            "COUNT",
            "    Return the total number of commands in this Redis server.",
            "LIST",
            "    Return a list of all commands in this Redis server.",
            "INFO [<command-name> ...]",
            "    Return details about multiple Redis commands.",
            "    If no command names are given, documentation details for all",
            "    commands are returned.",
            "DOCS [<command-name> ...]",
            "    Return documentation details about multiple Redis commands.",
            "    If no command names are given, documentation details for all",
            "    commands are returned.",
            "GETKEYS <full-command>",
            "    Return the keys from a full Redis command.",
            "GETKEYSANDFLAGS <full-command>",
            "    Return the keys and the access flags from a full Redis command.",
        ],
    );
}
