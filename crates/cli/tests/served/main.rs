//! `slimio drive` as a user types it. Drives are served, asked for their counts and stopped, and
//! wrong requests are refused.

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
    let (spec, flags) = args.split_last().expect("they end with the drive");
    Served::start_with(program, flags, spec).expect("it says where it is")
}

/// The specification of a drive. Its path has a `..`, so the drive's name is found only if the path
/// is resolved.
fn spec_in(place: &Path) -> String {
    let around = place.join("..").join(place.file_name().expect("it has a name"));
    format!("{},size=64M,timing=none", around.join("drive").display())
}

#[test]
fn a_drive_is_served_asked_and_stopped_and_its_name_stays() {
    let place = tempfile::tempdir().expect("there is room");
    let (file, spec) = (place.path().join("drive"), spec_in(place.path()));
    let trace = place.path().join("trace");
    let trace_name = trace.to_str().expect("it is text");
    let served = serve(&["--trace", trace_name, &spec]);
    assert!(served.line.contains("nvme connect -t tcp -a 127.0.0.1 -s "), "{}", served.line);
    let name = served.nqn.clone();
    let drive = file.to_str().expect("it is text");
    let json = run(&["stats", "--json", drive]);
    let text = String::from_utf8_lossy(&json.stdout);
    assert!(json.status.success() && text.starts_with(&format!("{{\"nqn\":\"{name}\"")), "{text}");
    assert!(text.contains("\"host_bytes\":0") && text.ends_with("}\n"), "{text}");
    let page = run(&["stats", drive]);
    assert!(String::from_utf8_lossy(&page.stdout).contains("WAF"), "{page:?}");
    served.stop().expect("it ends well");
    let replayed = Command::new(env!("CARGO_BIN_EXE_slimio")).args(["waf", trace_name]).output();
    let replayed = replayed.expect("the program starts");
    let said = String::from_utf8_lossy(&replayed.stderr);
    assert!(!said.contains("not finished"), "the trace has its end: {said}");

    // Now that the file exists, its path is enough, and the subsystem has the same name as before.
    let again = serve(&["--allow", "nqn.2014-08.org.nvmexpress:uuid:me", drive]);
    assert_eq!(again.nqn, name);
    again.stop().expect("it ends well");
    let gone = complaint(&run(&["stats", drive]));
    assert!(gone.contains("slimio drive serve"), "{gone}");
}

/// A drive is killed while it records a trace. The events that were recorded until then must be
/// replayed.
#[test]
fn the_trace_of_a_killed_drive_is_replayed_as_far_as_it_goes() {
    let place = tempfile::tempdir().expect("there is room");
    let trace = place.path().join("trace");
    let name = trace.to_str().expect("it is text");
    let served = serve(&["--trace", name, "64M,timing=none"]);
    let size = || std::fs::metadata(&trace).expect("it is there").len();
    let empty = size();
    let to = Options::new(served.address, &served.nqn);
    let mut host = Host::connect(&to).expect("it is served");
    let mut queue = host.open_queue(1, 8).expect("there are queues");
    while size() == empty {
        queue.write(0, &[1; 4096], Placed::default()).expect("it is within the drive");
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
    assert!(said.contains("cut off after"), "programs get whole traces only: {said}");
}

#[test]
fn what_can_not_be_served_is_refused_with_a_remedy() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("some port is free");
    let address = taken.local_addr().expect("it is bound").to_string();
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
    let place = tempfile::tempdir().expect("there is room");
    let spec = spec_in(place.path());
    let trace = place.path().join("trace");
    std::fs::write(&trace, "precious").expect("there is room");
    let trace = trace.to_str().expect("it is text");
    let said = complaint(&run(&["serve", "--listen", free, "--trace", trace, &spec]));
    assert!(said.contains("new file"), "{said}");
    assert_eq!(std::fs::read_to_string(trace).expect("it is there"), "precious");
    let (unmade, made) = (place.path().join("unmade"), place.path().join("trace2"));
    let unmade_spec = format!("{},size=64M", unmade.display());
    let trace = made.to_str().expect("it is text");
    complaint(&run(&["serve", "--listen", free, "--nqn", "x", "--trace", trace, &unmade_spec]));
    assert!(!unmade.exists() && !made.exists(), "nothing is made of what is refused");
    let served = serve(&[&spec]);
    let said = complaint(&run(&["serve", "--listen", free, &spec]));
    assert!(said.contains("in use"), "{said}");
    served.stop().expect("it ends well");
}

#[test]
fn who_asks_a_stopped_drive_is_told_so() {
    let place = tempfile::tempdir().expect("there is room");
    let spec = spec_in(place.path());
    let served = serve(&[&spec]);
    kill_process(served.pid(), Signal::STOP).expect("it runs");
    let drive = place.path().join("drive");
    let said = complaint(&run(&["stats", drive.to_str().expect("it is text")]));
    assert!(said.contains("its process is stopped"), "{said}");
}

/// Whoever reads the log may have stopped to read it. A thread that logs waits for it.
#[test]
fn a_drive_that_does_not_stop_by_itself_is_left() {
    let place = tempfile::tempdir().expect("there is room");
    let log = place.path().join("log");
    rustix::fs::mknodat(rustix::fs::CWD, &log, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
        .expect("there is room");
    let open = |options: &mut OpenOptions| {
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        options.custom_flags(nonblocking).open(&log).expect("it is there")
    };
    let _reader = open(OpenOptions::new().read(true));
    let mut filler = open(OpenOptions::new().write(true));
    let of_server = OpenOptions::new().write(true).open(&log).expect("somebody reads it");
    let mut command = Command::new(env!("CARGO_BIN_EXE_slimio"));
    command.args(["drive", "serve", "--allow", "nqn.friend", "64M,timing=none"]).stderr(of_server);
    let served = Served::spawn(&mut command).expect("it says where it is");
    while filler.write(&[b'x'; 4096]).is_ok() {}
    while filler.write(b"x").is_ok() {}
    // A host that is not allowed is a warning. It gets no reply, because the thread that would send
    // one waits for the log.
    let time_max = Duration::from_secs(3);
    let stranger = Options { time_max, ..Options::new(served.address, &served.nqn) };
    assert!(Host::connect(&stranger).is_err());
    let begin = Instant::now();
    kill_process(served.pid(), Signal::TERM).expect("it runs");
    let (pid, (ended, end)) = (served.pid(), std::sync::mpsc::channel());
    let guard = std::thread::spawn(move || {
        if end.recv_timeout(Duration::from_secs(60)).is_err() {
            kill_process(pid, Signal::KILL).expect("nobody has waited for its end");
        }
    });
    let status = served.wait().expect("it is a child");
    ended.send(()).expect("the guard waits");
    guard.join().expect("it kills who is there");
    assert_eq!(status.code(), Some(1), "{status}");
    assert!(begin.elapsed() > Duration::from_secs(9), "it had its time");
}
