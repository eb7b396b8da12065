//! `slimio drive` as a user types it: served, asked for its counts, stopped, and refused.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use slimio_initiator::{Host, Options, Placed};

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

/// A drive that is served. It is killed if the test ends before it is stopped.
struct Served {
    child: Child,
    /// The line that says where it is.
    line: String,
}

impl Served {
    fn start(args: &[&str]) -> Self {
        let all = [&["serve", "--listen", "127.0.0.1:0"], args].concat();
        let mut child = slimio(&all).spawn().expect("the program starts");
        let out = child.stdout.take().expect("it is a pipe");
        let mut lines = BufReader::new(out).lines();
        let line = lines.find_map(|line| line.ok().filter(|line| line.starts_with("serving ")));
        let line = line.expect("it says where it is");
        Self { child, line }
    }

    fn stop(mut self) {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).expect("it runs");
        let status = self.child.wait().expect("it is a child");
        let mut said = String::new();
        self.child.stderr.take().expect("it is a pipe").read_to_string(&mut said).expect("text");
        assert!(status.success(), "{said}");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It has ended if it was stopped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The drive's file is named in a way that needs the directory to be resolved.
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
    let served = Served::start(&["--trace", trace_name, &spec]);
    assert!(served.line.contains("nvme connect -t tcp -a 127.0.0.1 -s "), "{}", served.line);
    let nqn = |line: &str| line.split(' ').nth(1).expect("it has a name").to_owned();
    let name = nqn(&served.line);
    let drive = file.to_str().expect("it is text");
    let json = run(&["stats", "--json", drive]);
    let text = String::from_utf8_lossy(&json.stdout);
    assert!(json.status.success() && text.starts_with(&format!("{{\"nqn\":\"{name}\"")), "{text}");
    assert!(text.contains("\"host_bytes\":0") && text.ends_with("}\n"), "{text}");
    let page = run(&["stats", drive]);
    assert!(String::from_utf8_lossy(&page.stdout).contains("WAF"), "{page:?}");
    served.stop();
    let replayed = Command::new(env!("CARGO_BIN_EXE_slimio")).args(["waf", trace_name]).output();
    let replayed = replayed.expect("the program starts");
    let said = String::from_utf8_lossy(&replayed.stderr);
    assert!(!said.contains("not finished"), "the trace has its end: {said}");

    // The file alone names the drive now, and the subsystem has the same name.
    let again = Served::start(&["--allow", "nqn.2014-08.org.nvmexpress:uuid:me", drive]);
    assert_eq!(nqn(&again.line), name);
    again.stop();
    let gone = complaint(&run(&["stats", drive]));
    assert!(gone.contains("slimio drive serve"), "{gone}");
}

/// What a drive has recorded until it is killed is replayed.
#[test]
fn the_trace_of_a_killed_drive_is_replayed_as_far_as_it_goes() {
    let place = tempfile::tempdir().expect("there is room");
    let trace = place.path().join("trace");
    let name = trace.to_str().expect("it is text");
    let served = Served::start(&["--trace", name, "64M,timing=none"]);
    let size = || std::fs::metadata(&trace).expect("it is there").len();
    let empty = size();
    let words: Vec<&str> = served.line.split([' ', ';']).collect();
    let address = words[3].parse().expect("it is an address");
    let mut host = Host::connect(&Options::new(address, words[1])).expect("it is served");
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
    let served = Served::start(&[&spec]);
    let said = complaint(&run(&["serve", "--listen", free, &spec]));
    assert!(said.contains("in use"), "{said}");
    served.stop();
}

#[test]
fn who_asks_a_stopped_drive_is_told_so() {
    let place = tempfile::tempdir().expect("there is room");
    let spec = spec_in(place.path());
    let served = Served::start(&[&spec]);
    let id = rustix::process::Pid::from_child(&served.child);
    rustix::process::kill_process(id, rustix::process::Signal::STOP).expect("it runs");
    let drive = place.path().join("drive");
    let said = complaint(&run(&["stats", drive.to_str().expect("it is text")]));
    assert!(said.contains("its process is stopped"), "{said}");
}
