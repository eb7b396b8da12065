//! `slimio export` and `slimio import`: the data set as an RDB file.

use std::fs::File;
use std::io::{BufRead as _, BufReader, IsTerminal as _, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use slimio_device::{OpenError, PathOptions};
use slimio_server::config::Config;
use slimio_server::exchange::{
    ExportOptions, Exporter, Keyspace, RdbVersion, SlotSource, export_slot, export_volume,
    import_file, key_count, load_volume, write_volume,
};
use slimio_server::explain;
use slimio_storage::{Area, RootChoice, SlotName, SlotSummary, superblock};

use crate::tools::say;
use crate::volume;

/// Time from one line about the progress to the next.
const SAY_EVERY: Duration = Duration::from_secs(1);

/// `slimio export`
#[derive(Debug, Args)]
pub(crate) struct Export {
    /// Directory, NVMe namespace, block device or emulated SSD that holds the volume
    #[arg(long, default_value = "./slimio-data/")]
    volume: String,
    /// RDB file to write; an existing file is replaced when the new file is complete
    #[arg(long)]
    out: PathBuf,
    /// Version of the RDB format to write; Redis 7.0 uses version 10
    #[arg(long = "rdb-version", default_value_t = RdbVersion::DEFAULT.number())]
    version: u16,
    /// Leave strings as they are instead of compressing them
    #[arg(long)]
    uncompressed: bool,
    /// Export the point in time that BGSAVE kept, instead of the newest state
    #[arg(long)]
    snapshot: bool,
    /// Address of the server that has the volume open: host:port, or the path of its Unix socket
    #[arg(long, default_value = "127.0.0.1:6379")]
    server: String,
    /// File that holds the server's password
    #[arg(long)]
    password_file: Option<PathBuf>,
}

impl Export {
    pub(crate) fn run(&self) -> Result<(), String> {
        let version = RdbVersion::to_write(self.version).ok_or_else(|| {
            format!(
                "RDB version {} cannot be written; choose --rdb-version {} to {}",
                self.version,
                RdbVersion::WRITE_MIN.number(),
                RdbVersion::WRITE_MAX.number()
            )
        })?;
        let options = ExportOptions {
            version,
            compresses: !self.uncompressed,
            batch_size: ExportOptions::BATCH_SIZE,
        };
        let began = Instant::now();
        let path = Path::new(&self.volume);
        self.check_out(path)?;
        let opened = slimio_volume::open(path, PathOptions::default(), false, u64::MAX);
        let exporter = match opened {
            Ok(mut storage) if storage.exists => {
                let root = if self.snapshot { RootChoice::OnDemand } else { RootChoice::InForce };
                let mut exporter = Exporter::create(&self.out, options)?;
                let heard = &mut Progress::new("exporting").heard();
                export_volume(&mut storage, root, &mut exporter, heard)?;
                exporter
            }
            Ok(storage) => {
                return Err(format!(
                    "there is no SlimIO volume in {}; check --volume",
                    storage.name
                ));
            }
            Err(OpenError::InUse { .. }) => self.run_beside(path, options)?,
            Err(error) => return Err(volume::explain(&error, &self.volume)),
        };
        let keys = exporter.keys();
        let size = exporter.finish()?;
        say(&format!(
            "wrote {keys} keys, {size} bytes, to {} in {:.1} s (RDB version {})",
            self.out.display(),
            began.elapsed().as_secs_f64(),
            version.number()
        ));
        Ok(())
    }

    /// Refuses to write into the volume's directory, because the new file could replace one of the
    /// volume's files.
    fn check_out(&self, volume: &Path) -> Result<(), String> {
        let folder = self.out.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).canonicalize();
        match (folder, volume.canonicalize()) {
            (Ok(folder), Ok(volume)) if folder == volume => Err(format!(
                "{} would lie among the volume's own files; choose another --out",
                self.out.display()
            )),
            _ => Ok(()),
        }
    }

    /// Exports a volume that a server has open: the server pins a snapshot, and the export reads
    /// that snapshot.
    fn run_beside(&self, path: &Path, options: ExportOptions) -> Result<Exporter, String> {
        let mut server = Connection::open(&self.server)?;
        if let Some(file) = &self.password_file {
            let text = std::fs::read(file)
                .map_err(|e| format!("cannot read the password from {}: {e}", file.display()))?;
            server.call(&[b"AUTH", without_line_end(&text)])?;
        }
        // The volume is opened before the server is asked for a snapshot. In the other order, if
        // the volume could not be read here, the server would have replaced its on-demand snapshot
        // for nothing.
        let mut media = slimio_volume::open_beside(path)
            .map_err(|error| volume::explain(&error, &self.volume))?;
        let mut superblock = || {
            let failed =
                |error| format!("cannot read the volume {}: {}", self.volume, explain(&error));
            superblock(&mut *media).map_err(failed)
        };
        superblock()?;
        let pinned = if self.snapshot {
            server.call(&[b"SLIMIO", b"PIN", b"LAST"])?
        } else {
            if std::io::stderr().is_terminal() {
                // It may take as long to make the snapshot as to read it. Until the server has made
                // the snapshot, no progress can be shown.
                eprintln!("exporting: the server at {} takes a snapshot", self.server);
            }
            server.call(&[b"SLIMIO", b"PIN"])?
        };
        let superblock = superblock()?;
        let summary = superblock.snapshots.all().find(|held| is_named(held, &pinned));
        let summary = *summary.ok_or_else(|| {
            format!("the server at {} has another volume; check --server", self.server)
        })?;
        let mut device = media
            .open_path(Area::Snapshot(summary.slot))
            .map_err(|error| volume::explain(&error, &self.volume))?;
        let mut exporter = Exporter::create(&self.out, options)?;
        let source = SlotSource { device: &mut *device, volume_id: superblock.volume_id, summary };
        export_slot(source, &mut exporter, &mut Progress::new("exporting").heard())?;
        // The server keeps the snapshot pinned as long as the connection is open. So if the server
        // still answers now, nothing has replaced the snapshot while it was being read.
        server.call(&[b"PING"]).map_err(|why| {
            format!("the server released the snapshot while it was read ({why}); try again")
        })?;
        Ok(exporter)
    }
}

