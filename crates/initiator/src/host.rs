//! A host, and the controller that the target made for it.

use std::time::{Duration, Instant};

use slimio_nvme::fabrics::{
    CATTR_NO_SQ_FLOW_CONTROL, CNTLID_ANY, Capabilities, Configuration, Connect, ConnectData,
    ControllerStatus, Property, PropertyAccess,
};
use slimio_nvme::fdp::{Event, EventsHead, Statistics};
use slimio_nvme::feature::{FeatureAccess, fid, of_queue_count, queue_counts};
use slimio_nvme::identify::{Controller, IDENTIFY_SIZE, Identify, LbaFormat, Namespace, cns};
use slimio_nvme::log::{DiscoveryEntry, DiscoveryHead, GetLogPage, Smart, lid};
use slimio_nvme::{Command, DISCOVERY_NQN, NSID_ALL, Name, opcode};

use crate::{Error, IoQueue, Options, Outcome, Queue, Submission, Token, Transport};

/// Number of entries of the admin queue.
const ADMIN_DEPTH: u16 = 32;
/// In-capsule data that every admin queue accepts, in bytes. Source: TCP transport 1.1, 3.3.
const ADMIN_IN_CAPSULE_SIZE: usize = 8192;
/// The namespace that I/O queues use.
const NSID: u32 = 1;
/// Offset of the list of formats in Identify Namespace. Source: NVM command set 1.1, figure 114.
const FORMATS_AT: usize = 128;
/// How often to look whether a controller has become ready or has shut down.
const READY_LOOK: Duration = Duration::from_millis(5);

/// A connected host. The host reaches its controller through its admin queue.
#[derive(Debug)]
pub struct Host {
    admin: Queue,
    options: Options,
    controller: Controller,
    cntlid: u16,
    event_requests: u64,
    events: Vec<u64>,
}

fn transport(options: &Options, qid: u16, depth: u16, in_capsule_size_max: usize) -> Transport {
    Transport {
        qid,
        digests: options.digests,
        alignment: options.alignment,
        in_flight_max: depth - 1,
        in_capsule_size_max,
    }
}

/// Opens a queue of a controller. Returns the queue and the controller's number.
fn open(
    options: &Options,
    qid: u16,
    depth: u16,
    in_capsule_size_max: usize,
    cntlid: u16,
) -> Result<(Queue, u16), Error> {
    assert!(depth >= 2, "a queue must have at least two entries");
    let name = |text: &str| Name::new(text).ok_or_else(|| Error::Name(text.to_owned()));
    let data = ConnectData {
        hostid: options.host_id,
        cntlid,
        subnqn: name(&options.subsystem)?,
        hostnqn: name(&options.host)?,
    };
    let transport = transport(options, qid, depth, in_capsule_size_max);
    let mut queue = Queue::open(options.address, transport, options.time_max)?;
    let connect = Connect {
        recfmt: 0,
        qid,
        sqsize: depth - 1,
        cattr: if options.has_flow_control { 0 } else { CATTR_NO_SQ_FLOW_CONTROL },
        kato: if qid == 0 { options.keep_alive_ms } else { 0 },
    };
    let outcome = queue.run(connect.command(0), data.encode().to_vec())?;
    Ok((queue, outcome.completion.result as u16))
}

impl Host {
    /// Connects, enables the controller, waits until the controller is ready, and identifies it.
    ///
    /// # Errors
    /// If the target can't be reached, or refuses or fails a command.
    pub fn connect(options: &Options) -> Result<Self, Error> {
        let (admin, cntlid) = open(options, 0, ADMIN_DEPTH, ADMIN_IN_CAPSULE_SIZE, CNTLID_ANY)?;
        let mut host = Self {
            admin,
            options: options.clone(),
            controller: Controller::default(),
            cntlid,
            event_requests: 0,
            events: Vec::new(),
        };
        host.enable()?;
        let bytes = host.identify(Identify { cns: cns::CONTROLLER, ..Identify::default() }, 0)?;
        host.controller = Controller::decode(&bytes)?;
        Ok(host)
    }

