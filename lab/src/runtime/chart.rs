//! A chart of several runs. It has two panels, one below the other: requests per second, and MiB
//! per second that the collector writes. Each panel shows all runs.

use slimio_plot::{Axis, Chart, Curve, Ink, Panel};

use super::{Host, Outcome};

/// The chart of `outcomes`. Its curves are in the order of `outcomes`.
pub fn chart(outcomes: &[&Outcome]) -> Chart {
    let panel = |title: &str, y: &str, is_low, points: fn(&Outcome) -> Vec<(f64, f64)>| {
        let curve = |outcome: &&Outcome| {
            let host = outcome.setup.host;
            let ink = match host {
                Host::WithPlacement => Ink::Blue,
                Host::WithoutPlacement => Ink::Orange,
                Host::Stock { discard: false, .. } => Ink::Grey,
                Host::Stock { discard: true, .. } => Ink::Green,
            };
            let curve = Curve::line(host.to_string(), ink, points(outcome));
            Curve { spans: outcome.samples.snapshots(), ..curve }
        };
        Panel {
            title: title.into(),
            x: Axis::from(0.0, "time (s)"),
            y: Axis::from(0.0, y),
            is_low,
            curves: outcomes.iter().map(curve).collect(),
        }
    };
    let panels = vec![
        panel(
            "requests; a tinted band with a bar on top is a snapshot by the server of that colour",
            "requests per second",
            false,
            |outcome| outcome.samples.requests_per_s(),
        ),
        panel(
            "collection: bytes that go to the media in addition to the host bytes",
            "MiB per second",
            true,
            |outcome| outcome.samples.collected_mib_per_s(),
        ),
    ];
    let first = outcomes.first().map(|outcome| &outcome.setup);
    let what =
        first.map(|setup| format!("the {} drive, appendfsync {}", setup.drive.name, setup.policy));
    let title =
        format!("Throughput and garbage collection over time, {}", what.unwrap_or_default());
    Chart { title, panels }
}
