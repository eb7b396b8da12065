//! The program `slimio`: `slimio serve` and the tools. The server is a library that works on any
//! kind of device. This program opens the device.

mod allocator;
mod drive;
mod exchange;
mod probe;
mod rollback;
mod serve;
mod shortcut;
mod tools;
mod volume;
mod waf;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use slimio_device::{Purpose, explain_refused_calls};

/// jemalloc returns free memory to the system from threads of its own. mimalloc is as fast, but
/// returns memory during a call of `free` (docs/memory.md says how long that takes), and returns
/// none while the program is idle.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// An in-memory database that speaks the Redis protocol and owns its whole path to the disk.
#[derive(Debug, Parser)]
#[command(name = "slimio", version, about, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server: [CONF] [--directive value]..., as for redis-server. Without arguments: port
    /// 6379 on this machine, data in ./slimio-data/
    Serve {
        /// A redis.conf-style file, then directives
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Make an empty volume
    Format(tools::Format),
    /// Show what is on a volume
    Inspect(tools::Inspect),
    /// Read a whole volume and check it
    Verify(tools::Verify),
    /// Write the data set of a volume to an RDB file, also while a server has the volume open
    Export(exchange::Export),
    /// Make a volume from an RDB file
    Import(exchange::Import),
    /// Go back to the point in time that BGSAVE kept; all later writes are lost
    Rollback(rollback::Rollback),
    /// Show which I/O paths this machine allows, and which one a device would get
    Probe(probe::Probe),
    /// Serve an emulated SSD to other programs and machines over NVMe/TCP, or show its counts
    #[command(subcommand)]
    Drive(drive::Drive),
    /// The short path for the log files of other programs
    Shortcut(shortcut::Shortcut),
    /// Compute an SSD's write amplification, by replaying traces or by formula
    Waf(waf::Waf),
}

fn main() -> ExitCode {
    slimio_server::set_allocator(allocator::describe());
    let args: Vec<OsString> = std::env::args_os().collect();
    if asks_for_version(&args) {
        tools::say(Cli::command().render_version().trim_end());
        return ExitCode::SUCCESS;
    }
    let result = match serve_args(&args) {
        Some(args) => {
            slimio_device::ignore_file_size_signal();
            serve::run(args)
        }
        None => match tool() {
            Command::Serve { args } => serve::run(&args),
            Command::Format(format) => format.run(),
            Command::Inspect(inspect) => inspect.run(),
            Command::Verify(verify) => verify.run(),
            Command::Export(export) => export.run(),
            Command::Import(import) => import.run(),
            Command::Rollback(rollback) => rollback.run(),
            Command::Probe(probe) => probe.run(),
            Command::Drive(drive) => drive.run(),
            Command::Shortcut(shortcut) => shortcut.run(),
            Command::Waf(waf) => waf.run(),
        },
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            say(&text);
            // Name the system calls that were refused, because a filter of system calls may have
            // caused the error.
            if let Some(refused) = explain_refused_calls(&[Purpose::Serving])
                && !text.contains(&refused)
            {
                say(&refused);
            }
            ExitCode::FAILURE
        }
    }
}

/// Says why the program ends. If the text can't be written, for example because a disk is full, the
/// error is ignored, because it is no reason to panic.
fn say(text: &str) {
    let _: io::Result<()> = writeln!(io::stderr(), "slimio: {text}");
}

/// Parses the command line of a tool. The tool's warnings, for example that it waits for a volume,
/// go to standard error.
fn tool() -> Command {
    let command = Cli::parse().command;
    // SIGXFSZ is the signal for a file that is too large. `shortcut` does not ignore it: otherwise,
    // the program that `shortcut run` starts would inherit this, and ignore the signal, too.
    if !matches!(command, Command::Shortcut(_)) {
        slimio_device::ignore_file_size_signal();
    }
    // This can't fail, because no file is opened.
    drop(slimio_server::logging::init("warning", Path::new("")));
    command
}

/// Whether only the version is asked for, as with `redis-server -v`.
fn asks_for_version(args: &[OsString]) -> bool {
    let behind = usize::from(args.get(1).is_some_and(|arg| arg == "serve")) + 1;
    matches!(&args[behind.min(args.len())..], [arg] if arg == "-v" || arg == "-V" || arg == "--version")
}

/// The arguments of `serve`, which have redis-server's form rather than clap's. If no command is
/// given, `serve` runs.
fn serve_args(args: &[OsString]) -> Option<&[OsString]> {
    let Some(first) = args.get(1) else { return Some(&[]) };
    match first.as_bytes() {
        b"serve" if args.get(2).is_some_and(|a| a == "--help" || a == "-h") => None,
        b"serve" => Some(&args[2..]),
        b"--help" => None,
        flag if flag.starts_with(b"--") => Some(&args[1..]),
        _ if is_configuration(first) => Some(&args[1..]),
        _ => None,
    }
}

/// Whether the first argument names a configuration file, as redis-server's first argument does. An
/// argument that looks like a path counts as a configuration file, even if no such file exists, and
/// so does the name of an existing file. The name of a command never counts as a configuration
/// file, even if a file has this name.
fn is_configuration(arg: &OsStr) -> bool {
    let is_command = || Cli::command().get_subcommands().any(|command| arg == command.get_name());
    let is_path = arg.as_bytes().contains(&b'/') || arg.as_bytes().ends_with(b".conf");
    !is_command() && (arg == "-" || is_path || Path::new(arg).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    fn arguments(line: &str) -> Vec<OsString> {
        std::iter::once("slimio").chain(line.split_whitespace()).map(OsString::from).collect()
    }

    #[test]
    fn serve_is_what_is_meant_without_a_command() {
        let of = |line: &str| {
            let args = arguments(line);
            serve_args(&args).map(<[OsString]>::to_vec)
        };
        assert_eq!(of(""), Some(vec![]));
        assert_eq!(of("--port 7"), Some(vec!["--port".into(), "7".into()]));
        assert_eq!(of("serve x.conf --port 7").unwrap().len(), 3);
        assert_eq!(of("inspect --volume x"), None);
        for line in ["serve --help", "serve -h"] {
            assert_eq!(of(line), None);
            let shown = Cli::try_parse_from(arguments(line)).expect_err("help is shown");
            assert_eq!(shown.kind(), clap::error::ErrorKind::DisplayHelp, "{line}");
        }
        assert_eq!(of("/no/such/file --port 7").unwrap().len(), 3, "serve names the missing file");
        assert_eq!(of("redis.conf").unwrap().len(), 1);
        assert_eq!(
            of("Cargo.toml").unwrap().len(),
            1,
            "an existing file counts as a configuration"
        );
        assert_eq!(of("-").unwrap().len(), 1, "standard input counts as a configuration");
        assert_eq!(of("inspekt"), None, "clap names the nearest command");
    }

    #[test]
    fn the_version_is_asked_for_as_of_redis_server() {
        for line in ["-v", "-V", "--version", "serve -v", "serve --version"] {
            assert!(asks_for_version(&arguments(line)), "{line}");
        }
        for line in ["", "serve", "--requirepass -v", "serve --requirepass --version", "waf -v"] {
            assert!(!asks_for_version(&arguments(line)), "{line}");
        }
    }
}
