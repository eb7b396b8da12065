//! `slimio-lab validate`: compares the formulas with simulations, over spare factors and trim
//! ratios.

use std::fmt::Write as _;

use clap::Args;
use slimio_plot::{Axis, Chart, Curve, Ink, Mark, Panel};
use slimio_ssd::Victims;
use slimio_ssd::model::{Trims, alpha_of_spare, effective_alpha, fifo, greedy};
use slimio_ssd::workload::{Case, CompareError, Compared, Size, compare, on_all_cores};

use super::out::OutArg;
use crate::error::{BenchError, Result};

const SPARES: [f64; 8] = [0.05, 0.07, 0.10, 0.15, 0.20, 0.25, 0.30, 0.40];
const RATIOS: [(f64, Ink); 5] = [
    (0.0, Ink::Grey),
    (0.05, Ink::Violet),
    (0.1, Ink::Blue),
    (0.2, Ink::Green),
    (0.3, Ink::Orange),
];
/// Policies of the collector, each combined with the pages that trims are drawn from: any page, or
/// only live pages. The tables and panels have the same order.
const KINDS: [(Victims, Trims); 4] = [
    (Victims::Fifo, Trims::AnyPage),
    (Victims::Fifo, Trims::LivePage),
    (Victims::Greedy, Trims::AnyPage),
    (Victims::Greedy, Trims::LivePage),
];
/// Number of points of a drawn curve.
const CURVE_POINTS: u32 = 140;

/// The help text of `slimio-lab validate`.
pub const HELP: &str = include_str!("../../help/validate.txt");

/// The arguments.
#[derive(Debug, Args)]
pub struct Validate {
    #[command(flatten)]
    out: OutArg,
    /// Number of units that can hold data, for each simulated drive
    #[arg(long, default_value_t = Size::DEFAULT.unit_count)]
    units: u32,
    /// Number of pages of each unit
    #[arg(long, default_value_t = Size::DEFAULT.unit_pages)]
    unit_pages: u32,
    /// Seed of all random choices; the same seed gives the same numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A simulated drive: one line of a table, and one dot of the picture.
struct Cell {
    case: Case,
    compared: Compared,
}

impl Validate {
    /// Simulates all drives, and writes the table and the picture. Returns the text to print.
    pub fn run(&self) -> Result<String> {
        let folder = self.out.make()?.display();
        let cases: Vec<Case> = KINDS
            .iter()
            .flat_map(|&(victims, trims)| {
                let ratios = RATIOS.iter().map(|(ratio, _)| *ratio);
                ratios.flat_map(move |ratio| {
                    SPARES.map(|spare| Case { spare, trims, ratio, victims })
                })
            })
            .collect();
        let size = Size { unit_count: self.units, unit_pages: self.unit_pages };
        let results = on_all_cores(&cases, |case| compare(case, size, self.seed));
        let failed = |error: CompareError| BenchError::Usage(error.to_string());
        let mut cells = Vec::with_capacity(cases.len());
        for (case, result) in cases.into_iter().zip(results) {
            cells.push(Cell { case, compared: result.map_err(failed)? });
        }
        self.out.draw("validation.svg", &chart(&cells, self.unit_pages))?;
        self.out.write("validation.md", &self.table(&cells))?;
        Ok(format!(
            "{} drives: formula and simulation differ by at most {:.2} %; wrote validation.md and \
             validation.svg to {folder}\n",
            cells.len(),
            worst(&cells) * 100.0
        ))
    }

