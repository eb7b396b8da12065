//! A host that sends and receives raw PDUs, and a target to send them to.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use slimio_nvme::fabrics::{
    CNTLID_ANY, Configuration, Connect, ConnectData, Property, PropertyAccess,
};
use slimio_nvme::pdu::{
    self, COMMON_SIZE, DataHead, Digests, Fes, Head, IcReq, IcResp, Kind, R2t, TermReq, flags,
};
use slimio_nvme::{Command, Completion, Name, Sgl, Status};
use slimio_ssd::{Clock, DriveOptions, EmulatedDrive};
use slimio_target::{Server, Subsystem, SubsystemOptions};

pub(crate) const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:host";

/// How long a test waits for a PDU from the target. `cargo x planted` sets a shorter time, because
/// with planted bugs most tests wait in vain.
pub(crate) fn patience() -> Duration {
    let seconds = std::env::var("SLIMIO_PATIENCE_SECONDS");
    Duration::from_secs(seconds.map_or(60, |text| text.parse().expect("a number of seconds")))
}

pub(crate) fn named(name: &str) -> SubsystemOptions {
    SubsystemOptions { name: name.into(), ..SubsystemOptions::default() }
}

/// A target and its subsystem.
pub(crate) struct Target {
    pub(crate) server: Server,
    pub(crate) subsystem: Arc<Subsystem>,
}

impl Target {
    pub(crate) fn start() -> Self {
        Self::of("64M,timing=none", named("test"))
    }

    pub(crate) fn of(spec: &str, options: SubsystemOptions) -> Self {
        let options_of_drive = DriveOptions::parse(spec, Clock::Real).expect("the spec is valid");
        let drive = EmulatedDrive::open(options_of_drive).expect("the drive opens");
        let subsystem = Subsystem::new(drive, options, None).expect("the options are valid");
        let listener = TcpListener::bind("127.0.0.1:0").expect("some port is free");
        let server = Server::start(listener, subsystem.clone()).expect("the server starts");
        Self { server, subsystem }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    pub(crate) fn lba_count(&self) -> u64 {
        use slimio_device::WholeDevice as _;

        self.subsystem.drive().lba_count()
    }

    /// Number of blocks that hold data.
    pub(crate) fn mapped_count(&self) -> u64 {
        self.subsystem.drive().with_ftl(slimio_ssd::Ftl::mapped_count)
    }

    /// Number of bytes that hosts have written.
    pub(crate) fn host_bytes(&self) -> u64 {
        self.subsystem.drive().counters().host_bytes()
    }

    pub(crate) fn nqn(&self) -> &str {
        self.subsystem.nqn()
    }

    /// Connects an admin queue, and makes its controller ready.
    pub(crate) fn admin(&self) -> Host {
        self.admin_with(Digests::default())
    }

    pub(crate) fn admin_with(&self, digests: Digests) -> Host {
        let mut host = Host::open(self.address(), digests);
        let (_, status) = host.connect(self.nqn(), 0, CNTLID_ANY, 31);
        assert!(status.is_success(), "{status}");
        host.enable();
        host
    }

    /// Connects an admin queue and an I/O queue of the same controller.
    pub(crate) fn queues(&self) -> (Host, Host) {
        self.queues_with(Digests::default())
    }

    pub(crate) fn queues_with(&self, digests: Digests) -> (Host, Host) {
        let admin = self.admin_with(digests);
        let mut io = Host::open(self.address(), digests);
        let (_, status) = io.connect(self.nqn(), 1, admin.cntlid, 127);
        assert!(status.is_success(), "{status}");
        (admin, io)
    }
}

/// A PDU from the target.
#[derive(Debug)]
pub(crate) enum Received {
    Completion(Completion),
    Data(DataHead, Vec<u8>, u8),
    R2t(R2t),
    Term(Option<Fes>, u32),
    Closed,
}

/// A connection of a host.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) stream: TcpStream,
    pub(crate) digests: Digests,
    pub(crate) cntlid: u16,
    pub(crate) maxh2cdata: usize,
    cid: u16,
}

