//! How the tools find a drive that is being served, and ask it for its counters.
//!
//! A drive listens on an abstract Unix socket: the socket has no file, so a killed process leaves
//! nothing behind. The socket's name is made from the drive's name. A client sends one word. For
//! `json`, the drive answers with one line of JSON. For `page`, it sends a page each second until
//! the client hangs up; a form feed ends each page.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::Uid;
use slimio_target::Subsystem;

use super::page;

/// The prefix of every drive's socket name.
const PREFIX: &str = "slimio-drive/";
/// Longest name of a drive in a socket's name, in bytes. The kernel allows 107 bytes for the whole
/// name of a socket. If a drive's name is longer than `NAME_SIZE_MAX`, only its end is used.
const NAME_SIZE_MAX: usize = 90;
/// Number of clients that may ask at the same time.
const ASKING_MAX: usize = 8;
/// The byte that ends each page, a form feed.
pub(super) const PAGE_END: u8 = 0x0c;
/// Time from one page to the next.
const PAUSE: Duration = Duration::from_secs(1);
/// Time from a failed `accept` to the next try.
const RETRY: Duration = Duration::from_millis(100);
/// How long a client may take to send its word, and how long the drive may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest word that the drive reads from a client, in bytes.
const WORD_SIZE_MAX: u64 = 16;

/// The name of the drive at a path.
pub(super) fn name_of(path: &Path) -> String {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    // The file may not exist yet, but its directory does. So the directory is resolved instead, and
    // the drive has the same name before and after the file is made.
    let whole = absolute.canonicalize().ok().or_else(|| {
        let directory = absolute.parent()?.canonicalize().ok()?;
        Some(directory.join(absolute.file_name()?))
    });
    whole.unwrap_or(absolute).display().to_string()
}

fn address_of(name: &str) -> io::Result<SocketAddr> {
    let mut start = name.len().saturating_sub(NAME_SIZE_MAX);
    while !name.is_char_boundary(start) {
        start += 1;
    }
    SocketAddr::from_abstract_name(format!("{PREFIX}{}", &name[start..]))
}

/// Starts threads that answer questions about a drive until the process ends.
pub(super) fn serve(name: &str, about: &str, subsystem: &Arc<Subsystem>) -> io::Result<()> {
    let listener = UnixListener::bind_addr(&address_of(name)?)?;
    // A weak reference, because the drive must end with its server, not with these threads.
    let (about, subsystem) = (about.to_owned(), Arc::downgrade(subsystem));
    let asking = Arc::new(AtomicUsize::new(0));
    std::thread::Builder::new().name("control".into()).spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                // The process may have no file descriptor left. The next try comes later, because
                // other threads must close some first.
                std::thread::sleep(RETRY);
                continue;
            };
            if !is_allowed(&stream) || asking.load(Ordering::Relaxed) >= ASKING_MAX {
                continue;
            }
            asking.fetch_add(1, Ordering::Relaxed);
            let (about, subsystem, count) = (about.clone(), subsystem.clone(), asking.clone());
            let answer = move || {
                // An error means that the client has hung up, that the client has sent nothing in
                // time, or that the drive is gone.
                let _: io::Result<()> = answer(stream, &about, &subsystem);
                count.fetch_sub(1, Ordering::Relaxed);
            };
            if std::thread::Builder::new().name("control".into()).spawn(answer).is_err() {
                asking.fetch_sub(1, Ordering::Relaxed);
            }
        }
    })?;
    Ok(())
}

/// Whether the process at the other end runs as the same user as this process, or as root. The
/// kernel does not check the user: any user can connect to the socket, and any user can bind the
/// socket's name before the drive does.
fn is_allowed(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    socket_peercred(stream).is_ok_and(|peer| is_trusted(peer.uid, own))
}

fn is_trusted(peer: Uid, own: Uid) -> bool {
    peer == own || peer.is_root()
}

fn answer(mut stream: UnixStream, about: &str, subsystem: &Weak<Subsystem>) -> io::Result<()> {
    let counts = || {
        let subsystem = subsystem.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        Ok::<_, io::Error>((subsystem.nqn().to_owned(), subsystem.statistics()))
    };
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut word = String::new();
    BufReader::new((&stream).take(WORD_SIZE_MAX)).read_line(&mut word)?;
    if word.trim() != "page" {
        let (nqn, counts) = counts()?;
        return writeln!(stream, "{}", page::json(&nqn, &counts));
    }
    let (_, mut before) = counts()?;
    loop {
        std::thread::sleep(PAUSE);
        let (_, now) = counts()?;
        let mut text = page::text(about, &before, &now).into_bytes();
        text.push(PAGE_END);
        stream.write_all(&text)?;
        before = now;
    }
}

