//! A running machine: QEMU, the guest's output as it comes, and how the run ended.
//!
//! ```text
//!   guest                           host
//!   /dev/lab/output   ─────────►  stdout of QEMU    the task's output, line by line
//!   /dev/lab/control  ◄────────►  a socket          requests with answers, then "exit STATUS"
//!   /dev/lab/results  ─────────►  results.tar       the contents of /results
//!   ttyS0             ─────────►  console.log       kernel messages
//!   eth0              ◄────────►  the drive that the host serves, see drive.rs
//! ```

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use slimio_host::Failure;
use slimio_host::process::command;

use crate::drive::Drive;
use crate::guest::said;
use crate::namespaces::Namespace;
use crate::qmp::Qmp;
use crate::steer;
use crate::tools::Tools;

const MEMORY_MIB: u32 = 2048;
/// Time between two checks whether QEMU still runs.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long QEMU may take to open its sockets, and how long to end when it is told to.
const PATIENCE: Duration = Duration::from_secs(60);
const CONSOLE: &str = "console.log";
/// What `init.sh` reports when the machine lacks a module, a namespace or the network.
const NOT_READY: &str = "not ready";
pub(crate) const RESULTS: &str = "results.tar";
/// Kernel parameters: only errors on the console, no wait after a panic, and no retries of commands
/// that a device has refused.
const KERNEL_LINE: &str = "console=ttyS0 quiet panic=-1 oops=panic mitigations=off nowatchdog \
    random.trust_cpu=on nvme_core.max_retries=0 nvme.poll_queues=1";

/// A machine to start.
pub(crate) struct Plan<'a> {
    pub(crate) tools: &'a Tools,
    pub(crate) archive: PathBuf,
    /// The folder for the machine's images and output.
    pub(crate) folder: PathBuf,
    pub(crate) namespaces: Vec<Namespace>,
    /// Options of an emulated drive that the host serves when the guest asks for it.
    pub(crate) drive: Option<String>,
    pub(crate) time_limit: Duration,
    /// Whether the terminal belongs to a shell in the guest.
    pub(crate) interactive: bool,
}

impl<'a> Plan<'a> {
    /// A machine with these namespaces and nothing else. Its folder must exist.
    pub(crate) fn new(
        tools: &'a Tools,
        folder: &Path,
        namespaces: &[Namespace],
        time_limit: Duration,
    ) -> Self {
        Self {
            tools,
            archive: folder.join("archive"),
            folder: folder.to_owned(),
            namespaces: namespaces.to_vec(),
            drive: None,
            time_limit,
            interactive: false,
        }
    }
}

enum Event {
    /// A line of the task's output.
    Output(String),
    OutputEnded,
    /// A line of the control channel.
    Request(String),
}

/// How a machine has ended.
pub(crate) enum Ended {
    /// The task has ended with this exit status.
    Status(i32),
    /// QEMU or the guest's kernel died, or the machine lacks a module, a namespace or the network.
    /// No program in the guest should be able to cause such an end. So such an end says nothing
    /// about the task.
    Broken(Failure),
}

/// Runs the machine as [`run_once`] does, but fails if the machine ends as [`Ended::Broken`].
pub(crate) fn run(plan: &Plan<'_>, see: &mut dyn FnMut(&str)) -> Result<i32, Failure> {
    match run_once(plan, see)? {
        Ended::Status(status) => Ok(status),
        Ended::Broken(why) => Err(why),
    }
}

