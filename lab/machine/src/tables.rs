//! The measurements of two comparisons, and their tables. One comparison is of servers, the other
//! of ways to write durably. Each ratio divides two measurements of the same round.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use slimio_host::Failure;

use crate::guest::said;
use crate::trace::{self, Busy};

/// The names whose measurements are the bases of the ratios: one for servers, one for ways to
/// write, and one for snapshots.
const BASE: &str = "stock-ext4";
const BASE_WAY: &str = "append";
const BASE_SNAPSHOT: &str = "slimio-block";
/// The servers and their titles, in the order of the tables.
const SERVERS: [(&str, &str); 5] = [
    (BASE, "stock on ext4"),
    ("stock-xfs", "stock on XFS"),
    ("slimio-ext4", "SlimIO, directory on ext4"),
    (BASE_SNAPSHOT, "SlimIO, block device"),
    ("slimio-passthrough", "SlimIO, passthrough"),
];
const WAYS: [(&str, &str); 4] = [
    (BASE_WAY, "append and `fdatasync`, ext4"),
    ("preallocated", "preallocated file, direct, ext4"),
    ("block", "block device, direct"),
    ("passthrough", "passthrough"),
];
const CLIENTS: [u32; 2] = [50, 1];

/// All measurements: from the lines that the machine has printed, and from the traces.
#[derive(Debug, Default)]
pub(super) struct Measured {
    round: usize,
    loads: Vec<Load>,
    calls: Vec<Counted>,
    /// For each server, its number of calls of kernel functions per write of a lone client.
    functions: Vec<(String, f64)>,
    snapshots: Vec<(usize, String, f64)>,
    ways: Vec<(usize, &'static str, Busy)>,
    writes_traced: u32,
}

#[derive(Debug)]
struct Load {
    round: usize,
    name: String,
    clients: u32,
    rate: f64,
    p50_us: f64,
    server_cpu_us: f64,
    switches: f64,
}

#[derive(Debug)]
struct Counted {
    name: String,
    clients: u32,
    calls: f64,
    commands: f64,
    writes: f64,
}

impl Measured {
    pub(super) fn take(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |text: &str| text.parse::<f64>().ok();
        match words.as_slice() {
            ["round", round, "of", _] => self.round = round.parse().unwrap_or(self.round),
            ["row", name, clients, numbers @ ..] => {
                let numbers: Option<Vec<f64>> = numbers.iter().map(|text| number(text)).collect();
                let Some([rate, p50_us, server_cpu_us, switches]) =
                    numbers.and_then(|numbers| <[f64; 4]>::try_from(numbers).ok())
                else {
                    return;
                };
                let Ok(clients) = clients.parse() else { return };
                let (round, name) = (self.round, (*name).to_owned());
                self.loads.push(Load {
                    round,
                    name,
                    clients,
                    rate,
                    p50_us,
                    server_cpu_us,
                    switches,
                });
            }
            ["calls", name, clients, calls, commands, writes] => {
                if let (Ok(clients), Some(calls), Some(commands), Some(writes)) =
                    (clients.parse(), number(calls), number(commands), number(writes))
                {
                    let name = (*name).to_owned();
                    self.calls.push(Counted { name, clients, calls, commands, writes });
                }
            }
            ["functions", name, count, writes] => {
                let per_write = number(count).zip(number(writes));
                let per_write = per_write.map(|(count, writes)| count / writes);
                self.functions.extend(per_write.map(|count| ((*name).to_owned(), count)));
            }
            ["snapshot", name, seconds] => {
                let seconds = number(seconds);
                self.snapshots.extend(seconds.map(|s| (self.round, (*name).to_owned(), s)));
            }
            _ => {}
        }
    }

    /// Reads the traces of all rounds. Each trace has `writes` writes.
    pub(super) fn take_traces(
        &mut self,
        folder: &Path,
        rounds: usize,
        writes: u32,
    ) -> Result<(), Failure> {
        self.writes_traced = writes;
        for round in 1..=rounds {
            for (way, _) in WAYS {
                let path = folder.join(format!("{way}.{round}.trace"));
                let text = fs::read_to_string(&path).map_err(|error| said(&path, &error))?;
                let busy = trace::busy(&text)
                    .ok_or_else(|| format!("{}: the trace lacks a mark", path.display()))?;
                self.ways.push((round, way, busy));
            }
        }
        Ok(())
    }

