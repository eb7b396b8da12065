//! A test that replays the trace of a served drive with `slimio waf`.

use std::path::Path;
use std::process::Command;

use slimio_initiator::Placed;
use slimio_lab::drive::{LBA_SIZE, Served};

use super::connect;

/// Number of blocks of each write, and of each deallocation.
const RUN: u64 = 8;

/// The served drive has the properties that `slimio waf` simulates by default. So the replay must
/// give the same write amplification that the drive itself counted.
#[test]
fn a_trace_of_a_drive_has_its_write_amplification() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let trace = folder.path().join("trace");
    let trace = trace.to_str().expect("the path is text");
    let program = Path::new(env!("CARGO_BIN_EXE_slimio"));
    let spec = format!("{},size=64M,timing=none", folder.path().join("drive").display());
    let served =
        Served::start_with(program, &["--trace", trace], &spec).expect("the drive is served");
    let (mut host, mut queue) = connect(&served, 0);
    let lbas = host.namespace(1).expect("the drive has a namespace").nsze;
    let mut rng = fastrand::Rng::with_seed(3);
    for number in 0..3 * lbas / RUN {
        let lba = rng.u64(..lbas / RUN) * RUN;
        let placed = Placed { durable: false, placement: Some((number % 3) as u16) };
        queue.write(lba, &vec![1; RUN as usize * LBA_SIZE], placed).expect("the write succeeds");
        if number % 5 == 0 {
            let lba = rng.u64(..lbas / RUN) * RUN;
            queue.deallocate(&[(lba, RUN as u32)]).expect("the deallocation succeeds");
        }
    }
    let counted = host.statistics(1).expect("the drive reports its counters");
    served.stop().expect("the server ends when it is asked to");
    let replayed = Command::new(program).args(["waf", trace]).output().expect("slimio waf starts");
    let said = String::from_utf8_lossy(&replayed.stdout);
    assert!(replayed.stderr.is_empty(), "{}", String::from_utf8_lossy(&replayed.stderr));
    let waf = counted.mbmw as f64 / counted.hbmw as f64;
    assert!(waf > 1.5, "the collector has copied too little for this test: the WAF is {waf}");
    let last = said.lines().rfind(|line| line.starts_with('|')).expect("the output has a table");
    assert!(
        last.ends_with(&format!("| {waf:.4} |")),
        "the drive itself counted a WAF of {waf}:\n{said}"
    );
}
