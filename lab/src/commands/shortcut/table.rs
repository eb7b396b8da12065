//! The table of a program: its medians, and the ratios to what the program does by itself.

use std::fmt::Write as _;

/// What is measured of a program: rows, each in several ways. The first way is the program as it comes,
/// the last is with the short path, and those between are settings of the program's own.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// Heads of the columns that tell rows apart.
    pub(super) heads: Vec<&'static str>,
    /// What is counted per second.
    pub(super) unit: &'static str,
    /// What the columns of the ways are called.
    pub(super) ways: Vec<&'static str>,
    /// Names of the rows, a word for each head. The rows of one group are measured together.
    pub(super) groups: Vec<Vec<Vec<String>>>,
}

/// For each row and each way, what each round has measured.
#[derive(Debug)]
pub(super) struct Measured(Vec<Vec<Vec<f64>>>);

impl Measured {
    pub(super) fn new(plan: &Plan) -> Self {
        let rows = plan.groups.iter().flatten();
        Self(rows.map(|_| vec![Vec::new(); plan.ways.len()]).collect())
    }

    /// Adds what was measured of a group's rows in one way.
    pub(super) fn add(&mut self, plan: &Plan, group: usize, way: usize, rates: &[f64]) {
        let first: usize = plan.groups[..group].iter().map(Vec::len).sum();
        assert_eq!(rates.len(), plan.groups[group].len(), "each row of the group is measured");
        for (row, rate) in self.0[first..].iter_mut().zip(rates) {
            row[way].push(*rate);
        }
    }

    /// The table in Markdown.
    pub(super) fn table(self, plan: &Plan) -> String {
        let has_settings = plan.ways.len() > 2;
        let (first, rest) = plan.ways.split_first().expect("there are two ways");
        let mut heads = plan.heads.clone();
        let counted = format!("{}/s {first}", plan.unit);
        heads.push(&counted);
        heads.extend(rest);
        heads.extend(if has_settings { &["ratio", "to the best"][..] } else { &["ratio"] });
        let mut text = format!("| {} |\n|", heads.join(" | "));
        let first_row = plan.groups.iter().flatten().next();
        for name in first_row.into_iter().flatten() {
            text += if name.parse::<u32>().is_ok() { "---:|" } else { "---|" };
        }
        text += &"---:|".repeat(heads.len() - plan.heads.len());
        text.push('\n');
        for (names, rates) in plan.groups.iter().flatten().zip(self.0) {
            let rates: Vec<f64> = rates.into_iter().map(median).collect();
            let (with, without) = rates.split_last().expect("there are two ways");
            let mut cells = names.clone();
            cells.extend(rates.iter().map(|rate| format!("{rate:.0}")));
            cells.push(format!("{:.2}", with / without[0]));
            if has_settings {
                let best = without.iter().copied().fold(0.0, f64::max);
                cells.push(format!("{:.2}", with / best));
            }
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
        text
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(ways: Vec<&'static str>) -> Plan {
        let row = |name: &str| vec![name.to_owned()];
        let groups = vec![vec![row("1")], vec![row("16"), row("32")]];
        Plan { heads: vec!["clients"], unit: "commits", ways, groups }
    }

    #[test]
    fn each_row_has_its_medians() {
        let plan = plan(vec!["without", "with"]);
        let mut measured = Measured::new(&plan);
        for (without, with) in [(30.0, 50.0), (10.0, 40.0), (20.0, 90.0)] {
            for (way, rate) in [without, with].into_iter().enumerate() {
                measured.add(&plan, 0, way, &[rate]);
                measured.add(&plan, 1, way, &[rate, 2.0 * rate]);
            }
        }
        let text = measured.table(&plan);
        assert_eq!(text.lines().count(), 5);
        assert!(text.starts_with(
            "| clients | commits/s without | with | ratio |\n|---:|---:|---:|---:|\n"
        ));
        assert!(text.contains("| 1 | 20 | 50 | 2.50 |"), "{text}");
        assert!(text.ends_with("| 32 | 40 | 100 | 2.50 |\n"), "{text}");
    }

    #[test]
    fn the_best_of_its_own_settings_counts_too() {
        let plan = plan(vec!["default", "direct", "with"]);
        let mut measured = Measured::new(&plan);
        for (way, rate) in [10.0, 20.0, 30.0].into_iter().enumerate() {
            measured.add(&plan, 0, way, &[rate]);
            measured.add(&plan, 1, way, &[rate, 40.0 - rate]);
        }
        let text = measured.table(&plan);
        assert!(text.contains("| 16 | 10 | 20 | 30 | 3.00 | 1.50 |"), "{text}");
        assert!(text.contains("| 32 | 30 | 20 | 10 | 0.33 | 0.33 |"), "{text}");
    }
}
