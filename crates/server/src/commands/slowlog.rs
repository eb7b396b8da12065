//! `SLOWLOG`

use slimio_planted::is_planted;
use slimio_resp::Args;

use crate::clients::Client;
use crate::engine::Engine;
use crate::slowlog::SlowCommand;

/// Entries shown when no count is given.
const SHOWN: i64 = 10;

pub(super) fn get(engine: &mut Engine, client: &mut Client, args: Args<'_>) {
    if args.len() > 3 {
        super::wrong_sub(client, "SLOWLOG", args);
        return;
    }
    let count = if args.len() == 3 { args.get(2).to_i64() } else { Some(SHOWN) };
    let Some(count) = count.filter(|count| *count >= -1) else {
        client.out.error("ERR count should be greater than or equal to -1");
        return;
    };
    let shown_max = usize::try_from(count).unwrap_or(usize::MAX);
    let entries: Vec<_> = shown(engine).take(shown_max).collect();
    client.out.array(entries.len());
    for entry in entries {
        client.out.array(6);
        client.out.integer(entry.id as i64);
        client.out.integer(entry.at_s);
        client.out.integer(entry.took.as_micros() as i64);
        client.out.array(entry.args.len());
        for arg in &entry.args {
            client.out.bulk(arg);
        }
        client.out.bulk(entry.address.as_bytes());
        client.out.bulk(&entry.client_name);
    }
}

pub(super) fn len(engine: &mut Engine, client: &mut Client, _: Args<'_>) {
    client.out.integer(shown(engine).count() as i64);
}

/// The entries that may be shown, newest first. An entry is hidden until the reply of its command
/// may leave, because the entry must not reveal a write that is not durable yet. The entries of a
/// running transaction (`UNSETTLED`) are shown, too, because only the transaction itself can ask
/// for them, and its reply waits for the transaction's record in the log.
fn shown(engine: &Engine) -> impl Iterator<Item = &SlowCommand> {
    let is_shown = |entry: &&SlowCommand| {
        entry.needs == SlowCommand::UNSETTLED
            || engine.gate.is_free(entry.needs, engine.clock.now)
            || is_planted("slowlog-undurable")
    };
    engine.slowlog.entries().iter().filter(is_shown)
}

pub(super) fn reset(engine: &mut Engine, client: &mut Client, _: Args<'_>) {
    engine.slowlog.clear();
    client.out.ok();
}

pub(super) fn help(_: &mut Engine, client: &mut Client, _: Args<'_>) {
    super::help(
        client,
        &[
            "SLOWLOG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
            "GET [<count>]",
            "    Return top <count> entries from the slowlog (default: 10, -1 mean all).",
            "    Entries are made of:",
            "    id, timestamp, time in microseconds, arguments array, client IP and port,",
            "    client name",
            "LEN",
            "    Return the length of the slowlog.",
            "RESET",
            "    Reset the slowlog.",
        ],
    );
}
