//! A target whose drive takes no time for its operations, and hosts that connect to it.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use slimio_device::WholeDevice as _;
use slimio_initiator::{Host, IoQueue, Options};
use slimio_nvme::pdu::Digests;
use slimio_ssd::{Clock, DriveOptions, EmulatedDrive};
use slimio_target::{Server, Subsystem, SubsystemOptions};

pub(crate) const LBA_SIZE: usize = 4096;
/// Long enough for any machine, so that only a hang exceeds it.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(120);

pub(crate) struct Target {
    pub(crate) server: Server,
    pub(crate) subsystem: Arc<Subsystem>,
}

impl Target {
    pub(crate) fn start() -> Self {
        Self::allowing(&[])
    }

    /// Starts a target that lets only hosts with these names connect. An empty list allows every
    /// host.
    pub(crate) fn allowing(hosts: &[&str]) -> Self {
        let options = DriveOptions::parse("64M,timing=none", Clock::Real)
            .expect("the options of the drive are valid");
        let drive = EmulatedDrive::open(options).expect("there is enough memory for the drive");
        let allowed = hosts.iter().map(|&host| host.to_owned()).collect();
        let options =
            SubsystemOptions { name: "test".into(), allowed, ..SubsystemOptions::default() };
        let subsystem = Subsystem::new(drive, options, None)
            .expect("the names of the subsystem and its hosts are valid");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let server =
            Server::start(listener, subsystem.clone()).expect("the server can start its threads");
        Self { server, subsystem }
    }

    pub(crate) fn options(&self) -> Options {
        let options = Options::new(self.server.address(), self.subsystem.nqn());
        Options { time_max: TIME_MAX, ..options }
    }

    pub(crate) fn connect(&self) -> (Host, IoQueue) {
        connect(&self.options())
    }

    pub(crate) fn lba_count(&self) -> u64 {
        self.subsystem.drive().lba_count()
    }
}

pub(crate) fn connect(options: &Options) -> (Host, IoQueue) {
    let mut host = Host::connect(options).expect("the target answers");
    let queue = host.open_queue(1, 128).expect("the target opens an I/O queue");
    (host, queue)
}

pub(crate) fn all_digests() -> [Digests; 4] {
    [(false, false), (true, false), (false, true), (true, true)]
        .map(|(header, data)| Digests { header, data })
}

/// Blocks whose content depends on the seed, so that no two seeds give the same content.
pub(crate) fn content(seed: u64, lbas: usize) -> Vec<u8> {
    let mut data = vec![0; lbas * LBA_SIZE];
    fastrand::Rng::with_seed(seed).fill(&mut data);
    data
}
