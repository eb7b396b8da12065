//! The surroundings of a session: a subsystem, a host, a witness, and time. The witness checks all
//! that the session says and does. The tests complete the drive's operations themselves, without a
//! real drive.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use slimio_device::{Completion, DeviceError, Op, WholeDevice as _};
use slimio_nvme::fabrics::{Configuration, Property, PropertyAccess};
use slimio_nvme::pdu::{self, Digests};
use slimio_ssd::{Clock, DriveOptions, EmulatedDrive};
use slimio_target::{Operation, Session, Subsystem, SubsystemOptions};
use slimio_testing::damage::damage;

use crate::host::Host;
use crate::witness::{Transfer, Witness};

/// After this many turns, a session must have finished all its work. In fact, sessions need far
/// fewer turns.
const TURNS_MAX: usize = 10_000;

pub(crate) struct World {
    subsystem: Arc<Subsystem>,
    lba_count: u64,
    start: Instant,
    /// The session of the admin queue. The I/O queues belong to its controller.
    admin: Session,
    cntlid: u16,
}

/// A session, its host and its witness.
struct Scene {
    session: Session,
    witness: Witness,
    operations: Vec<Operation>,
    transfers: Vec<Transfer>,
    inbox: Vec<u8>,
    /// Number of bytes of the session's output that the witness has read.
    seen: usize,
    now: Instant,
    /// Whether operations of the drive may fail.
    may_fail: bool,
    /// Whether the controller was reset, so that this session's I/O queue has ended.
    is_reset: bool,
    cntlid: u16,
}

impl World {
    pub(crate) fn new() -> Self {
        let options = DriveOptions::parse("16M,timing=none", Clock::Real)
            .expect("the text describes a drive");
        let drive = EmulatedDrive::open(options).expect("the drive opens");
        let lba_count = drive.lba_count();
        let names = SubsystemOptions { name: "fuzz".into(), ..SubsystemOptions::default() };
        let subsystem = Subsystem::new(drive, names, None).expect("the options are valid");
        let start = Instant::now();
        let admin = Session::new(subsystem.clone(), None, start);
        let mut world = Self { subsystem, lba_count, start, admin, cntlid: 0 };
        let mut rng = Rng::with_seed(1);
        let mut host = Host::new(&mut rng, lba_count, 0);
        (host.is_io, host.may_discover) = (false, false);
        let mut scene = world.scene();
        scene.give(&host.request());
        scene.give(&host.connect(&mut rng, world.subsystem.nqn(), 0));
        scene.give(&host.enable(&mut rng));
        scene.drain(&mut rng);
        assert!(!scene.session.is_over() && scene.witness.owed().is_empty());
        world.cntlid = scene.cntlid;
        world.admin = scene.session;
        world
    }

    fn scene(&self) -> Scene {
        Scene {
            session: Session::new(self.subsystem.clone(), None, self.start),
            witness: Witness::new(self.lba_count),
            operations: Vec::new(),
            transfers: Vec::new(),
            inbox: Vec::new(),
            seen: 0,
            now: self.start,
            may_fail: false,
            is_reset: false,
            cntlid: 0,
        }
    }

    /// Resets the controller of the I/O queues, and makes it ready again.
    fn reset(&mut self, now: Instant) {
        for configuration in [Configuration::default(), Configuration::ENABLED] {
            let command = PropertyAccess::set(Property::Cc, configuration.0.into(), 1);
            let mut pdu = Vec::new();
            pdu::push_command(&mut pdu, &command, &[], Digests::default(), 4);
            assert_eq!(self.admin.receive(&pdu, now), pdu.len());
            assert!(self.admin.output().len() >= 24, "the command must get a reply");
            self.admin.note_sent(self.admin.output().len(), now);
        }
        assert!(!self.admin.is_over());
    }

