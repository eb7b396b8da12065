//! The address at which a server listens, and connections to that address.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use crate::error::{Doing, Result};

/// The address at which a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl Address {
    /// TCP port `port` on the loopback address of this machine.
    pub fn local(port: u16) -> Self {
        Self::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    }

    /// Opens a blocking connection, and returns its descriptor. A TCP connection has Nagle's
    /// algorithm turned off.
    pub fn connect(&self) -> Result<OwnedFd> {
        let what = || format!("connecting to {self}");
        match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address).doing(what())?;
                stream.set_nodelay(true).doing(what())?;
                Ok(stream.into())
            }
            Self::Unix(path) => Ok(UnixStream::connect(path).doing(what())?.into()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Returns a port that was free a moment ago. Another process may take the port before the caller
/// does. So a caller that starts a server on the port must check which process answers on the port,
/// and pick another port if necessary.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).doing("looking for a free port")?;
    Ok(listener.local_addr().doing("looking for a free port")?.port())
}
