//! Formats the counts of a drive as text.

use std::fmt::Write as _;

use slimio_target::{HandleStatistics, Statistics};

use crate::tools::quote;

/// The counts as one line of JSON.
pub(super) fn json(nqn: &str, all: &Statistics) -> String {
    let waf = all.waf().map_or_else(|| "null".to_owned(), |waf| format!("{waf:.6}"));
    let numbers = [
        ("size_bytes", all.size_bytes),
        ("mapped_bytes", all.mapped_bytes),
        ("host_bytes", all.host_bytes),
        ("media_bytes", all.media_bytes),
        ("copied_bytes", all.copied_bytes),
        ("erased_bytes", all.erased_bytes),
        ("unit_bytes", all.unit_bytes),
        ("units", all.units.into()),
        ("units_free", all.units_free.into()),
        ("units_open", all.units_open.into()),
        ("read_commands", all.read_commands),
        ("read_bytes", all.read_bytes),
        ("write_commands", all.write_commands),
        ("errors", all.errors),
    ];
    let numbers = numbers.map(|(name, value)| format!("{}:{value}", quote(name))).join(",");
    let handles: Vec<String> = all.handles.iter().map(handle_json).collect();
    let hosts: Vec<String> = all
        .controllers
        .iter()
        .map(|(id, host)| format!("{{\"controller\":{id},\"host\":{}}}", quote(host)))
        .collect();
    format!(
        "{{\"nqn\":{},{numbers},\"waf\":{waf},\"handles\":[{}],\"mixed\":{},\"hosts\":[{}]}}",
        quote(nqn),
        handles.join(","),
        handle_json(&all.mixed),
        hosts.join(",")
    )
}

fn handle_json(handle: &HandleStatistics) -> String {
    let HandleStatistics {
        host_bytes,
        copied_bytes,
        padded_bytes,
        units_erased,
        units,
        valid_bytes,
    } = handle;
    format!(
        "{{\"host_bytes\":{host_bytes},\"copied_bytes\":{copied_bytes},\
         \"padded_bytes\":{padded_bytes},\"units_erased\":{units_erased},\"units\":{units},\
         \"valid_bytes\":{valid_bytes}}}"
    )
}

/// A page for people: the counts `now`, and what happened in the second since `before`.
pub(super) fn text(about: &str, before: &Statistics, now: &Statistics) -> String {
    let mut page = format!("{about}\n");
    let mut line = |name: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(page, "{name:<10} {value}");
    };
    let rate = |now: u64, before: u64| format!("{}/s", Size(now.saturating_sub(before)));
    let hosts: Vec<&str> = now.controllers.iter().map(|(_, host)| host.as_str()).collect();
    line("hosts", if hosts.is_empty() { "none".into() } else { hosts.join(", ") });
    line(
        "host",
        format!(
            "{} written, {}; {} read, {}",
            Size(now.host_bytes),
            rate(now.host_bytes, before.host_bytes),
            Size(now.read_bytes),
            rate(now.read_bytes, before.read_bytes)
        ),
    );
    line(
        "media",
        format!("{} written, {}", Size(now.media_bytes), rate(now.media_bytes, before.media_bytes)),
    );
    let of = |media: u64, host: u64| match host {
        0 => "-".to_owned(),
        host => format!("{:.3}", media as f64 / host as f64),
    };
    let (media, host) = (
        now.media_bytes.saturating_sub(before.media_bytes),
        now.host_bytes.saturating_sub(before.host_bytes),
    );
    let all = of(now.media_bytes, now.host_bytes);
    line("WAF", format!("{all} in all, {} in the last second", of(media, host)));
    line(
        "collector",
        format!(
            "{} copied, {}; {} erased, {}",
            Size(now.copied_bytes),
            rate(now.copied_bytes, before.copied_bytes),
            Size(now.erased_bytes),
            rate(now.erased_bytes, before.erased_bytes)
        ),
    );
    line(
        "units",
        format!(
            "{} of {} each: {} free, {} open; {} of {} hold data",
            now.units,
            Size(now.unit_bytes),
            now.units_free,
            now.units_open,
            Size(now.mapped_bytes),
            Size(now.size_bytes)
        ),
    );
    line("errors", now.errors.to_string());
    let _ = writeln!(
        page,
        "\n{:<8}{:>12}{:>12}{:>12}{:>10}{:>8}{:>12}",
        "handle", "host", "copied", "padding", "erased", "units", "valid"
    );
    let names = (0..now.handles.len()).map(|number| number.to_string());
    for (name, handle) in names.zip(&now.handles).chain([("mixed".into(), &now.mixed)]) {
        let _ = writeln!(
            page,
            "{name:<8}{:>12}{:>12}{:>12}{:>10}{:>8}{:>12}",
            Size(handle.host_bytes).to_string(),
            Size(handle.copied_bytes).to_string(),
            Size(handle.padded_bytes).to_string(),
            handle.units_erased,
            handle.units,
            Size(handle.valid_bytes).to_string()
        );
    }
    page
}

/// A count of bytes, shown with the unit that needs the fewest digits.
struct Size(u64);

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        match units.iter().find(|(shift, _)| self.0 >> shift > 0) {
            Some((shift, name)) => {
                write!(f, "{:.1} {name}", self.0 as f64 / (1_u64 << shift) as f64)
            }
            None => write!(f, "{} B", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statistics(host_bytes: u64, media_bytes: u64) -> Statistics {
        let handle = HandleStatistics { host_bytes, units: 3, ..HandleStatistics::default() };
        Statistics {
            host_bytes,
            media_bytes,
            units: 10,
            units_free: 4,
            handles: vec![handle],
            controllers: vec![(1, "nqn.\"host\"".into())],
            ..Statistics::default()
        }
    }

    #[test]
    fn json_is_one_line_with_every_count() {
        let line = json("nqn.x", &statistics(4096, 8192));
        assert!(line.starts_with("{\"nqn\":\"nqn.x\",\"size_bytes\":0,"), "{line}");
        for part in [
            "\"host_bytes\":4096",
            "\"waf\":2.000000",
            "\"units_free\":4",
            "\"handles\":[{\"host_bytes\":4096,",
            "\"hosts\":[{\"controller\":1,\"host\":\"nqn.\\\"host\\\"\"}]",
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
        assert!(json("nqn.x", &statistics(0, 0)).contains("\"waf\":null"));
        assert_eq!(line.matches('{').count(), line.matches('}').count());
        assert!(!line.contains('\n'));
    }

    #[test]
    fn a_page_has_the_rates_of_the_last_second() {
        let (before, now) = (statistics(4 << 20, 5 << 20), statistics(8 << 20, 13 << 20));
        let page = text("a drive", &before, &now);
        assert!(page.starts_with("a drive\n"));
        for part in ["8.0 MiB written, 4.0 MiB/s", "1.625 in all, 2.000 in the last", "4 free"] {
            assert!(page.contains(part), "{part} in {page}");
        }
        let same = text("a drive", &statistics(0, 0), &statistics(0, 0));
        assert!(same.contains("- in all, - in the last second"), "{same}");
    }
}
