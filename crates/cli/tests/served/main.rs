//! Tests of `slimio drive` as a user types it: drives are served, asked for their counts and
//! stopped, and wrong command lines are refused.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode};
use rustix::process::{Signal, kill_process};
use slimio_initiator::{Host, Options, Placed};
use slimio_lab::drive::Served;

fn slimio(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slimio"));
    command.arg("drive").args(args).stderr(Stdio::piped()).stdout(Stdio::piped());
    command
}

fn run(args: &[&str]) -> Output {
    slimio(args).output().expect("the program starts")
}

fn complaint(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn serve(args: &[&str]) -> Served {
    let program = Path::new(env!("CARGO_BIN_EXE_slimio"));
    let (spec, flags) = args.split_last().expect("the arguments end with the drive");
    Served::start_with(program, flags, spec).expect("the drive is served")
}

/// The specification of a drive. The path in it has a `..`. `slimio drive stats` is given another
/// path to the same file, so it finds the drive only if both paths are resolved to the same name.
fn spec_in(place: &Path) -> String {
    let around = place.join("..").join(place.file_name().expect("the folder has a name"));
    format!("{},size=64M,timing=none", around.join("drive").display())
}

#[test]
fn a_drive_is_served_asked_and_stopped_and_its_name_stays() {
    let place = tempfile::tempdir().expect("there is a temporary folder");
    let (file, spec) = (place.path().join("drive"), spec_in(place.path()));
    let trace = place.path().join("trace");
    let trace_name = trace.to_str().expect("the path is text");
    let served = serve(&["--trace", trace_name, &spec]);
    assert!(served.line.contains("nvme connect -t tcp -a 127.0.0.1 -s "), "{}", served.line);
    let name = served.nqn.clone();
    let drive = file.to_str().expect("the path is text");
    let json = run(&["stats", "--json", drive]);
    let text = String::from_utf8_lossy(&json.stdout);
    assert!(json.status.success() && text.starts_with(&format!("{{\"nqn\":\"{name}\"")), "{text}");
    assert!(text.contains("\"host_bytes\":0") && text.ends_with("}\n"), "{text}");
    let page = run(&["stats", drive]);
    assert!(String::from_utf8_lossy(&page.stdout).contains("WAF"), "{page:?}");
    served.stop().expect("the server ends without an error");
    let replayed = Command::new(env!("CARGO_BIN_EXE_slimio")).args(["waf", trace_name]).output();
    let replayed = replayed.expect("the program starts");
    let said = String::from_utf8_lossy(&replayed.stderr);
    assert!(!said.contains("not finished"), "the trace is incomplete: {said}");

    // Now that the drive's file exists, its path alone specifies the drive. The subsystem has the
    // same name as before.
    let again = serve(&["--allow", "nqn.2014-08.org.nvmexpress:uuid:me", drive]);
    assert_eq!(again.nqn, name);
    again.stop().expect("the server ends without an error");
    let gone = complaint(&run(&["stats", drive]));
    assert!(gone.contains("slimio drive serve"), "{gone}");
}

/// A drive is killed while it records a trace. The events that were recorded until then must be
/// replayed.
#[test]
fn the_trace_of_a_killed_drive_is_replayed_as_far_as_it_goes() {
    let place = tempfile::tempdir().expect("there is a temporary folder");
    let trace = place.path().join("trace");
    let name = trace.to_str().expect("the path is text");
    let served = serve(&["--trace", name, "64M,timing=none"]);
    let size = || std::fs::metadata(&trace).expect("the trace exists").len();
    let empty = size();
    let to = Options::new(served.address, &served.nqn);
    let mut host = Host::connect(&to).expect("the drive is served");
    let mut queue = host.open_queue(1, 8).expect("a queue can be opened");
    while size() == empty {
        queue.write(0, &[1; 4096], Placed::default()).expect("the write succeeds");
    }
    drop(served);
    let replayed = Command::new(env!("CARGO_BIN_EXE_slimio")).args(["waf", name]).output();
    let replayed = replayed.expect("the program starts");
    let said = String::from_utf8_lossy(&replayed.stderr);
    assert!(replayed.status.success() && said.contains("cut off after"), "{said}");
    assert!(String::from_utf8_lossy(&replayed.stdout).contains("| handles | host MiB |"));
    let points =
        Command::new(env!("CARGO_BIN_EXE_slimio")).args(["waf", name, "--points"]).output();
    let said = complaint(&points.expect("the program starts"));
    assert!(said.contains("cut off after"), "--points does not refuse an incomplete trace: {said}");
}

#[test]
fn what_can_not_be_served_is_refused_with_a_remedy() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("some port is free");
    let address = taken.local_addr().expect("the listener is bound").to_string();
    let said = complaint(&run(&["serve", "--listen", &address, "64M"]));
    assert!(said.contains("is in use") && said.contains("--listen"), "{said}");
    let said = complaint(&run(&["serve", "--listen", "nonsense", "64M"]));
    assert!(said.contains("HOST:PORT"), "{said}");
    let free = "127.0.0.1:0";
    let said = complaint(&run(&["serve", "--listen", free, "--nqn", "disk", "64M"]));
    assert!(said.contains("nqn."), "{said}");
    let said = complaint(&run(&["serve", "--listen", free, "--allow", "me", "64M"]));
    assert!(said.contains("nqn."), "{said}");
    let said = complaint(&run(&["serve", "--listen", free, "/no/such/drive"]));
    assert!(said.contains("size="), "{said}");
    let place = tempfile::tempdir().expect("there is a temporary folder");
    let spec = spec_in(place.path());
    let trace = place.path().join("trace");
    std::fs::write(&trace, "precious").expect("the file can be written");
    let trace = trace.to_str().expect("the path is text");
    let said = complaint(&run(&["serve", "--listen", free, "--trace", trace, &spec]));
    assert!(said.contains("new file"), "{said}");
    assert_eq!(std::fs::read_to_string(trace).expect("the file exists"), "precious");
    let (unmade, made) = (place.path().join("unmade"), place.path().join("trace2"));
    let unmade_spec = format!("{},size=64M", unmade.display());
    let trace = made.to_str().expect("the path is text");
    complaint(&run(&["serve", "--listen", free, "--nqn", "x", "--trace", trace, &unmade_spec]));
    assert!(!unmade.exists() && !made.exists(), "a refused command has made a file");
    let served = serve(&[&spec]);
    let said = complaint(&run(&["serve", "--listen", free, &spec]));
    assert!(said.contains("in use"), "{said}");
    served.stop().expect("the server ends without an error");
}

