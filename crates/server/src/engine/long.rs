//! Requests that run in steps, because they have many or large arguments, or because the values of
//! their keys cause much work.
//!
//! ```text
//!  measuring ──has room──► running ──► staging ──in the log──► noting ──► replied
//!                          └─────────── its keys are held ────────────┘
//! ```
//!
//! To every other client, a long request happens at one point in time. While a long request holds
//! its keys, another request has to wait if it would write a key that the long request reads or
//! writes, or read a key that the long request writes. A transaction has to wait if one of its
//! requests would have to. The waiting requests run in the order of arrival. Requests that look at
//! the data set as a whole wait, too, and nothing expires or is evicted.
//!
//! Only one long request runs at a time. Once it holds its keys, it asks for no more room in the
//! log and waits for nobody. So it always ends, even if its client has disconnected. The log has
//! either all effects of the long request, in one record, or none of them.

mod held_up;

use std::collections::HashSet;
use std::hash::BuildHasherDefault;
use std::time::{Duration, Instant};

use slimio_keyspace::{
    ARGS_AT_ONCE_MAX, Command, Context, DataFn, DbIndex, EFFECT_SIZE_BESIDE, ELEMENTS_AT_ONCE_MAX,
    Effects, Flags, Mode, Outcome, PayloadWalk, Steps, Weight,
};
use slimio_planted::is_planted;
use slimio_resp::{Args, OwnedRequest, ReplyBuf};
use slimio_storage::{Lsn, StagedRecord};

use super::changes::{Place, Ran, Source};
use super::{Admission, Data, Engine};
use crate::clients::{Client, State};
use crate::commands::Entry;
use crate::gate::{AlreadyHashed, mix};
use crate::net::ConnId;
use crate::waiting::{Reason, Then, Ticket};

/// In one turn, the long request may take at most this much of the command thread's time.
pub(crate) const STEP_TIME: Duration = Duration::from_micros(500);

/// A request that writes runs in steps if its arguments have more than this many bytes, because the
/// arguments are copied to the log.
const SIZE_AT_ONCE_MAX: usize = 1 << 20;

/// If a request has at most this many arguments, only its large strings are measured. Its small
/// strings can't add up to [`SIZE_AT_ONCE_MAX`].
const FEW_ARGS: usize = 32;

/// Between two readings of the clock, this many arguments are measured, or this many changes are
/// noted.
const STEP_ITEMS: usize = 128;

/// If a record's payload can reach this number of bytes, the record is first built outside the
/// buffers of the log.
const STAGED_SIZE_MIN: u64 = 256 << 10;

/// Hashes of keys. Each hash is mixed with the number of the key's database.
type Keys = HashSet<u64, BuildHasherDefault<AlreadyHashed>>;

/// A request that runs in steps.
#[derive(Debug)]
pub(crate) struct Long {
    /// The client that waits for the reply. It may have disconnected.
    pub(crate) conn: ConnId,
    /// The `CLIENT ID` of that client.
    client: u64,
    /// The request's place in the order of arrival, in case the request has to wait.
    pub(crate) ticket: Ticket,
    db: DbIndex,
    no_touch: bool,
    pub(crate) row: &'static Command<Entry>,
    run: DataFn,
    pub(crate) request: OwnedRequest,
    /// Time of day at which the command began to run.
    now_ms: i64,
    stage: Stage,
    /// The keys that the request may change.
    keys: Keys,
    /// The keys that the request only reads.
    sources: Keys,
    is_holding: bool,
    /// The record's payload may have at most this many bytes.
    log_size_max: u64,
    effects: Effects,
    pub(crate) reply: ReplyBuf,
    /// Position of the request's record, once the record is appended.
    pub(crate) lsn: Option<Lsn>,
    pub(crate) needs: Lsn,
    /// Time that the steps before this turn have taken.
    pub(crate) spent: Duration,
}

#[derive(Debug)]
enum Stage {
    /// The arguments before this index are measured: their keys are known, and so is the room in
    /// the log that they need.
    Measuring(usize),
    /// The command runs; `None` before its first step.
    Running(Option<Box<dyn Steps>>),
    /// The record is being built outside the log's buffers.
    Staging(PayloadWalk, StagedRecord),
    /// This many changes have been noted. If nothing was changed, this many reads have been noted.
    Noting(usize),
}

/// What follows a step.
pub(crate) enum Next {
    Step,
    /// The request has to wait: for room in the log, or for the end of a pause that began after the
    /// request arrived.
    Wait(Reason),
    /// The request may not run. Reply with this error.
    Reject(String),
    End,
}