    /// Asks the discovery controller at the address of `options` for the target's subsystems.
    /// Returns at most 64 of them.
    ///
    /// # Errors
    /// If the target can't be reached, or refuses or fails a command.
    pub fn discover(options: &Options) -> Result<Vec<DiscoveryEntry>, Error> {
        let options = Options { subsystem: DISCOVERY_NQN.into(), ..options.clone() };
        let mut host = Self::connect(&options)?;
        let page = GetLogPage { lid: lid::DISCOVERY, ..GetLogPage::default() };
        let head = host.log_page(page, 0, DiscoveryHead::SIZE)?;
        let count = DiscoveryHead::decode(&head)?.numrec.min(64) as usize;
        let size = DiscoveryHead::SIZE + count * DiscoveryEntry::SIZE;
        let bytes = host.log_page(page, 0, size)?;
        let entries = bytes[DiscoveryHead::SIZE..].chunks(DiscoveryEntry::SIZE);
        entries.map(|entry| Ok(DiscoveryEntry::decode(entry)?)).collect()
    }

    /// Enables the controller, and waits until the controller is ready.
    ///
    /// # Errors
    /// If a command or the connection fails. Also if the controller fails, or is not ready within
    /// the time that it has promised.
    pub fn enable(&mut self) -> Result<(), Error> {
        let capabilities = Capabilities::of_bits(self.property(Property::Cap)?);
        let time_max = Duration::from_millis(500) * u32::from(capabilities.to.max(1));
        self.set_property(Property::Cc, Configuration::ENABLED.0.into())?;
        let deadline = Instant::now() + time_max;
        loop {
            let status = ControllerStatus::of_bits(self.property(Property::Csts)? as u32);
            if status.cfs {
                return Err(Error::NotReady);
            }
            if status.rdy {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(Error::TimedOut(time_max));
            }
            std::thread::sleep(READY_LOOK);
        }
    }

    /// The controller's number.
    pub fn cntlid(&self) -> u16 {
        self.cntlid
    }

    /// What Identify returned about the controller.
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// The admin queue, on which the caller can run any command.
    pub fn admin(&mut self) -> &mut Queue {
        &mut self.admin
    }

    /// Opens an I/O queue with `depth` entries. One entry always stays empty, so `depth - 1`
    /// commands can be in flight.
    ///
    /// # Errors
    /// If the target can't be reached, or refuses or fails a command.
    ///
    /// # Panics
    /// If `depth` is less than two.
    pub fn open_queue(&mut self, qid: u16, depth: u16) -> Result<IoQueue, Error> {
        let which = Identify { cns: cns::NAMESPACE, ..Identify::default() };
        let namespace = self.identify(which, NSID)?;
        let format = usize::from(Namespace::decode(&namespace)?.flbas & 0xf);
        let format = LbaFormat::decode(&namespace[FORMATS_AT + format * LbaFormat::SIZE..])?;
        // `ioccsz` is in units of 16 bytes. The command itself counts as part of the capsule.
        let capsule = self.controller.ioccsz as usize * 16;
        let in_capsule_size = capsule.saturating_sub(slimio_nvme::command::COMMAND_SIZE);
        let in_capsule_size_max = in_capsule_size.min(self.options.in_capsule_size_max);
        let (queue, _) = open(&self.options, qid, depth, in_capsule_size_max, self.cntlid)?;
        Ok(IoQueue::new(queue, NSID, 1 << format.lbads.min(31)))
    }

    /// Reads a property of the controller.
    ///
    /// # Errors
    /// If the command or the connection fails.
    pub fn property(&mut self, property: Property) -> Result<u64, Error> {
        let outcome = self.admin.run(PropertyAccess::get(property, 0), Vec::new())?;
        Ok(outcome.completion.result)
    }