    /// Whether each server was measured in each round, and snapshots were measured in
    /// `snapshot_rounds` rounds.
    pub(super) fn is_complete(&self, rounds: usize, snapshot_rounds: usize) -> bool {
        let wanted = SERVERS.len() * CLIENTS.len() * rounds;
        self.loads.len() == wanted
            && self.calls.len() == wanted
            && self.functions.len() == SERVERS.len()
            && self.snapshots.len() == 2 * snapshot_rounds
    }

    fn load(&self, round: usize, name: &str, clients: u32) -> Option<&Load> {
        self.loads
            .iter()
            .find(|load| load.round == round && load.name == name && load.clients == clients)
    }

    /// For each round, the value of `of` for the server, divided by its value for the base with the
    /// same number of clients.
    fn ratios(&self, name: &str, clients: u32, of: impl Fn(&Load) -> f64) -> Vec<f64> {
        let loads = self.loads.iter();
        loads
            .filter(|load| load.name == name && load.clients == clients)
            .filter_map(|load| Some(of(load) / of(self.load(load.round, BASE, clients)?)))
            .collect()
    }
}

/// All tables. `None` if a server or a way to write was not measured.
pub(super) fn all(measured: &Measured) -> Option<String> {
    Some([servers(measured)?, ways(measured)?, snapshots(measured)?].join("\n"))
}

fn servers(measured: &Measured) -> Option<String> {
    let mut text = String::from(
        "| server, `always` | clients | writes/s | its range | median latency | CPU per write \
         | context switches | system calls | kernel functions | device commands |\n\
         |---|---:|---:|---|---:|---:|---:|---:|---:|---:|\n",
    );
    for clients in CLIENTS {
        for (name, title) in SERVERS {
            let ratio = |of: fn(&Load) -> f64| median(measured.ratios(name, clients, of));
            let (low, high) = range(&measured.ratios(name, clients, |load| load.rate))?;
            let loads = measured.loads.iter();
            let loads = loads.filter(|load| load.name == name && load.clients == clients);
            let switches = median(loads.map(|load| load.switches).collect())?;
            let counted: Vec<&Counted> = measured
                .calls
                .iter()
                .filter(|calls| calls.name == name && calls.clients == clients)
                .collect();
            let per_write = |of: fn(&Counted) -> f64| {
                median(counted.iter().map(|counted| of(counted) / counted.writes).collect())
            };
            let mut functions = measured.functions.iter();
            let functions = match functions.find(|found| found.0 == name) {
                Some((_, count)) if clients == 1 => format!("{count:.0}"),
                _ => "–".into(),
            };
            let _ = writeln!(
                text,
                "| {title} | {clients} | {:.2} × | {low:.2} to {high:.2} | {:.2} × | {:.2} × \
                 | {switches:.2} | {:.2} | {functions} | {:.2} |",
                ratio(|load| load.rate)?,
                ratio(|load| load.p50_us)?,
                ratio(|load| load.server_cpu_us)?,
                per_write(|counted| counted.calls)?,
                per_write(|counted| counted.commands)?,
            );
        }
    }
    Some(text)
}

fn ways(measured: &Measured) -> Option<String> {
    let mut text = String::from(
        "| one durable write of 4 KiB after another | commands | time per write | in the device \
         | outside the device | share outside the device |\n|---|---:|---:|---:|---:|---:|\n",
    );
    let of = |round: usize, way: &str| {
        measured.ways.iter().find(|found| (found.0, found.1) == (round, way)).map(|found| found.2)
    };
    let rounds: Vec<usize> =
        measured.ways.iter().filter(|found| found.1 == BASE_WAY).map(|found| found.0).collect();
    for (way, title) in WAYS {
        let ratio = |part: fn(&Busy) -> f64| {
            let ratio =
                |&round: &usize| Some(part(&of(round, way)?) / of(round, BASE_WAY)?.total_us);
            median(rounds.iter().filter_map(ratio).collect())
        };
        let each = |part: fn(&Busy) -> f64| {
            median(rounds.iter().filter_map(|&round| Some(part(&of(round, way)?))).collect())
        };
        let _ = writeln!(
            text,
            "| {title} | {:.2} | {:.2} × | {:.2} × | {:.2} × | {:.0} % |",
            each(|busy| busy.requests as f64)? / f64::from(measured.writes_traced),
            ratio(|busy| busy.total_us)?,
            ratio(|busy| busy.device_us)?,
            ratio(|busy| busy.total_us - busy.device_us)?,
            each(|busy| (1.0 - busy.device_us / busy.total_us) * 100.0)?,
        );
    }
    Some(text)
}

fn snapshots(measured: &Measured) -> Option<String> {
    let mut text = String::from("| snapshot | seconds | its range |\n|---|---:|---|\n");
    let base = |round| {
        let mut found = measured.snapshots.iter();
        found.find(|found| (found.0, found.1.as_str()) == (round, BASE_SNAPSHOT))
    };
    for (name, title) in SERVERS {
        let ratios: Vec<f64> = measured
            .snapshots
            .iter()
            .filter(|found| found.1 == name)
            .filter_map(|found| Some(found.2 / base(found.0)?.2))
            .collect();
        if let Some((low, high)) = range(&ratios) {
            let middle = median(ratios)?;
            let _ = writeln!(text, "| {title} | {middle:.2} × | {low:.2} to {high:.2} |");
        }
    }
    Some(text)
}

pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len() % 2 == 1 { upper } else { f64::midpoint(values[middle - 1], upper) })
}

