//! `CLIENT`

use std::time::Instant;

use slimio_resp::{Arg, Args};

use super::connection::is_name;
use crate::clients::{Client, Replies};
use crate::connections::Connections;
use crate::engine::Engine;

pub(super) fn id(_: &mut Engine, client: &mut Client, _: Args<'_>) {
    client.out.integer(client.id as i64);
}

pub(super) fn getname(_: &mut Engine, client: &mut Client, _: Args<'_>) {
    if client.name.is_empty() {
        client.out.null();
    } else {
        client.out.bulk(&client.name);
    }
}

pub(super) fn setname(_: &mut Engine, client: &mut Client, args: Args<'_>) {
    let name = args.bytes(2);
    if is_name(&name) {
        client.name = name.into_owned();
        client.out.ok();
    } else {
        client.out.error(&bad_name("Client names"));
    }
}

/// The error for a name that could not be shown in a list.
pub(super) fn bad_name(what: &str) -> String {
    format!("ERR {what} cannot contain spaces, newlines or special characters.")
}

pub(super) fn setinfo(_: &mut Engine, client: &mut Client, args: Args<'_>) {
    let value = args.bytes(3);
    let (field, name) = if args.get(2).is("lib-name") {
        (&mut client.lib_name, "lib-name")
    } else if args.get(2).is("lib-ver") {
        (&mut client.lib_ver, "lib-ver")
    } else {
        let option = args.bytes(2);
        let option = String::from_utf8_lossy(&option);
        client.out.error(&format!("ERR Unrecognized option '{option}'"));
        return;
    };
    if is_name(&value) {
        *field = value.into_owned();
        client.out.ok();
    } else {
        client.out.error(&bad_name(name));
    }
}

pub(super) fn info(engine: &mut Engine, client: &mut Client, args: Args<'_>) {
    let mut line =
        client.describe(engine.clock.now, engine.is_known_stale(client), size_of_arguments(args));
    line.push('\n');
    client.out.verbatim("txt", line.as_bytes());
}

pub(super) fn list(
    connections: &mut Connections,
    engine: &mut Engine,
    client: &mut Client,
    args: Args<'_>,
) {
    let mut ids = None;
    if args.len() == 4 && args.get(2).is("type") {
        match ClientKind::parse(args.get(3)) {
            Some(ClientKind::Normal) => {}
            Some(ClientKind::Other) => ids = Some(Vec::new()),
            None => {
                unknown_type(client, args.get(3));
                return;
            }
        }
    } else if args.len() > 3 && args.get(2).is("id") {
        let mut wanted = Vec::new();
        for index in 3..args.len() {
            let Some(id) = args.get(index).to_i64() else {
                client.out.error("ERR Invalid client ID");
                return;
            };
            wanted.push(id);
        }
        ids = Some(wanted);
    } else if args.len() != 2 {
        client.out.error("ERR syntax error");
        return;
    }
    let mut shown: Vec<&Client> = connections.clients.iter().chain([&*client]).collect();
    shown.retain(|c| ids.as_ref().is_none_or(|ids| ids.contains(&(c.id as i64))));
    shown.sort_by_key(|c| c.id);
    let (own_id, mut text) = (client.id, String::new());
    for client in shown {
        let argv_size = if client.id == own_id {
            size_of_arguments(args)
        } else {
            client.waiting_request().map_or(0, |request| size_of_arguments(request.args()))
        };
        text.push_str(&client.describe(engine.clock.now, engine.is_known_stale(client), argv_size));
        text.push('\n');
    }
    client.out.verbatim("txt", text.as_bytes());
}

fn size_of_arguments(args: Args<'_>) -> usize {
    args.iter().map(|arg| arg.size()).sum()
}

/// The clients that the `TYPE` of a filter selects.
#[derive(Clone, Copy)]
enum ClientKind {
    Normal,
    /// A type that no client of this server has.
    Other,
}

impl ClientKind {
    fn parse(arg: Arg<'_>) -> Option<Self> {
        if arg.is("normal") {
            return Some(Self::Normal);
        }
        ["master", "replica", "slave", "pubsub"].iter().any(|t| arg.is(t)).then_some(Self::Other)
    }
}

fn unknown_type(client: &mut Client, arg: Arg<'_>) {
    let name = arg.to_bytes();
    client.out.error(&format!("ERR Unknown client type '{}'", String::from_utf8_lossy(&name)));
}

/// Which clients `CLIENT KILL` closes.
#[derive(Default)]
struct Filter {
    id: Option<u64>,
    address: Option<String>,
    local_address: Option<String>,
    is_nobody: bool,
    older_than: Option<u64>,
    spares_caller: bool,
}

impl Filter {
    fn matches(&self, client: &Client, now: Instant) -> bool {
        let age = now.saturating_duration_since(client.connected_at).as_secs();
        !self.is_nobody
            && self.id.is_none_or(|id| client.id == id)
            && self.address.as_ref().is_none_or(|a| client.address() == *a)
            && self.local_address.as_ref().is_none_or(|a| client.local_address() == *a)
            && self.older_than.is_none_or(|seconds| age >= seconds)
    }
}