    /// Sets a property of the controller.
    ///
    /// # Errors
    /// If the command or the connection fails.
    pub fn set_property(&mut self, property: Property, value: u64) -> Result<(), Error> {
        self.admin.run(PropertyAccess::set(property, value, 0), Vec::new()).map(drop)
    }

    /// Runs Identify, and returns its 4096 bytes.
    ///
    /// # Errors
    /// If the command or the connection fails.
    pub fn identify(&mut self, which: Identify, nsid: u32) -> Result<Vec<u8>, Error> {
        let command = which.command(0).nsid(nsid);
        Ok(self.admin.run(command, vec![0; IDENTIFY_SIZE])?.data)
    }

    /// Identifies a namespace.
    ///
    /// # Errors
    /// If the command or the connection fails.
    pub fn namespace(&mut self, nsid: u32) -> Result<Namespace, Error> {
        let bytes = self.identify(Identify { cns: cns::NAMESPACE, ..Identify::default() }, nsid)?;
        Ok(Namespace::decode(&bytes)?)
    }

    /// Asks for `count` I/O queues. Returns how many the controller allows.
    ///
    /// # Errors
    /// If the command or the connection fails.
    ///
    /// # Panics
    /// If `count` is zero.
    pub fn set_queue_count(&mut self, count: u16) -> Result<u16, Error> {
        let value = of_queue_count(count.into());
        let result = self.set_feature(fid::NUMBER_OF_QUEUES, 0, value, 0, Vec::new())?;
        let (submission, completion) = queue_counts(result);
        Ok(submission.min(completion).min(u16::MAX.into()) as u16)
    }

    /// Gets a feature's value, and `size` bytes of its data.
    ///
    /// # Errors
    /// If the command or the connection fails.
    pub fn feature(
        &mut self,
        fid: u8,
        nsid: u32,
        cdw11: u32,
        size: usize,
    ) -> Result<(u32, Vec<u8>), Error> {
        let command = FeatureAccess::get(0, fid, cdw11).nsid(nsid);
        let outcome = self.admin.run(command, vec![0; size])?;
        Ok((outcome.completion.result as u32, outcome.data))
    }

    /// Sets a feature, and returns the result of the command.
    ///
    /// # Errors
    /// If the command or the connection fails.
    pub fn set_feature(
        &mut self,
        fid: u8,
        nsid: u32,
        cdw11: u32,
        cdw12: u32,
        data: Vec<u8>,
    ) -> Result<u32, Error> {
        let command = FeatureAccess::set(0, fid, cdw11, cdw12).nsid(nsid);
        Ok(self.admin.run(command, data)?.completion.result as u32)
    }

    /// Reads `size` bytes of a log page. `size` is a multiple of four.
    ///
    /// # Errors
    /// If the command or the connection fails.
    pub fn log_page(&mut self, page: GetLogPage, nsid: u32, size: usize) -> Result<Vec<u8>, Error> {
        let page = GetLogPage { size: size as u64, ..page };
        Ok(self.admin.run(page.command(0).nsid(nsid), vec![0; size])?.data)
    }

    /// Reads SMART / Health Information.
    ///
    /// # Errors
    /// If the command or the connection fails.
    pub fn smart(&mut self) -> Result<Smart, Error> {
        let page = GetLogPage { lid: lid::SMART, ..GetLogPage::default() };
        Ok(Smart::decode(&self.log_page(page, NSID_ALL, Smart::SIZE)?)?)
    }

    /// Reads the FDP Statistics of an endurance group.
    ///
    /// # Errors
    /// If the command or the connection fails.
    pub fn statistics(&mut self, group: u16) -> Result<Statistics, Error> {
        let page = GetLogPage { lid: lid::FDP_STATISTICS, lsi: group, ..GetLogPage::default() };
        Ok(Statistics::decode(&self.log_page(page, 0, Statistics::SIZE)?)?)
    }