/// The text of a file that has one line, without the line ending (`\n` or `\r\n`).
fn without_line_end(mut text: &[u8]) -> &[u8] {
    while let Some((b'\n' | b'\r', before)) = text.split_last() {
        text = before;
    }
    text
}

/// Whether this is the snapshot that the server named. A name has the area, the number and the
/// epoch of a snapshot.
fn is_named(summary: &SlotSummary, name: &str) -> bool {
    let area = SlotName::ALL.into_iter().find(|slot| *slot == summary.slot).map(Area::Snapshot);
    let area = area.map_or("", Area::name);
    name == format!("{area} {} {}", summary.number, summary.epoch)
}

/// `slimio import`
#[derive(Debug, Args)]
pub(crate) struct Import {
    /// Directory, NVMe namespace, block device or emulated SSD to make a volume in; if there is a
    /// volume already, it must be empty
    #[arg(long, default_value = "./slimio-data/")]
    volume: String,
    /// RDB file to read
    #[arg(long = "in")]
    input: PathBuf,
    /// Number of databases that the server will have
    #[arg(long, default_value_t = 16)]
    databases: u32,
}

impl Import {
    /// Reads the file, then makes the volume.
    pub(crate) fn run(&self) -> Result<(), String> {
        let began = Instant::now();
        let mut config = Config::default();
        config.set("databases", self.databases.to_string()).map_err(|e| e.to_string())?;
        let opened = File::open(&self.input).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (size, file) =
            opened.map_err(|e| format!("cannot read {}: {e}", self.input.display()))?;
        let mut keyspace = import_file(file, size, &config, &mut Progress::new("reading").heard())
            .map_err(|why| {
                format!("cannot import {}: {why}; no volume was made", self.input.display())
            })?;
        let path = Path::new(&self.volume);
        let is_new_folder = !path.exists();
        let result = self.write(&config, &mut keyspace);
        if result.is_err() && is_new_folder && path.is_dir() {
            // The folder holds only what this import has just made.
            let _ = std::fs::remove_dir_all(path);
        }
        result?;
        let keys = key_count(&keyspace);
        say(&format!(
            "read {keys} keys from {} into {} in {:.1} s",
            self.input.display(),
            self.volume,
            began.elapsed().as_secs_f64()
        ));
        Ok(())
    }

