//! A controller: the state that the queues of one association share.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use slimio_nvme::Status;
use slimio_nvme::fabrics::{Capabilities, Configuration, ControllerStatus, InvalidParameter};
use slimio_planted::is_planted;

use crate::features::Features;
use crate::limits::{ASYNC_EVENTS_MAX, DISCOVERY_TIME_MAX, IO_QUEUES_MAX, QUEUE_DEPTH_MAX};
use crate::link::Link;
use crate::subsystem::ConnectRefusal;

/// The target tells hosts that a controller may need this long to become ready, in units of 500 ms.
/// In fact, a controller is ready at once.
pub(crate) const READY_TIME_MAX: u8 = 10;

/// The purpose of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// For I/O: the controller has the namespace.
    Io,
    /// For discovery: the controller tells where the subsystem is.
    Discovery,
}

/// A controller. It is made by the Connect of its admin queue, and ends with that queue's
/// connection.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) id: u16,
    pub(crate) kind: Kind,
    pub(crate) host: String,
    pub(crate) host_id: [u8; 16],
    /// When the subsystem was made: the zero of `active_at_ms`.
    start: Instant,
    /// When the latest command came, in milliseconds since `start`.
    active_at_ms: AtomicU64,
    is_over: AtomicBool,
    /// The connection of the admin queue. `None` in tests without connections.
    pub(crate) admin: Option<Arc<Link>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    configuration: Configuration,
    status: ControllerStatus,
    features: Features,
    events: VecDeque<u64>,
    /// Events that were reported to the host. An event stays here until the host reads the log page
    /// that the event names. There is at most one event of each kind.
    reported: Vec<u64>,
    /// I/O queues that are connected.
    queues: Vec<Queue>,
    /// How often the controller was reset. A reset ends all I/O queues that are connected at that
    /// time.
    resets: u64,
}

/// An I/O queue that is connected.
#[derive(Debug)]
struct Queue {
    qid: u16,
    /// The queue's connection. `None` in tests without connections.
    link: Option<Arc<Link>>,
}