    /// Runs a connection whose host sends random bytes, perhaps after a valid ICReq.
    pub(crate) fn noise(&self, rng: &mut Rng) {
        let mut scene = self.scene();
        if rng.bool() {
            scene.give(&Host::new(rng, self.lba_count, 0).request());
        }
        let mut bytes: Vec<u8> = (0..rng.usize(1..300)).map(|_| rng.u8(..)).collect();
        if rng.bool() {
            // Random bytes seldom begin with a valid PDU type. If the type is wrong, the session
            // looks at no other byte. So in half of the connections, the type is made valid.
            let heads = [[0, 0, 128, 0], [2, 0, 24, 0], [4, 0, 72, 0], [6, 0, 24, 0]];
            let head = heads[rng.usize(..4)];
            for (byte, new) in bytes.iter_mut().zip(head) {
                *byte = new;
            }
            let size = (bytes.len() as u32).to_le_bytes();
            for (byte, new) in bytes.iter_mut().skip(4).zip(size) {
                *byte = new;
            }
        }
        scene.give_in_parts(rng, &bytes);
        scene.drain(rng);
        scene.check_end(false);
    }

    /// Runs a connection for up to `pdus_max` random steps. In a step, for example, the host sends
    /// a PDU, the drive completes an operation, the controller is reset, or time passes. Of the
    /// PDUs, `wrong_percent` percent are wrong.
    pub(crate) fn host(&mut self, rng: &mut Rng, wrong_percent: u32, pdus_max: usize) {
        let mut host = Host::new(rng, self.lba_count, wrong_percent);
        let mut scene = self.scene();
        scene.may_fail = wrong_percent > 0;
        let mut others: Vec<Vec<u8>> = Vec::new();
        let mut opening = vec![host.request()];
        opening.push(host.connect(rng, self.subsystem.nqn(), self.cntlid));
        if !host.is_io {
            opening.push(host.enable(rng));
        }
        for pdu in opening {
            scene.send(rng, &mut host, pdu, &mut others);
        }
        for _ in 0..rng.usize(1..=pdus_max) {
            match rng.u8(..16) {
                0..9 => {
                    let command = host.command(rng);
                    scene.send(rng, &mut host, command, &mut others);
                }
                9 | 10 if !scene.transfers.is_empty() => {
                    let at = rng.usize(..scene.transfers.len());
                    let transfer = scene.transfers.swap_remove(at);
                    for pdu in host.data(rng, transfer) {
                        scene.send(rng, &mut host, pdu, &mut others);
                    }
                }
                9..14 => scene.complete(rng),
                14 if host.is_io && rng.u8(..16) == 0 => {
                    host.is_honest = false;
                    scene.is_reset = scene.witness.is_io();
                    self.reset(scene.now);
                }
                14 => scene.take_output(rng.usize(..20_000)),
                _ if wrong_percent > 0 => {
                    host.is_honest = false;
                    scene.now += Duration::from_millis([1, 900, 31_000][rng.usize(..3)]);
                    scene.session.tick(scene.now);
                    scene.look();
                }
                _ => {}
            }
        }
        // An honest host sends all data that R2Ts have asked for.
        if rng.bool() || wrong_percent == 0 {
            for _ in 0..TURNS_MAX {
                scene.drain(rng);
                let Some(transfer) = scene.transfers.pop() else { break };
                for pdu in host.data(rng, transfer) {
                    scene.send(rng, &mut host, pdu, &mut others);
                }
            }
        }
        scene.drain(rng);
        if scene.is_reset {
            scene.session.tick(scene.now);
            assert!(scene.session.is_over(), "a queue outlived a reset of its controller");
            scene.look();
        }
        scene.check_end(host.is_honest);
    }
}

impl Scene {
    /// Sends a PDU, which may be damaged.
    fn send(
        &mut self,
        rng: &mut Rng,
        host: &mut Host,
        mut pdu: Vec<u8>,
        others: &mut Vec<Vec<u8>>,
    ) {
        if host.wrong_percent > 0 && rng.u32(..1000) < host.wrong_percent * 3 {
            host.is_honest = false;
            damage(rng, &mut pdu, others);
        } else if pdu.len() < 1200 && others.len() < 4 {
            others.push(pdu.clone());
        }
        if rng.u8(..16) == 0 {
            self.give_in_parts(rng, &pdu);
        } else {
            self.give(&pdu);
        }
    }

