//! `MULTI EXEC DISCARD WATCH UNWATCH`

use slimio_planted::is_planted;
use slimio_resp::Args;

use crate::clients::Client;
use crate::connections::Connections;
use crate::engine::{Admission, Engine};
use crate::transactions::Multi;
use crate::waiting::Reason;

pub(super) fn multi(_: &mut Engine, client: &mut Client, _: Args<'_>) {
    if client.multi.is_some() {
        client.out.error("ERR MULTI calls can not be nested");
        return;
    }
    client.multi = Some(Box::default());
    client.out.ok();
}

pub(super) fn discard(engine: &mut Engine, client: &mut Client, _: Args<'_>) {
    let multi = client.multi.take();
    if multi.is_none() {
        client.out.error("ERR DISCARD without MULTI");
        return;
    }
    engine.data.end_multi(multi);
    engine.data.watches.clear(client);
    client.out.ok();
}

/// The most keys that one `WATCH` may have, and the largest total size in bytes of several keys. A
/// key that comes alone may be longer. There are limits because each key takes time, and no other
/// client is served meanwhile.
const WATCHED_AT_ONCE_MAX: usize = 2048;
const WATCHED_SIZE_MAX: usize = 1 << 20;

pub(super) fn watch(engine: &mut Engine, client: &mut Client, args: Args<'_>) {
    let size: usize = args.iter().skip(1).map(|arg| arg.size()).sum();
    let is_alone = args.len() == 2;
    if args.len() > 1 + WATCHED_AT_ONCE_MAX || size > WATCHED_SIZE_MAX && !is_alone {
        client.out.error(&format!(
            "ERR too many keys for 'watch' command: at most {WATCHED_AT_ONCE_MAX} keys with \
             {WATCHED_SIZE_MAX} bytes in total; watch the others with another WATCH"
        ));
        return;
    }
    if client.multi.is_some() {
        client.out.error("ERR WATCH inside MULTI is not allowed");
        return;
    }
    // If a watched key has changed already, further changes make no difference.
    if !engine.data.watches.is_stale(client) {
        for index in 1..args.len() {
            let key = args.bytes(index);
            engine.data.watches.add(client, &key, &engine.data.keyspace, engine.clock.now_ms);
        }
    }
    client.out.ok();
}

pub(super) fn unwatch(engine: &mut Engine, client: &mut Client, _: Args<'_>) {
    engine.data.watches.clear(client);
    client.out.ok();
}

pub(super) fn exec(
    connections: &mut Connections,
    engine: &mut Engine,
    client: &mut Client,
    _: Args<'_>,
) {
    let Some(multi) = client.multi.take() else {
        client.out.error("ERR EXEC without MULTI");
        return;
    };
    if multi.is_broken {
        engine.data.end_multi(Some(multi));
        engine.data.watches.clear(client);
        client.out.error("EXECABORT Transaction discarded because of previous errors.");
        return;
    }
    let (needs, before) = (engine.depends_on_watched(client), client.out.len());
    if engine.data.watches.is_stale(client)
        || engine.data.watches.any_expired(client, &engine.data.keyspace, engine.clock.now_ms)
    {
        engine.data.end_multi(Some(multi));
        engine.data.watches.clear(client);
        client.out.null_array();
        engine.hold(client, needs, before);
        return;
    }
    let value_room =
        if multi.weighed > 0 { engine.data.weigh_queued(client.db, &multi) } else { 0 };
    let size = multi.log_size_max.map(|size| size.saturating_add(value_room));
    if let Some(size) = size {
        match engine.admit(multi.purpose, size) {
            Admission::Granted => {}
            Admission::Wait => {
                client.multi = Some(multi);
                connections.retry_later(engine, client, Reason::Room);
                return;
            }
            Admission::Refused(text) => {
                engine.data.end_multi(Some(multi));
                engine.abort(client, text.as_bytes());
                return;
            }
        }
    }
    engine.data.watches.clear(client);
    engine.begin_transaction(client.db, multi.purpose, size.unwrap_or(0), value_room);
    run(connections, engine, client, &multi);
    engine.data.end_multi(Some(multi));
    // The reply reveals something about the watched keys: none of them was changed or has expired.
    // So under `always`, the reply also waits until the last changes to these keys are durable.
    if !is_planted("exec-undurable") {
        engine.hold(client, needs, before);
    }
}

fn run(connections: &mut Connections, engine: &mut Engine, client: &mut Client, multi: &Multi) {
    let db = client.db;
    client.out.array(multi.len());
    for request in multi.requests() {
        let args = request.args();
        match crate::commands::find(args) {
            Ok(row) => {
                connections.run_queued(engine, client, row, args);
                if is_planted("served-within-transaction") {
                    connections.serve_waiting_for_keys(engine);
                }
            }
            Err(wrong) => client.out.error_bytes(&wrong.text),
        }
    }
    engine.end_transaction(client, db);
    engine.slowlog.settle(client.needs);
}
