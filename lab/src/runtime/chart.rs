//! A run as two panels below one another: requests per second, and what the collector writes.

use slimio_plot::{Chart, Curve, Ink, Mark, Panel};

use super::{Host, Outcome};

/// The runs in their order; all of them have the same axes.
pub fn chart(outcomes: &[&Outcome]) -> Chart {
    let most = |curve: fn(&Outcome) -> Vec<(f64, f64)>| {
        let points = outcomes.iter().flat_map(|outcome| curve(outcome));
        points.fold((0.0_f64, 0.0_f64), |(x, y), (at, value)| (x.max(at), y.max(value)))
    };
    let requests = most(|outcome| outcome.samples.requests_per_s());
    let collected = most(|outcome| outcome.samples.collected_mib_per_s());
    // A panel in which nothing is collected shows zeros.
    let collected = (collected.0, collected.1.max(1.0));
    let panels = outcomes.iter().flat_map(|outcome| {
        let (host, samples) = (outcome.setup.host, &outcome.samples);
        let panel = |title: String, reach, is_low, ink, points| Panel {
            title,
            x_title: "seconds; snapshots shaded".into(),
            reach: Some(reach),
            shades: samples.snapshots(),
            is_low,
            curves: vec![Curve { name: String::new(), ink, mark: Mark::Line, points }],
            ..Panel::default()
        };
        let ink = match host {
            Host::WithPlacement => Ink::Blue,
            Host::WithoutPlacement => Ink::Orange,
            Host::Stock { .. } => Ink::Grey,
        };
        [
            panel(
                format!("{host}: requests per second"),
                requests,
                false,
                ink,
                samples.requests_per_s(),
            ),
            panel(
                format!("{host}: collection, MiB per second of media writes beyond the host's"),
                collected,
                true,
                Ink::Red,
                samples.collected_mib_per_s(),
            ),
        ]
    });
    let first = outcomes.first().map(|outcome| &outcome.setup);
    let what =
        first.map(|setup| format!("the {} drive, appendfsync {}", setup.drive.name, setup.policy));
    let title =
        format!("Throughput and garbage collection over time, {}", what.unwrap_or_default());
    Chart { title, panels: panels.collect() }
}
