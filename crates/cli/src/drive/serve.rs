//! `slimio drive serve`

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use slimio_device::WholeDevice as _;
use slimio_server::explain_system;
use slimio_ssd::{Clock, DataPlace, DriveOptions, EmulatedDrive, PREFIX};
use slimio_target::{Recorder, Server, Subsystem, SubsystemOptions};

use super::{control, process};
use crate::tools::say;

/// The drive, and the hosts that may use the drive.
#[derive(Debug, Args)]
#[command(after_help = "There is no authentication: anyone who can reach the port and knows an \
                        allowed name can use the drive. Serve the drive only to this machine, or on \
                        a network of its own.")]
pub(crate) struct Serve {
    /// Address to listen on; port 0 takes a free port
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:4420")]
    listen: String,
    /// NQN of a host that may connect; may be given several times. Without this option, any host
    /// may connect
    #[arg(long, value_name = "HOSTNQN")]
    allow: Vec<String>,
    /// NQN of the drive's subsystem [default: a name that is made from the drive's path]
    #[arg(long, value_name = "NQN", default_value = "", hide_default_value = true)]
    nqn: String,
    /// New file in which to record what hosts write and deallocate; slimio waf reads such files
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Size or file of the drive, then its options, as in --volume but without "emulated:"
    /// (4G, or /data/drive,size=4G,ru=64M)
    spec: String,
}

/// Time that a server may take to stop.
const STOP_TIME_MAX: Duration = Duration::from_secs(10);

impl Serve {
    /// Serves until a signal comes.
    ///
    /// # Errors
    /// If the drive can't be served, or if its trace can't be completed. The error is a sentence
    /// for the user.
    pub(crate) fn run(&self) -> Result<(), String> {
        let (stopped, signal) =
            UnixStream::pair().map_err(|e| explain_system("watch signals", &e))?;
        for number in [SIGTERM, SIGINT] {
            signal
                .try_clone()
                .and_then(|writer| pipe::register(number, writer))
                .map_err(|e| explain_system("watch signals", &e))?;
        }
        let listener = self.bind()?;
        let spec = self.spec.strip_prefix(PREFIX).unwrap_or(&self.spec);
        let options = DriveOptions::parse(spec, Clock::Real).map_err(|e| e.to_string())?;
        let name = name_of(&options.data);
        let identity = identity_of(&name);
        let names =
            SubsystemOptions { nqn: self.nqn.clone(), allowed: self.allow.clone(), name: identity };
        // Wrong names are refused before any file of the drive is made.
        names.check().map_err(|e| e.to_string())?;
        process::keep_out_of_reclaim();
        let drive = EmulatedDrive::open(options)
            .map_err(|error| format!("cannot open the drive {}: {error}", self.spec))?;
        for note in drive.notes() {
            log::warn!("{note}");
        }
        let description = drive.describe();
        let recorder = match &self.trace {
            None => None,
            Some(path) => Some(record(path, &drive)?),
        };
        let subsystem = Subsystem::new(drive, names, recorder).map_err(|e| e.to_string())?;
        let server = Server::start(listener, subsystem.clone())
            .map_err(|e| explain_system("serve the drive", &e))?;
        let invitation = invitation(server.address(), &subsystem, &description);
        if let Err(error) = control::serve(&name, &invitation, &subsystem) {
            log::warn!("slimio drive stats and top do not find this drive: {error}");
        }
        say(&invitation);
        wait(stopped);
        leave_at_last();
        server.stop();
        finish(&subsystem, self.trace.as_deref())
    }

    fn bind(&self) -> Result<TcpListener, String> {
        let listen = &self.listen;
        let addresses: Vec<SocketAddr> = listen
            .to_socket_addrs()
            .map_err(|e| format!("--listen {listen} is no HOST:PORT: {e}"))?
            .collect();
        TcpListener::bind(&addresses[..]).map_err(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => format!(
                "{listen} is in use: another program listens there; choose another port with \
                 --listen, or port 0 for a free one"
            ),
            std::io::ErrorKind::AddrNotAvailable => {
                format!("{listen} is no address of this machine; choose another with --listen")
            }
            _ => format!("cannot listen on {listen}: {error}"),
        })
    }
}

/// A name for the drive: the path of its file, or a random name if it has no file.
fn name_of(data: &DataPlace) -> String {
    match data {
        DataPlace::File(path) => control::name_of(path),
        DataPlace::Temporary | DataPlace::Dropped => {
            // The process id is not enough: in containers, it can be the same on several machines.
            let random = std::fs::read_to_string("/proc/sys/kernel/random/uuid");
            format!("temporary-{}-{}", std::process::id(), random.unwrap_or_default().trim())
        }
    }
}

/// The text from which a drive's NQN and its other identifiers are made, if none are given. The
/// text contains the machine's id: two machines may have a drive at the same path, and a host would
/// take two drives with the same identifiers for one drive.
fn identity_of(name: &str) -> String {
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    format!("{}{name}", machine.trim())
}

fn record(path: &Path, drive: &EmulatedDrive) -> Result<Recorder, String> {
    let device_bytes = drive.lba_count() * slimio_device::LBA_SIZE as u64;
    Recorder::create(path, device_bytes)
        .map_err(|e| format!("cannot make the trace {}: {e}; name a new file", path.display()))
}

/// Tells the user where the drive is, and how a host connects to the drive.
fn invitation(address: SocketAddr, subsystem: &Subsystem, description: &str) -> String {
    let (nqn, port) = (subsystem.nqn(), address.port());
    // A host can't connect to an unspecified address (0.0.0.0), which stands for all addresses of
    // this machine.
    let reached = match address.ip() {
        ip if ip.is_unspecified() => "ADDRESS".to_owned(),
        ip => ip.to_string(),
    };
    format!(
        "{description}\nserving {nqn} on {address}; on the host: nvme connect -t tcp -a {reached} \
         -s {port} -n {nqn}"
    )
}

/// Ends the process if it has not ended by itself after [`STOP_TIME_MAX`]. That happens if a disk
/// is slow, or if nobody reads the pipe that the process logs to. Nothing is lost: everything that
/// was acknowledged is in the drive's files.
fn leave_at_last() {
    std::thread::spawn(|| {
        std::thread::sleep(STOP_TIME_MAX);
        // Another thread writes the warning, because logging itself may hang.
        std::thread::spawn(|| {
            log::warn!(
                "the drive did not stop in {STOP_TIME_MAX:?}; its process ends as by kill -9"
            );
        });
        std::thread::sleep(Duration::from_millis(100));
        std::process::exit(1);
    });
}

/// Waits for a signal.
fn wait(mut stopped: UnixStream) {
    // A byte means that a signal came. If the read fails, the drive stops, too.
    let _ = stopped.read(&mut [0]);
}

fn finish(subsystem: &Arc<Subsystem>, trace: Option<&Path>) -> Result<(), String> {
    let (Some(recorder), Some(path)) = (subsystem.recorder(), trace) else { return Ok(()) };
    recorder.finish().map_err(|e| format!("the trace {} is incomplete: {e}", path.display()))
}
