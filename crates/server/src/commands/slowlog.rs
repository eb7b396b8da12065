//! `SLOWLOG`

use slimio_resp::Args;

use crate::clients::Client;
use crate::core::Core;

/// Entries shown when nobody says how many.
const SHOWN: i64 = 10;

pub(super) fn get(core: &mut Core, client: &mut Client, args: Args<'_>) {
    if args.len() > 3 {
        super::wrong_sub(client, "SLOWLOG", args);
        return;
    }
    let count = if args.len() == 3 { args.get(2).to_i64() } else { Some(SHOWN) };
    let Some(count) = count.filter(|count| *count >= -1) else {
        client.out.error("ERR count should be greater than or equal to -1");
        return;
    };
    let entries = core.slowlog.entries();
    let shown = usize::try_from(count).unwrap_or(usize::MAX).min(entries.len());
    client.out.array(shown);
    for entry in entries.iter().take(shown) {
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

pub(super) fn len(core: &mut Core, client: &mut Client, _: Args<'_>) {
    client.out.integer(core.slowlog.entries().len() as i64);
}

pub(super) fn reset(core: &mut Core, client: &mut Client, _: Args<'_>) {
    core.slowlog.clear();
    client.out.ok();
}

pub(super) fn help(_: &mut Core, client: &mut Client, _: Args<'_>) {
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
