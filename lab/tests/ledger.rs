//! Tests the ledger with the stock server. The ledger kills a server while clients write to it, and
//! compares the server's data with the acknowledged units. A unit is a command or a transaction. If
//! nothing is lost, the ledger must report no loss. If the test causes a loss on purpose, the
//! ledger must report this loss.

mod common;

use common::Scratch;
use slimio_lab::error::BenchError;
use slimio_lab::ledger::{Death, LedgerConfig, LedgerReport, Sabotage, run};
use slimio_lab::server::Policy;

fn ledger(
    policy: Policy,
    death: Death,
    sabotage: Sabotage,
) -> Option<Result<LedgerReport, BenchError>> {
    ledger_of(6, policy, death, sabotage)
}

fn ledger_of(
    clients: usize,
    policy: Policy,
    death: Death,
    sabotage: Sabotage,
) -> Option<Result<LedgerReport, BenchError>> {
    let scratch = Scratch::new();
    let server = scratch.stock(policy)?;
    let config = LedgerConfig {
        server,
        lives: 8,
        clients,
        units_per_life_max: 3000,
        death,
        snapshots: false,
        sabotage,
        seed: 42,
    };
    Some(run(&config))
}

fn all_there(policy: Policy, death: Death) {
    let Some(result) = ledger(policy, death, Sabotage::None) else { return };
    let report = result.unwrap_or_else(|error| panic!("{policy}, {death:?}: {error}"));
    assert_eq!(report.lives, 8);
    assert!(report.acknowledged > 500, "{report:?}");
    assert!(report.keys > 50, "{report:?}");
    assert!(report.observed > 10, "{report:?}");
    let in_flight = report.in_flight_kept + report.in_flight_gone;
    assert!(in_flight > 8, "too few units were in flight when the server died: {report:?}");
}

#[test]
fn killed_under_always_nothing_is_lost() {
    all_there(Policy::Always, Death::Kill);
}

// `everysec` is not tested with a kill. While a thread of the stock server flushes under this
// policy, the server acknowledges writes that only its own memory holds (it postpones `write` for
// up to two seconds). A SIGKILL then loses these writes.
#[test]
fn killed_under_policy_no_nothing_is_lost() {
    all_there(Policy::No, Death::Kill);
}

#[test]
fn terminated_nothing_is_lost() {
    all_there(Policy::EverySec, Death::Terminate);
}

#[test]
fn a_shortened_log_is_noticed() {
    // Requests that are in flight when the server dies may be lost. With many clients, such
    // requests can fill a kilobyte of the log. So a single kilobyte is cut off only in the case of
    // one client.
    for (bytes, clients) in [(1 << 10, 1), (64 << 10, 6)] {
        let sabotage = Sabotage::TruncateLog { bytes };
        let Some(result) = ledger_of(clients, Policy::Always, Death::Kill, sabotage) else {
            return;
        };
        assert!(matches!(result, Err(BenchError::Broken(_))), "{bytes} bytes cut off: {result:?}");
    }
}

#[test]
fn data_of_an_earlier_life_is_noticed() {
    let Some(result) = ledger(Policy::Always, Death::Kill, Sabotage::StaleData) else { return };
    let Err(BenchError::Broken(text)) = result else { panic!("{result:?}") };
    assert!(text.contains("seed 42"), "{text}");
}

#[test]
fn a_server_without_a_log_is_noticed() {
    let Some(result) = ledger(Policy::Off, Death::Kill, Sabotage::None) else { return };
    assert!(matches!(result, Err(BenchError::Broken(_))), "{result:?}");
}
