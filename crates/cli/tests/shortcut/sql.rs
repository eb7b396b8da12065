//! Clients that insert rows until their SQL server is killed, and a check of the rows that the
//! restarted server has.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{Place, text};

pub(crate) const CLIENTS: usize = 4;
/// The server is killed after all clients together have inserted this many rows.
const ROWS: usize = 400;

/// Starts clients that insert the rows `(client, 1)`, `(client, 2)`, … into the table `t.a`.
/// `client` makes a client that runs each line of its input. Each thread serves one client, and
/// ends when the client ends. The thread returns how many of the client's rows were acknowledged.
pub(crate) fn insert_until_killed(client: impl Fn() -> Command) -> Vec<JoinHandle<usize>> {
    let inserting = (0..CLIENTS).map(|number| {
        let mut client = client();
        client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        std::thread::spawn(move || {
            let mut client = client.spawn().unwrap();
            let mut input = client.stdin.take().unwrap();
            let mut output = BufReader::new(client.stdout.take().unwrap());
            let mut acknowledged = 0;
            loop {
                let next = acknowledged + 1;
                let line = format!("insert into t.a values ({number}, {next}); select {next};\n");
                let mut answer = String::new();
                let is_sent = input.write_all(line.as_bytes()).is_ok();
                if !is_sent || output.read_line(&mut answer).is_err() {
                    break;
                }
                if answer.trim() != next.to_string() {
                    break;
                }
                acknowledged = next;
            }
            drop(input);
            let _ = client.wait();
            acknowledged
        })
    });
    inserting.collect()
}

/// Waits until the table has at least [`ROWS`] rows. Then checks that the server's log was written
/// by the short path (one direct write that is durable when it returns), and returns the output of
/// `slimio shortcut status`.
pub(crate) fn wait_for_rows(place: &Place, client: impl Fn() -> Command) -> String {
    super::wait_for("rows", || {
        std::thread::sleep(Duration::from_millis(100));
        run(client(), "select count(*) from t.a").trim().parse::<usize>().unwrap() >= ROWS
    });
    let status = place.status();
    let number = |behind: &str| -> usize {
        let before = status.split(behind).next().unwrap();
        before.split_whitespace().last().unwrap().parse().unwrap()
    };
    // There are fewer syncs than rows, because some transactions share a sync.
    let least = ROWS / CLIENTS / 2;
    assert!(number(" writes took the short path") > least, "{status}{}", place.said());
    assert!(number(" syncs had nothing to do") > least, "{status}{}", place.said());
    status
}

/// Checks that the table has each client's acknowledged rows, and that no row before a client's
/// last row is missing.
pub(crate) fn check(client: impl Fn() -> Command, acknowledged: &[usize]) {
    for (number, acknowledged) in acknowledged.iter().enumerate() {
        let sql = format!("select count(*) from t.a where c = {number}");
        let count: usize = run(client(), &sql).trim().parse().unwrap();
        let sql = format!("select max(n) from t.a where c = {number}");
        let last: usize = run(client(), &sql).trim().parse().unwrap();
        // A client's last row may have been inserted without being acknowledged.
        let possible = *acknowledged..=acknowledged + 1;
        assert!(
            possible.contains(&last),
            "client {number}: the last row is {last}, but {acknowledged} rows were acknowledged"
        );
        assert_eq!(count, last, "client {number}: a row before the last row is missing");
    }
}

/// Runs an SQL statement, and returns the client's output.
pub(crate) fn run(mut client: Command, sql: &str) -> String {
    let mut running = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    running.stdin.take().unwrap().write_all(format!("{sql};\n").as_bytes()).unwrap();
    text(&running.wait_with_output().unwrap())
}

/// Kills a process and all its descendants at once, so that none of them can clean up.
pub(crate) fn kill_all(process: Pid) {
    let children = children(process);
    let _ = kill_process(process, Signal::KILL);
    children.into_iter().for_each(kill_all);
}

fn children(process: Pid) -> Vec<Pid> {
    let path = format!("/proc/{}/task", process.as_raw_nonzero());
    let mut found = Vec::new();
    for thread in std::fs::read_dir(path).into_iter().flatten().flatten() {
        let text = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        found.extend(text.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)));
    }
    found
}

/// Makes a copy of the preload library that other users can read.
pub(crate) fn library_for_all(place: &Place) -> PathBuf {
    let path = place.path().join("libslimio_preload.so");
    std::fs::copy(super::library(), &path).unwrap();
    make_mode(&path, 0o755);
    path
}

fn make_mode(path: &Path, mode: u32) {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(path, mode).unwrap();
}