pub(super) fn range(values: &[f64]) -> Option<(f64, f64)> {
    let low = values.iter().copied().min_by(f64::total_cmp)?;
    Some((low, values.iter().copied().max_by(f64::total_cmp)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_medians_of_the_ratios_of_each_round() {
        let mut measured = Measured::default();
        for (round, slow, rate) in [(1, 1, 1500), (2, 4, 3000), (3, 2, 4000)] {
            measured.take(&format!("round {round} of 3"));
            for (name, _) in SERVERS {
                let rate = if name == BASE { 1000 } else { rate } / slow;
                for clients in CLIENTS {
                    measured.take(&format!("row {name} {clients} {rate} 100.5 50 2.00"));
                    measured.take(&format!("calls {name} {clients} 300 100 100"));
                }
            }
            if round == 1 {
                for (name, _) in SERVERS {
                    measured.take(&format!("functions {name} 7000 10"));
                }
            }
            measured.take(&format!("snapshot slimio-block {}", 2 * slow));
            measured.take(&format!("snapshot slimio-passthrough {slow}"));
            let append = Busy { total_us: 1000.0, device_us: 400.0, requests: 20 };
            let passthrough = Busy { total_us: 500.0, device_us: 375.0, requests: 10 };
            for (way, _) in WAYS {
                let busy = if way == "passthrough" { passthrough } else { append };
                measured.ways.push((round, way, busy));
            }
        }
        measured.take("noise");
        measured.take("row stock-ext4 50 unknown 100.5 50 2.00");
        measured.writes_traced = 5;
        assert!(measured.is_complete(3, 3));
        let text = all(&measured).unwrap();
        for line in [
            "| stock on ext4 | 50 | 1.00 × | 1.00 to 1.00 | 1.00 × | 1.00 × | 2.00 | 3.00 | – | 1.00 |",
            "| SlimIO, passthrough | 1 | 3.00 × | 1.50 to 4.00 | 1.00 × | 1.00 × | 2.00 | 3.00 | 700 | 1.00 |",
            "| append and `fdatasync`, ext4 | 4.00 | 1.00 × | 0.40 × | 0.60 × | 60 % |",
            "| passthrough | 2.00 | 0.50 × | 0.38 × | 0.12 × | 25 % |",
            "| SlimIO, passthrough | 0.50 × | 0.50 to 0.50 |",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        measured.loads.retain(|load| load.name != BASE);
        assert!(all(&measured).is_none());
    }
}