impl Host {
    /// Connects, without sending anything.
    pub(crate) fn raw(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the target listens");
        stream.set_read_timeout(Some(patience())).expect("the timeout is not zero");
        stream.set_nodelay(true).expect("the socket is a TCP socket");
        Self { stream, digests: Digests::default(), cntlid: 0, maxh2cdata: 0, cid: 0 }
    }

    /// Connects and exchanges ICReq and ICResp.
    pub(crate) fn open(address: SocketAddr, digests: Digests) -> Self {
        let mut host = Self::raw(address);
        let mut request = Vec::new();
        IcReq { pfv: 0, hpda: 0, dgst: digests.bits(), maxr2t: 0 }.push(&mut request);
        host.send(&request);
        let mut response = [0; IcResp::SIZE];
        host.stream.read_exact(&mut response).expect("an ICResp comes");
        let response = IcResp::decode(&response).expect("a whole PDU");
        assert_eq!(response.check(), Ok(digests));
        host.maxh2cdata = response.maxh2cdata as usize;
        host.digests = digests;
        host
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the target takes the bytes");
    }

    /// Sends a Connect, and returns its result and status.
    pub(crate) fn connect(
        &mut self,
        subnqn: &str,
        qid: u16,
        cntlid: u16,
        sqsize: u16,
    ) -> (u64, Status) {
        let connect = Connect { qid, sqsize, ..Connect::default() };
        let data = ConnectData {
            hostid: [7; 16],
            cntlid,
            subnqn: Name::new(subnqn).expect("the name is short"),
            hostnqn: Name::new(HOST).expect("the name is short"),
        };
        self.connect_with(&connect, &data)
    }

    pub(crate) fn connect_with(&mut self, connect: &Connect, data: &ConnectData) -> (u64, Status) {
        let command = connect.command(self.next_cid()).sgl(Sgl::in_capsule(1024));
        self.send_command(&command, &data.encode());
        let completion = self.completion();
        if completion.status.is_success() {
            self.cntlid = completion.result as u16;
        }
        (completion.result, completion.status)
    }

    pub(crate) fn enable(&mut self) {
        let value = u64::from(Configuration::ENABLED.0);
        let set = PropertyAccess::set(Property::Cc, value, self.next_cid());
        assert!(self.run(set).is_ok());
        assert_eq!(self.property(Property::Csts).expect("the property can be read") & 1, 1);
    }

    pub(crate) fn property(&mut self, property: Property) -> Result<u64, Status> {
        let cid = self.next_cid();
        self.run(PropertyAccess::get(property, cid))
    }

    pub(crate) fn next_cid(&mut self) -> u16 {
        self.cid += 1;
        self.cid
    }

    pub(crate) fn send_command(&mut self, command: &Command, data: &[u8]) {
        let mut bytes = Vec::new();
        pdu::push_command(&mut bytes, command, data, self.digests, 4);
        self.send(&bytes);
    }

    /// Runs a command without data, and returns its result.
    pub(crate) fn run(&mut self, command: Command) -> Result<u64, Status> {
        self.send_command(&command, &[]);
        let completion = self.completion();
        assert_eq!(completion.cid, command.cid);
        if completion.status.is_success() { Ok(completion.result) } else { Err(completion.status) }
    }

