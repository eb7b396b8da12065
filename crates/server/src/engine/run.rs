//! Checks whether a client may run a command, runs the command, and counts it. The checks have the
//! same order as in Redis.

use std::time::Duration;

use slimio_keyspace::{Command, Context, DataFn, Flags, Mode, Outcome, Steps};
use slimio_planted::is_planted;
use slimio_resp::Args;
use slimio_storage::Lsn;

use super::{Admission, Engine, Purpose};
use crate::clients::{Client, State};
use crate::commands::Entry;
use crate::slowlog::SlowCommand;

impl Engine {
    /// Runs a data command for a client, and records what the command did. Returns the outcome, and
    /// the LSN that the reply depends on.
    pub(crate) fn run_data(
        &mut self,
        client: &mut Client,
        row: &'static Command<Entry>,
        run: DataFn,
        args: Args<'_>,
        mode: Mode,
    ) -> (Outcome, Lsn) {
        self.data.effects.clear();
        if !row.flags.has(Flags::WRITE) {
            self.limit_effects(client.db);
        }
        if let Some(transaction) = &self.data.transaction {
            self.data.effects.limit_values(transaction.value_room);
        }
        self.note_reads();
        self.data.keyspace.set_untouched(client.no_touch);
        let outcome = run(&mut self.context(client, args, mode));
        (outcome, self.recorded(client, row, args))
    }

    /// Runs the next step of a client's command that is done in steps. Between the steps, other
    /// clients may use the command's keys. (In contrast, the long request of `engine::long` can
    /// hold its keys between its steps.) Returns the outcome, and the LSN that the reply depends
    /// on.
    pub(crate) fn run_step_of(
        &mut self,
        client: &mut Client,
        row: &'static Command<Entry>,
        args: Args<'_>,
        steps: Box<dyn Steps>,
    ) -> (Outcome, Lsn) {
        self.data.effects.clear();
        if steps.log_size_max().is_none() && !is_planted("long-reads-unlimited") {
            self.limit_effects(client.db);
        }
        self.note_reads();
        let outcome = steps.resume(&mut self.context(client, args, Mode::Client));
        (outcome, self.recorded(client, row, args))
    }

