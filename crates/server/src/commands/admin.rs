//! `INFO TIME SHUTDOWN DEBUG`

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use slimio_keyspace::{DataFn, Mode, debug_digest, debug_digest_value, debug_populate};
use slimio_planted::is_planted;
use slimio_resp::Args;

use crate::clients::Client;
use crate::connections::Connections;
use crate::engine::{Engine, Shutdown};
use crate::waiting::{Reason, Then};

/// Longest `DEBUG SLEEP`, in seconds.
const SLEEP_SECONDS_MAX: f64 = 3600.0;

pub(super) fn info(
    connections: &mut Connections,
    engine: &mut Engine,
    client: &mut Client,
    args: Args<'_>,
) {
    let sections: Vec<String> = (1..args.len())
        .map(|index| String::from_utf8_lossy(&args.bytes(index)).to_ascii_lowercase())
        .collect();
    // The reply of INFO does not wait for any log record, because INFO must answer even while the
    // log is stuck.
    let text = crate::info::render(engine, connections.client_figures(engine, client), &sections);
    if is_planted("figures-wait") && engine.gate.keeps_undurable {
        client.needs = client.needs.max(engine.gate.undurable.of_all());
    }
    client.out.verbatim("txt", text.as_bytes());
}

pub(super) fn time(_: &mut Engine, client: &mut Client, _: Args<'_>) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    client.out.array(2);
    client.out.bulk_integer(since.as_secs() as i64);
    client.out.bulk_integer(i64::from(since.subsec_micros()));
}

pub(super) fn shutdown(
    connections: &mut Connections,
    engine: &mut Engine,
    client: &mut Client,
    args: Args<'_>,
) {
    let (mut nosave, mut save, mut abort) = (false, false, false);
    let (mut now, mut is_forced) = (false, false);
    for index in 1..args.len() {
        let option = args.get(index);
        if option.is("nosave") {
            nosave = true;
        } else if option.is("save") {
            save = true;
        } else if option.is("abort") {
            abort = true;
        } else if option.is("now") {
            now = true;
        } else if option.is("force") {
            is_forced = true;
        } else {
            client.out.error("ERR syntax error");
            return;
        }
    }
    if (abort && (nosave || save || now || is_forced)) || (nosave && save) {
        client.out.error("ERR syntax error");
        return;
    }
    if abort {
        // Unlike Redis, this server does not delay a shutdown, so there is never a shutdown to
        // abort.
        client.out.error("ERR No shutdown in progress.");
        return;
    }
    log::info!("SHUTDOWN asked for by client {}", client.address());
    let save = (save || nosave).then_some(save);
    let shutdown = Shutdown { save, is_forced, by: Some(client.conn) };
    engine.phase.shutdown = Some(shutdown);
    if engine.saves_at_shutdown(shutdown) {
        connections.wait(engine, client, Reason::End, Then::Answer);
    } else {
        connections.close(engine, client);
    }
}

pub(super) fn debug(
    connections: &mut Connections,
    engine: &mut Engine,
    client: &mut Client,
    args: Args<'_>,
) {
    let sub = args.get(1);
    if sub.is("sleep") && args.len() == 3 {
        let seconds = String::from_utf8_lossy(&args.bytes(2)).parse::<f64>().unwrap_or(0.0);
        let seconds = if seconds.is_nan() { 0.0 } else { seconds };
        // The thread is blocked on purpose, because tests look at what happens while it is blocked.
        std::thread::sleep(Duration::from_secs_f64(seconds.clamp(0.0, SLEEP_SECONDS_MAX)));
        client.out.ok();
    } else if sub.is("set-active-expire") && args.len() == 3 {
        engine.data.active_expire = !args.get(2).is("0");
        client.out.ok();
    } else if sub.is("object") && args.len() == 3 {
        let (key, before) = (args.bytes(2), client.out.len());
        match engine.data.keyspace.describe(client.db, &key, engine.clock.now_ms) {
            Some(line) => client.out.simple(&line),
            None => client.out.error("ERR no such key"),
        }
        if !is_planted("debug-object-undurable") {
            let needs = engine.depends_on_key(client.db, &key);
            engine.hold(client, needs, before);
        }
    } else if sub.is("populate") && (3..=5).contains(&args.len()) {
        run_data(connections, engine, client, args, debug_populate);
    } else if sub.is("digest") && args.len() == 2 {
        run_data(connections, engine, client, args, debug_digest);
    } else if sub.is("digest-value") && args.len() > 2 {
        run_data(connections, engine, client, args, debug_digest_value);
    } else if sub.is("reload") {
        super::reload::reload(engine, client, args);
    } else if sub.is("help") {
        super::help(
            client,
            &[
                "DEBUG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
                "DIGEST",
                "    Output a hex signature representing the current DB content.",
                "DIGEST-VALUE <key> [<key> ...]",
                "    Output a hex signature of the values of all the specified keys.",
                "OBJECT <key>",
                "    Show low level info about `key` and associated value.",
                "POPULATE <count> [<prefix>] [<size>]",
                "    Create <count> string keys named key:<num>. If <prefix> is specified then",
                "    it is used instead of the 'key' prefix.",
                "RELOAD",
                "    Encode the data set as in a snapshot, and load the result.",
                "SLEEP <seconds>",
                "    Stop the server for <seconds>. Decimals allowed.",
                "SET-ACTIVE-EXPIRE <0|1>",
                "    Setting it to 0 disables expiring keys in background.",
            ],
        );
    } else {
        super::wrong_sub(client, "DEBUG", args);
    }
}

/// Runs a subcommand that works on the data set.
fn run_data(
    connections: &mut Connections,
    engine: &mut Engine,
    client: &mut Client,
    args: Args<'_>,
    run: DataFn,
) {
    let Ok(row) = crate::commands::find(args) else {
        unreachable!("the row was found when the command began")
    };
    let mode = if engine.data.transaction.is_some() { Mode::Atomic } else { Mode::Client };
    let before = client.out.len();
    let (outcome, needs) = engine.run_data(client, row, run, args, mode);
    connections.conclude(engine, client, args, outcome, needs, before);
}
