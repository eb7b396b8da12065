//! Compares the formulas for write amplification with simulated drives in steady state. The closed
//! formula is for a drive of infinitely many units. So a simulated drive deviates from this
//! formula. The fewer units the drive has, the larger the deviation is. The finite form of the
//! formula takes the number of units into account.

use slimio_ssd::model::{Trims, Units, effective_alpha, fifo, fifo_finite, greedy};
use slimio_ssd::workload::{Steady, UniformWrites, run_to_steady_state};
use slimio_ssd::{Config, Ftl, Victims};

/// Formula and simulation may differ by one part in a hundred.
const TOLERANCE: f64 = 0.01;
const UNIT_PAGES: u32 = 64;

/// For each drive, the number of exported units, and the number of all units. The spare factors are
/// 0.05, 0.1 and 0.3. The closed formula counts a fraction of a unit too much (`1 / (2 A)`, see
/// [`fifo_finite`]). The drives are so large that this has no visible effect.
const DRIVES: [(u32, u32); 3] = [(1900, 2000), (900, 1000), (700, 1000)];

fn simulated(drive: (u32, u32), victims: Victims, trims: Trims, ratio: f64) -> Steady {
    let config = Config::model(drive.0, drive.1, UNIT_PAGES, victims);
    let stream = UniformWrites::new(config.lba_count, trims, ratio, 1).expect("a ratio in range");
    let mut drive = Ftl::new(config).expect("a drive that can work");
    run_to_steady_state(&mut drive, stream).expect("uniform writes settle")
}

fn alpha_of(drive: (u32, u32), trims: Trims, ratio: f64) -> f64 {
    let alpha = f64::from(drive.1) / f64::from(drive.0);
    effective_alpha(alpha, trims.live_share(ratio).expect("in range")).expect("in range")
}

fn assert_close(simulated: f64, formula: f64, what: &str) {
    let error = simulated / formula - 1.0;
    assert!(error.abs() < TOLERANCE, "{what}: {simulated:.4} simulated, {formula:.4} by formula");
}

#[test]
fn fifo_cleaning_is_as_the_formula_says_without_trims() {
    for drive in DRIVES {
        let steady = simulated(drive, Victims::Fifo, Trims::AnyPage, 0.0);
        let alpha = alpha_of(drive, Trims::AnyPage, 0.0);
        assert_close(steady.waf, fifo(alpha).unwrap(), &format!("{drive:?}"));
        assert!(
            steady.live_share >= 1.0,
            "every block must be live, but the live share is {}",
            steady.live_share
        );
    }
}

#[test]
fn fifo_cleaning_is_as_the_formula_says_in_both_readings_of_the_trim_ratio() {
    for drive in DRIVES {
        for (trims, ratio) in [
            (Trims::AnyPage, 0.1),
            (Trims::AnyPage, 0.3),
            (Trims::LivePage, 0.1),
            (Trims::LivePage, 0.3),
        ] {
            let steady = simulated(drive, Victims::Fifo, trims, ratio);
            let what = format!("{drive:?}, {} {ratio}", trims.name());
            assert_close(steady.waf, fifo(alpha_of(drive, trims, ratio)).unwrap(), &what);
            assert_close(steady.live_share, trims.live_share(ratio).unwrap(), &what);
        }
    }
}

#[test]
fn the_two_readings_of_the_trim_ratio_are_told_apart() {
    let of = |trims| simulated(DRIVES[1], Victims::Fifo, trims, 0.2).waf;
    let (any, live) = (of(Trims::AnyPage), of(Trims::LivePage));
    assert!(any / live > 1.08, "the WAFs are {any} and {live}, by formula 2.2007 and 1.9916");
}

#[test]
fn greedy_cleaning_is_as_the_formula_says() {
    for drive in DRIVES {
        for (trims, ratio) in [(Trims::AnyPage, 0.0), (Trims::AnyPage, 0.1), (Trims::LivePage, 0.3)]
        {
            let steady = simulated(drive, Victims::Greedy, trims, ratio);
            let formula = greedy(alpha_of(drive, trims, ratio), UNIT_PAGES).unwrap();
            assert_close(steady.waf, formula, &format!("{drive:?}, {} {ratio}", trims.name()));
        }
    }
}

#[test]
fn a_drive_of_few_units_is_as_the_finite_form_says() {
    // The closed formula counts a fraction of a unit too much. In a drive of 40 units, this has a
    // visible effect.
    let drive = (36, 40);
    let steady = simulated(drive, Victims::Fifo, Trims::AnyPage, 0.0);
    let units = Units { user_units: 36, unit_count: 40, unit_pages: UNIT_PAGES, live_share: 1.0 };
    let finite = fifo_finite(&units).unwrap();
    let closed = fifo(alpha_of(drive, Trims::AnyPage, 0.0)).unwrap();
    assert_close(steady.waf, finite, "finite");
    assert!(
        (steady.waf - finite).abs() < (steady.waf - closed).abs(),
        "the WAF is {} simulated, {finite} by the finite form, {closed} by the closed form",
        steady.waf
    );
}
