//! How to connect.

use std::net::SocketAddr;
use std::time::Duration;

use slimio_nvme::pdu::Digests;

/// How to connect, and to what.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the target listens.
    pub address: SocketAddr,
    /// The subsystem's name.
    pub subsystem: String,
    /// This host's name.
    pub host: String,
    /// This host's identifier. One controller's queues all have the same.
    pub host_id: [u8; 16],
    /// The digests that are asked for. The target decides.
    pub digests: Digests,
    /// What data to this host is to be aligned to within a PDU, in bytes: 4 to 128, a multiple of 4.
    pub alignment: usize,
    /// Keep alive timeout in milliseconds; zero: none.
    pub keep_alive_ms: u32,
    /// Whether the queues have flow control. Without it, a successful read needs no response.
    pub has_flow_control: bool,
    /// The most in-capsule data, in bytes, of I/O queues. What the controller takes is the limit
    /// anyway; zero: all data is asked for by R2T.
    pub in_capsule_size_max: usize,
    /// How long a call may take at most.
    pub time_max: Duration,
}

impl Options {
    /// The usual ones, for a subsystem at an address.
    pub fn new(address: SocketAddr, subsystem: &str) -> Self {
        Self {
            address,
            subsystem: subsystem.to_owned(),
            host: "nqn.2014-08.org.nvmexpress:uuid:51d10000-0000-8000-8000-000000000001".into(),
            host_id: [0x51; 16],
            digests: Digests::default(),
            alignment: 4,
            keep_alive_ms: 0,
            has_flow_control: true,
            in_capsule_size_max: usize::MAX,
            time_max: Duration::from_secs(30),
        }
    }
}
