//! The one binary: `slimio serve` and the tools for a volume. Picks the concrete device.

mod allocator;
mod exchange;
mod probe;
mod rollback;
mod serve;
mod tools;
mod volume;
mod waf;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use slimio_device::{Purpose, explain_refused_calls};

/// jemalloc returns free memory to the system from threads of its own. mimalloc, which is as fast,
/// returns it in the middle of a `free` (docs/memory.md has the times), and none of it when idle.
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
    /// Serve: [CONF] [--directive value]..., as redis-server takes them. Without anything: port
    /// 6379 on this machine, data in ./slimio-data/
    #[command(disable_help_flag = true)]
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
    /// Write the data set of a volume to an RDB file, also while a server has it
    Export(exchange::Export),
    /// Make a volume that holds what is in an RDB file
    Import(exchange::Import),
    /// Go back to the point in time that BGSAVE kept; what was written since is lost
    Rollback(rollback::Rollback),
    /// Show which I/O paths this machine allows, and which one a device would get
    Probe(probe::Probe),
    /// Write amplification: what an SSD writes to its media for what a host wrote, by replaying traces
    /// and by formula
    Waf(waf::Waf),
}

fn main() -> ExitCode {
    slimio_device::ignore_file_size_signal();
    slimio_server::set_allocator(allocator::describe());
    let args: Vec<String> =
        std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let result = match serve_args(&args) {
        Some(args) => are_text(std::env::args_os()).and_then(|()| serve::run(args)),
        None => match tool() {
            Command::Serve { args } => serve::run(&args),
            Command::Format(format) => format.run(),
            Command::Inspect(inspect) => inspect.run(),
            Command::Verify(verify) => verify.run(),
            Command::Export(export) => export.run(),
            Command::Import(import) => import.run(),
            Command::Rollback(rollback) => rollback.run(),
            Command::Probe(probe) => probe.run(),
            Command::Waf(waf) => waf.run(),
        },
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            say(&text);
            // Names the refused calls: an error of the kernel may be a filter's or a permission's.
            if let Some(refused) = explain_refused_calls(&[Purpose::Serving])
                && !text.contains(&refused)
            {
                say(&refused);
            }
            ExitCode::FAILURE
        }
    }
}

/// Refuses arguments that are not UTF-8. The tools' own paths may be anything.
fn are_text(mut args: impl Iterator<Item = OsString>) -> Result<(), String> {
    match args.find(|arg| arg.to_str().is_none()) {
        None => Ok(()),
        Some(arg) => Err(format!(
            "the argument {} is not UTF-8 text; a directive with such a value can be set by CONFIG SET",
            arg.display()
        )),
    }
}

/// Says why the program ends. If that fails, on a full disk for example, there is no need to panic.
fn say(text: &str) {
    let _: io::Result<()> = writeln!(io::stderr(), "slimio: {text}");
}

/// The command to run, when it is not to serve. Warnings go to standard error, for example that it
/// waits for a volume.
fn tool() -> Command {
    let command = Cli::parse().command;
    // Without a file, nothing can go wrong with it.
    drop(slimio_server::logging::init("warning", ""));
    command
}

/// The arguments of `serve`, which have redis-server's form rather than clap's. Without a command,
/// `serve` is meant.
fn serve_args(args: &[String]) -> Option<&[String]> {
    match args.get(1).map(String::as_str) {
        None => Some(&[]),
        Some("serve") if args.get(2).is_some_and(|a| a == "--help" || a == "-h") => None,
        Some("serve") => Some(&args[2..]),
        Some("--help" | "--version") => None,
        Some(flag) if flag.starts_with("--") => Some(&args[1..]),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    #[test]
    fn serve_is_what_is_meant_without_a_command() {
        let of = |line: &str| {
            let args: Vec<String> = std::iter::once("slimio")
                .chain(line.split_whitespace())
                .map(String::from)
                .collect();
            serve_args(&args).map(<[String]>::to_vec)
        };
        assert_eq!(of(""), Some(vec![]));
        assert_eq!(of("--port 7"), Some(vec!["--port".into(), "7".into()]));
        assert_eq!(of("serve x.conf --port 7").unwrap().len(), 3);
        assert_eq!(of("inspect --volume x"), None);
        assert_eq!(of("--version"), None);
    }
}