/// Starts the machine and waits for its end. A machine that is still busy at the time limit is a
/// failure. `see` gets each line of output.
pub(crate) fn run_once(plan: &Plan<'_>, see: &mut dyn FnMut(&str)) -> Result<Ended, Failure> {
    let sockets = Sockets::new()?;
    let mut machine = Machine::start(plan, &sockets)?;
    let deadline = Instant::now() + plan.time_limit;
    let mut qmp = Qmp::connect(&sockets.qmp)?;
    let mut control = UnixStream::connect(&sockets.control)
        .map_err(|error| format!("the machine's control channel: {error}"))?;
    let (sender, events) = channel();
    follow_requests(&control, sender.clone())?;
    if let Some(stdout) = machine.qemu.stdout.take() {
        follow_output(stdout, sender);
    }
    let status = loop {
        let now = Instant::now();
        if now >= deadline {
            return Err(machine.hangs(plan.time_limit));
        }
        match events.recv_timeout(LOOK_EVERY.min(deadline - now)) {
            Ok(Event::Output(line)) => see(&line),
            Ok(Event::Request(line)) => {
                if let Some(status) = line.strip_prefix("exit ") {
                    let status = status.parse();
                    break Some(status.map_err(|_| format!("not an exit status: {line}"))?);
                }
                if line == NOT_READY {
                    break None;
                }
                let answer = match steer::answer(&mut qmp, machine.drive.as_mut(), &line) {
                    Ok(()) => "ok".to_owned(),
                    Err(Failure(why)) => why.replace('\n', " "),
                };
                writeln!(control, "{answer}").map_err(|error| error.to_string())?;
            }
            Ok(Event::OutputEnded) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK_EVERY),
        }
        if let Some(status) = machine.ended()? {
            return Ok(Ended::Broken(machine.died(status, &events, see)));
        }
    };
    qmp.execute("quit", "{}")?;
    machine.wait_for_end()?;
    // Some of the task's output may still be in the pipe.
    while let Ok(Event::Output(line)) = events.recv_timeout(PATIENCE) {
        see(&line);
    }
    Ok(status.map_or_else(|| Ended::Broken("the machine is incomplete".into()), Ended::Status))
}

struct Machine {
    qemu: Child,
    folder: PathBuf,
    drive: Option<Drive>,
}

