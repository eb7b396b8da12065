//! The table of a program: median rates without and with the short path of `slimio shortcut`, and
//! their ratios.

use std::fmt::Write as _;

/// The measurements of a program. Each row is measured with each setting, with the short path and
/// without.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// Heads of the columns that name a row.
    pub(super) heads: Vec<&'static str>,
    /// Name of the operations that are counted per second.
    pub(super) unit: &'static str,
    /// Names of the settings. The first setting is the program's default.
    pub(super) settings: Vec<&'static str>,
    /// The rows, in groups. The rows of one group are measured together. A row's name has a word
    /// for each head.
    pub(super) groups: Vec<Vec<Vec<String>>>,
}

/// The rates of a row in all rounds: first those without the short path, then those with it.
type Rates = [Vec<f64>; 2];

/// The rates of each row, with each setting.
#[derive(Debug)]
pub(super) struct Measured(Vec<Vec<Rates>>);

impl Measured {
    pub(super) fn new(plan: &Plan) -> Self {
        let rows = plan.groups.iter().flatten();
        Self(rows.map(|_| vec![Rates::default(); plan.settings.len()]).collect())
    }

    /// Adds the rates of a group's rows, measured with one setting.
    pub(super) fn add(
        &mut self,
        plan: &Plan,
        group: usize,
        setting: usize,
        is_short: bool,
        rates: &[f64],
    ) {
        let first: usize = plan.groups[..group].iter().map(Vec::len).sum();
        assert_eq!(
            rates.len(),
            plan.groups[group].len(),
            "there must be one rate for each row of the group"
        );
        for (row, rate) in self.0[first..].iter_mut().zip(rates) {
            row[setting][usize::from(is_short)].push(*rate);
        }
    }

    /// The table in Markdown. If there are several settings, the last column compares the best of
    /// all settings: the best rate with the short path, divided by the best rate without the short
    /// path.
    pub(super) fn table(self, plan: &Plan) -> String {
        let has_settings = plan.settings.len() > 1;
        let (first, rest) =
            plan.settings.split_first().expect("a plan has at least the default setting");
        let mut heads: Vec<String> = plan.heads.iter().map(|head| (*head).to_owned()).collect();
        let counted = format!("{}/s", plan.unit);
        if has_settings {
            heads.extend([format!("{counted} {first}"), "with".into()]);
            heads.extend(rest.iter().flat_map(|name| [(*name).to_owned(), "with".into()]));
            heads.extend(["ratio".into(), "best to best".into()]);
        } else {
            heads.extend([format!("{counted} without"), "with".into(), "ratio".into()]);
        }
        let mut text = format!("| {} |\n|", heads.join(" | "));
        let first_row = plan.groups.iter().flatten().next();
        for name in first_row.into_iter().flatten() {
            text += if name.parse::<u32>().is_ok() { "---:|" } else { "---|" };
        }
        text += &"---:|".repeat(heads.len() - plan.heads.len());
        text.push('\n');
        for (names, rates) in plan.groups.iter().flatten().zip(self.0) {
            let rates: Vec<[f64; 2]> = rates.into_iter().map(|rates| rates.map(median)).collect();
            let best = |way: usize| rates.iter().map(|rates| rates[way]).fold(0.0, f64::max);
            let mut cells = names.clone();
            cells.extend(rates.iter().flatten().map(|rate| format!("{rate:.0}")));
            cells.push(format!("{:.2}", rates[0][1] / rates[0][0]));
            if has_settings {
                cells.push(format!("{:.2}", best(1) / best(0)));
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

    fn plan(settings: Vec<&'static str>) -> Plan {
        let row = |name: &str| vec![name.to_owned()];
        let groups = vec![vec![row("1")], vec![row("16"), row("32")]];
        Plan { heads: vec!["clients"], unit: "commits", settings, groups }
    }

    #[test]
    fn each_row_has_its_medians() {
        let plan = plan(vec!["default"]);
        let mut measured = Measured::new(&plan);
        for (without, with) in [(30.0, 50.0), (10.0, 40.0), (20.0, 90.0)] {
            for (is_short, rate) in [(false, without), (true, with)] {
                measured.add(&plan, 0, 0, is_short, &[rate]);
                measured.add(&plan, 1, 0, is_short, &[rate, 2.0 * rate]);
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
    fn the_best_of_all_settings_count_too() {
        let plan = plan(vec!["default", "direct"]);
        let mut measured = Measured::new(&plan);
        for (setting, is_short, rate) in
            [(0, false, 10.0), (0, true, 30.0), (1, false, 20.0), (1, true, 5.0)]
        {
            measured.add(&plan, 0, setting, is_short, &[rate]);
            measured.add(&plan, 1, setting, is_short, &[rate, 40.0 - rate]);
        }
        let text = measured.table(&plan);
        let heads = "| clients | commits/s default | with | direct | with | ratio | best to best |";
        assert!(text.starts_with(heads), "{text}");
        assert!(text.contains("| 16 | 10 | 30 | 20 | 5 | 3.00 | 1.50 |"), "{text}");
        assert!(text.contains("| 32 | 30 | 10 | 20 | 35 | 0.33 | 1.17 |"), "{text}");
    }
}