    /// The context for a client's command, or for the next step of the command.
    pub(super) fn context<'a>(
        &'a mut self,
        client: &'a mut Client,
        args: Args<'a>,
        mode: Mode,
    ) -> Context<'a> {
        Context {
            keyspace: &mut self.data.keyspace,
            db: client.db,
            args,
            now_ms: self.clock.now_ms,
            reply: &mut client.out,
            effects: &mut self.data.effects,
            mode,
        }
    }

    /// Records what a data command, or a step of such a command, did. Returns the LSN that the
    /// command's reply depends on.
    pub(super) fn recorded(
        &mut self,
        client: &mut Client,
        row: &'static Command<Entry>,
        args: Args<'_>,
    ) -> Lsn {
        let mut needs = self.record(client, args);
        if needs == Lsn(0) && self.gate.keeps_undurable {
            needs = self.gate.depends_on_reads(row, self.data.effects.reads());
        }
        if let Some(garbage) = self.data.keyspace.take_garbage() {
            self.data.free(garbage);
        }
        needs
    }

    /// Whether the client may run the command now. All clients together take `clients` bytes of
    /// memory. This number is needed only if there is a memory limit. A command that has waited for
    /// keys (`is_counted`) may run, as in Redis, even if the server has begun to refuse such
    /// commands in the meantime.
    pub(crate) fn check(
        &mut self,
        client: &Client,
        row: &Command<Entry>,
        clients: u64,
        is_counted: bool,
    ) -> Result<(), String> {
        let has_waited = is_counted && !is_planted("woken-lacks-memory");
        if row.name == "debug" {
            let allowed = self.config.choice("enable-debug-command");
            if allowed == "no" || (allowed == "local" && !client.is_local()) {
                return Err(DEBUG_REFUSED.into());
            }
        }
        if self.settings.password.is_some()
            && !client.is_authenticated
            && !row.flags.has(Flags::NO_AUTH)
        {
            return Err("NOAUTH Authentication required.".into());
        }
        if client.multi.is_some() && row.flags.has(Flags::NO_MULTI) {
            return Err("ERR Command not allowed inside a transaction".into());
        }
        let is_full = self.settings.memory_max > 0 && !self.make_room(clients);
        if is_full && needs_memory(client, row) && !has_waited {
            return Err("OOM command not allowed when used memory > 'maxmemory'.".into());
        }
        if self.gate.is_latched()
            && row.flags.has(Flags::WRITE)
            && let Admission::Refused(text) = self.admit(Purpose::Any, 0)
        {
            return Err(text);
        }
        if self.is_save_broken() && tells_of_broken_save(client, row) && !has_waited {
            return Err(SAVE_BROKEN.into());
        }
        if self.phase.loading.is_some() && !row.flags.has(Flags::LOADING) {
            return Err("LOADING Redis is loading the dataset in memory".into());
        }
        Ok(())
    }

    /// Replies with an error to a request that was not run.
    pub(crate) fn reject(
        &mut self,
        client: &mut Client,
        row: Option<&Command<Entry>>,
        text: &[u8],
    ) {
        if let Some(row) = row {
            self.stats.by_command[row.run.id].rejected += 1;
            if row.name == "exec" {
                self.abort(client, text);
                return;
            }
        }
        if let Some(multi) = &mut client.multi {
            multi.is_broken = true;
        }
        let before = client.out.len();
        client.out.error_bytes(text);
        self.count_error(client, before);
    }

    /// Ends a transaction whose `EXEC` was refused.
    pub(crate) fn abort(&mut self, client: &mut Client, text: &[u8]) {
        self.data.end_multi(client.multi.take());
        self.data.watches.clear(client);
        let before = client.out.len();
        let why = text.strip_prefix(b"ERR ").unwrap_or(text);
        client.out.error_bytes(&[b"EXECABORT Transaction discarded because of: ", why].concat());
        self.count_error(client, before);
    }

    /// Counts the CPU time of the command, or of the part of a command, that has just ended.
    pub(crate) fn count_cpu(&mut self) {
        if let Some(cpu) = self.clock.end_cpu_lap() {
            self.stats.command_cpu_max = self.stats.command_cpu_max.max(cpu);
        }
    }

    /// Counts a command that has run, unless the command was counted when it began to wait
    /// (`is_counted`). `spent` is the time that the command's earlier steps took. The clock is read
    /// only when a command or step ends. The next command or step counts as begun at that moment.
    pub(crate) fn account(
        &mut self,
        client: &mut Client,
        row: &Command<Entry>,
        args: Args<'_>,
        spent: Duration,
        before: usize,
        is_counted: bool,
    ) {
        let took = spent + self.clock.end_lap();
        self.count_cpu();
        if let State::Yielding(long) = &mut client.state {
            long.spent = took;
            return;
        }
        let stats = &mut self.stats.by_command[row.run.id];
        let is_over = !matches!(client.state, State::Waiting(_));
        let is_tracked = self.settings.is_latency_tracked && is_over;
        if is_counted {
            stats.goes_on(took, is_tracked);
        } else {
            self.stats.commands += 1;
            stats.count(took, is_tracked);
        }
        if took >= self.settings.slow_from {
            self.was_slow(client, row, args, took);
        }
        if self.count_error(client, before) {
            self.stats.by_command[row.run.id].failed += 1;
        }
    }

    /// Notes a slow command for `LATENCY` and `SLOWLOG`.
    #[cold]
    fn was_slow(&mut self, client: &Client, row: &Command<Entry>, args: Args<'_>, took: Duration) {
        let at_s = self.clock.now_ms / 1000;
        let event = if row.flags.has(Flags::FAST) { "fast-command" } else { "command" };
        self.latency.note(event, at_s, took, self.settings.latency_from);
        let is_kept = self.settings.slowlog_from.is_some_and(|from| took >= from);
        if is_kept && !row.flags.has(Flags::SKIP_SLOWLOG) {
            let who = (client.address(), client.name.as_slice());
            let is_within = self.data.transaction.is_some();
            let needs = if is_within { SlowCommand::UNSETTLED } else { client.needs };
            self.slowlog.add(at_s, took, args, who, needs, self.settings.slowlog_len_max);
        }
    }

    /// If the reply behind the first `before` bytes of the output is an error, counts the error.
    /// Returns whether it is an error.
    pub(crate) fn count_error(&mut self, client: &Client, before: usize) -> bool {
        if client.out.len() == before {
            return false;
        }
        let start = client.out.stretch_at(before);
        let is_error = start.first() == Some(&b'-');
        if is_error {
            self.stats.error(start);
        }
        is_error
    }
}

/// Whether a request counts as one that may need more memory. Every request that a transaction
/// queues counts. As in Redis, `MULTI` and `WATCH` within a transaction count, too, although they
/// are not queued.
fn needs_memory(client: &Client, row: &Command<Entry>) -> bool {
    match &client.multi {
        Some(multi) if row.name == "exec" => multi.needs_memory,
        Some(_) if ["discard", "quit", "reset"].contains(&row.name) => false,
        Some(_) => true,
        None => row.flags.has(Flags::DENYOOM),
    }
}

/// Whether a request is refused while snapshots fail. Writes are refused. `PING` is refused, too,
/// so that a monitor notices the failure. Unlike in Redis, writes that free memory are allowed,
/// because too much data may be the reason for the failure.
fn tells_of_broken_save(client: &Client, row: &Command<Entry>) -> bool {
    let frees = |purpose| purpose >= Purpose::Frees && !is_planted("broken-save-keeps-all");
    let exec = client.multi.as_ref().filter(|_| row.name == "exec");
    let is_written = exec.is_some_and(|multi| multi.writes && !frees(multi.purpose));
    let writes =
        row.flags.has(Flags::WRITE) && !(row.flags.has(Flags::FREES) && frees(Purpose::Frees));
    is_written || writes || row.name == "ping"
}

const SAVE_BROKEN: &str = "MISCONF Redis is configured to save RDB snapshots, but it's currently \
unable to persist to disk. Commands that may modify the data set are disabled, because this \
instance is configured to report errors during writes if RDB snapshotting fails \
(stop-writes-on-bgsave-error option). Please check the Redis logs for details about the RDB error.";

const DEBUG_REFUSED: &str = "ERR DEBUG command not allowed. If the enable-debug-command option is \
set to \"local\", you can run it from a local connection, otherwise you need to set this option in \
the configuration file, and then restart the server.";
