//! Opens the sockets that accept connections.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::config::{Config, ConfigError};
use crate::explain::explain_system;

/// How long to retry an address that is in use. After a server was killed, its address stays in use
/// for a moment, until the kernel has closed the sockets that the server's io_uring held.
const FREE_WITHIN: Duration = Duration::from_secs(1);
/// Time between two tries to listen on an address that is in use.
const FREE_LOOK: Duration = Duration::from_millis(10);

/// Permissions of a Unix socket if `unixsocketperm` is not set. Only the socket's owner may
/// connect, because clients may read everything.
const SOCKET_MODE: u32 = 0o600;

/// A socket that accepts connections.
#[derive(Debug)]
pub struct Listener {
    /// The socket, in blocking mode.
    pub fd: OwnedFd,
    /// The TCP address that the socket is bound to; `None` for a Unix socket.
    pub address: Option<SocketAddr>,
}

/// Opens the sockets that `bind`, `port` and `unixsocket` name. An address in `bind` with a `-`
/// before it is optional: if this machine does not have the address, it is left out.
///
/// # Errors
/// When a required address or the Unix socket cannot be bound, or when there is nothing to listen
/// on. An optional address, too, causes an error when it is in use or when no descriptor is left.
pub fn open(config: &Config) -> Result<Vec<Listener>, ConfigError> {
    let mut listeners = Vec::new();
    let backlog = config.int("tcp-backlog") as i32;
    let port = config.int("port") as u16;
    if port != 0 || config.bytes("unixsocket").is_empty() {
        for word in config.text("bind").split_ascii_whitespace() {
            let (name, optional) = match word.strip_prefix('-') {
                Some(rest) => (rest, true),
                None => (word, false),
            };
            let ip = parse_ip(name)?;
            // With port 0, which tests use, all addresses share the port that the kernel chose for
            // the first address.
            let chosen = listeners
                .iter()
                .find_map(|l: &Listener| l.address)
                .filter(|_| port == 0)
                .map_or(port, |a| a.port());
            match listen_when_free(SocketAddr::new(ip, chosen), backlog) {
                Ok(listener) => listeners.push(listener),
                Err(errno @ (Errno::MFILE | Errno::NFILE)) => {
                    let doing = format!("listen on {ip} port {chosen}");
                    return Err(ConfigError(explain_system(&doing, &errno.into())));
                }
                Err(errno) if optional && !matches!(errno, Errno::ADDRINUSE) => {
                    log::debug!("not listening on {ip}: {errno}");
                }
                Err(Errno::ADDRINUSE) => {
                    return Err(ConfigError(format!(
                        "port {chosen} on {ip} is in use: stop the server that uses this port, or \
                         choose another port with --port"
                    )));
                }
                Err(errno) => {
                    return Err(ConfigError(format!(
                        "cannot listen on {ip} port {chosen}: {errno}; check bind and port"
                    )));
                }
            }
        }
    }
    let path = config.path("unixsocket");
    if !path.as_os_str().is_empty() {
        listeners.push(listen_unix(path, config.int("unixsocketperm") as u32, backlog)?);
    }
    if listeners.is_empty() {
        return Err(ConfigError("nothing to listen on: set port, bind or unixsocket".into()));
    }
    Ok(listeners)
}

fn parse_ip(name: &str) -> Result<IpAddr, ConfigError> {
    match name {
        "*" => Ok(IpAddr::from([0, 0, 0, 0])),
        "::*" => Ok(IpAddr::from([0u16; 8])),
        "localhost" => Ok(IpAddr::from([127, 0, 0, 1])),
        _ => name.parse().map_err(|_| {
            ConfigError(format!("bind: '{name}' is not an IP address (like 127.0.0.1, ::1 or *)"))
        }),
    }
}

/// Listens on an address. If the address is in use, retries for [`FREE_WITHIN`].
fn listen_when_free(address: SocketAddr, backlog: i32) -> Result<Listener, Errno> {
    let deadline = Instant::now() + FREE_WITHIN;
    loop {
        match listen_tcp(address, backlog) {
            Err(Errno::ADDRINUSE) if Instant::now() < deadline => std::thread::sleep(FREE_LOOK),
            outcome => return outcome,
        }
    }
}

fn listen_tcp(address: SocketAddr, backlog: i32) -> Result<Listener, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true)?;
    }
    rustix::net::bind(&fd, &address)?;
    rustix::net::listen(&fd, backlog)?;
    let bound = rustix::net::getsockname(&fd)?;
    Ok(Listener { address: SocketAddr::try_from(bound).ok(), fd })
}

fn listen_unix(path: &Path, permissions: u32, backlog: i32) -> Result<Listener, ConfigError> {
    let shown = path.display();
    let failed = |e: std::io::Error| {
        let doing = format!("listen on the Unix socket {shown}");
        ConfigError(match Errno::from_io_error(&e) {
            Some(Errno::MFILE | Errno::NFILE) => explain_system(&doing, &e),
            _ => format!("cannot {doing}: {e}; check unixsocket"),
        })
    };
    // A socket that still answers belongs to a running server, so it is not replaced. A socket that
    // a killed server left on the file system is replaced.
    if UnixStream::connect(path).is_ok() {
        return Err(ConfigError(format!(
            "the Unix socket {shown} is in use: stop the server that uses this socket, or choose \
             another path with --unixsocket"
        )));
    }
    let is_socket = std::fs::symlink_metadata(path)
        .is_ok_and(|m| std::os::unix::fs::FileTypeExt::is_socket(&m.file_type()));
    if is_socket {
        std::fs::remove_file(path).map_err(failed)?;
    }
    let listen = || {
        let kind = SocketType::STREAM;
        let fd = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        rustix::net::bind(&fd, &SocketAddrUnix::new(path)?)?;
        // No client can connect before `listen` is called below, so the permissions hold for every
        // client.
        let permissions = if permissions == 0 { SOCKET_MODE } else { permissions };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(permissions))?;
        rustix::net::listen(&fd, backlog)?;
        Ok(fd)
    };
    Ok(Listener { fd: listen().map_err(failed)?, address: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_said_with_the_remedy() {
        let mut config = Config::default();
        config.set("port", "0").unwrap();
        config.set("bind", "127.0.0.1").unwrap();
        let first = open(&config).unwrap();
        let port = first[0].address.unwrap().port();
        config.set("port", port.to_string()).unwrap();
        let error = open(&config).unwrap_err().0;
        assert!(error.contains(&format!("port {port} on 127.0.0.1 is in use")), "{error}");
        assert!(error.contains("--port"), "{error}");
        config.set("bind", "nonsense").unwrap();
        assert!(open(&config).unwrap_err().0.contains("'nonsense' is not an IP address"));
    }

    #[test]
    fn a_dead_unix_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let mut config = Config::default();
        config.set("port", "0").unwrap();
        config.set("unixsocket", path.to_str().unwrap()).unwrap();
        config.set("unixsocketperm", "700").unwrap();
        let live = open(&config).unwrap();
        assert_eq!(live.len(), 1, "with port 0 and a Unix socket, the server uses no TCP");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(open(&config).unwrap_err().0.contains("is in use"));
        drop(live);
        open(&config).unwrap();
    }
}