impl Controller {
    pub(crate) fn new(
        id: u16,
        kind: Kind,
        host: &str,
        host_id: [u8; 16],
        keep_alive_ms: u32,
        start: Instant,
        now: Instant,
    ) -> Self {
        let controller = Self {
            id,
            kind,
            host: host.to_owned(),
            host_id,
            start,
            active_at_ms: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            admin: None,
            state: Mutex::new(State {
                configuration: Configuration::default(),
                status: ControllerStatus::default(),
                features: Features::new(keep_alive_ms),
                events: VecDeque::new(),
                reported: Vec::new(),
                queues: Vec::new(),
                resets: 0,
            }),
        };
        controller.note_active(now);
        controller
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // If a panic has poisoned the lock, the thread that panicked has reported the panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The capabilities of all controllers.
    pub(crate) fn capabilities() -> Capabilities {
        // Bit 0 of CSS stands for the NVM command set. Bit 6 says that Identify lists the command
        // sets.
        Capabilities {
            mqes: QUEUE_DEPTH_MAX - 1,
            cqr: true,
            to: READY_TIME_MAX,
            css: 0x41,
            crwms: true,
        }
    }

    pub(crate) fn configuration(&self) -> Configuration {
        self.lock().configuration
    }

    pub(crate) fn status(&self) -> ControllerStatus {
        self.lock().status
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.lock().status.rdy && !self.is_over()
    }

    /// Whether an I/O queue that was connected after `resets` resets still belongs to the
    /// controller.
    pub(crate) fn has_queue_of(&self, resets: u64) -> bool {
        let state = self.lock();
        state.status.rdy && state.resets == resets && !self.is_over()
    }

    /// Sets the configuration, which may enable, reset or shut down the controller. Once this
    /// function has reset the controller and has returned, the queues from before the reset no
    /// longer change anything on the drive. Source: base specification 2.1, 3.5 and 3.6.
    pub(crate) fn configure(&self, to: Configuration) {
        let mut state = self.lock();
        let from = std::mem::replace(&mut state.configuration, to);
        if to.en() && !from.en() {
            let is_supported = to.mps() == 0
                && matches!(to.css(), 0 | 6)
                && to.ams() == 0
                && (to.iosqes() == 6 || self.kind == Kind::Discovery)
                && (to.iocqes() == 4 || self.kind == Kind::Discovery);
            state.status.rdy = is_supported;
            state.status.cfs = !is_supported;
        }
        let mut ended = Vec::new();
        if !to.en() && from.en() {
            state.status = ControllerStatus::default();
            state.resets += 1;
            ended = std::mem::take(&mut state.queues);
            state.events.clear();
            state.reported.clear();
            state.features = Features::new(state.features.keep_alive_ms);
        }
        // The caller has made the drive's data durable, so a shutdown is complete at once. If the
        // data could not be made durable, the caller calls `stay_in_shutdown` next.
        state.status.shst = if to.shn() == 0 { 0 } else { 2 };
        // The lock is released before the call of `close`. This call waits for each connection that
        // is just beginning an operation, and such a connection needs the lock to read the state.
        drop(state);
        close(&ended);
    }

    /// Reports the shutdown as unfinished for ever, because the drive's data could not be made
    /// durable.
    pub(crate) fn stay_in_shutdown(&self) {
        self.lock().status.shst = 1;
    }

    /// Calls `look` with the features, under the lock.
    pub(crate) fn features<T>(&self, look: impl FnOnce(&mut Features) -> T) -> T {
        look(&mut self.lock().features)
    }

    /// The number of resets so far.
    pub(crate) fn resets(&self) -> u64 {
        self.lock().resets
    }

    /// Connects an I/O queue, whose connection is `link`. Returns the number of resets so far.
    pub(crate) fn take_queue(
        &self,
        qid: u16,
        link: Option<&Arc<Link>>,
    ) -> Result<u64, ConnectRefusal> {
        let mut state = self.lock();
        if self.is_over() {
            return Err(ConnectRefusal::no_controller());
        }
        if !state.status.rdy {
            return Err(Status::COMMAND_SEQUENCE_ERROR.dnr().into());
        }
        if qid == 0 || qid > IO_QUEUES_MAX {
            return Err(ConnectRefusal::parameter(InvalidParameter::QID));
        }
        if state.queues.iter().any(|known| known.qid == qid) {
            // Perhaps the host has closed the old queue's connection, but the thread of that
            // connection has not seen the end yet. So this refusal lets the host try again.
            return Err(Status::COMMAND_SEQUENCE_ERROR.into());
        }
        state.queues.push(Queue { qid, link: link.cloned() });
        Ok(state.resets)
    }

    /// Removes an I/O queue that was connected after `resets` resets.
    pub(crate) fn give_queue(&self, qid: u16, resets: u64) {
        let mut state = self.lock();
        if state.resets == resets {
            state.queues.retain(|known| known.qid != qid);
        }
    }

    /// Adds an asynchronous event, unless it waits already, or too many events wait. The host gets
    /// the event as the reply to one of its Asynchronous Event Requests.
    pub(crate) fn raise(&self, event: u64) {
        let mut state = self.lock();
        if state.events.len() < ASYNC_EVENTS_MAX && !state.events.contains(&event) {
            state.events.push_back(event);
            self.wake_admin();
        }
    }

    /// Takes the next asynchronous event whose kind is not masked. From then on, this kind is
    /// masked, until the host reads the log page that the event names. Source: base specification
    /// 2.1, 5.1.2.
    pub(crate) fn take_event(&self) -> Option<u64> {
        let mut state = self.lock();
        let is_masked =
            |event: &u64| state.reported.iter().any(|known| kind_of(*known) == kind_of(*event));
        let is_free = |event: &u64| !is_masked(event) || is_planted("target-events-unmasked");
        let at = state.events.iter().position(is_free)?;
        let event = state.events.remove(at)?;
        state.reported.push(event);
        Some(event)
    }

    /// Unmasks the events of a log page, because the host reads the page without retaining its
    /// events.
    pub(crate) fn clear_events(&self, lid: u8) {
        self.lock().reported.retain(|event| (event >> 16) as u8 != lid);
    }

    /// Ends the controller. Once this function has returned, the controller's queues no longer
    /// change anything on the drive.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        let ended = std::mem::take(&mut self.lock().queues);
        close(&ended);
        self.wake_admin();
    }