impl Long {
    fn writes(&self) -> bool {
        self.row.flags.has(Flags::WRITE)
    }

    fn memory(&self) -> usize {
        let replies: usize = self.made().map(ReplyBuf::own_memory).sum();
        let replies = if is_planted("made-in-steps-uncounted") { 0 } else { replies };
        let keys = self.keys.capacity() + self.sources.capacity();
        self.request.memory() + keys * (size_of::<u64>() + 1) + replies
    }

    /// The parts of the reply that were made so far.
    pub(crate) fn made(&self) -> impl Iterator<Item = &ReplyBuf> {
        let of_command = match &self.stage {
            Stage::Running(Some(steps)) => steps.made(),
            _ => None,
        };
        of_command.into_iter().chain([&self.reply])
    }
}

impl Engine {
    /// Begins a request that is to run in steps. The caller must [keep](Data::keep_request) the
    /// request's arguments afterwards.
    pub(crate) fn begin_long(
        &mut self,
        client: &mut Client,
        ticket: Ticket,
        row: &'static Command<Entry>,
        run: DataFn,
        args: Args<'_>,
    ) {
        let (mut keys, mut sources) = (Keys::default(), Keys::default());
        // Memory is reserved for all keys, so that no step has to grow a set.
        let source_count = row.key_indices(args).filter(|index| row.only_reads(*index)).count();
        keys.reserve(row.key_indices(args).count() - source_count);
        sources.reserve(source_count);
        client.state = State::Long;
        client.keeps_request = true;
        self.data.long = Some(Box::new(Long {
            conn: client.conn,
            client: client.id,
            ticket,
            db: client.db,
            no_touch: client.no_touch,
            row,
            run,
            request: OwnedRequest::default(),
            now_ms: self.clock.now_ms,
            stage: Stage::Measuring(0),
            keys,
            sources,
            is_holding: false,
            log_size_max: EFFECT_SIZE_BESIDE,
            effects: Effects::new(),
            reply: client.out.for_parts(),
            lsn: None,
            needs: Lsn(0),
            spent: Duration::ZERO,
        }));
    }

    /// Runs steps of the long request for a bounded time. If the request has no next step, returns
    /// the request and what follows.
    pub(crate) fn long_steps(&mut self) -> Option<(Box<Long>, Next)> {
        let mut long = self.data.long.take()?;
        let began = Instant::now();
        self.clock.begin_lap(began);
        let next = loop {
            match self.long_step(&mut long) {
                Next::Step if began.elapsed() < STEP_TIME => {}
                next => break next,
            }
        };
        if !matches!(next, Next::Step) {
            return Some((long, next));
        }
        long.spent += began.elapsed();
        self.count_cpu();
        self.data.long = Some(long);
        None
    }

    fn long_step(&mut self, long: &mut Long) -> Next {
        match &mut long.stage {
            Stage::Measuring(_) => self.measure(long),
            Stage::Running(_) => {
                self.run_step(long);
                Next::Step
            }
            Stage::Staging(walk, record) => {
                if walk.step(&long.effects, long.request.args(), |bytes| record.write(bytes)) {
                    let stage = std::mem::replace(&mut long.stage, Stage::Noting(0));
                    if let Stage::Staging(_, record) = stage {
                        long.lsn = self.lsn_of_long(long.db, Source::Staged(record));
                    }
                }
                Next::Step
            }
            Stage::Noting(_) => self.note_step(long),
        }
    }

