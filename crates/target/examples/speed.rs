//! Measures the target's speed over one connection within this machine, first for writes of 4 KiB
//! and then for reads. Prints how many commands a second the target serves, and their latencies.
//! SPEC describes the drive, as in `1G,timing=none`. DEPTH is the number of commands in flight. The
//! writes take SECONDS, and then the reads take as long. With `spin`, the host polls for replies.
//!
//! ```text
//! cargo run --release -p slimio-target --example speed -- SPEC DEPTH SECONDS [spin]
//! ```

#![expect(clippy::print_stdout, reason = "a program prints its results")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use slimio_nvme::fabrics::{
    CATTR_NO_SQ_FLOW_CONTROL, Configuration, Connect, ConnectData, Property, PropertyAccess,
};
use slimio_nvme::pdu::{self, COMMON_SIZE, Digests, Head, IcReq, IcResp, Kind, flags};
use slimio_nvme::{Command, Name, Sgl, opcode};
use slimio_ssd::{Clock, DriveOptions, EmulatedDrive};
use slimio_target::{Server, Subsystem, SubsystemOptions};

type Failure = Box<dyn std::error::Error>;

const NONE: Digests = Digests { header: false, data: false };

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let spec = args.next().unwrap_or_else(|| "1G,timing=none".into());
    let depth: usize = args.next().map_or(Ok(32), |text| text.parse())?;
    let seconds: u64 = args.next().map_or(Ok(3), |text| text.parse())?;
    let drive = EmulatedDrive::open(DriveOptions::parse(&spec, Clock::Real)?)?;
    let lbas = slimio_device::WholeDevice::lba_count(&drive);
    let subsystem = Subsystem::new(drive, SubsystemOptions::default(), None)?;
    let server = Server::start(TcpListener::bind("127.0.0.1:0")?, subsystem.clone())?;
    let mut admin = Queue::open(&server, subsystem.nqn(), 0, 0xffff)?;
    let enabled = u64::from(Configuration::ENABLED.0);
    admin.stream.write_all(&capsule(&PropertyAccess::set(Property::Cc, enabled, 1), &[]))?;
    admin.reap(1, |_| {})?;
    let mut io = Queue::open(&server, subsystem.nqn(), 1, admin.cntlid)?;
    // If the host slept, each latency would include the time that the host takes to wake up.
    io.is_spinning = args.next().is_some_and(|word| word == "spin");
    for (name, code) in [("write", opcode::nvm::WRITE), ("read", opcode::nvm::READ)] {
        let mut latencies = io.load(code, lbas, depth, Duration::from_secs(seconds))?;
        latencies.sort_unstable();
        let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize];
        let mean = latencies.iter().sum::<Duration>() / latencies.len() as u32;
        println!(
            "{name} 4 KiB, queue depth {depth}: {} a second; latency: mean {mean:?}, median {:?}, \
             99 % {:?}",
            latencies.len() as u64 / seconds,
            at(0.5),
            at(0.99)
        );
    }
    Ok(())
}

struct Queue {
    stream: TcpStream,
    inbox: Vec<u8>,
    start: usize,
    end: usize,
    cntlid: u16,
    is_spinning: bool,
}

fn capsule(command: &Command, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    pdu::push_command(&mut bytes, command, data, NONE, 4);
    bytes
}

impl Queue {
    fn open(server: &Server, subnqn: &str, qid: u16, cntlid: u16) -> Result<Self, Failure> {
        let stream = TcpStream::connect(server.address())?;
        stream.set_nodelay(true)?;
        let mut queue =
            Self { stream, inbox: vec![0; 1 << 20], start: 0, end: 0, cntlid, is_spinning: false };
        let mut request = Vec::new();
        IcReq::default().push(&mut request);
        queue.stream.write_all(&request)?;
        queue.stream.read_exact(&mut [0; IcResp::SIZE])?;
        let connect =
            Connect { qid, sqsize: 127, cattr: CATTR_NO_SQ_FLOW_CONTROL, ..Connect::default() };
        let name = |text| Name::new(text).ok_or("a name is too long");
        let data = ConnectData {
            hostid: [1; 16],
            cntlid,
            subnqn: name(subnqn)?,
            hostnqn: name("nqn.speed")?,
        };
        let command = connect.command(0).sgl(Sgl::in_capsule(1024));
        queue.stream.write_all(&capsule(&command, &data.encode()))?;
        let mut result = 0;
        queue.reap(1, |completion| result = completion)?;
        queue.cntlid = result as u16;
        Ok(queue)
    }

