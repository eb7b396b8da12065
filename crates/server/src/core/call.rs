//! Finds a request's command in the table, checks the request in the order in which Redis does, and
//! runs it.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use slimio_keyspace::{
    Command, Context, DataFn, Flags, KeyRange, Mode, Outcome, populate_log_size_max,
};
use slimio_planted::is_planted;
use slimio_resp::{Arg, Args};

use super::{Admission, Purpose};
use super::{Connections, Engine};
use crate::clients::{Client, LongCommand, Replies, State};
use crate::commands::{Entry, Run};
use crate::slowlog::SlowCommand;
use crate::waiting::Reason;
use slimio_storage::Lsn;

/// An error repeats at most this many bytes of a client's words.
const QUOTED_SIZE_MAX: usize = 128;

/// At most this many bytes of an argument are compared with command names. Every name is shorter,
/// and an error repeats no more bytes than this.
const WORD_SIZE_MAX: usize = 256;

/// Limit of the arguments of a command that does not run in steps, such as a server command or a
/// command with any number of options. There is a limit because each argument takes time, and no
/// other client is served meanwhile.
const ARGS_MAX: usize = 1024;

/// Limit of the bytes of all arguments of a command that works on connections or on the server.
const SERVER_ARGS_SIZE_MAX: usize = 1 << 20;

impl Engine {
    /// Runs a data command for a client, and records what it did. Returns how it ended, and the LSN
    /// that its reply depends on.
    pub(crate) fn run_data(
        &mut self,
        client: &mut Client,
        row: &'static Command<Entry>,
        run: DataFn,
        args: Args<'_>,
        mode: Mode,
    ) -> (Outcome, Lsn) {
        self.effects.clear();
        if !row.flags.has(Flags::WRITE) {
            self.limit_effects(client.db);
        }
        if let Some(transaction) = &self.transaction {
            self.effects.limit_values(transaction.value_room);
        }
        self.note_reads();
        self.keyspace.set_untouched(client.no_touch);
        let outcome = run(&mut self.context(client, args, mode));
        (outcome, self.recorded(client, row, args))
    }

