//! `INFO TIME SHUTDOWN DEBUG`

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use slimio_resp::Args;

use crate::clients::Client;
use crate::core::{Core, Shutdown};

/// Longest `DEBUG SLEEP`, in seconds.
const SLEEP_SECONDS_MAX: f64 = 3600.0;

pub(super) fn info(core: &mut Core, client: &mut Client, args: Args<'_>) {
    let sections: Vec<String> = (1..args.len())
        .map(|index| String::from_utf8_lossy(&args.bytes(index)).to_ascii_lowercase())
        .collect();
    let text = crate::info::render(core, client, &sections);
    // With the log latched, nothing is shown that depends on what is not durable.
    if core.keeps_undurable && !core.is_latched() {
        client.needs = client.needs.max(core.undurable.of_all());
    }
    client.out.verbatim("txt", text.as_bytes());
}

pub(super) fn time(_: &mut Core, client: &mut Client, _: Args<'_>) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    client.out.array(2);
    client.out.bulk_integer(since.as_secs() as i64);
    client.out.bulk_integer(i64::from(since.subsec_micros()));
}

pub(super) fn shutdown(core: &mut Core, client: &mut Client, args: Args<'_>) {
    let (mut nosave, mut save, mut abort, mut now_or_force) = (false, false, false, false);
    for index in 1..args.len() {
        let option = args.get(index);
        if option.is("nosave") {
            nosave = true;
        } else if option.is("save") {
            save = true;
        } else if option.is("abort") {
            abort = true;
        } else if option.is("now") || option.is("force") {
            now_or_force = true;
        } else {
            client.out.error("ERR syntax error");
            return;
        }
    }
    if (abort && (nosave || save || now_or_force)) || (nosave && save) {
        client.out.error("ERR syntax error");
        return;
    }
    if abort {
        // A shutdown is not waited for here, so that there is none to be called off.
        client.out.error("ERR No shutdown in progress.");
        return;
    }
    log::info!("SHUTDOWN asked for by client {}", client.address());
    core.shutdown = Some(Shutdown::Asked);
    client.close_after_replies();
}

pub(super) fn debug(core: &mut Core, client: &mut Client, args: Args<'_>) {
    let sub = args.get(1);
    if sub.is("sleep") && args.len() == 3 {
        let seconds = String::from_utf8_lossy(&args.bytes(2)).parse::<f64>().unwrap_or(0.0);
        let seconds = if seconds.is_nan() { 0.0 } else { seconds };
        // The thread is meant to stand still: this is for tests of what then happens.
        std::thread::sleep(Duration::from_secs_f64(seconds.clamp(0.0, SLEEP_SECONDS_MAX)));
        client.out.ok();
    } else if sub.is("set-active-expire") && args.len() == 3 {
        core.active_expire = !args.get(2).is("0");
        client.out.ok();
    } else if sub.is("help") {
        super::help(
            client,
            &[
                "DEBUG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
                "SLEEP <seconds>",
                "    Stop the server for <seconds>. Decimals allowed.",
                "SET-ACTIVE-EXPIRE <0|1>",
                "    Setting it to 0 disables expiring keys in background.",
            ],
        );
    } else {
        let sub = args.bytes(1);
        let sub = String::from_utf8_lossy(&sub[..sub.len().min(128)]).into_owned();
        client.out.error(&format!(
            "ERR unknown subcommand or wrong number of arguments for '{sub}'. Try DEBUG HELP."
        ));
    }
}