    /// Receives until `count` commands have completed. `see` gets the result of each completed
    /// command.
    fn reap(&mut self, count: usize, mut see: impl FnMut(u64)) -> Result<(), Failure> {
        let mut seen = 0;
        while seen < count {
            seen += self.reap_some(|_, result| see(result))?;
        }
        Ok(())
    }

    fn reap_some(&mut self, mut see: impl FnMut(u16, u64)) -> Result<usize, Failure> {
        let mut seen = 0;
        loop {
            let rest = &self.inbox[self.start..self.end];
            let whole = rest
                .first_chunk::<COMMON_SIZE>()
                .map(|common| Head::decode(common, NONE, 4, 1 << 20));
            match whole.transpose()? {
                Some(head) if head.size <= rest.len() => {
                    match head.kind {
                        Kind::CapsuleResp => {
                            let completion = Head::completion(rest.first_chunk().ok_or("cut")?);
                            if !completion.status.is_success() {
                                return Err(completion.status.to_string().into());
                            }
                            see(completion.cid, completion.result);
                            seen += 1;
                        }
                        Kind::C2hData if head.has(flags::SUCCESS) => {
                            see(u16::from_le_bytes([rest[8], rest[9]]), 0);
                            seen += 1;
                        }
                        _ => {}
                    }
                    self.start += head.size;
                }
                _ if seen > 0 => return Ok(seen),
                _ => {
                    self.inbox.copy_within(self.start..self.end, 0);
                    (self.start, self.end) = (0, self.end - self.start);
                    while self.is_spinning && !self.is_readable()? {}
                    match self.stream.read(&mut self.inbox[self.end..])? {
                        0 => return Err("the target has closed the connection".into()),
                        count => self.end += count,
                    }
                }
            }
        }
    }

    fn is_readable(&self) -> Result<bool, Failure> {
        self.stream.set_nonblocking(true)?;
        let is_readable = self.stream.peek(&mut [0]).is_ok();
        self.stream.set_nonblocking(false)?;
        Ok(is_readable)
    }

    /// Keeps `depth` commands in flight for `time`. Returns how long each command took.
    fn load(
        &mut self,
        code: u8,
        lbas: u64,
        depth: usize,
        time: Duration,
    ) -> Result<Vec<Duration>, Failure> {
        let data = [0x5a; 4096];
        let mut random = fastrand::Rng::with_seed(1);
        let mut begun = vec![Instant::now(); depth];
        let mut latencies = Vec::with_capacity(1 << 20);
        let mut free: Vec<u16> = (0..depth as u16).collect();
        let mut out = Vec::new();
        let start = Instant::now();
        loop {
            let now = Instant::now();
            if now < start + time {
                for cid in free.drain(..) {
                    begun[usize::from(cid)] = now;
                    let command = Command::new(code, cid).nsid(1).blocks(random.u64(..lbas), 1);
                    if code == opcode::nvm::WRITE {
                        let command = command.sgl(Sgl::in_capsule(4096));
                        pdu::push_command(&mut out, &command, &data, NONE, 4);
                    } else {
                        pdu::push_command(
                            &mut out,
                            &command.sgl(Sgl::transport(4096)),
                            &[],
                            NONE,
                            4,
                        );
                    }
                }
                self.stream.write_all(&out)?;
                out.clear();
            } else if free.len() == depth {
                return Ok(latencies);
            }
            self.reap_some(|cid, _| {
                free.push(cid);
                latencies.push(begun[usize::from(cid)].elapsed());
            })?;
        }
    }
}