    /// The context in which a client's command runs, or its next step.
    pub(super) fn context<'a>(
        &'a mut self,
        client: &'a mut Client,
        args: Args<'a>,
        mode: Mode,
    ) -> Context<'a> {
        Context {
            keyspace: &mut self.keyspace,
            db: client.db,
            args,
            now_ms: self.now_ms,
            reply: &mut client.out,
            effects: &mut self.effects,
            mode,
        }
    }

    /// Records what a data command, or a step of it, did. Returns the LSN that its reply depends on.
    pub(super) fn recorded(
        &mut self,
        client: &mut Client,
        row: &'static Command<Entry>,
        args: Args<'_>,
    ) -> Lsn {
        let mut needs = self.record(client, args);
        if needs == Lsn(0) && self.keeps_undurable {
            needs = self.depends_on_reads(row, self.effects.reads());
        }
        if let Some(garbage) = self.keyspace.take_garbage() {
            self.free(garbage);
        }
        needs
    }

    /// The row of a request, or the error to reply with.
    pub(crate) fn find(&self, args: Args<'_>) -> Result<&'static Command<Entry>, NotFound> {
        let name = word(args.get(0));
        let Some(row) = self.table.lookup(&name) else {
            return Err(NotFound { row: None, text: unknown_command(&name, args) });
        };
        let row = match row.run.run {
            Run::Container(subcommands) if args.len() > 1 => {
                let sub = word(args.get(1));
                let found =
                    subcommands.iter().find(|r| r.name.as_bytes().eq_ignore_ascii_case(&sub));
                let Some(sub) = found else {
                    let mut text = b"ERR unknown subcommand '".to_vec();
                    text.extend_from_slice(quoted(&sub, QUOTED_SIZE_MAX));
                    let name = row.name.to_ascii_uppercase();
                    text.extend_from_slice(format!("'. Try {name} HELP.").as_bytes());
                    return Err(NotFound { row: None, text });
                };
                sub
            }
            Run::Container(_) if row.name == "command" => {
                return Ok(crate::commands::bare_command());
            }
            _ => row,
        };
        if row.accepts(args.len()) && !matches!(row.run.run, Run::Container(_)) {
            match too_much(row, args) {
                Some(text) => Err(NotFound { row: Some(row), text: text.into_bytes() }),
                None => Ok(row),
            }
        } else {
            let name = row.run.name;
            let text = format!("ERR wrong number of arguments for '{name}' command").into_bytes();
            Err(NotFound { row: Some(row), text })
        }
    }

    /// Whether the client may run the command now. All clients together take `clients` bytes of
    /// memory, if there is a limit of it.
    fn check(&mut self, client: &Client, row: &Command<Entry>, clients: u64) -> Result<(), String> {
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
        if self.settings.memory_max > 0 && !self.make_room(clients) && needs_memory(client, row) {
            return Err("OOM command not allowed when used memory > 'maxmemory'.".into());
        }
        if self.is_latched()
            && row.flags.has(Flags::WRITE)
            && let Admission::Refused(text) = self.admit(Purpose::Any, 0)
        {
            return Err(text);
        }
        if self.is_save_broken() && tells_of_broken_save(client, row) {
            return Err(SAVE_BROKEN.into());
        }
        if self.loading.is_some() && !row.flags.has(Flags::LOADING) {
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
        self.end_multi(client.multi.take());
        self.watches.clear(client);
        let before = client.out.len();
        let why = text.strip_prefix(b"ERR ").unwrap_or(text);
        client.out.error_bytes(&[b"EXECABORT Transaction discarded because of: ", why].concat());
        self.count_error(client, before);
    }

    /// Counts the CPU time of the command, or of the part of a command, that has just ended.
    pub(crate) fn count_cpu(&mut self) {
        if self.settings.is_cpu_tracked {
            let cpu = self.cpu_lap.end();
            self.stats.command_cpu_max = self.stats.command_cpu_max.max(cpu);
        }
    }

    /// Counts a command that has run, unless it was counted when it began to wait (`is_counted`).
    /// `spent` is the time that its earlier steps took. Reads the clock only at the end of a lap, because the next lap begins at the same time.
    pub(super) fn account(
        &mut self,
        client: &mut Client,
        row: &Command<Entry>,
        args: Args<'_>,
        spent: Duration,
        before: usize,
        is_counted: bool,
    ) {
        let now = Instant::now();
        let took = spent + (now - std::mem::replace(&mut self.lap, now));
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
        let at_s = self.now_ms / 1000;
        let event = if row.flags.has(Flags::FAST) { "fast-command" } else { "command" };
        self.latency.note(event, at_s, took, self.settings.latency_from);
        let is_kept = self.settings.slowlog_from.is_some_and(|from| took >= from);
        if is_kept && !row.flags.has(Flags::SKIP_SLOWLOG) {
            let who = (client.address(), client.name.as_slice());
            let is_within = self.transaction.is_some();
            let needs = if is_within { SlowCommand::UNSETTLED } else { client.needs };
            self.slowlog.add(at_s, took, args, who, needs, self.settings.slowlog_len_max);
        }
    }

    /// Counts the reply written since `before` if it is an error.
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

impl Connections {
    /// Runs, queues or refuses a request. Its reply is in the client's output afterwards, unless
    /// the client has to wait.
    pub(crate) fn request(&mut self, engine: &mut Engine, client: &mut Client, args: Args<'_>) {
        if client.replies == Replies::SkipNext {
            client.replies = Replies::Skip;
        }
        engine.limit_reply(client);
        let before = client.out.len();
        self.request_for_reply(engine, client, args, before);
        client.leave_out(before);
        self.close_if_cut(engine, client);
    }

    fn request_for_reply(
        &mut self,
        engine: &mut Engine,
        client: &mut Client,
        args: Args<'_>,
        before: usize,
    ) {
        let row = match engine.find(args) {
            Ok(row) => row,
            Err(NotFound { row, text }) => return engine.reject(client, row, &text),
        };
        client.last_command = row.run.name;
        let limit = engine.settings.memory_max;
        let clients = if limit > 0 { self.client_bytes(engine, Some(client)) } else { 0 };
        if let Err(text) = engine.check(client, row, clients) {
            return engine.reject(client, Some(row), text.as_bytes());
        }
        if engine.must_wait(client, row) {
            return self.retry_later(engine, client, Reason::Pause);
        }
        if client.multi.is_some() && !row.run.ends_queueing {
            return queue(client, row, args, engine.watches.is_stale(client));
        }
        let is_served = matches!(self.waiting.again.mode, Mode::Woken(_));
        if let Some(reason) = engine.is_held_up(client, row, args, is_served) {
            return self.retry_later(engine, client, reason);
        }
        match row.run.run {
            Run::Data(run) if engine.is_long(client.db, row, args) => {
                let ticket = self.waiting.ticket();
                return engine.begin_long(client, ticket, row, run, args);
            }
            Run::Data(run) => {
                if row.flags.has(Flags::WRITE) {
                    let size = row.log_size_max(args) + engine.weigh(client.db, row, args).log_size;
                    match engine.admit(engine.purpose(row, client.db), size) {
                        Admission::Granted => {}
                        Admission::Wait => return self.retry_later(engine, client, Reason::Room),
                        Admission::Refused(text) => {
                            return engine.reject(client, Some(row), text.as_bytes());
                        }
                    }
                }
                let mode = self.waiting.again.mode;
                let (outcome, needs) = engine.run_data(client, row, run, args, mode);
                self.conclude(engine, client, args, outcome, needs, before);
            }
            Run::Server(run) => run(engine, client, args),
            Run::Connections(run) => run(self, engine, client, args),
            Run::Container(_) => unreachable!("a row of its own was found"),
        }
        let is_counted = self.waiting.again.is_counted;
        engine.account(client, row, args, Duration::ZERO, before, is_counted);
    }

    /// Runs one command of a transaction.
    pub(crate) fn run_queued(
        &mut self,
        engine: &mut Engine,
        client: &mut Client,
        row: &'static Command<Entry>,
        args: Args<'_>,
    ) {
        let before = client.out.len();
        if row.weigh.is_some() {
            engine.ask_for_more(client.db, row, args);
        }
        match row.run.run {
            Run::Data(run) => {
                let (outcome, needs) = engine.run_data(client, row, run, args, Mode::Atomic);
                self.conclude(engine, client, args, outcome, needs, before);
            }
            Run::Server(run) => run(engine, client, args),
            Run::Connections(run) => run(self, engine, client, args),
            Run::Container(_) => unreachable!("a row of its own was found"),
        }
        engine.account(client, row, args, Duration::ZERO, before, false);
    }

    /// Does what follows when a data command, or a step of it, has run: its reply waits for what it
    /// needs, its next step is queued, or its client waits.
    pub(crate) fn conclude(
        &mut self,
        engine: &mut Engine,
        client: &mut Client,
        args: Args<'_>,
        outcome: Outcome,
        needs: Lsn,
        before: usize,
    ) {
        match outcome {
            Outcome::Reply => engine.hold(client, needs, before),
            Outcome::Yield(steps) => {
                if !is_planted("steps-need-nothing") {
                    client.needs = client.needs.max(needs);
                }
                let request = args.to_owned();
                let is_counted = self.waiting.again.is_counted;
                let long = LongCommand { request, steps, spent: Duration::ZERO, is_counted };
                client.state = State::Yielding(Box::new(long));
                self.yielding.push_back(client.conn);
            }
            Outcome::Block(block) => self.block(engine, client, args, &block, needs),
            Outcome::NeedCold { .. } => unreachable!("no command in the table waits for values"),
        }
    }

    /// If a client's reply was cut at the client's output limit, runs no more of its requests, as in
    /// Redis.
    pub(super) fn close_if_cut(&mut self, engine: &mut Engine, client: &mut Client) {
        if client.out.is_cut() {
            self.close(engine, client);
        }
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

/// The error for a command that does not run in steps, if the command would take too long. `PING`
/// and `ECHO` may have an argument of any size, because they only repeat it.
fn too_much(row: &Command<Entry>, args: Args<'_>) -> Option<String> {
    let is_server =
        matches!(row.run.run, Run::Server(_) | Run::Connections(_)) && row.keys == KeyRange::NONE;
    let is_data = matches!(row.run.run, Run::Data(_));
    let name = row.run.name;
    let is_bounded = is_server || is_data && !row.flags.has(Flags::IN_STEPS);
    if is_bounded && args.len() > ARGS_MAX && !is_planted("options-without-end") {
        return Some(format!(
            "ERR too many arguments for '{name}' command: no more than {ARGS_MAX}"
        ));
    }
    if !is_server || ["ping", "echo"].contains(&row.name) {
        return None;
    }
    let size: usize = args.iter().map(|arg| arg.size()).sum();
    (size > SERVER_ARGS_SIZE_MAX).then(|| {
        format!(
            "ERR too large arguments for '{name}' command: no more than {SERVER_ARGS_SIZE_MAX} bytes"
        )
    })
}

/// The beginning of an argument, long enough for any command's name.
fn word(arg: Arg<'_>) -> Cow<'_, [u8]> {
    match arg {
        Arg::Blob(blob) => {
            let mut word = Vec::new();
            blob.copy_to(0..blob.size().min(WORD_SIZE_MAX), &mut word);
            Cow::Owned(word)
        }
        Arg::Bytes(bytes) => Cow::Borrowed(bytes),
    }
}

/// Queues a request of a transaction. `is_stale` says that a watched key was changed.
fn queue(client: &mut Client, row: &Command<Entry>, args: Args<'_>, is_stale: bool) {
    let Some(multi) = &mut client.multi else { return };
    if (multi.is_broken || is_stale) && !is_planted("void-request-queued") {
        // The transaction will not run, so the request is not kept. The request does not count as a
        // write either, so that a pause of writes does not hold up `EXEC`.
        client.out.simple("QUEUED");
        return;
    }
    if let Some((purpose, size)) = asks_for(row, args) {
        multi.writes |= row.flags.has(Flags::WRITE);
        multi.purpose = multi.purpose.min(purpose);
        let size = if is_planted("exec-counts-requests") {
            args.iter().map(|arg| arg.size() as u64).sum()
        } else {
            size
        };
        multi.weighed += usize::from(row.weigh.is_some());
        multi.log_size_max = Some(multi.log_size_max.unwrap_or(0).saturating_add(size));
    }
    multi.needs_memory |= row.flags.has(Flags::DENYOOM);
    client.keeps_request = true;
    client.out.simple("QUEUED");
}

/// The purpose of a queued request that writes, and the largest payload in bytes that the request
/// may append to the log; `None` if the request does not write. Only `FLUSHALL` counts as emptying
/// the data set. `FLUSHDB` does not count, because it is not known yet whether it will empty the
/// whole data set.
fn asks_for(row: &Command<Entry>, args: Args<'_>) -> Option<(Purpose, u64)> {
    if row.name == "debug" && args.get(1).is("populate") {
        return Some((Purpose::Any, populate_log_size_max(args)));
    }
    let purpose = match row.flags {
        flags if !flags.has(Flags::WRITE) => return None,
        _ if row.name == "flushall" => Purpose::Empties,
        flags if flags.has(Flags::FREES) => Purpose::Frees,
        _ => Purpose::Any,
    };
    Some((purpose, row.log_size_max(args)))
}

/// Why a request cannot be run: its command is unknown, or its arguments are wrong.
pub(crate) struct NotFound {
    /// The command, if only its arguments are wrong.
    row: Option<&'static Command<Entry>>,
    /// The error to reply with.
    pub(crate) text: Vec<u8>,
}

fn unknown_command(name: &[u8], args: Args<'_>) -> Vec<u8> {
    let mut list = Vec::new();
    for arg in args.iter().skip(1) {
        if list.len() >= QUOTED_SIZE_MAX {
            break;
        }
        let room = QUOTED_SIZE_MAX - list.len();
        list.push(b'\'');
        list.extend(arg.chunks().flatten().take(room));
        list.extend_from_slice(b"' ");
    }
    let name = quoted(name, QUOTED_SIZE_MAX);
    [b"ERR unknown command '", name, b"', with args beginning with: ", &list].concat()
}

/// The first bytes of a client's word, at most `size`, for the text of an error.
fn quoted(word: &[u8], size: usize) -> &[u8] {
    &word[..word.len().min(size)]
}

const SAVE_BROKEN: &str = "MISCONF Redis is configured to save RDB snapshots, but it's currently \
unable to persist to disk. Commands that may modify the data set are disabled, because this \
instance is configured to report errors during writes if RDB snapshotting fails \
(stop-writes-on-bgsave-error option). Please check the Redis logs for details about the RDB error.";

const DEBUG_REFUSED: &str = "ERR DEBUG command not allowed. If the enable-debug-command option is \
set to \"local\", you can run it from a local connection, otherwise you need to set this option in \
the configuration file, and then restart the server.";
