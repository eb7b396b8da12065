//! `CONFIG`

use std::borrow::Cow;

use slimio_keyspace::Glob;
use slimio_resp::Args;

use crate::clients::Client;
use crate::connections::Connections;
use crate::engine::Engine;

/// Limit of the number of patterns in one request. There is a limit because each pattern is
/// compared with the name of each directive.
const PATTERNS_MAX: usize = 128;

/// Limit of the bytes of all patterns in one request.
const PATTERNS_SIZE_MAX: usize = 4096;

pub(super) fn get(engine: &mut Engine, client: &mut Client, args: Args<'_>) {
    let size: usize = args.iter().skip(2).map(|arg| arg.size()).sum();
    if args.len() - 2 > PATTERNS_MAX || size > PATTERNS_SIZE_MAX {
        client.out.error(&format!(
            "ERR too many patterns for 'config|get' command: at most {PATTERNS_MAX} patterns with \
             {PATTERNS_SIZE_MAX} bytes in total"
        ));
        return;
    }
    let asked: Vec<_> = (2..args.len()).map(|index| args.bytes(index)).collect();
    // If `Glob` refuses a pattern as too long, the pattern matches no name anyway.
    let pattern = |word: &Cow<'_, [u8]>| Glob::new(&word.to_ascii_lowercase()).ok();
    let patterns: Vec<Glob> = asked.iter().filter_map(pattern).collect();
    let found = engine
        .config
        .get_matching(|name| patterns.iter().any(|pattern| pattern.matches(name.as_bytes())));
    client.out.map(found.len());
    for (name, value) in found {
        // A name that was asked for literally is returned as the client wrote it.
        let written = asked.iter().find(|word| word.eq_ignore_ascii_case(name.as_bytes()));
        client.out.bulk(written.map_or(name.as_bytes(), |word| word));
        client.out.bulk(&value);
    }
}

pub(super) fn set(
    connections: &mut Connections,
    engine: &mut Engine,
    client: &mut Client,
    args: Args<'_>,
) {
    if !args.len().is_multiple_of(2) {
        client.out.error("ERR syntax error");
        return;
    }
    let name = |index| String::from_utf8_lossy(&args.bytes(index)).into_owned();
    let pair = |index| (name(index), args.bytes(index + 1).into_owned());
    let pairs: Vec<(String, Vec<u8>)> = (2..args.len()).step_by(2).map(pair).collect();
    let had_no_effect = engine.config.without_effect().len();
    match engine.config.set_pairs(&pairs) {
        Ok(names) => {
            engine.configured(&names, connections.client_bytes(engine, Some(client)));
            for name in &engine.config.without_effect()[had_no_effect..] {
                log::warn!("CONFIG SET {name} has no effect here");
            }
            client.out.ok();
        }
        Err(text) => client.out.error(&format!("ERR {text}")),
    }
}

pub(super) fn rewrite(
    connections: &mut Connections,
    engine: &mut Engine,
    client: &mut Client,
    _: Args<'_>,
) {
    let Some(rewrite) = engine.config.rewrite() else {
        client.out.error("ERR The server is running without a config file");
        return;
    };
    connections.run_in_background(engine, client, move || match rewrite.run() {
        Ok(()) => {
            log::info!("CONFIG REWRITE executed with success");
            Ok(())
        }
        Err(error) => {
            log::warn!("CONFIG REWRITE failed: {error}");
            Err(format!("ERR Rewriting config file: {}", reason(&error)))
        }
    });
}

/// Returns the kernel's message, without the error number that Rust adds.
fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.find(" (os error").map_or(text.clone(), |end| text[..end].to_owned())
}

pub(super) fn resetstat(engine: &mut Engine, client: &mut Client, _: Args<'_>) {
    engine.stats.reset();
    engine.data.keyspace.reset_stats();
    engine.snapshots.reset_stats();
    client.out.ok();
}

pub(super) fn help(_: &mut Engine, client: &mut Client, _: Args<'_>) {
    super::help(
        client,
        &[
            "CONFIG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
            "GET <pattern>",
            "    Return parameters matching the glob-like <pattern> and their values.",
            "SET <directive> <value>",
            "    Set the configuration <directive> to <value>.",
            "REWRITE",
            "    Rewrite the configuration file with the configuration in force.",
            "RESETSTAT",
            "    Reset statistics reported by the INFO command.",
        ],
    );
}