    /// Runs a command that returns `size` bytes.
    pub(crate) fn fetch(&mut self, command: Command, size: u32) -> Result<Vec<u8>, Status> {
        self.send_command(&command.sgl(Sgl::transport(size)), &[]);
        let mut all = Vec::new();
        loop {
            match self.receive() {
                Received::Data(head, data, _) => {
                    assert_eq!(head.datao as usize, all.len());
                    all.extend(data);
                }
                Received::Completion(completion) if completion.status.is_success() => {
                    assert_eq!((completion.cid, all.len()), (command.cid, size as usize));
                    return Ok(all);
                }
                Received::Completion(completion) => return Err(completion.status),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Runs a command, and sends data for it: in the capsule, or when an R2T asks for the data.
    pub(crate) fn store(
        &mut self,
        command: Command,
        data: &[u8],
        is_in_capsule: bool,
    ) -> Result<(), Status> {
        if is_in_capsule {
            self.send_command(&command.sgl(Sgl::in_capsule(data.len() as u32)), data);
        } else {
            self.send_command(&command.sgl(Sgl::transport(data.len() as u32)), &[]);
        }
        loop {
            match self.receive() {
                Received::R2t(r2t) => self.send_data(&r2t, data),
                Received::Completion(completion) => {
                    assert_eq!(completion.cid, command.cid);
                    let status = completion.status;
                    return if status.is_success() { Ok(()) } else { Err(status) };
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Sends the data that an R2T asks for.
    pub(crate) fn send_data(&mut self, r2t: &R2t, data: &[u8]) {
        let start = r2t.r2to as usize;
        let data = &data[start..start + r2t.r2tl as usize];
        let mut at = 0;
        while at < data.len() {
            let part = &data[at..data.len().min(at + self.maxh2cdata)];
            let head = DataHead {
                cccid: r2t.cccid,
                ttag: r2t.ttag,
                datao: (start + at) as u32,
                datal: part.len() as u32,
            };
            at += part.len();
            let last = if at == data.len() { flags::LAST_PDU } else { 0 };
            let mut bytes = Vec::new();
            pdu::push_data_head(&mut bytes, Kind::H2cData, last, &head, self.digests, 4);
            pdu::push_data(&mut bytes, part, self.digests);
            self.send(&bytes);
        }
    }

    pub(crate) fn completion(&mut self) -> Completion {
        match self.receive() {
            Received::Completion(completion) => completion,
            other => panic!("{other:?}"),
        }
    }

    /// Receives a PDU and checks its digests.
    pub(crate) fn receive(&mut self) -> Received {
        let mut common = [0; COMMON_SIZE];
        match self.stream.read_exact(&mut common) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("no PDU comes in time")
            }
            Err(_) => return Received::Closed,
        }
        let head = Head::decode(&common, self.digests, 4, 1 << 20).expect("the header is right");
        assert!(!head.kind.is_of_host());
        let mut bytes = common.to_vec();
        bytes.resize(head.size, 0);
        self.stream.read_exact(&mut bytes[COMMON_SIZE..]).expect("the rest of the PDU comes");
        assert_eq!(head.check_header(&bytes), Ok(()));
        let data = bytes[head.data_at..][..head.data_size].to_vec();
        if head.has(flags::DDGSTF) {
            assert_eq!(bytes[head.size - 4..], pdu::data_digest(&data));
        }
        match head.kind {
            Kind::CapsuleResp => {
                Received::Completion(Head::completion(bytes.first_chunk().expect("a whole PDU")))
            }
            Kind::C2hData => {
                Received::Data(DataHead::decode(&bytes).expect("a whole PDU"), data, head.flags)
            }
            Kind::R2t => Received::R2t(R2t::decode(&bytes).expect("a whole PDU")),
            Kind::C2hTermReq => {
                let term = TermReq::decode(&bytes).expect("a whole PDU");
                Received::Term(Fes::of(term.fes), term.fei)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Checks that the target sends a termination request and ends the connection. Returns the
    /// request's fields.
    pub(crate) fn terminated(&mut self) -> (Option<Fes>, u32) {
        loop {
            match self.receive() {
                Received::Term(fes, fei) => {
                    assert!(
                        matches!(self.receive(), Received::Closed),
                        "the target closes the connection"
                    );
                    return (fes, fei);
                }
                Received::Closed => panic!("the target sent no termination request"),
                _ => {}
            }
        }
    }
}
