//! The options of a connection.

use std::net::SocketAddr;
use std::time::Duration;

use slimio_nvme::pdu::Digests;

/// The settings of a connection, with the target's address and the names of both sides.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address on which the target listens.
    pub address: SocketAddr,
    /// The subsystem's name.
    pub subsystem: String,
    /// This host's name.
    pub host: String,
    /// This host's identifier. All queues of a controller have to give the same identifier.
    pub host_id: [u8; 16],
    /// The digests that the host asks for. The target decides which of them the connection uses.
    pub digests: Digests,
    /// The alignment in bytes that this host wants for the data in PDUs from the target. It is a
    /// multiple of 4, from 4 to 128.
    pub alignment: usize,
    /// Keep alive timeout in milliseconds. Zero means that there is no timeout.
    pub keep_alive_ms: u32,
    /// Whether the submission queues have flow control. Without flow control, a successful read
    /// needs no response capsule.
    pub has_flow_control: bool,
    /// The most in-capsule data that I/O queues send, in bytes. The controller's own limit holds,
    /// too. With zero, the controller asks for all data with R2Ts.
    pub in_capsule_size_max: usize,
    /// The longest time that a call may take.
    pub time_max: Duration,
}

impl Options {
    /// The usual options for a subsystem at an address.
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
