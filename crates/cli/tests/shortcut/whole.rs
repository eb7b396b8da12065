//! Tests `slimio shortcut run` with a script that, like a database, overwrites a log in whole
//! blocks. A file has a debt if it has changes that only the kernel can make durable. The keeper is
//! the process that looks after the script's logs.

use std::fs::{self, File};
use std::process::{Command, Stdio};

use super::{Place, text};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/shortcut/whole.py");
const SIZE: usize = 64 * 4096;

/// Writes all blocks of the log with zeros. Returns the command that runs the part `what` of the
/// script.
fn script(place: &Place, what: &str) -> Command {
    let path = place.path().join("ib_logfile0");
    fs::write(&path, vec![0; SIZE]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    let device = place.mounted.device().file_name().unwrap().to_owned();
    let mut command = place.run(&[&"--profile", &"mariadb", &"--", &"python3", &"-B", &SCRIPT]);
    command.arg(path).arg(device).arg(what).stdout(Stdio::piped());
    command
}

fn check(what: &str) -> Option<Place> {
    let place = Place::new()?;
    let output = script(&place, what).output().unwrap();
    assert!(output.status.success(), "{}", place.said());
    Some(place)
}

#[test]
fn what_the_kernel_is_to_make_durable_is_not_forgotten() {
    check("changes");
}

#[test]
fn whole_blocks_are_durable_at_once() {
    let Some(place) = check("direct") else { return };
    assert_eq!(place.said().matches("ib_logfile0: written by the short path").count(), 1);
    let left = fs::read_dir(place.stages.path()).unwrap().count();
    assert_eq!(left, 1, "only the file with the recorded standard error must be left");
}

#[test]
fn a_program_keeps_its_locks() {
    check("locks");
}

#[test]
fn no_debt_is_lost_if_the_keeper_is_killed() {
    let Some(place) = Place::new() else { return };
    let output = script(&place, "orphan").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, "done\n", "{}", place.said());
    // The next keeper removes the files that the killed keeper has left.
    text(&script(&place, "locks").output().unwrap());
    let left = fs::read_dir(place.stages.path()).unwrap().count();
    assert_eq!(left, 1, "only the file with the recorded standard error must be left");
}