pub(super) fn kill(
    connections: &mut Connections,
    engine: &mut Engine,
    client: &mut Client,
    args: Args<'_>,
) {
    let text = |index| String::from_utf8_lossy(&args.bytes(index)).into_owned();
    if args.len() == 3 {
        // The old form of the request, `CLIENT KILL address`, replies with a status instead of a
        // count.
        let filter = Filter { address: Some(text(2)), ..Filter::default() };
        if kill_matching(connections, engine, client, &filter) == 0 {
            client.out.error("ERR No such client");
        } else {
            client.out.ok();
        }
        return;
    }
    let mut filter = Filter { spares_caller: true, ..Filter::default() };
    for index in (2..args.len()).step_by(2) {
        if index + 1 == args.len() {
            client.out.error("ERR syntax error");
            return;
        }
        let (option, value) = (args.get(index), args.get(index + 1));
        if option.is("id") {
            let Some(id) = value.to_i64().filter(|id| *id > 0) else {
                client.out.error("ERR client-id should be greater than 0");
                return;
            };
            filter.id = Some(id as u64);
        } else if option.is("maxage") {
            let Some(age) = value.to_i64().filter(|age| *age > 0) else {
                client.out.error("ERR maxage is not an integer or out of range");
                return;
            };
            filter.older_than = Some(age as u64);
        } else if option.is("type") {
            match ClientKind::parse(value) {
                Some(ClientKind::Normal) => {}
                Some(ClientKind::Other) => filter.is_nobody = true,
                None => {
                    unknown_type(client, value);
                    return;
                }
            }
        } else if option.is("addr") {
            filter.address = Some(text(index + 1));
        } else if option.is("laddr") {
            filter.local_address = Some(text(index + 1));
        } else if option.is("user") {
            let user = text(index + 1);
            if user != "default" {
                client.out.error(&format!("ERR No such user '{user}'"));
                return;
            }
        } else if option.is("skipme") && (value.is("yes") || value.is("no")) {
            filter.spares_caller = value.is("yes");
        } else {
            client.out.error("ERR syntax error");
            return;
        }
    }
    let killed = kill_matching(connections, engine, client, &filter);
    client.out.integer(killed);
}

fn kill_matching(
    connections: &mut Connections,
    engine: &mut Engine,
    client: &mut Client,
    filter: &Filter,
) -> i64 {
    let doomed: Vec<_> = connections
        .clients
        .iter()
        .filter(|c| filter.matches(c, engine.clock.now))
        .map(|c| c.conn)
        .collect();
    for &conn in &doomed {
        connections.ended(engine, conn);
    }
    let kills_caller = !filter.spares_caller && filter.matches(client, engine.clock.now);
    if kills_caller {
        connections.close(engine, client);
    }
    doomed.len() as i64 + i64::from(kills_caller)
}

pub(super) fn no_touch(_: &mut Engine, client: &mut Client, args: Args<'_>) {
    client.no_touch = match args.get(2) {
        word if word.is("on") => true,
        word if word.is("off") => false,
        _ => {
            client.out.error("ERR syntax error");
            return;
        }
    };
    client.out.ok();
}

pub(super) fn no_evict(_: &mut Engine, client: &mut Client, args: Args<'_>) {
    client.no_evict = match args.get(2) {
        on if on.is("on") => true,
        off if off.is("off") => false,
        _ => {
            client.out.error("ERR syntax error");
            return;
        }
    };
    client.out.ok();
}

pub(super) fn reply(_: &mut Engine, client: &mut Client, args: Args<'_>) {
    let mode = args.get(2);
    if mode.is("on") {
        client.replies = Replies::On;
        client.out.ok();
    } else if mode.is("off") {
        client.replies = Replies::Off;
    } else if mode.is("skip") {
        if client.replies != Replies::Off {
            client.replies = Replies::SkipNext;
        }
    } else {
        client.out.error("ERR syntax error");
    }
}

pub(super) fn help(_: &mut Engine, client: &mut Client, _: Args<'_>) {
    super::help(
        client,
        &[
            "CLIENT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
            "GETNAME",
            "    Return the name of the current connection.",
            "ID",
            "    Return the ID of the current connection.",
            "INFO",
            "    Return information about the current client connection.",
            "KILL <ip:port>",
            "    Kill connection made from <ip:port>.",
            "KILL <option> <value> [<option> <value> [...]]",
            "    Kill connections. Options are:",
            "    * ADDR (<ip:port>|<unixsocket>:0)",
            "      Kill connections made from the specified address",
            "    * LADDR (<ip:port>|<unixsocket>:0)",
            "      Kill connections made to specified local address",
            "    * TYPE (NORMAL|MASTER|REPLICA|PUBSUB)",
            "      Kill connections by type.",
            "    * USER <username>",
            "      Kill connections authenticated by <username>.",
            "    * SKIPME (YES|NO)",
            "      Skip killing current connection (default: yes).",
            "    * MAXAGE <seconds>",
            "      Kill connections that are at least <seconds> old.",
            "LIST [options ...]",
            "    Return information about client connections. Options:",
            "    * TYPE (NORMAL|MASTER|REPLICA|PUBSUB)",
            "      Return clients of specified type.",
            "    * ID <id> [<id> ...]",
            "      Return clients with these IDs.",
            "PAUSE <timeout> [WRITE|ALL]",
            "    Suspend all, or just write, clients for <timeout> milliseconds.",
            "REPLY (ON|OFF|SKIP)",
            "    Control the replies sent to the current connection.",
            "SETINFO <option> <value>",
            "    Set the name or version of the client's library (LIB-NAME, LIB-VER).",
            "SETNAME <name>",
            "    Assign the name <name> to the current connection.",
            "UNBLOCK <clientid> [TIMEOUT|ERROR]",
            "    Unblock the specified blocked client.",
            "UNPAUSE",
            "    Stop the current client pause, resuming traffic.",
            "NO-EVICT (ON|OFF)",
            "    Protect current client connection from eviction.",
            "NO-TOUCH (ON|OFF)",
            "    Will not touch LRU/LFU stats when this mode is on.",
        ],
    );
}
