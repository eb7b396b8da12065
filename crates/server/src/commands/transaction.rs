//! `MULTI EXEC DISCARD WATCH UNWATCH`

use slimio_planted::is_planted;
use slimio_resp::Args;

use crate::clients::Client;
use crate::core::{Admission, Core};
use crate::transactions::Multi;

pub(super) fn multi(_: &mut Core, client: &mut Client, _: Args<'_>) {
    if client.multi.is_some() {
        client.out.error("ERR MULTI calls can not be nested");
        return;
    }
    client.multi = Some(Box::default());
    client.out.ok();
}

pub(super) fn discard(core: &mut Core, client: &mut Client, _: Args<'_>) {
    let multi = client.multi.take();
    if multi.is_none() {
        client.out.error("ERR DISCARD without MULTI");
        return;
    }
    core.end_multi(multi);
    core.watches.clear(client);
    client.out.ok();
}

/// Most keys in one request: each takes time, and no other client is served meanwhile.
const WATCHED_AT_ONCE_MAX: usize = 2048;

pub(super) fn watch(core: &mut Core, client: &mut Client, args: Args<'_>) {
    if args.len() > 1 + WATCHED_AT_ONCE_MAX {
        client.out.error(&format!(
            "ERR too many keys for 'watch' command: no more than {WATCHED_AT_ONCE_MAX} at once, and \
             further ones by another WATCH"
        ));
        return;
    }
    if client.multi.is_some() {
        client.out.error("ERR WATCH inside MULTI is not allowed");
        return;
    }
    // A watched key has changed already: further changes make no difference.
    if !client.is_stale {
        for index in 1..args.len() {
            let key = args.bytes(index);
            core.watches.add(client, &key, &core.keyspace, core.now_ms);
        }
    }
    client.out.ok();
}

pub(super) fn unwatch(core: &mut Core, client: &mut Client, _: Args<'_>) {
    core.watches.clear(client);
    client.out.ok();
}

pub(super) fn exec(core: &mut Core, client: &mut Client, _: Args<'_>) {
    let Some(multi) = client.multi.take() else {
        client.out.error("ERR EXEC without MULTI");
        return;
    };
    if multi.is_broken {
        core.end_multi(Some(multi));
        core.watches.clear(client);
        client.out.error("EXECABORT Transaction discarded because of previous errors.");
        return;
    }
    let (needs, before) = (core.depends_on_watched(client), client.out.len());
    if client.is_stale || core.watches.any_expired(client, &core.keyspace, core.now_ms) {
        core.end_multi(Some(multi));
        core.watches.clear(client);
        client.out.null_array();
        core.hold(client, needs, before);
        return;
    }
    if let Some(size) = multi.log_size_max {
        match core.admit(multi.purpose, size) {
            Admission::Granted => {}
            Admission::Wait => {
                client.multi = Some(multi);
                core.park(client);
                return;
            }
            Admission::Refused(text) => {
                core.end_multi(Some(multi));
                core.abort(client, text.as_bytes());
                return;
            }
        }
    }
    core.watches.clear(client);
    run(core, client, &multi);
    core.end_multi(Some(multi));
    // That `EXEC` ran reveals that no watched key was changed.
    if !is_planted("exec-undurable") {
        core.hold(client, needs, before);
    }
}

fn run(core: &mut Core, client: &mut Client, multi: &Multi) {
    let db = client.db;
    core.begin_transaction(db, multi.log_size_max.unwrap_or(0));
    client.out.array(multi.len());
    for request in multi.requests() {
        let args = request.args();
        match core.find(args) {
            Ok(row) => core.run_queued(client, row, args),
            Err(wrong) => client.out.error_bytes(&wrong.text),
        }
    }
    core.end_transaction(client, db);
    core.slowlog.settle(client.needs);
}
