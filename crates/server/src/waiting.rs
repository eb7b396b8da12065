//! The waiting room: all clients that wait, whatever they wait for.
//!
//! ```text
//!                      ┌─ room in the log ──┐ woken  ┌─► its request runs again
//!  request must wait ──┼─ end of a pause    ├────────┼─► its command goes on with a step
//!                      ├─ keys              │        └─► it is answered
//!                      └─ ...               ┘ given up: deadline, CLIENT UNBLOCK,
//!                                                       closed, killed, disconnected
//! ```
//!
//! A request that has to wait gets a ticket. It keeps the ticket until it has run, even if it has
//! to wait several times, for different things. The clients that wait for the same kind of thing
//! stand in a line, in the order of their tickets. So a request that is tried in vain does not lose
//! its place. Entering and leaving a line take logarithmic time. The code that wakes clients,
//! resumes them and ends their waits is in `connections::waiting`.

mod keys;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::time::{Duration, Instant};

use slimio_keyspace::Mode;
use slimio_planted::is_planted;
use slimio_resp::{OwnedRequest, ReplyBuf};
use slimio_storage::Lsn;

use crate::clients::LongCommand;
use crate::net::ConnId;
pub(crate) use keys::{BlockingKeys, KeyName, WantedKeys};

/// A place in the order of arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

impl Ticket {
    /// A ticket for the reverse order: the later a request arrived, the earlier is this ticket.
    pub(crate) fn reversed(self) -> Self {
        Self(u64::MAX - 1 - self.0)
    }
}

/// The reason why a client waits.
#[derive(Debug)]
pub(crate) enum Reason {
    /// Room in the log for the request's record, or the release of memory that a snapshot holds.
    Room,
    /// Room in the log for the next step of a command that runs in steps.
    RoomForStep,
    /// The end of a `CLIENT PAUSE`.
    Pause,
    /// The end of the long request that is running in steps (see `engine::long`). Only one such
    /// request runs at a time.
    LongRequest,
    /// Keys of the request are taken: they became ready for clients that began to wait earlier, and
    /// these clients are served first.
    TakenKeys,
    /// The state of the log that `WAITAOF` asks for.
    Log(LogWait),
    /// The end of a snapshot.
    Snapshot,
    /// The snapshot of the `BGSAVE` with this number. It will be pinned for the client: kept
    /// unchanged until the client's connection ends.
    Pin(u64),
    /// A job on another thread.
    Job,
    /// The last snapshot before the server ends.
    End,
    /// Keys that hold a value of the type that the client wants.
    Keys(WantedKeys),
}

/// A [`Reason`] without the details of one client. The clients that wait for the same kind of thing
/// stand in one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Room,
    RoomForStep,
    Pause,
    LongRequest,
    TakenKeys,
    Log,
    Snapshot,
    Pin,
    Job,
    End,
    Keys,
}

impl Reason {
    pub(crate) fn line(&self) -> Line {
        match self {
            Self::Room => Line::Room,
            Self::RoomForStep => Line::RoomForStep,
            Self::Pause => Line::Pause,
            Self::LongRequest => Line::LongRequest,
            Self::TakenKeys => Line::TakenKeys,
            Self::Log(_) => Line::Log,
            Self::Snapshot => Line::Snapshot,
            Self::Pin(_) => Line::Pin,
            Self::Job => Line::Job,
            Self::End => Line::End,
            Self::Keys(_) => Line::Keys,
        }
    }
}

impl Line {
    pub(crate) const ALL: [Self; 11] = [
        Self::Room,
        Self::RoomForStep,
        Self::Pause,
        Self::LongRequest,
        Self::TakenKeys,
        Self::Log,
        Self::Snapshot,
        Self::Pin,
        Self::Job,
        Self::End,
        Self::Keys,
    ];

    /// Whether `CLIENT LIST` and INFO count a client in this line as blocked.
    pub(crate) fn is_blocked(self) -> bool {
        !matches!(self, Self::RoomForStep | Self::Snapshot | Self::Pin | Self::Job | Self::End)
    }
}

/// The state of the log that `WAITAOF` asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogWait {
    pub(crate) lsn: Lsn,
    /// The wait asks for the log of this server.
    pub(crate) is_local: bool,
    /// The wait can never be satisfied, because it asks for replicas.
    pub(crate) never: bool,
}

/// The action that follows when a client is woken.
#[derive(Debug)]
pub(crate) enum Then {
    /// This request is run again from its beginning.
    Again(OwnedRequest),
    /// The command goes on with its next step.
    GoOn(Box<LongCommand>),
    /// The code that wakes the client writes the reply.
    Answer,
}

/// Bytes of memory that a client takes in two trees, for its place in a line and for its deadline.
/// The number allows for nodes that are not full.
const LINE_MEMORY: usize = 96;