    fn table(&self, cells: &[Cell]) -> String {
        let Self { units, unit_pages, seed, .. } = self;
        let settled = cells.iter().map(|cell| cell.compared.steady.settled_after).max();
        let mut text = format!(
            "# Write amplification: formula against simulation\n\n\
             Made by `cargo x waf validate --units {units} --unit-pages {unit_pages} --seed {seed}`: \
             uniform writes of single pages to {units} units of {unit_pages} pages, with D trims \
             per write. S is the spare factor: the part of these units that the drive does not \
             export. Each drive is first filled in sequence. A window has as many writes as the \
             drive has logical blocks. The state counts as steady when the WAFs of three windows \
             in a row differ by at most 0.4 % and show no trend. This took {} windows at most. The \
             WAF is measured over the next six windows. `live`: the part of the logical blocks \
             that holds data, on average. `model`: the formula for an infinitely large drive. \
             `error`: the deviation of the simulation from the formula. `spread`: the largest \
             difference between the WAFs of the six windows. `first third`: the WAF of writing the \
             first third of the capacity, right after the fill.\n\n\
             The formulas and the simulation differ by **{:.2} % at most**.\n\n\
             ![formula and simulation](validation.svg)\n",
            settled.unwrap_or_default(),
            worst(cells) * 100.0
        );
        for (victims, trims) in KINDS {
            let of_kind = |cell: &&Cell| cell.case.victims == victims && cell.case.trims == trims;
            let kind: Vec<&Cell> = cells.iter().filter(of_kind).collect();
            let apart = kind.iter().map(|cell| cell.compared.error().abs()).fold(0.0, f64::max);
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "\n## {}, {}: {:.2} % apart at most\n\n| S | D | live | model | simulated | error | \
                 spread | first third |\n|---:|---:|---:|---:|---:|---:|---:|---:|",
                name_of(victims),
                trims.name(),
                apart * 100.0
            );
            for Cell { case, compared } in kind {
                let steady = compared.steady;
                let _ = writeln!(
                    text,
                    "| {} | {} | {:.4} | {:.4} | {:.4} | {:+.2} % | {:.2} % | {:.2} |",
                    case.spare,
                    case.ratio,
                    steady.live_share,
                    compared.model,
                    steady.waf,
                    compared.error() * 100.0,
                    steady.spread * 100.0,
                    compared.first_third,
                );
            }
        }
        text
    }
}

fn name_of(victims: Victims) -> &'static str {
    match victims {
        Victims::Fifo => "FIFO",
        Victims::Greedy => "Greedy",
        Victims::CostBenefit => "Cost-benefit",
    }
}

fn worst(cells: &[Cell]) -> f64 {
    cells.iter().map(|cell| cell.compared.error().abs()).fold(0.0, f64::max)
}

fn chart(cells: &[Cell], unit_pages: u32) -> Chart {
    let panels = KINDS.map(|(victims, trims)| {
        let curves = RATIOS.iter().flat_map(|&(ratio, ink)| {
            let name = format!("D = {ratio}");
            let line = Curve::line(name, ink, by_formula(victims, unit_pages, trims, ratio));
            let points = cells
                .iter()
                .filter(|Cell { case, .. }| {
                    case.victims == victims
                        && case.trims == trims
                        && case.ratio.total_cmp(&ratio).is_eq()
                })
                .map(|Cell { compared, .. }| (compared.spare, compared.steady.waf))
                .collect();
            let dots = Curve { mark: Mark::Dots, ..Curve::line("", ink, points) };
            [line, dots]
        });
        Panel {
            title: format!("{}, {}, D trims per write", name_of(victims), trims.name()),
            x: Axis { title: "spare factor (part of the NAND)".into(), ..Axis::default() },
            y: Axis::from(1.0, "WAF (bytes to media / host)"),
            curves: curves.collect(),
            ..Panel::default()
        }
    });
    Chart {
        title: "Write amplification: formulas as lines, simulations as dots".into(),
        panels: panels.into(),
    }
}

/// Points of the formula's curve, from the smallest spare factor to the largest.
fn by_formula(victims: Victims, unit_pages: u32, trims: Trims, ratio: f64) -> Vec<(f64, f64)> {
    let (least, most) = (SPARES[0], SPARES[SPARES.len() - 1]);
    let at = |spare: f64| {
        let live_share = trims.live_share(ratio).ok()?;
        let alpha = effective_alpha(alpha_of_spare(spare).ok()?, live_share).ok()?;
        let waf = match victims {
            Victims::Fifo => fifo(alpha),
            _ => greedy(alpha, unit_pages),
        };
        Some((spare, waf.ok()?))
    };
    let steps = (0..=CURVE_POINTS).map(|step| f64::from(step) / f64::from(CURVE_POINTS));
    steps.filter_map(|share| at(least + share * (most - least))).collect()
}