    fn wake_admin(&self) {
        if let Some(admin) = &self.admin {
            admin.wake();
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Restarts the keep alive timer.
    pub(crate) fn note_active(&self, now: Instant) {
        let ms = now.saturating_duration_since(self.start).as_millis() as u64;
        self.active_at_ms.fetch_max(ms, Ordering::Relaxed);
    }

    /// When the keep alive timer expires; `None` if there is no timer. Source: base specification
    /// 2.1, 3.9.
    pub(crate) fn expires_at(&self) -> Option<Instant> {
        let time = match (self.lock().features.keep_alive_ms, self.kind) {
            // Without this limit, a host that is gone but has not disconnected would keep its
            // controller for ever.
            (0, Kind::Discovery) => DISCOVERY_TIME_MAX,
            (0, Kind::Io) => return None,
            (ms, _) => Duration::from_millis(ms.into()),
        };
        let active_at = Duration::from_millis(self.active_at_ms.load(Ordering::Relaxed));
        Some(self.start + active_at + time)
    }
}

/// The type of an asynchronous event. Source: base specification 2.1, figure 146.
fn kind_of(event: u64) -> u64 {
    event & 7
}

/// Closes queues that do not belong to a controller any more.
fn close(queues: &[Queue]) {
    for link in queues.iter().filter_map(|queue| queue.link.as_ref()) {
        link.close();
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use slimio_nvme::feature::event;
    use slimio_nvme::log::lid;
    use slimio_ssd::Canceller;

    use super::*;
    use crate::waker::Waker;

    fn controller(keep_alive_ms: u32) -> Controller {
        let now = Instant::now();
        Controller::new(1, Kind::Io, "nqn.host", [1; 16], keep_alive_ms, now, now)
    }

    #[test]
    fn it_is_ready_when_enabled_and_not_after_a_reset() {
        let controller = controller(0);
        assert!(!controller.is_ready());
        assert_eq!(
            controller.take_queue(1, None).map_err(|refusal| refusal.status),
            Err(Status::COMMAND_SEQUENCE_ERROR.dnr())
        );
        controller.configure(Configuration::ENABLED);
        assert!(controller.is_ready());
        assert_eq!(controller.take_queue(1, None), Ok(0));
        assert_eq!(
            controller.take_queue(1, None).map_err(|refusal| refusal.status),
            Err(Status::COMMAND_SEQUENCE_ERROR)
        );
        let number = InvalidParameter::QID.result();
        for qid in [0, IO_QUEUES_MAX + 1] {
            assert_eq!(
                controller.take_queue(qid, None).map_err(|refusal| refusal.result),
                Err(number)
            );
        }
        controller.configure(Configuration::default());
        assert_eq!((controller.is_ready(), controller.resets()), (false, 1));
        controller.configure(Configuration::ENABLED);
        assert_eq!(controller.take_queue(1, None), Ok(1), "the reset has ended the first queue");
        controller.give_queue(1, 0);
        assert!(
            controller.take_queue(1, None).is_err(),
            "when a queue from before the reset ends, the queue that came after the reset stays"
        );
        assert!(controller.has_queue_of(1) && !controller.has_queue_of(0));
        controller.end();
        assert!(!controller.has_queue_of(1) && !controller.is_ready());
        let refused = controller.take_queue(2, None).map_err(|refusal| refusal.status);
        assert_eq!(
            refused,
            Err(ConnectRefusal::no_controller().status),
            "an ended controller refuses queues"
        );
    }

    /// Once a host has the reply to a reset, it may use the blocks of its old commands for other
    /// data. So the old commands must not change these blocks later.
    #[test]
    fn a_reset_and_an_end_wait_for_what_a_queue_begins_and_let_it_begin_no_more() {
        for is_reset in [true, false] {
            let controller = controller(0);
            controller.configure(Configuration::ENABLED);
            let waker = Arc::new(Waker::new().expect("a file descriptor is free"));
            let link = Arc::new(Link::new(waker, Canceller::default()));
            controller.take_queue(1, Some(&link)).expect("the controller is ready");
            let begins = link.enter().expect("the connection may begin operations");
            let (ended, end) = std::sync::mpsc::channel();
            std::thread::scope(|scope| {
                let controller = &controller;
                scope.spawn(move || {
                    if is_reset {
                        controller.configure(Configuration::default());
                    } else {
                        controller.end();
                    }
                    ended.send(()).expect("the test waits for the message");
                });
                while controller.has_queue_of(0) {
                    std::thread::yield_now();
                }
                let early = end.recv_timeout(Duration::from_millis(50));
                assert!(early.is_err(), "the end waits for the operation that begins");
                drop(begins);
                end.recv().expect("the reset or end returns");
            });
            assert!(link.enter().is_none());
        }
    }

    #[test]
    fn the_connection_of_the_admin_queue_is_woken_at_the_end() {
        let mut controller = controller(0);
        let waker = Arc::new(Waker::new().expect("a file descriptor is free"));
        controller.admin = Some(Arc::new(Link::new(waker.clone(), Canceller::default())));
        let is_woken = || {
            let mut fds = [PollFd::new(&*waker, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())) == Ok(1)
        };
        assert!(!is_woken());
        controller.end();
        assert!(is_woken());
    }

    #[test]
    fn a_configuration_that_is_not_supported_is_a_fatal_status() {
        for wrong in [1 << 7, 1 << 4, 1 << 11, 1 << 16, 1 << 20] {
            let controller = controller(0);
            controller.configure(Configuration(Configuration::ENABLED.0 ^ wrong));
            assert!(controller.status().cfs && !controller.is_ready(), "{wrong:#x}");
        }
    }

    #[test]
    fn a_shutdown_is_complete_at_once() {
        let controller = controller(0);
        controller.configure(Configuration::ENABLED);
        controller.configure(Configuration::ENABLED.with_shn(1));
        assert_eq!(controller.status(), ControllerStatus { rdy: true, cfs: false, shst: 2 });
    }

    #[test]
    fn after_an_event_its_kind_waits_until_its_page_is_read() {
        let controller = controller(0);
        let error = |information| event::result(event::ERROR, information, lid::ERROR);
        let notice = event::result(event::NOTICE, event::NOTICE_DISCOVERY, lid::DISCOVERY);
        controller.raise(error(3));
        assert_eq!(controller.take_event(), Some(error(3)));
        controller.raise(error(3));
        controller.raise(error(4));
        controller.raise(notice);
        assert_eq!(controller.take_event(), Some(notice), "an event of another kind is not masked");
        assert_eq!(controller.take_event(), None);
        controller.clear_events(lid::SMART);
        assert_eq!(controller.take_event(), None);
        controller.clear_events(lid::ERROR);
        assert_eq!(controller.take_event(), Some(error(3)));
        assert_eq!(controller.take_event(), None);
    }

    #[test]
    fn the_keep_alive_timer_begins_anew_with_each_command() {
        let controller = controller(1000);
        let start = controller.start;
        assert_eq!(controller.expires_at(), Some(start + Duration::from_secs(1)));
        controller.note_active(start + Duration::from_millis(700));
        assert_eq!(controller.expires_at(), Some(start + Duration::from_millis(1700)));
        controller.note_active(start + Duration::from_millis(300));
        assert_eq!(controller.expires_at(), Some(start + Duration::from_millis(1700)));
    }
}