    fn give_in_parts(&mut self, rng: &mut Rng, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(rng.usize(1..=rest.len()));
            self.give(part);
            rest = behind;
        }
    }

    /// Passes to the session the bytes that it has not taken yet, followed by new bytes.
    fn give(&mut self, bytes: &[u8]) {
        self.inbox.extend(bytes);
        let was_over = self.session.is_over();
        let taken = self.session.receive(&self.inbox, self.now);
        assert!(taken <= self.inbox.len());
        assert!(!was_over || taken == 0, "a session took bytes after it was over");
        let mut at = 0;
        let mut may_go_on = true;
        while at < taken {
            assert!(may_go_on, "a session has taken bytes after a PDU that must end it");
            let pdu = &self.inbox[at..];
            let size = u32::from_le_bytes([pdu[4], pdu[5], pdu[6], pdu[7]]) as usize;
            assert!(size >= 8 && at + size <= taken, "a session took a part of a PDU");
            may_go_on = self.witness.heard(&pdu[..size]);
            at += size;
        }
        assert!(may_go_on || self.session.is_over(), "a wrong PDU did not end the connection");
        self.inbox.drain(..taken);
        self.look();
    }

    /// Lets the witness check the session's output and operations.
    fn look(&mut self) {
        let output = self.session.output();
        // A session that cuts off a host drops its output.
        self.seen = self.seen.min(output.len());
        while self.seen < output.len() {
            let pdu = &output[self.seen..];
            let size = u32::from_le_bytes([pdu[4], pdu[5], pdu[6], pdu[7]]) as usize;
            let pdu = &pdu[..size];
            if pdu[0] == 5 && self.cntlid == 0 {
                self.cntlid = u16::from_le_bytes([pdu[8], pdu[9]]);
            }
            self.transfers.extend(self.witness.said(pdu));
            self.seen += size;
        }
        while let Some(operation) = self.session.next_operation() {
            assert!(!self.session.is_over(), "a session began an operation after it was over");
            assert!(!self.is_reset, "after a reset, an old queue began an operation");
            self.witness.began(operation.token.0, &operation.op);
            self.operations.push(operation);
        }
        assert!(self.session.output().len() < 1 << 20, "too many bytes wait to be sent");
        assert_eq!(self.session.running(), self.operations.len());
    }

    /// Completes a random operation.
    fn complete(&mut self, rng: &mut Rng) {
        if self.operations.is_empty() {
            return;
        }
        let Operation { token, op, .. } =
            self.operations.swap_remove(rng.usize(..self.operations.len()));
        let result = match rng.u8(..64) {
            0 if self.may_fail => Err(DeviceError::NoSpace),
            1 if self.may_fail => Err(DeviceError::Io { errno: 5 }),
            _ => Ok(()),
        };
        self.witness.completed(token.0, result.is_ok());
        let buffer = match op {
            Op::Read { buffer, .. } | Op::Write { buffer, .. } => Some(buffer),
            _ => None,
        };
        self.session.complete(Completion { token, buffer, result }, self.now);
        self.look();
    }

    /// Takes up to `bytes_max` bytes of the output.
    fn take_output(&mut self, bytes_max: usize) {
        let bytes = self.session.output().len().min(bytes_max);
        self.seen -= bytes;
        self.session.note_sent(bytes, self.now);
        self.look();
    }

    /// Completes all operations and takes all output, until the session has no more work.
    fn drain(&mut self, rng: &mut Rng) {
        for _ in 0..TURNS_MAX {
            self.take_output(usize::MAX);
            if self.operations.is_empty() && self.session.output().is_empty() {
                self.give(&[]);
                if self.operations.is_empty() && self.session.output().is_empty() {
                    return;
                }
            }
            self.complete(rng);
        }
        panic!("a session still has work after the largest number of turns");
    }

    fn check_end(&mut self, is_honest: bool) {
        let is_over = self.session.is_over();
        assert!(!is_honest || !is_over, "a host that did nothing wrong was cut off");
        assert!(
            is_over || !self.witness.is_terminated(),
            "a session that has sent a termination request is not over"
        );
        if !is_over {
            let owed = self.witness.owed();
            assert_eq!(owed, [], "some commands got no reply");
        }
        if is_over {
            assert!(self.session.next_operation().is_none());
            assert_eq!(self.session.receive(&[4, 0, 72, 0, 72, 0, 0, 0], self.now), 0);
        }
    }
}
