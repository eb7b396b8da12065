//! `LATENCY`

use slimio_keyspace::Command;
use slimio_resp::{Args, ReplyBuf};

use super::{Entry, Run, table};
use crate::clients::Client;
use crate::engine::Engine;
use crate::latency::{doctor as diagnose, graph as draw};

/// The upper bound of a histogram's first bucket, in nanoseconds. The bound of each further bucket
/// is double the bound of the bucket before.
const BUCKET_NS_MIN: u64 = 1024;

pub(super) fn latest(engine: &mut Engine, client: &mut Client, _: Args<'_>) {
    let events = engine.latency.events();
    client.out.array(events.len());
    for (name, series) in events {
        let Some(last) = series.samples.back() else { continue };
        client.out.array(4);
        client.out.bulk(name.as_bytes());
        client.out.integer(last.at_s);
        client.out.integer(last.ms as i64);
        client.out.integer(series.ms_max as i64);
    }
}

pub(super) fn history(engine: &mut Engine, client: &mut Client, args: Args<'_>) {
    let Some((_, series)) = engine.latency.event(&args.bytes(2)) else {
        client.out.array(0);
        return;
    };
    client.out.array(series.samples.len());
    for sample in &series.samples {
        client.out.array(2);
        client.out.integer(sample.at_s);
        client.out.integer(sample.ms as i64);
    }
}

pub(super) fn reset(engine: &mut Engine, client: &mut Client, args: Args<'_>) {
    let count = if args.len() == 2 {
        engine.latency.reset_all()
    } else {
        (2..args.len()).filter(|index| engine.latency.reset(&args.bytes(*index))).count()
    };
    client.out.integer(count as i64);
}

pub(super) fn graph(engine: &mut Engine, client: &mut Client, args: Args<'_>) {
    let name = args.bytes(2);
    let Some((event, series)) = engine.latency.event(&name) else {
        let name = String::from_utf8_lossy(&name);
        client.out.error(&format!("ERR No samples available for event '{name}'"));
        return;
    };
    let text = draw(event, series, engine.clock.now_ms / 1000);
    client.out.verbatim("txt", text.as_bytes());
}

pub(super) fn doctor(engine: &mut Engine, client: &mut Client, _: Args<'_>) {
    let text = diagnose(&engine.latency, &engine.config);
    client.out.verbatim("txt", text.as_bytes());
}

pub(super) fn histogram(engine: &mut Engine, client: &mut Client, args: Args<'_>) {
    let mut asked = Vec::new();
    if args.len() == 2 {
        table().rows().iter().for_each(|row| add_with_parts(row, &mut asked));
    } else {
        for index in 2..args.len() {
            if let Some(row) = super::introspection::find(engine, &args.bytes(index)) {
                add_with_parts(row, &mut asked);
            }
        }
    }
    asked.retain(|row| engine.stats.by_command[row.run.id].latency.is_some());
    client.out.map(asked.len());
    for row in asked {
        client.out.bulk(row.run.name.as_bytes());
        distribution(engine, row, &mut client.out);
    }
}

/// Adds a command and, if it has any, its subcommands.
fn add_with_parts(row: &'static Command<Entry>, rows: &mut Vec<&'static Command<Entry>>) {
    rows.push(row);
    if let Run::Container(subcommands) = row.run.run {
        rows.extend(subcommands);
    }
}

/// For each bucket in which there are calls, writes its upper bound in microseconds, and the number
/// of calls that took at most that long.
fn distribution(engine: &Engine, row: &Command<Entry>, out: &mut ReplyBuf) {
    let Some(latency) = &engine.stats.by_command[row.run.id].latency else { return };
    let (mut bounds, mut counted) = (Vec::new(), 0);
    let mut bound_ns = BUCKET_NS_MIN;
    while counted < latency.len() {
        let bound = latency.highest_equivalent(bound_ns);
        // The last bucket also holds all calls that took longer than its bound.
        let is_last = bound_ns > latency.high();
        let count = if is_last { latency.len() } else { latency.count_between(0, bound) };
        if count > counted {
            bounds.push((bound / 1000, count));
            counted = count;
        }
        bound_ns *= 2;
    }
    out.map(2);
    out.bulk(b"calls");
    out.integer(latency.len() as i64);
    out.bulk(b"histogram_usec");
    out.map(bounds.len());
    for (bound_us, count) in bounds {
        out.integer(bound_us as i64);
        out.integer(count as i64);
    }
}

pub(super) fn help(_: &mut Engine, client: &mut Client, _: Args<'_>) {
    super::help(
        client,
        &[
            "LATENCY <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
            "DOCTOR",
            "    Return a human readable latency analysis report.",
            "GRAPH <event>",
            "    Return an ASCII latency graph for the <event> class.",
            "HISTORY <event>",
            "    Return time-latency samples for the <event> class.",
            "LATEST",
            "    Return the latest latency samples for all events.",
            "RESET [<event> ...]",
            "    Reset latency data of one or more <event> classes.",
            "    (default: reset all data for all event classes)",
            "HISTOGRAM [COMMAND ...]",
            "    Return a cumulative distribution of latencies in the format of a histogram for \
             the specified command names.",
            "    If no commands are specified then all histograms are replied.",
        ],
    );
}
