//! What needs a second process: this program starts itself again, in another role.

#![expect(clippy::print_stdout, reason = "the processes talk through it")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use slimio_device::{Device, Directory, LOCK_FILE_NAME, OpenError, PathOptions};
use slimio_ring::{Cause, Errno};
use slimio_sim::contract::{CONTRACT_LBAS, check_all};

#[path = "../examples/without_io_uring.rs"]
#[expect(dead_code, reason = "the example's `main` is not ours")]
mod without_io_uring;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["hold", path] => hold(Path::new(path)),
        ["confined", path] => confined(Path::new(path)),
        ["bare", path] => bare(Path::new(path)),
        _ => {
            a_second_process_is_refused_with_the_first_ones_id();
            println!("a second process is refused with the first one's id ... ok");
            without_io_uring_plain_calls_do_the_same();
            println!("without io_uring, plain calls do the same ... ok");
            without_durable_writes_a_flush_follows();
            println!("without durable writes, a flush follows ... ok");
        }
    }
}

fn start(role: &str, path: &Path) -> Child {
    Command::new(std::env::current_exe().expect("we are a program"))
        .arg(role)
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it can be started")
}

/// Holds a directory's lock until its standard input ends, or it is killed.
fn hold(path: &Path) {
    let _directory = Directory::open(path, PathOptions::default()).expect("nobody has it");
    println!("held");
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).expect("it ends");
}

fn a_second_process_is_refused_with_the_first_ones_id() {
    let place = tempfile::tempdir().expect("a directory for the test");
    let options = PathOptions::default();
    let mut holder = start("hold", place.path());
    let mut said = String::new();
    let output = holder.stdout.take().expect("it is piped");
    BufReader::new(output).read_line(&mut said).expect("it says something");
    assert_eq!(said, "held\n");

    let refused = Directory::open(place.path(), options).err().expect("it is in use");
    let OpenError::InUse { holder: named, .. } = &refused else { panic!("{refused}") };
    assert_eq!(*named, Some(holder.id()));
    assert!(refused.to_string().ends_with(&format!("is in use by process {}", holder.id())));

    // A lock dies with its holder, whatever kills it.
    holder.kill().expect("it runs");
    holder.wait().expect("it ends");
    let directory = Directory::open(place.path(), options).expect("nobody has it any more");
    let refused = Directory::open(place.path(), options).err().expect("we have it");
    let own = Some(std::process::id());
    assert!(matches!(refused, OpenError::InUse { holder, .. } if holder == own), "{refused}");
    drop(directory);
    assert!(place.path().join(LOCK_FILE_NAME).exists());
    Directory::open(place.path(), options).expect("we have let go of it");
}

/// Holds files to the contract.
fn check_files(path: &Path) -> Directory {
    let mut directory = Directory::open(path, PathOptions::default()).expect("nobody has it");
    let mut count = 0;
    check_all(|| {
        count += 1;
        let name = format!("file-{count}");
        directory.create_file(&name, CONTRACT_LBAS).expect("there is room");
        directory.open_path(&name).expect("it was just made") as Box<dyn Device>
    });
    directory
}

/// Checks what is left where io_uring is forbidden.
fn confined(path: &Path) {
    without_io_uring::forbid_io_uring();
    let refused = slimio_ring::probe().expect_err("it is forbidden");
    assert_eq!(
        (refused.cause, refused.errno.map(Errno::number)),
        (Cause::Seccomp, Some(libc::EPERM))
    );
    assert!(refused.to_string().starts_with("a seccomp filter forbids io_uring"), "{refused}");

    let directory = check_files(path);
    assert!(directory.describe().contains("through plain system calls"));
    let notes = directory.notes();
    assert!(
        notes.iter().any(|note| note.starts_with("no io_uring: a seccomp filter")),
        "{notes:?}"
    );
    println!("as correct");
}

/// Checks what is left where neither io_uring nor a single durable write is to be had.
fn bare(path: &Path) {
    without_io_uring::forbid_io_uring();
    without_io_uring::fail(&[libc::SYS_pwritev2], libc::EOPNOTSUPP);
    check_files(path);
    println!("as correct");
}

fn run_to_the_end(role: &str) {
    let place =
        tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory for the test");
    let output = start(role, place.path()).wait_with_output().expect("it ends");
    assert!(output.status.success(), "{role}: {:?}", output.status);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "as correct\n", "{role}");
}

fn without_io_uring_plain_calls_do_the_same() {
    run_to_the_end("confined");
}

fn without_durable_writes_a_flush_follows() {
    run_to_the_end("bare");
}
