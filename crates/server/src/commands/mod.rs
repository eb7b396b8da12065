//! Commands on connections and on the server, and the one table of all commands.

mod admin;
mod client;
mod config;
mod connection;
mod find;
mod introspection;
mod latency;
mod memory;
mod persistence;
mod reload;
mod rows;
mod slimio;
mod slowlog;
mod transaction;
mod wait;

use std::sync::OnceLock;

use slimio_keyspace::{Command, CommandTable, DataFn, command_table};
use slimio_resp::Args;

use crate::clients::Client;
use crate::connections::Connections;
use crate::engine::Engine;

pub(crate) use find::{NotFound, find};
pub(crate) use wait::reply as reply_of_waitaof;

/// Runs a command that works on the server, or on the client that sent it. The reply goes to the
/// client's output.
pub(crate) type ServerFn = fn(&mut Engine, &mut Client, Args<'_>);

/// Runs a command that works on other clients, too, or that may make its client wait.
pub(crate) type ConnectionsFn = fn(&mut Connections, &mut Engine, &mut Client, Args<'_>);

/// The function that runs a command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Run<S: 'static = &'static [Command<Entry>]> {
    /// The command works on the data set.
    Data(DataFn),
    /// The command works on the server, or on the client that sent it.
    Server(ServerFn),
    /// The command works on other clients, too, or may make its client wait.
    Connections(ConnectionsFn),
    /// The word after the command's name is the name of the subcommand to run.
    Container(S),
}

/// The part of a command's row that says how to run the command and how to count its calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) run: Run,
    /// The command's name in INFO and errors, such as `config|get`.
    pub(crate) name: &'static str,
    /// Index of the command's counters.
    pub(crate) id: usize,
    /// Whether the command runs at once within `MULTI`, instead of being queued.
    pub(crate) ends_queueing: bool,
}

/// A row of the table, as the source code writes it.
type Row = Command<Run<Rows>>;

/// The subcommands of a container, as they are written in the source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows(&'static [Row]);

const ENDS_QUEUEING: [&str; 6] = ["discard", "exec", "multi", "quit", "reset", "watch"];

/// An error repeats at most this many bytes of a subcommand's name.
const SUBCOMMAND_SHOWN_MAX: usize = 128;

pub(crate) fn table() -> &'static CommandTable<Entry> {
    &tables().table
}

/// Number of rows with counters.
pub(crate) fn entry_count() -> usize {
    tables().names.len()
}

/// Names of the rows with counters, by the index of the counters.
pub(crate) fn entry_names() -> &'static [&'static str] {
    &tables().names
}

/// `COMMAND` without arguments, which runs as a command although `COMMAND` is a container.
pub(crate) fn bare_command() -> &'static Command<Entry> {
    &tables().bare_command
}

struct Tables {
    table: CommandTable<Entry>,
    names: Vec<&'static str>,
    bare_command: Command<Entry>,
}

fn tables() -> &'static Tables {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    TABLES.get_or_init(|| {
        let mut names = Vec::new();
        let mut rows: Vec<Command<Entry>> = Vec::new();
        for row in command_table().rows() {
            rows.push(row.with_run(entry(Run::Data(row.run), row.name, &mut names)));
        }
        for row in rows::ROWS {
            let run = match row.run {
                Run::Data(run) => Run::Data(run),
                Run::Server(run) => Run::Server(run),
                Run::Connections(run) => Run::Connections(run),
                Run::Container(Rows(subcommands)) => {
                    let subcommands = subcommands.iter().map(|sub| {
                        let name = format!("{}|{}", row.name, sub.name).leak();
                        let run = match sub.run {
                            Run::Data(run) => Run::Data(run),
                            Run::Server(run) => Run::Server(run),
                            Run::Connections(run) => Run::Connections(run),
                            Run::Container(_) => unreachable!("a subcommand has no subcommands"),
                        };
                        sub.with_run(entry(run, name, &mut names))
                    });
                    // The memory is leaked, but only once per process.
                    let subcommands: &'static [_] = subcommands.collect::<Vec<_>>().leak();
                    Run::Container(subcommands)
                }
            };
            rows.push(row.with_run(entry(run, row.name, &mut names)));
        }
        rows.sort_by_key(|row| row.name);
        let table = CommandTable::new(rows);
        let command = table.lookup(b"command").expect("COMMAND has a row");
        let all = Entry { run: Run::Server(introspection::all), ..command.run };
        let bare_command = command.with_run(all);
        Tables { table, names, bare_command }
    })
}

fn entry(run: Run, name: &'static str, names: &mut Vec<&'static str>) -> Entry {
    names.push(name);
    Entry { run, name, id: names.len() - 1, ends_queueing: ENDS_QUEUEING.contains(&name) }
}

/// Replies with an error: the subcommand is unknown or has the wrong number of arguments.
fn wrong_sub(client: &mut Client, name: &str, args: Args<'_>) {
    let sub = args.bytes(1);
    let sub = String::from_utf8_lossy(&sub[..sub.len().min(SUBCOMMAND_SHOWN_MAX)]).into_owned();
    client.out.error(&format!(
        "ERR unknown subcommand or wrong number of arguments for '{sub}'. Try {name} HELP."
    ));
}

fn help(client: &mut Client, lines: &[&str]) {
    client.out.array(lines.len() + 2);
    for line in lines.iter().chain(&["HELP", "    Prints this help."]) {
        client.out.simple(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_counters_of_its_own() {
        let mut seen = std::collections::HashSet::new();
        for row in table().rows() {
            assert!(seen.insert(row.run.id), "{}", row.name);
            if let Run::Container(subcommands) = row.run.run {
                assert!(subcommands.is_sorted_by_key(|sub| sub.name));
                for sub in subcommands {
                    assert!(seen.insert(sub.run.id), "{}", sub.run.name);
                    assert!(sub.run.name.starts_with(row.name));
                }
            }
        }
        assert_eq!(seen.len(), entry_count());
        assert!(table().lookup(b"WaitAOF").is_some());
    }
}