    fn measure(&mut self, long: &mut Long) -> Next {
        let Stage::Measuring(next) = &mut long.stage else { unreachable!() };
        let args = long.request.args();
        let (from, to) = (*next, (*next + STEP_ITEMS).min(args.len()));
        for index in long.row.key_indices_from(from, args).take_while(|i| *i < to) {
            let hash = self.data.keyspace.hash(&args.bytes(index));
            let is_source = long.row.only_reads(index) && !is_planted("long-holds-sources");
            let keys = if is_source { &mut long.sources } else { &mut long.keys };
            keys.insert(mix(long.db, hash));
        }
        long.log_size_max += long.row.log_size_of(args, from..to);
        *next = to;
        if to < args.len() {
            return Next::Step;
        }
        if self.phase.pauses(long.writes()) && !is_planted("long-unpaused") {
            return Next::Wait(Reason::Pause);
        }
        let key_count = long.keys.len() + long.sources.len();
        if long.writes() {
            // The request is weighed only now, because from here on no other request changes the
            // values.
            let size = self.data.weigh(long.db, long.row, long.request.args()).log_size;
            long.log_size_max += size;
            long.effects.limit_values(size);
            match self.admit(self.purpose(long.row, long.db), long.log_size_max) {
                Admission::Granted => {}
                Admission::Wait => return Next::Wait(Reason::Room),
                Admission::Refused(text) => return Next::Reject(text),
            }
            // The sources are counted, too, because a source that has expired is deleted.
            long.effects.reserve(key_count);
            if self.gate.keeps_undurable {
                self.gate.undurable.reserve(key_count);
            }
        }
        if self.gate.keeps_undurable {
            long.effects.note_reads(key_count);
        }
        // All steps use the same time of day. This time is taken now, so that it is no earlier than
        // any time that other requests have used.
        (long.is_holding, long.now_ms) = (true, self.clock.now_ms);
        long.stage = Stage::Running(None);
        Next::Step
    }

    fn run_step(&mut self, long: &mut Long) {
        let Stage::Running(steps) = &mut long.stage else { unreachable!() };
        let steps = steps.take();
        self.data.keyspace.set_untouched(long.no_touch);
        let may_delete = long.writes() || is_planted("long-reads-delete");
        let now_ms = if is_planted("long-time-passes") { self.clock.now_ms } else { long.now_ms };
        let mut context = Context {
            keyspace: &mut self.data.keyspace,
            db: long.db,
            args: long.request.args(),
            now_ms,
            reply: &mut long.reply,
            effects: &mut long.effects,
            mode: if may_delete { Mode::Client } else { Mode::Frozen },
        };
        let outcome = match steps {
            None => (long.run)(&mut context),
            Some(steps) => steps.resume(&mut context),
        };
        if let Some(garbage) = self.data.keyspace.take_garbage() {
            self.data.free(garbage);
        }
        // A large reply is sealed, so that the last step need not copy it.
        long.reply.seal_if_large();
        match outcome {
            Outcome::Yield(steps) => long.stage = Stage::Running(Some(steps)),
            Outcome::Reply => self.log_long(long),
            Outcome::Block(_) | Outcome::NeedCold { .. } => {
                unreachable!("a command that runs in steps waits for no keys or values")
            }
        }
    }

    /// Called when the command has run. Begins to put its effects into the log.
    fn log_long(&mut self, long: &mut Long) {
        long.stage = Stage::Noting(0);
        if long.effects.is_empty() {
            return;
        }
        let Some(wal) = self.gate.wal.as_ref().filter(|wal| wal.takes_records()) else { return };
        if long.log_size_max >= STAGED_SIZE_MIN {
            let record = wal.log().stage(long.db.0);
            long.stage = Stage::Staging(PayloadWalk::new(long.db), record);
            return;
        }
        let source = Source::Long(&long.effects, long.request.args());
        long.lsn = self.lsn_of_long(long.db, source);
    }

    /// Appends the record of a long request. If the log has stopped, the LSN is one that never
    /// becomes durable.
    fn lsn_of_long(&mut self, db: DbIndex, source: Source<'_>) -> Option<Lsn> {
        match self.put(db, source, false) {
            Place::Record(lsn) => Some(lsn),
            Place::Stopped if !is_planted("long-acked-when-latched") => Some(Lsn(u64::MAX)),
            _ => None,
        }
    }

    /// Reports changes, for example to the clients that watch the changed keys. Also notes the
    /// changes, because later replies depend on them. If nothing was changed, notes what the reply
    /// depends on.
    fn note_step(&mut self, long: &mut Long) -> Next {
        let Stage::Noting(next) = &mut long.stage else { unreachable!() };
        let args = long.request.args();
        let from = *next;
        *next += STEP_ITEMS;
        if long.effects.is_empty() {
            let reads = long.effects.reads();
            let is_forgotten = long.writes() && is_planted("long-refusal-undurable");
            if !self.gate.keeps_undurable
                || is_forgotten
                || reads.is_some_and(|reads| reads.len() <= from)
            {
                return Next::End;
            }
            let step = reads.map(|reads| &reads[from..reads.len().min(from + STEP_ITEMS)]);
            long.needs = long.needs.max(self.gate.depends_on_reads(long.row, step));
            return if reads.is_some() { Next::Step } else { Next::End };
        }
        long.needs = long.lsn.unwrap_or_default();
        let noted = long.effects.noted_count();
        if from >= noted {
            return Next::End;
        }
        let (items, now_ms) = (from..noted.min(from + STEP_ITEMS), long.now_ms);
        let (of_long, client, is_counted) = (Some(&long.effects), long.client, true);
        let ran = Ran { of_long, args, items, now_ms, client, is_counted };
        let place = long.lsn.map_or(Place::Nowhere, Place::Record);
        self.tell(&ran, place);
        Next::Step
    }
}