/// A client's wait.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) reason: Reason,
    pub(crate) then: Then,
    pub(crate) ticket: Ticket,
    /// When a blocking command gives up. The deadline is kept while the command waits for something
    /// else.
    pub(crate) deadline: Option<Instant>,
    /// The request has waited for keys. It was counted as a command when it began to wait for them.
    pub(crate) is_counted: bool,
}

impl Waiting {
    /// Bytes of memory that the wait takes.
    pub(crate) fn memory(&self) -> usize {
        let then = match &self.then {
            Then::Again(request) => request.memory(),
            Then::GoOn(command) => command.memory(),
            Then::Answer => 0,
        };
        let keys = match &self.reason {
            Reason::Keys(wanted) => wanted.memory(),
            _ => 0,
        };
        size_of::<Self>() + then + keys + LINE_MEMORY
    }

    /// If the command runs in steps: the part of its reply that the steps have made so far.
    pub(crate) fn made(&self) -> Option<&ReplyBuf> {
        match &self.then {
            Then::GoOn(command) => command.steps.made(),
            _ => None,
        }
    }

    /// Whether `CLIENT UNBLOCK` or a deadline may end the wait. They may end the wait of a blocking
    /// command, even if the command was woken and now waits for room in the log. A command that is
    /// not blocking runs in any case, even if it has to wait for room or for the end of a pause.
    pub(crate) fn can_be_given_up(&self) -> bool {
        let woken = self.is_counted && !is_planted("woken-not-given-up");
        woken || matches!(self.reason.line(), Line::Log | Line::Keys)
    }

    fn limit(&self) -> Option<Instant> {
        self.deadline.filter(|_| self.can_be_given_up())
    }
}

/// State of a request that has waited and now runs again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Again {
    /// The request's ticket; `None` if the running request has not waited.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) is_counted: bool,
    /// The mode in which the request's command runs.
    pub(crate) mode: Mode,
}

/// When a client gives up, and the client's ticket. If two clients give up at the same time, the
/// client with the earlier ticket comes first.
pub(crate) type Deadline = (Instant, Ticket);

/// All clients that wait.
#[derive(Debug, Default)]
pub(crate) struct WaitingRoom {
    lines: [BTreeMap<Ticket, ConnId>; Line::ALL.len()],
    deadlines: BTreeMap<Deadline, ConnId>,
    last: Ticket,
    /// State of the running request, if it has waited.
    pub(crate) again: Again,
    /// Clients whose wait has ended, and whose next requests have not run yet.
    pub(crate) resumed: VecDeque<ConnId>,
    /// Some requests that wait for room were not tried, because the time of the event loop's turn
    /// was used up.
    pub(crate) has_untried: bool,
}

impl WaitingRoom {
    /// The running request's own ticket if it has one, otherwise a new ticket.
    pub(crate) fn ticket(&mut self) -> Ticket {
        let own = self.again.ticket.filter(|_| !is_planted("parked-lose-place"));
        own.unwrap_or_else(|| {
            self.last.0 += 1;
            self.last
        })
    }

    /// Adds a client to the lists when it begins to wait.
    pub(crate) fn enter(&mut self, conn: ConnId, waiting: &Waiting) {
        let before = self.lines[waiting.reason.line() as usize].insert(waiting.ticket, conn);
        assert!(before.is_none(), "each request that waits has a ticket of its own");
        if let Some(deadline) = waiting.limit() {
            self.deadlines.insert((deadline, waiting.ticket), conn);
        }
    }

    /// Takes a client off all lists.
    pub(crate) fn leave(&mut self, waiting: &Waiting) {
        self.lines[waiting.reason.line() as usize].remove(&waiting.ticket);
        if let Some(deadline) = waiting.limit() {
            self.deadlines.remove(&(deadline, waiting.ticket));
        }
    }

    fn line(&self, line: Line) -> &BTreeMap<Ticket, ConnId> {
        &self.lines[line as usize]
    }

    /// Number of clients in a line.
    pub(crate) fn len(&self, line: Line) -> usize {
        self.line(line).len()
    }

    pub(crate) fn is_empty(&self, line: Line) -> bool {
        self.line(line).is_empty()
    }

    /// The clients in a line, in order.
    pub(crate) fn in_line(&self, line: Line) -> impl Iterator<Item = ConnId> {
        self.line(line).values().copied()
    }

    /// The ticket of the last client in a line.
    pub(crate) fn last_in(&self, line: Line) -> Ticket {
        self.line(line).last_key_value().map_or(Ticket(0), |(ticket, _)| *ticket)
    }

    /// The first client in a line whose ticket is later than `after`.
    pub(crate) fn next_in(&self, line: Line, after: Ticket) -> Option<(Ticket, ConnId)> {
        self.line(line).range(Ticket(after.0 + 1)..).next().map(|(ticket, conn)| (*ticket, *conn))
    }

