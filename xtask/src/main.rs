//! `cargo x VERB` runs one of the project's own commands. Without a verb, it lists all verbs.
//!
//! CI runs only these verbs, so a developer can run everything that CI does.
#![expect(clippy::print_stdout, reason = "a program for the terminal")]

mod clients;
mod crash_demo;
mod fuzz;
mod lint;
mod peers;
mod planted;
mod sanitize;
mod setup;
mod sim;
mod suites;
mod tidy;

use std::process::ExitCode;

use slimio_host::Failure;

struct Verb {
    name: &'static str,
    doc: &'static str,
    run: fn(&[String]) -> Result<(), Failure>,
}

/// All verbs, in the order in which a newcomer meets them.
const VERBS: &[Verb] = &[
    verb(
        "setup",
        "install the programs that the tests need, or say which are missing",
        setup::verb,
    ),
    verb("test", "run all tests, with a summary at the end", suites::test),
    verb("lint", "run fmt, clippy and tidy; also cargo-deny and typos if installed", lint::verb),
    verb("ci", "run lint and test, as CI does", suites::ci),
    verb(
        "crash-demo",
        "write keys, kill the server, start it again, compare the keys",
        crash_demo::verb,
    ),
    verb(
        "blackbox",
        "run tests against the slimio program; words select tests by name",
        suites::blackbox,
    ),
    verb(
        "differential",
        "compare replies to random commands with those of stock redis-server",
        suites::differential,
    ),
    verb("planted", "activate each planted bug, and check that a test catches it", planted::verb),
    verb(
        "sanitize",
        "run Miri and sanitizers on crates with `unsafe`; takes minutes",
        sanitize::verb,
    ),
    verb(
        "ledger",
        "kill the server under load; no acknowledged write may be missing",
        suites::ledger,
    ),
    verb(
        "sim",
        "random requests and crashes on simulated disks, for a number of minutes",
        sim::verb,
    ),
    verb(
        "fuzz",
        "try damaged payloads, RDB files and NVMe/TCP messages, for 60 s or --seconds N",
        fuzz::verb,
    ),
    verb("lab", "run tests on a real Linux with NVMe namespaces, in QEMU", slimio_machine::verb),
    verb("bench", "measure stock redis-server and SlimIO in turn, and print ratios", suites::bench),
    verb(
        "shortcut",
        "measure stock servers with and without the short path for logs",
        suites::shortcut,
    ),
    verb(
        "peers",
        "get newer servers for `bench --stock` and `blackbox encodings`; --clean removes them",
        peers::verb,
    ),
    verb("trace", "record what a server writes to its device, for `slimio waf`", suites::trace),
    verb(
        "waf",
        "measure the write amplification of stock Redis and SlimIO on one drive",
        suites::waf,
    ),
    verb(
        "runtime",
        "measure throughput over time on an emulated SSD, with and without FDP",
        suites::runtime,
    ),
    verb(
        "drive",
        "measure the emulated SSD over NVMe/TCP and inside the benchmark's process",
        suites::drive,
    ),
    verb("docs", "render the documents that are made from the code", suites::docs),
    verb("tidy", "check only the house rules of `lint`", tidy::verb),
];

const fn verb(
    name: &'static str,
    doc: &'static str,
    run: fn(&[String]) -> Result<(), Failure>,
) -> Verb {
    Verb { name, doc, run }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, rest)) = args.split_first() else {
        print!("{}", list());
        return ExitCode::SUCCESS;
    };
    if matches!(name.as_str(), "help" | "--help" | "-h") {
        print!("{}", list());
        return ExitCode::SUCCESS;
    }
    let Some(verb) = VERBS.iter().find(|verb| verb.name == name) else {
        eprint!("`{name}` is not a verb of cargo x.\n\n{}", list());
        return ExitCode::FAILURE;
    };
    // Arguments after `--` are for the program that is run in a machine.
    let mut flags = rest.iter().take_while(|arg| *arg != "--");
    if flags.any(|arg| arg == "--help" || arg == "-h")
        && let Some(help) = help(verb, rest)
    {
        print!("{help}");
        return ExitCode::SUCCESS;
    }
    match (verb.run)(rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(sentence)) => {
            eprintln!("cargo x {name}: {sentence}");
            ExitCode::FAILURE
        }
    }
}

/// Help for verbs that install or build much before they run, and for verbs that pass their flags
/// on to a program. `None` for other verbs.
fn help(verb: &Verb, rest: &[String]) -> Option<String> {
    let lab = slimio_machine::help();
    let flags = match (verb.name, rest.first().map(String::as_str)) {
        ("bench", _) => include_str!("../../lab/help/compare.txt"),
        ("drive", _) => include_str!("../../lab/help/drive.txt"),
        ("lab", _) => &lab,
        ("ledger", _) => include_str!("../../lab/help/ledger.txt"),
        ("runtime", _) => include_str!("../../lab/help/runtime.txt"),
        ("shortcut", _) => include_str!("../../lab/help/shortcut.txt"),
        ("trace", _) => include_str!("../../lab/help/trace.txt"),
        ("waf", Some("map")) => include_str!("../../lab/help/map.txt"),
        ("waf", Some("tenants")) => include_str!("../../lab/help/tenants.txt"),
        ("waf", Some("validate")) => include_str!("../../lab/help/validate.txt"),
        ("waf", _) => include_str!("../../lab/help/waf.txt"),
        _ => return None,
    };
    Some(format!("cargo x {}: {}\n\n{flags}", verb.name, verb.doc))
}

fn list() -> String {
    let lines = VERBS.iter().map(|verb| format!("  {:<13} {}", verb.name, verb.doc));
    let lines: Vec<String> = lines.collect();
    format!("cargo x <verb>\n\n{}\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_to_install_tells_its_flags_before() {
        for (line, flag) in [
            ("bench", "  --out "),
            ("drive", "  --folder "),
            ("lab", "--namespace NAME"),
            ("ledger", "  --lives "),
            ("runtime", "  --out "),
            ("shortcut", "  --rounds "),
            ("trace", "  --out "),
            ("waf", "  --reuse "),
            ("waf validate", "  --unit-pages "),
            ("waf tenants", "  --machines "),
            ("waf map", "  --volume "),
        ] {
            let mut words = line.split(' ').map(str::to_owned);
            let name = words.next().expect("there is a verb");
            let verb = VERBS.iter().find(|verb| verb.name == name).expect("the verb exists");
            let help = help(verb, &words.collect::<Vec<_>>()).expect("the verb has help");
            assert!(help.contains(flag), "{help}");
        }
    }
}