/// Sends `word` to a drive. If `drive` is `None`, the only drive that is served on this machine is
/// asked.
///
/// # Errors
/// If the drive can't be asked, or if `drive` is `None` and not exactly one drive is served. The
/// error is a sentence for the user.
pub(super) fn ask(drive: Option<&Path>, word: &str) -> Result<BufReader<UnixStream>, String> {
    let name = match drive {
        Some(path) => name_of(path),
        None => only_one(&served())?,
    };
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
            format!("no drive {name} is served on this machine; see slimio drive serve")
        }
        io::ErrorKind::PermissionDenied => {
            format!("the drive {name} is served by another user; ask as that user")
        }
        _ => format!("cannot ask about the drive {name}: {error}"),
    };
    let connect = || {
        let mut stream = UnixStream::connect_addr(&address_of(&name)?)?;
        if !is_allowed(&stream) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        stream.set_read_timeout(Some(PATIENCE))?;
        writeln!(stream, "{word}")?;
        Ok(BufReader::new(stream))
    };
    connect().map_err(failed)
}

/// Explains to the user why the drive does not answer.
pub(super) fn unanswered(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!(
            "the drive has not answered in {PATIENCE:?}: its process is stopped, or waits for its disk"
        ),
        io::ErrorKind::ConnectionReset => {
            format!("the drive does not answer: at most {ASKING_MAX} clients may ask at once")
        }
        _ => format!("the drive does not answer: {error}"),
    }
}

fn only_one(names: &[String]) -> Result<String, String> {
    match names {
        [] => Err("no drive is served on this machine; see slimio drive serve".into()),
        [name] => Ok(name.clone()),
        several => Err(format!("several drives are served; name one: {}", several.join(", "))),
    }
}

/// The names of the drives that are served on this machine.
fn served() -> Vec<String> {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let mut names: Vec<String> = sockets.lines().filter_map(name_in).map(str::to_owned).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The drive's name in a line of `/proc/net/unix`, whose last field is the socket's name.
fn name_in(line: &str) -> Option<&str> {
    let (_, name) = line.split_once(" @")?;
    name.strip_prefix(PREFIX)
}

#[cfg(test)]
mod tests {
    use slimio_ssd::{Clock, DriveOptions, EmulatedDrive};
    use slimio_target::SubsystemOptions;

    use super::*;

    #[test]
    fn drives_are_found_among_all_sockets() {
        let line = "0000000000000000: 00000002 00000000 00010000 0001 01 42 @slimio-drive//a b";
        assert_eq!(name_in(line), Some("/a b"));
        assert_eq!(name_in("0000: 00000002 00000000 00010000 0001 01 42 /run/dbus"), None);
        assert_eq!(name_in("0000: 00000002 00000000 00010000 0001 01 42"), None);
    }

    #[test]
    fn others_are_not_trusted_and_root_is() {
        let [root, own, other] = [0, 1000, 1001].map(Uid::from_raw);
        assert!(is_trusted(own, own) && is_trusted(root, own) && is_trusted(root, root));
        assert!(!is_trusted(other, own) && !is_trusted(own, root));
    }

    /// A drive makes its last checkpoint when its last owner is gone, so the threads that answer
    /// must not own the drive.
    #[test]
    fn who_answers_questions_does_not_keep_the_drive() {
        let options =
            DriveOptions::parse("64M,timing=none", Clock::Real).expect("the options are valid");
        let drive = EmulatedDrive::open(options).expect("there is room for a drive");
        let subsystem = Subsystem::new(drive, SubsystemOptions::default(), None);
        let subsystem = subsystem.expect("the names are valid");
        let name = format!("test-{}", std::process::id());
        serve(&name, "about", &subsystem).expect("the name is free");
        let ask = || {
            let address = address_of(&name).expect("the socket's name is short enough");
            let mut stream = UnixStream::connect_addr(&address).expect("the drive listens");
            writeln!(stream, "json").expect("the drive reads the word");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("the answer is text");
            answer
        };
        assert!(ask().contains("host_bytes"));
        let known = Arc::downgrade(&subsystem);
        drop(subsystem);
        // The thread that gave the answer owns the drive until the thread ends.
        while known.strong_count() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(ask(), "");
    }

    #[test]
    fn one_drive_needs_no_name() {
        assert_eq!(only_one(&["/a".into()]), Ok("/a".into()));
        assert!(only_one(&[]).unwrap_err().contains("slimio drive serve"));
        assert!(only_one(&["/a".into(), "/b".into()]).unwrap_err().contains("/a, /b"));
    }

    #[test]
    fn a_long_name_is_cut_to_its_end() {
        let long = format!("/{}é", "x".repeat(200));
        let address = address_of(&long).expect("the cut name is short enough");
        let name = address.as_abstract_name().expect("the address has a name");
        assert!(name.len() <= 107 && name.ends_with("xé".as_bytes()));
    }
}
