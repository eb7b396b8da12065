//! The commands `PING`, `ECHO`, `SELECT`, `AUTH`, `HELLO`, `QUIT` and `RESET`.

use slimio_keyspace::DbIndex;
use slimio_resp::{Arg, Args, Protocol};

use crate::clients::{Client, Replies};
use crate::connections::Connections;
use crate::engine::Engine;

pub(super) fn ping(_: &mut Engine, client: &mut Client, args: Args<'_>) {
    match args.len() {
        1 => client.out.simple("PONG"),
        2 => bulk(client, args.get(1)),
        _ => client.out.error("ERR wrong number of arguments for 'ping' command"),
    }
}

pub(super) fn echo(_: &mut Engine, client: &mut Client, args: Args<'_>) {
    bulk(client, args.get(1));
}

/// Replies with an argument. A large argument is not copied.
fn bulk(client: &mut Client, arg: Arg<'_>) {
    match arg {
        Arg::Bytes(bytes) => client.out.bulk(bytes),
        Arg::Blob(blob) => client.out.bulk_blob(blob, 0..blob.size()),
    }
}

pub(super) fn select(engine: &mut Engine, client: &mut Client, args: Args<'_>) {
    let Some(number) = args.get(1).to_i64() else {
        client.out.error("ERR value is not an integer or out of range");
        return;
    };
    if i32::try_from(number).is_err() {
        let (least, most) = (i32::MIN, i32::MAX);
        client
            .out
            .error(&format!("ERR value is out of range, value must between {least} and {most}"));
        return;
    }
    if number < 0 || number as usize >= engine.data.db_count() {
        client.out.error("ERR DB index is out of range");
        return;
    }
    client.db = DbIndex(number as u16);
    client.out.ok();
}

pub(super) fn auth(engine: &mut Engine, client: &mut Client, args: Args<'_>) {
    if args.len() > 3 {
        client.out.error("ERR syntax error");
        return;
    }
    if args.len() == 2 && engine.settings.password.is_none() {
        client.out.error(
            "ERR AUTH <password> called without any password configured for the default user. Are \
             you sure your configuration is correct?",
        );
        return;
    }
    let user = if args.len() == 3 { args.bytes(1) } else { b"default".into() };
    if log_in(engine, client, &user, &args.bytes(args.len() - 1)) {
        client.out.ok();
    } else {
        client.out.error(WRONG_PASSWORD);
    }
}

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";

fn log_in(engine: &Engine, client: &mut Client, user: &[u8], password: &[u8]) -> bool {
    if user != b"default" {
        return false;
    }
    let is_right = match &engine.settings.password {
        // Without a configured password, any password is accepted.
        None => true,
        Some(wanted) => is_equal(wanted, password),
    };
    client.is_authenticated |= is_right;
    is_right
}

/// Whether two passwords are equal. The comparison takes the same time whichever byte is wrong.
fn is_equal(wanted: &[u8], given: &[u8]) -> bool {
    let mut difference = u8::from(wanted.len() != given.len());
    for (i, byte) in given.iter().enumerate() {
        difference |= byte ^ wanted.get(i).copied().unwrap_or(0);
    }
    difference == 0
}

pub(super) fn hello(engine: &mut Engine, client: &mut Client, args: Args<'_>) {
    let mut protocol = None;
    if args.len() > 1 {
        protocol = match args.get(1).to_i64() {
            None => {
                client.out.error("ERR Protocol version is not an integer or out of range");
                return;
            }
            Some(2) => Some(Protocol::Resp2),
            Some(3) => Some(Protocol::Resp3),
            Some(_) => {
                client.out.error("NOPROTO unsupported protocol version");
                return;
            }
        };
    }
    let mut name = None;
    let mut at = 2;
    while at < args.len() {
        let left = args.len() - at - 1;
        if args.get(at).is("auth") && left >= 2 {
            if !log_in(engine, client, &args.bytes(at + 1), &args.bytes(at + 2)) {
                client.out.error(WRONG_PASSWORD);
                return;
            }
            at += 3;
        } else if args.get(at).is("setname") && left >= 1 {
            let wanted = args.bytes(at + 1);
            if !is_name(&wanted) {
                client.out.error(&super::client::bad_name("Client names"));
                return;
            }
            name = Some(wanted.into_owned());
            at += 2;
        } else {
            let option = args.bytes(at);
            let text = [b"ERR Syntax error in HELLO option '", &*option, b"'"].concat();
            client.out.error_bytes(&text);
            return;
        }
    }
    if engine.settings.password.is_some() && !client.is_authenticated {
        client.out.error(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
             HELLO AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol \
             version at the same time",
        );
        return;
    }
    if let Some(name) = name {
        client.name = name;
    }
    if let Some(protocol) = protocol {
        client.set_protocol(protocol);
    }
    let out = &mut client.out;
    out.map(7);
    out.bulk(b"server");
    out.bulk(b"redis");
    out.bulk(b"version");
    out.bulk(crate::REDIS_VERSION.as_bytes());
    out.bulk(b"proto");
    out.integer(if out.protocol() == Protocol::Resp3 { 3 } else { 2 });
    out.bulk(b"id");
    out.integer(client.id as i64);
    out.bulk(b"mode");
    out.bulk(b"standalone");
    out.bulk(b"role");
    out.bulk(b"master");
    out.bulk(b"modules");
    out.array(0);
}

/// Whether a name can be shown in `CLIENT LIST`.
pub(super) fn is_name(name: &[u8]) -> bool {
    name.iter().all(|byte| (b'!'..=b'~').contains(byte))
}

pub(super) fn quit(
    connections: &mut Connections,
    engine: &mut Engine,
    client: &mut Client,
    _: Args<'_>,
) {
    client.out.ok();
    connections.close(engine, client);
}

pub(super) fn reset(engine: &mut Engine, client: &mut Client, _: Args<'_>) {
    engine.data.end_multi(client.multi.take());
    engine.data.watches.clear(client);
    client.db = DbIndex(0);
    client.name.clear();
    client.no_evict = false;
    client.no_touch = false;
    client.is_authenticated = engine.settings.password.is_none();
    // If `CLIENT REPLY SKIP` came just before, `Skip` stays in force, because the reply to `RESET`
    // is the one to leave out.
    if client.replies != Replies::Skip {
        client.replies = Replies::On;
    }
    client.set_protocol(Protocol::Resp2);
    client.out.simple("RESET");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_equal_only_to_themselves() {
        assert!(is_equal(b"secret", b"secret"));
        assert!(is_equal(b"", b""));
        for wrong in [&b""[..], b"secre", b"secret1", b"Secret", b"secret\0"] {
            assert!(!is_equal(b"secret", wrong), "{wrong:?}");
        }
        assert!(!is_equal(b"", b"x"));
    }
}
