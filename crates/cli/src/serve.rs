//! `slimio serve`

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::register_conditional_shutdown;
use signal_hook::low_level::pipe;
use slimio_device::{EngineChoice, PathOptions, Polling};
use slimio_server::config::Config;
use slimio_server::{Server, explain_system, open_files_limit};
use slimio_storage::Storage;

use crate::volume;

/// Serves until a signal or a client stops the server.
///
/// # Errors
/// If the server can't start, or ends because of an error. The error is a sentence for the user.
pub(crate) fn run(args: &[impl AsRef<OsStr>]) -> Result<(), String> {
    slimio_device::ignore_hang_up_signal();
    let mut config = Config::from_args(args).map_err(|e| e.to_string())?;
    let dir = config.path("dir");
    if dir != Path::new(".") {
        std::env::set_current_dir(dir).map_err(|e| {
            format!("cannot change to the directory {}: {e}; check dir", dir.display())
        })?;
    }
    if let Ok(here) = std::env::current_dir() {
        // The path is made absolute for `CONFIG GET` and `CONFIG REWRITE`.
        config.set("dir", here.into_os_string().into_vec()).map_err(|e| e.to_string())?;
    }
    // Logging begins after the change of directory because, as in Redis, a relative `logfile` is in
    // `dir`.
    slimio_server::logging::init(config.choice("loglevel"), config.path("logfile"))
        .map_err(|e| e.to_string())?;
    let (stop, signal) = UnixStream::pair().map_err(|e| explain_system("watch signals", &e))?;
    // It may take minutes to open the volume, if operations of the last server are still in flight.
    // The server reads the signal socket only after the volume is open. Until then, a signal would
    // have no effect. So while the volume is being opened, a signal ends the process at once.
    let is_opening = Arc::new(AtomicBool::new(true));
    for number in [SIGTERM, SIGINT] {
        register_conditional_shutdown(number, 0, is_opening.clone())
            .and_then(|_| signal.try_clone())
            .and_then(|writer| pipe::register(number, writer))
            .map_err(|e| explain_system("watch signals", &e))?;
    }
    raise_file_limit(config.int("maxclients") as u64);
    let storage = Some(open_volume(&config)?);
    is_opening.store(false, Ordering::Relaxed);
    let pidfile = config.path("pidfile").to_owned();
    let notifies = matches!(config.choice("supervised"), "systemd" | "auto");
    let mut server = Server::new(config, storage).map_err(|e| e.to_string())?;
    server.stop_when_readable(stop.into());
    let has_pidfile = !pidfile.as_os_str().is_empty();
    if has_pidfile && let Err(e) = write_pid(&pidfile) {
        log::warn!("cannot write the process id to {}: {e}", pidfile.display());
    }
    let result = server.run(|| {
        if notifies {
            notify_systemd();
        }
    });
    if has_pidfile {
        // An error is ignored, because the file may be gone already.
        let _ = std::fs::remove_file(&pidfile);
    }
    result
}

fn write_pid(path: &Path) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    writeln!(file, "{}", std::process::id())
}

fn open_volume(config: &Config) -> Result<Storage, String> {
    let engine = match config.choice("io-backend") {
        "plain" => EngineChoice::Plain,
        _ => EngineChoice::Best,
    };
    let passthrough = config.yes("volume-passthrough");
    let polling = Polling {
        submissions_idle: match config.int("snapshot-sqpoll-idle") {
            0 => None,
            idle_ms => Some(Duration::from_millis(idle_ms as u64)),
        },
        completions: config.yes("snapshot-iopoll"),
    };
    let options = PathOptions { engine, passthrough, polling, ..PathOptions::default() };
    let (spec, log_size_max) = (config.text("volume"), config.int("log-size-max") as u64);
    let storage = match config.text("volume-trace") {
        "" => volume::open(spec, options, true, log_size_max)?,
        trace => volume::open_traced(spec, options, log_size_max, trace)?,
    };
    if config.choice("volume-fallback") == "require" && !storage.is_best {
        return Err(format!(
            "volume-fallback is require, but the volume {} can only be reached through {}: {}; use \
             volume-fallback allow, or remove the cause",
            storage.name, storage.io_path, storage.why_not_better
        ));
    }
    Ok(storage)
}

/// Raises the limit of open files, so that it suffices for this many clients and the server's own
/// files.
fn raise_file_limit(clients: u64) {
    use rustix::process::{Resource, Rlimit, setrlimit};
    const OWN_FILES: u64 = 64;
    let wanted = clients + OWN_FILES;
    let Some((current, maximum)) = open_files_limit().filter(|limit| limit.0 < wanted) else {
        return;
    };
    let reachable = maximum.min(wanted);
    let maximum = Some(maximum).filter(|maximum| *maximum != u64::MAX);
    let raised = Rlimit { current: Some(reachable), maximum };
    if setrlimit(Resource::Nofile, raised).is_err() || reachable < wanted {
        log::warn!(
            "only {} files may be open (ulimit -n), so fewer clients can connect than maxclients \
             ({clients}) allows",
            reachable.max(current)
        );
    }
}

/// Tells systemd that the server is ready, if systemd has named a socket for this message.
fn notify_systemd() {
    let Ok(path) = std::env::var("NOTIFY_SOCKET") else { return };
    let sent = UnixDatagram::unbound().and_then(|socket| {
        if let Some(name) = path.strip_prefix('@') {
            use std::os::linux::net::SocketAddrExt as _;
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
            socket.send_to_addr(b"READY=1", &address)
        } else {
            socket.send_to(b"READY=1", Path::new(&path))
        }
    });
    if let Err(e) = sent {
        log::warn!("cannot tell systemd that the server is ready: {e}");
    }
}