    /// Number of clients that count as blocked.
    pub(crate) fn blocked_count(&self) -> usize {
        Line::ALL.into_iter().filter(|line| line.is_blocked()).map(|line| self.len(line)).sum()
    }

    /// Number of clients that wait with a deadline.
    pub(crate) fn timed_count(&self) -> usize {
        self.deadlines.len()
    }

    /// When the next client gives up.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first_key_value().map(|((deadline, _), _)| *deadline)
    }

    /// The next client in the order of deadlines: the first one, or the one that follows `after`.
    /// `None` if this client's deadline has not passed yet.
    pub(crate) fn next_late(
        &self,
        now: Instant,
        after: Option<Deadline>,
    ) -> Option<(Deadline, ConnId)> {
        let behind = after.map_or(Bound::Unbounded, Bound::Excluded);
        let (at, conn) = self.deadlines.range((behind, Bound::Unbounded)).next()?;
        (at.0 <= now).then_some((*at, *conn))
    }
}

/// The deadline of a wait of at most `timeout` that begins at `now`. `None` if `timeout` is zero,
/// which means no limit, or if the deadline is later than the clock can represent.
pub(crate) fn deadline(now: Instant, timeout: Duration) -> Option<Instant> {
    (timeout > Duration::ZERO).then(|| now.checked_add(timeout)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conn(index: u32) -> ConnId {
        ConnId { index, generation: 0 }
    }

    fn waiting(room: &mut WaitingRoom, reason: Reason, deadline: Option<Instant>) -> Waiting {
        let ticket = room.ticket();
        Waiting { reason, then: Then::Answer, ticket, deadline, is_counted: false }
    }

    #[test]
    fn a_request_that_waits_again_keeps_its_place() {
        let mut room = WaitingRoom::default();
        let waits: Vec<Waiting> = (0..3)
            .map(|index| {
                let waiting = waiting(&mut room, Reason::Pause, None);
                room.enter(conn(index), &waiting);
                waiting
            })
            .collect();
        let (first, who) =
            room.next_in(Line::Pause, Ticket(0)).expect("a client waits for the end of a pause");
        assert_eq!((first, who), (waits[0].ticket, conn(0)));
        room.leave(&waits[0]);
        assert_eq!(room.next_in(Line::Pause, first).map(|(_, who)| who), Some(conn(1)));
        // Client 0 now waits for something else, in a line with a client that came later.
        let late = waiting(&mut room, Reason::Room, None);
        room.enter(conn(7), &late);
        room.again.ticket = Some(first);
        let again = waiting(&mut room, Reason::Room, None);
        room.again = Again::default();
        room.enter(conn(0), &again);
        assert_eq!(room.in_line(Line::Room).collect::<Vec<_>>(), [conn(0), conn(7)]);
        assert_eq!(room.in_line(Line::Pause).collect::<Vec<_>>(), [conn(1), conn(2)]);
        assert_eq!(room.blocked_count(), 4);
    }

    #[test]
    fn deadlines_are_in_the_order_of_time_and_go_with_their_clients() {
        let (mut room, now) = (WaitingRoom::default(), Instant::now());
        let at = |seconds| Some(now + Duration::from_secs(seconds));
        let log = || Reason::Log(LogWait { lsn: Lsn(0), is_local: false, never: true });
        let late = waiting(&mut room, log(), at(9));
        let soon = waiting(&mut room, log(), at(3));
        let never = waiting(&mut room, log(), None);
        for (index, waiting) in [&late, &soon, &never].into_iter().enumerate() {
            room.enter(conn(index as u32), waiting);
        }
        // A client that waits for the end of a pause does not give up at a deadline.
        let paused = waiting(&mut room, Reason::Pause, at(1));
        room.enter(conn(9), &paused);
        assert_eq!((room.timed_count(), room.next_deadline()), (2, at(3)));
        assert_eq!(room.next_late(now, None), None);
        let then = now + Duration::from_secs(9);
        let first = (now + Duration::from_secs(3), soon.ticket);
        assert_eq!(room.next_late(first.0, None), Some((first, conn(1))));
        assert_eq!(room.next_late(first.0, Some(first)), None);
        assert_eq!(room.next_late(then, Some(first)), Some(((then, late.ticket), conn(0))));
        room.leave(&soon);
        assert_eq!(room.next_deadline(), at(9));
        room.leave(&late);
        assert_eq!((room.timed_count(), room.next_deadline()), (0, None));
    }

    #[test]
    fn a_time_that_the_clock_does_not_know_is_no_limit() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        assert_eq!(deadline(now, Duration::ZERO), None);
        assert_eq!(deadline(now, Duration::MAX), None);
        assert_eq!(deadline(now, second), Some(now + second));
    }
}