impl Data {
    /// Whether a request is to run in steps.
    pub(crate) fn is_long(&self, db: DbIndex, row: &Command<Entry>, args: Args<'_>) -> bool {
        if row.flags.has(Flags::IN_STEPS) {
            let writes = row.flags.has(Flags::WRITE);
            if args.len() > ARGS_AT_ONCE_MAX
                || writes && self.keyspace.changes_much_of_huge(db, args)
            {
                return true;
            }
        }
        if self.weigh(db, row, args).elements > ELEMENTS_AT_ONCE_MAX {
            return true;
        }
        if row.flags.has(Flags::EXPANDS) && args.large_size() > 0 {
            return true;
        }
        // Commands that may wait for keys are left out: they have few arguments, and the record of
        // their effect contains no values.
        let is_of_keys = row.flags.has(Flags::WRITE)
            && !row.flags.has(Flags::BLOCKING)
            && !row.flags.has(Flags::WHOLE_DB)
            && !row.flags.has(Flags::TWO_DBS);
        let is_large = || {
            let few = args.len() <= FEW_ARGS;
            let size = if few { args.large_size() } else { args.iter().map(|a| a.size()).sum() };
            size > SIZE_AT_ONCE_MAX
        };
        is_of_keys && is_large()
    }

    /// What a request costs because of the values of its keys. A request with many arguments is not
    /// weighed, because that would take long, and it runs in steps in any case.
    pub(crate) fn weigh(&self, db: DbIndex, row: &Command<Entry>, args: Args<'_>) -> Weight {
        let weigh = row.weigh.filter(|_| args.len() <= ARGS_AT_ONCE_MAX);
        weigh.map_or_else(Weight::default, |weigh| weigh(&self.keyspace, db, args))
    }

    /// Stores a request that did not run at once: in its client's state, in its client's
    /// transaction, or in `long` if it has become the long request.
    pub(crate) fn keep_request(&mut self, client: &mut Client, request: OwnedRequest) {
        client.keeps_request = false;
        match (&mut client.state, &mut self.long, &mut client.multi) {
            (State::Waiting(waiting), ..) => {
                if let Then::Again(again) = &mut waiting.then {
                    *again = request;
                }
            }
            (State::Long, Some(long), _) if long.conn == client.conn => long.request = request,
            (State::Running, _, Some(multi)) => multi.push(request),
            // The request was given up meanwhile.
            _ => {}
        }
    }

    /// The stage of the long request, in a word.
    pub(crate) fn long_stage(&self) -> &'static str {
        match self.long.as_ref().map(|long| &long.stage) {
            None => "none",
            Some(Stage::Measuring(_)) => "measuring",
            Some(Stage::Running(_)) => "running",
            Some(Stage::Staging(..)) => "staging",
            Some(Stage::Noting(_)) => "noting",
        }
    }

    pub(crate) fn has_long(&self) -> bool {
        self.long.is_some()
    }

    /// Whether a long request holds its keys. If so, nothing expires and nothing is evicted.
    pub(crate) fn is_long_holding(&self) -> bool {
        self.long.as_ref().is_some_and(|long| long.is_holding)
    }

    /// Whether a long request that writes holds its keys. If so, it may have changed a part of the
    /// data set already.
    pub(crate) fn is_long_writing(&self) -> bool {
        self.long.as_ref().is_some_and(|long| long.is_holding && long.writes())
    }

    /// The bytes of payload for which a long request was granted room in the log, while its record
    /// is not appended yet.
    pub(crate) fn long_reserved(&self) -> u64 {
        let reserves = |long: &&Long| {
            long.is_holding
                && long.writes()
                && long.lsn.is_none()
                && !is_planted("reserves-nothing")
        };
        self.long.as_deref().filter(reserves).map_or(0, |long| long.log_size_max)
    }

    pub(crate) fn long_memory(&self) -> usize {
        let long = self.long.as_ref().filter(|_| !is_planted("long-memory-uncounted"));
        long.map_or(0, |long| long.memory())
    }
}