impl Machine {
    fn start(plan: &Plan<'_>, sockets: &Sockets) -> Result<Self, Failure> {
        // `setpriv` makes the kernel kill QEMU when this process ends, even after a crash.
        let mut qemu = command("setpriv");
        qemu.args(["--pdeathsig", "KILL", "--"]).arg(&plan.tools.qemu);
        qemu.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-M", "q35,smm=off"])
            .args(["-m", &MEMORY_MIB.to_string()])
            .args(["-nodefaults", "-display", "none", "-no-reboot", "-no-user-config"])
            .arg("-kernel")
            .arg(&plan.tools.kernel)
            .arg("-initrd")
            .arg(&plan.archive)
            .args(["-append", KERNEL_LINE])
            .args(["-device", "virtio-serial,id=ports"]);
        let file = |id: &str, name: &str| {
            format!("file,id={id},path={}", plan.folder.join(name).display())
        };
        let socket = |id: &str, path: &Path| {
            format!("socket,id={id},path={},server=on,wait=off", path.display())
        };
        qemu.args(["-chardev", &file("console", CONSOLE), "-serial", "chardev:console"])
            .args(["-chardev", &file("results", RESULTS)])
            .args(["-chardev", &socket("control", &sockets.control)])
            .args(["-chardev", &socket("qmp", &sockets.qmp), "-mon", "chardev=qmp,mode=control"]);
        for port in ["results", "control"] {
            qemu.args(["-device", &format!("virtserialport,chardev={port},name={port}")]);
        }
        if plan.interactive {
            qemu.args(["-chardev", "stdio,id=terminal,signal=off"])
                .args(["-device", "virtconsole,chardev=terminal"])
                .args(["-chardev", &file("output", "output.log")])
                .stdin(Stdio::inherit());
        } else {
            // stdin stays open, because QEMU would take the end of stdin for the end of the
            // connection.
            qemu.args(["-chardev", "stdio,id=output,signal=off"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped());
        }
        qemu.args(["-device", "virtserialport,chardev=output,name=output"]);
        for namespace in &plan.namespaces {
            namespace.make(&plan.folder)?;
            qemu.args(namespace.arguments(&plan.folder));
        }
        let drive = plan.drive.as_ref().map(|options| Drive::new(&plan.folder, options));
        let drive = drive.transpose()?;
        if let Some(drive) = &drive {
            qemu.args(drive.arguments());
        }
        let qemu = qemu.spawn().map_err(|error| format!("QEMU did not start: {error}"))?;
        let mut machine = Self { qemu, folder: plan.folder.clone(), drive };
        let deadline = Instant::now() + PATIENCE;
        while !(sockets.control.exists() && sockets.qmp.exists()) {
            if let Some(status) = machine.ended()? {
                return Err(format!(
                    "QEMU ended during its start: {status}; its messages are above"
                )
                .into());
            }
            if Instant::now() > deadline {
                return Err("QEMU has not opened its sockets in time".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(machine)
    }

    /// How QEMU ended; `None` if it still runs.
    fn ended(&mut self) -> Result<Option<std::process::ExitStatus>, Failure> {
        self.qemu.try_wait().map_err(|error| format!("QEMU: {error}").into())
    }

    fn wait_for_end(&mut self) -> Result<(), Failure> {
        let deadline = Instant::now() + PATIENCE;
        while self.ended()?.is_none() {
            if Instant::now() > deadline {
                return Err("QEMU does not end".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn hangs(&self, limit: Duration) -> Failure {
        format!("the machine was still busy after {} s{}", limit.as_secs(), self.console()).into()
    }

    fn died(
        &self,
        status: std::process::ExitStatus,
        events: &Receiver<Event>,
        see: &mut dyn FnMut(&str),
    ) -> Failure {
        while let Ok(Event::Output(line)) = events.recv_timeout(PATIENCE) {
            see(&line);
        }
        let console = self.console();
        // After a panic the kernel reboots; with -no-reboot, QEMU exits instead.
        if console.contains("Kernel panic") {
            return format!("the guest's kernel has panicked{console}").into();
        }
        format!("QEMU ended while something ran in the machine: {status}{console}").into()
    }

    /// The last lines of the guest kernel's messages, as the end of an error message.
    fn console(&self) -> String {
        const LINES: usize = 40;
        let bytes = fs::read(self.folder.join(CONSOLE)).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        if lines.is_empty() {
            return "; the guest's kernel printed nothing".into();
        }
        let last = lines[lines.len().saturating_sub(LINES)..].join("\n");
        format!("; the last messages of the guest's kernel:\n{last}")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // QEMU has ended already, unless something failed.
        drop(self.qemu.kill());
        drop(self.qemu.wait());
    }
}

/// Sends each line of the control channel as an event, until the channel is closed.
fn follow_requests(control: &UnixStream, sender: Sender<Event>) -> Result<(), Failure> {
    let stream = control.try_clone().map_err(|error| error.to_string())?;
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines() {
            let Ok(line) = line else { return };
            if sender.send(Event::Request(line)).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Sends each line of the output as an event, and at the end [`Event::OutputEnded`].
fn follow_output(stdout: impl Read + Send + 'static, sender: Sender<Event>) {
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).split(b'\n') {
            let Ok(line) = line else { break };
            let line = String::from_utf8_lossy(&line).into_owned();
            if sender.send(Event::Output(line)).is_err() {
                return;
            }
        }
        drop(sender.send(Event::OutputEnded));
    });
}

/// Paths of QEMU's sockets. The sockets are not in the target folder, because the kernel accepts a
/// socket's path only up to about a hundred bytes. The sockets' folder is removed on drop.
struct Sockets {
    folder: PathBuf,
    control: PathBuf,
    qmp: PathBuf,
}

impl Sockets {
    fn new() -> Result<Self, Failure> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("slimio-lab-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).map_err(|error| said(&folder, &error))?;
        Ok(Self { control: folder.join("control"), qmp: folder.join("qmp"), folder })
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.folder));
    }
}