#[test]
fn who_asks_a_stopped_drive_is_told_so() {
    let place = tempfile::tempdir().expect("there is a temporary folder");
    let spec = spec_in(place.path());
    let served = serve(&[&spec]);
    kill_process(served.pid(), Signal::STOP).expect("the server runs");
    let drive = place.path().join("drive");
    let said = complaint(&run(&["stats", drive.to_str().expect("the path is text")]));
    assert!(said.contains("its process is stopped"), "{said}");
}

/// The process that reads the log may have stopped reading. Then every thread that logs waits until
/// that process reads again.
#[test]
fn a_drive_that_does_not_stop_by_itself_is_left() {
    let place = tempfile::tempdir().expect("there is a temporary folder");
    let log = place.path().join("log");
    rustix::fs::mknodat(rustix::fs::CWD, &log, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
        .expect("the pipe can be made");
    let open = |options: &mut OpenOptions| {
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        options.custom_flags(nonblocking).open(&log).expect("the pipe can be opened")
    };
    let _reader = open(OpenOptions::new().read(true));
    let mut filler = open(OpenOptions::new().write(true));
    let of_server = OpenOptions::new().write(true).open(&log).expect("the pipe has a reader");
    let mut command = Command::new(env!("CARGO_BIN_EXE_slimio"));
    command.args(["drive", "serve", "--allow", "nqn.friend", "64M,timing=none"]).stderr(of_server);
    let served = Served::spawn(&mut command).expect("the drive is served");
    while filler.write(&[b'x'; 4096]).is_ok() {}
    while filler.write(b"x").is_ok() {}
    // The server logs a warning about a host that is not allowed. The host gets no reply, because
    // the thread that would send the reply waits for the log.
    let time_max = Duration::from_secs(3);
    let stranger = Options { time_max, ..Options::new(served.address, &served.nqn) };
    assert!(Host::connect(&stranger).is_err());
    let begin = Instant::now();
    kill_process(served.pid(), Signal::TERM).expect("the server runs");
    let (pid, (ended, end)) = (served.pid(), std::sync::mpsc::channel());
    let guard = std::thread::spawn(move || {
        if end.recv_timeout(Duration::from_secs(60)).is_err() {
            kill_process(pid, Signal::KILL).expect("the server still exists");
        }
    });
    let status = served.wait().expect("the server's end can be waited for");
    ended.send(()).expect("the guard waits");
    guard.join().expect("the guard does not panic");
    assert_eq!(status.code(), Some(1), "{status}");
    assert!(
        begin.elapsed() > Duration::from_secs(9),
        "the server did not get ten seconds to stop by itself"
    );
}