    /// Reads the FDP Events of an endurance group: host events if `of_host` is set, and controller
    /// events otherwise.
    ///
    /// # Errors
    /// If the command or the connection fails.
    pub fn fdp_events(&mut self, group: u16, of_host: bool) -> Result<Vec<Event>, Error> {
        let page = GetLogPage {
            lid: lid::FDP_EVENTS,
            lsp: of_host.into(),
            lsi: group,
            ..GetLogPage::default()
        };
        let head = EventsHead::decode(&self.log_page(page, 0, EventsHead::SIZE)?)?;
        let count = head.nevents.min(63) as usize;
        let bytes = self.log_page(page, 0, EventsHead::SIZE + count * Event::SIZE)?;
        let events = bytes[EventsHead::SIZE..].chunks(Event::SIZE);
        events.map(|event| Ok(Event::decode(event)?)).collect()
    }

    /// Restarts the controller's keep alive timer.
    ///
    /// # Errors
    /// If the command or the connection fails.
    pub fn keep_alive(&mut self) -> Result<(), Error> {
        self.admin.run(Command::new(opcode::admin::KEEP_ALIVE, 0), Vec::new()).map(drop)
    }

    /// Asks for an asynchronous event. [`idle_until`](Self::idle_until) waits for the event, and
    /// [`take_events`](Self::take_events) returns it.
    ///
    /// # Errors
    /// If the connection fails, or if an earlier request for an event has failed.
    pub fn request_event(&mut self) -> Result<(), Error> {
        self.event_requests += 1;
        let command = Command::new(opcode::admin::ASYNC_EVENT_REQUEST, 0);
        let token = Token(self.event_requests);
        let submission = Submission { token, command, data: Vec::new() };
        // If requests for events fill the whole admin queue, the caller has a bug.
        self.admin.submit(submission).expect("the admin queue has room");
        self.collect(Instant::now())
    }

    /// Returns the asynchronous events that have come, each as the result of its request.
    pub fn take_events(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.events)
    }

    /// Waits until an asynchronous event comes, or until `until`. If there is a keep alive timeout,
    /// sends a Keep Alive whenever nothing was sent for a third of the timeout.
    ///
    /// # Errors
    /// If a request for an event has failed, or if the connection fails.
    pub fn idle_until(&mut self, until: Instant) -> Result<(), Error> {
        let third = Duration::from_millis(u64::from(self.options.keep_alive_ms)) / 3;
        while self.events.is_empty() && Instant::now() < until {
            let keep_alive_at = self.admin.sent_at() + third;
            if third.is_zero() {
                self.collect(until)?;
                continue;
            }
            self.collect(until.min(keep_alive_at))?;
            if Instant::now() >= keep_alive_at {
                self.keep_alive()?;
            }
        }
        Ok(())
    }

    fn collect(&mut self, until: Instant) -> Result<(), Error> {
        let mut outcomes: Vec<Outcome> = Vec::new();
        self.admin.wait_until(until, &mut outcomes)?;
        for outcome in outcomes {
            self.events.push(outcome.checked()?.completion.result);
        }
        Ok(())
    }

    /// Shuts the controller down, and waits until the shutdown is complete.
    ///
    /// # Errors
    /// If the command or the connection fails, or if the shutdown is not complete within the time
    /// limit.
    pub fn shut_down(mut self) -> Result<(), Error> {
        let shutdown = Configuration::ENABLED.with_shn(1);
        self.set_property(Property::Cc, shutdown.0.into())?;
        let deadline = Instant::now() + self.options.time_max;
        while ControllerStatus::of_bits(self.property(Property::Csts)? as u32).shst != 2 {
            if Instant::now() >= deadline {
                return Err(Error::TimedOut(self.options.time_max));
            }
            std::thread::sleep(READY_LOOK);
        }
        Ok(())
    }
}