    fn write(&self, config: &Config, keyspace: &mut Keyspace) -> Result<(), String> {
        let mut storage = volume::open(&self.volume, PathOptions::default(), true, u64::MAX)?;
        if storage.exists {
            let there = load_volume(&mut storage, RootChoice::InForce, &mut |_, _| {})?;
            let keys = key_count(&there);
            if keys > 0 {
                return Err(format!(
                    "the volume {} holds {keys} keys; choose another --volume",
                    storage.name
                ));
            }
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_ms = since.as_millis() as u64;
        write_volume(&mut storage, config, keyspace, now_ms, &mut Progress::new("writing").heard())
    }
}

/// Shows progress on the terminal.
pub(crate) struct Progress {
    doing: &'static str,
    next: Instant,
}

impl Progress {
    pub(crate) fn new(doing: &'static str) -> Self {
        Self { doing, next: Instant::now() + SAY_EVERY }
    }

    pub(crate) fn heard(mut self) -> impl FnMut(u64, u64) {
        let is_shown = std::io::stderr().is_terminal();
        move |done, total| {
            if is_shown && Instant::now() >= self.next {
                self.next = Instant::now() + SAY_EVERY;
                eprintln!("{}: {} %", self.doing, done * 100 / total.max(1));
            }
        }
    }
}

struct Connection {
    stream: BufReader<Box<dyn Stream>>,
    address: String,
}

/// A stream to a server.
trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

impl Connection {
    fn open(address: &str) -> Result<Self, String> {
        let stream: std::io::Result<Box<dyn Stream>> = if address.contains('/') {
            UnixStream::connect(address).map(|stream| Box::new(stream) as Box<dyn Stream>)
        } else {
            TcpStream::connect(address).map(|stream| Box::new(stream) as Box<dyn Stream>)
        };
        let stream = stream.map_err(|e| {
            format!(
                "a server has the volume open, and {address} cannot be reached: {e}; give the \
                 server's address with --server, or stop the server"
            )
        })?;
        Ok(Self { stream: BufReader::new(stream), address: address.to_owned() })
    }

    /// Sends a request and returns its reply, which must be a status or a string.
    fn call(&mut self, args: &[&[u8]]) -> Result<String, String> {
        let mut request = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            request.extend(format!("${}\r\n", arg.len()).into_bytes());
            request.extend([arg, &b"\r\n"[..]].concat());
        }
        let lost =
            |e: std::io::Error| format!("the server at {} does not answer: {e}", self.address);
        self.stream.get_mut().write_all(&request).map_err(lost)?;
        let mut line = String::new();
        self.stream.read_line(&mut line).map_err(lost)?;
        let line = line.trim_end();
        match line.as_bytes().first() {
            Some(b'+') => Ok(line[1..].to_owned()),
            Some(b'$') => {
                let mut text = String::new();
                self.stream.read_line(&mut text).map_err(lost)?;
                Ok(text.trim_end().to_owned())
            }
            Some(b'-') => Err(format!("the server at {} says: {}", self.address, &line[1..])),
            _ => Err(format!("the server at {} has closed the connection", self.address)),
        }
    }
}
