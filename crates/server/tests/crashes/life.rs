//! A volume has several lives. In each life, a server starts on the volume, executes requests and
//! dies. After each start, the data that has come back is compared with the data that was promised.

mod hand_over;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use slimio_server::WallClock;
use slimio_server::config::Config;
use slimio_sim::{Image, Limits, SimConfig, SimDisk};

use super::media::{Kind, SimMedia};
use super::oracle::Oracle;
use super::script::{CLIENT_COUNT, End, FIRST_MS, Life, NEAR_MS, Step, Unit, encode_line};
use super::state::{State, read};
use super::volume::storage;
use crate::common::{Client, Running, Starting, config, launch_at};

/// How long a reply may take, even on a busy machine. A server whose disk has died also replies or
/// closes the connection, so only a failing test waits this long.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// A number of operations that no life reaches.
const NEVER: u64 = u64::MAX / 2;

/// Start of the reply to `WAITAOF` if everything is durable.
const DURABLE: &[u8] = b"*2\r\n:1\r\n";

const LIMITS: Limits = Limits { exhaustive_max: 3, random_count: 4, torn: true };

/// Whether executed units are logged. (A unit is a command or a transaction.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Log {
    On,
    /// Units are logged, but recovery can't use the log before a snapshot is complete and has
    /// become the one that recovery starts from.
    Resuming,
    Off,
}

/// Whether the disk has space for more data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    Enough,
    None,
    /// The disk has space again, after a time without space.
    Again,
}

/// A volume, and all that is known about its contents.
pub(crate) struct World {
    config: SimConfig,
    kind: Kind,
    /// The image that the last death left; `None` before the first life.
    image: Option<Image>,
    /// The server's time of day, in milliseconds since 1970.
    clock: Arc<AtomicI64>,
    /// A second server without a volume. It has the data that the volume's server should have.
    oracle: Oracle,
    /// Units that were executed, each with its time, followed by units that may have been executed.
    units: Vec<(i64, Unit)>,
    /// The state before the first unit, followed by the state after each unit.
    states: Vec<State>,
    /// The least number of units that must come back if the process dies.
    kept: usize,
    /// The least number of units that must come back if power is cut.
    durable: usize,
    /// Whether power was cut since the units were last read back.
    was_cut: bool,
    /// How many units were executed before the log was turned off. Once a later write is
    /// acknowledged, these units must come back.
    ended_at: Option<usize>,
    log: Log,
    is_log_wanted: bool,
    policy: &'static str,
    space: Space,
    /// For each client, the number of units up to the last unit in which this client changed
    /// anything.
    wrote: [usize; CLIENT_COUNT],
    /// Units that were not executed, because there was no room for them.
    pub(crate) refused: u32,
}

impl World {
    pub(crate) fn new(seed: u64, is_device: bool) -> Self {
        let mut oracle = Oracle::start();
        let empty = read(&mut oracle.client).unwrap();
        Self {
            config: SimConfig { seed, ..SimConfig::default() },
            kind: if is_device { Kind::Device } else { Kind::Files },
            image: None,
            clock: Arc::new(AtomicI64::new(FIRST_MS)),
            oracle,
            units: Vec::new(),
            states: vec![empty],
            kept: 0,
            durable: 0,
            was_cut: false,
            ended_at: None,
            log: Log::On,
            is_log_wanted: true,
            policy: "everysec",
            space: Space::Enough,
            wrote: [0; CLIENT_COUNT],
            refused: 0,
        }
    }

    /// Runs one life, including its end. `Err` says which promise was broken.
    pub(crate) fn live(&mut self, life: &Life) -> Result<(), String> {
        let exists = self.image.is_some();
        self.pass(life.rests_ms);
        let media = match &self.image {
            Some(image) => SimMedia::from_image(self.config, self.kind, image),
            None => SimMedia::new(self.config, self.kind),
        };
        let disk = media.disk.clone();
        if self.space == Space::None {
            self.space = Space::Again;
        }
        disk.faults(|faults| faults.untaken_polls = life.untaken_polls);
        if exists {
            disk.crash_after(life.dies_after);
        }
        let clock = WallClock::Given(Arc::clone(&self.clock));
        let mut directives = self.directives();
        if life.untaken_polls > 0 {
            // Operations stay queued for a number of polls, and each round of background work polls
            // the log's device. With many rounds, these polls would be over too early.
            directives.set("hz", "10").unwrap();
        }
        let starting = launch_on(media, exists, directives, clock);
        self.pass(life.recovers_ms);
        let crash = match starting.served() {
            Ok(server) => {
                if !exists {
                    disk.crash_after(life.dies_after);
                }
                let outcome = self.serve(&server, &disk, life);
                if life.end.is_none() {
                    disk.crashed().unwrap_or_else(|| disk.crash_now());
                }
                let is_in_order = server.abandon().is_ok();
                outcome?;
                if life.end.is_some() && is_in_order && !disk.has_crashed() {
                    // After an orderly end, a power cut loses nothing.
                    self.durable = self.kept;
                }
                disk.crashed().unwrap_or_else(|| disk.crash_now())
            }
            Err(why) => disk.crashed().ok_or_else(|| format!("the start failed: {why}"))?,
        };
        let images = if life.is_power_cut {
            crash.power_images(&LIMITS)
        } else {
            crash.process_images(&LIMITS)
        };
        self.was_cut |= life.is_power_cut;
        self.image = Some(images[life.image % images.len()].clone());
        Ok(())
    }

    /// Starts the server a last time and lets it end in order. Checks what has come back.
    pub(crate) fn check_last(&mut self) -> Result<(), String> {
        let (batches, dies_after, end) = (Vec::new(), NEVER, Some(End::Plain));
        let (rests_ms, recovers_ms) = (NEAR_MS / 2, 0);
        let (is_power_cut, image, untaken_polls) = (false, 0, 0);
        self.live(&Life {
            rests_ms,
            recovers_ms,
            batches,
            dies_after,
            is_power_cut,
            image,
            untaken_polls,
            end,
        })
        .map_err(|why| format!("in the last life: {why}"))
    }

    fn now_ms(&self) -> i64 {
        self.clock.load(Ordering::SeqCst)
    }

    /// Lets time pass for the server and for the oracle. The caller makes sure that no running
    /// command has a result that depends on the time.
    fn pass(&mut self, ms: i64) {
        self.clock.fetch_add(ms, Ordering::SeqCst);
        self.oracle.clock.store(self.now_ms(), Ordering::SeqCst);
    }

    pub(crate) fn directives(&self) -> Config {
        let is_on = if self.is_log_wanted { "yes" } else { "no" };
        let policy = self.policy;
        let mut config = config(
            "plain",
            Path::new("simulated"),
            &format!("appendonly {is_on}\nappendfsync {policy}\nlog-buffers 4\nhz 500"),
        );
        for (name, value) in [
            ("save", ""),
            ("log-buffer-size", "16kb"),
            ("log-size-max", "8mb"),
            ("auto-aof-rewrite-min-size", "200kb"),
        ] {
            config.set(name, value).unwrap();
        }
        config
    }

    fn serve(&mut self, server: &Running, disk: &SimDisk, life: &Life) -> Result<(), String> {
        let mut clients: Vec<Client> = (0..CLIENT_COUNT).map(|_| server.connect()).collect();
        for client in &mut clients {
            client.set_patience(SILENCE_MAX);
        }
        let Some(found) = read(&mut clients[0]) else {
            return if disk.has_crashed() { Ok(()) } else { Err("reads are not served".into()) };
        };
        let count = self.find(&found)?;
        if disk.has_crashed() {
            return Ok(());
        }
        // This state was served, so the next start must find it, too.
        (self.kept, self.durable, self.was_cut) = (count, count, false);
        self.units.truncate(count);
        self.states.truncate(count + 1);
        self.oracle.reset(&self.units, self.now_ms());
        self.ended_at = None;
        self.wrote = [0; CLIENT_COUNT];
        self.log = if self.is_log_wanted { Log::Resuming } else { Log::Off };
        for batch in &life.batches {
            self.pass(batch.passes_ms);
            self.look_at_log(&mut clients[batch.client]);
            // If steps may be refused, each one is sent as a separate batch.
            let fills = batch.steps.iter().any(|step| matches!(step, Step::Full(_)));
            let is_step_by_step = self.space != Space::Enough || fills;
            let at_once = if is_step_by_step { 1 } else { batch.steps.len() };
            if let Some(hands_over) = &batch.hands_over
                && self.space == Space::Enough
                && !self.hand_over(&mut clients, batch.client, disk, hands_over)?
            {
                return Ok(());
            }
            let waiter = (batch.client + 1) % CLIENT_COUNT;
            let has_waiter = batch.has_waiter && !is_step_by_step;
            let wrote = self.wrote[waiter];
            if has_waiter {
                let mut request = Vec::new();
                Step::WaitUntilDurable.encode(&mut request);
                // If sending fails because the disk has died, the batch that is sent below will
                // fail too, and its failure is noticed.
                clients[waiter].try_send_bytes(&request);
            }
            for (number, steps) in batch.steps.chunks(at_once).enumerate() {
                let index = (batch.client + number) % CLIENT_COUNT;
                let client = &mut clients[index];
                let is_alive = match steps {
                    [Step::Full(is_full)] => self.set_full(client, disk, *is_full),
                    steps => self.batch((client, index), disk, steps, batch.piece_size)?,
                };
                if !is_alive {
                    return Ok(());
                }
            }
            if has_waiter && !self.end_waiting(&mut clients[waiter], disk, wrote)? {
                return Ok(());
            }
        }
        match life.end {
            // Without space, `SHUTDOWN SAVE` would fail, because there is no space for its
            // snapshot.
            Some(_) if self.space == Space::None => self.end(&mut clients[0], disk, End::Plain),
            Some(end) => self.end(&mut clients[0], disk, end),
            None => Ok(()),
        }
    }

    /// Reads the reply to a `WAITAOF`, which a client sent before a batch. The writes of this
    /// client are in the first `wrote` units. Returns false when this life has ended.
    fn end_waiting(
        &mut self,
        client: &mut Client,
        disk: &SimDisk,
        wrote: usize,
    ) -> Result<bool, String> {
        let reply = client.try_read();
        if disk.has_crashed() {
            return Ok(false);
        }
        let reply = reply.ok_or("the server closed the connection of a waiting client")?;
        if reply.starts_with(DURABLE) {
            (self.kept, self.durable) = (self.kept.max(wrote), self.durable.max(wrote));
        } else if !reply.starts_with(b"*2\r\n:0\r\n") && !reply.starts_with(b"-ERR WAITAOF") {
            return Err(format!("a client that waits in WAITAOF got {}", shown(&[reply])));
        }
        Ok(true)
    }

    /// Takes the rest of the disk's space, or gives it back. Before the space is taken, the log
    /// must have a second segment, because a log that has only one segment cannot release that
    /// segment. So this function waits for a second segment. Returns false if this life has ended.
    fn set_full(&mut self, client: &mut Client, disk: &SimDisk, is_full: bool) -> bool {
        if is_full && self.log != Log::Off {
            let asked = Instant::now();
            loop {
                let mut request = Vec::new();
                encode_line("INFO slimio", &mut request);
                let reply = client.try_send_bytes(&request).then(|| client.try_read()).flatten();
                let Some(reply) = reply.filter(|_| !disk.has_crashed()) else { return false };
                let text = String::from_utf8_lossy(&reply).into_owned();
                let capacity = text.lines().find_map(|l| l.strip_prefix("log_capacity_bytes:"));
                if capacity.is_some_and(|bytes| bytes.trim().parse::<u64>().unwrap() > 1 << 20) {
                    break;
                }
                assert!(asked.elapsed() < SILENCE_MAX, "the log has no second segment");
            }
        }
        self.space = if is_full { Space::None } else { Space::Again };
        disk.faults(|faults| faults.full = is_full);
        true
    }

    /// Tells the server to end, and waits until it closes the connection.
    fn end(&mut self, client: &mut Client, disk: &SimDisk, end: End) -> Result<(), String> {
        let mut request = Vec::new();
        encode_line(if end == End::Save { "SHUTDOWN SAVE" } else { "SHUTDOWN" }, &mut request);
        let reply = client.try_send_bytes(&request).then(|| client.try_read()).flatten();
        if disk.has_crashed() {
            return Ok(());
        }
        if let Some(reply) = reply {
            return Err(format!("the server replied to {end:?}: {}", shown(&[reply])));
        }
        if end == End::Save || self.log == Log::On {
            self.kept = self.units.len();
        }
        Ok(())
    }

    /// How many units have come back. Returns an error if the state that was found is not possible.
    fn find(&self, found: &State) -> Result<usize, String> {
        let promised = if self.was_cut { self.durable } else { self.kept };
        // Keys that have expired by now are gone, whoever deleted them.
        let now_ms = self.now_ms();
        let seen = |state: &State| {
            if self.space == Space::Enough { state.clone() } else { state.clone().uncounted() }
        };
        let found = &seen(found);
        let states: Vec<State> = self.states.iter().map(|state| seen(state).at(now_ms)).collect();
        let (older, states) = states.split_at(promised);
        let behind = states.iter().rposition(|state| state == found).ok_or_else(|| {
            let (first, last) = (&states[0], &states[states.len() - 1]);
            let older = older.iter().rposition(|state| state == found);
            format!(
                "{promised} of {} units were promised. But the state that came back equals neither \
                 the state after these units nor any later state. If it equals an older state, \
                 this is the number of units before that state: {older:?}. Differences from the \
                 promised state: {}. Differences from the last state: {}",
                self.units.len(),
                found.difference(first),
                found.difference(last),
            )
        })?;
        Ok(promised + behind)
    }

    /// A log that is turned on resumes when a snapshot is adopted. Notes whether that has happened,
    /// because from then on every executed unit is kept.
    fn look_at_log(&mut self, client: &mut Client) {
        if self.log != Log::Resuming {
            return;
        }
        let mut request = Vec::new();
        encode_line("INFO slimio", &mut request);
        if client.try_send_bytes(&request)
            && let Some(reply) = client.try_read()
            && String::from_utf8_lossy(&reply).contains("\r\nlog_state:on\r\n")
        {
            self.log = Log::On;
        }
    }

    /// Sends all steps, and then reads their replies. False when this life has ended.
    fn batch(
        &mut self,
        (client, index_of_client): (&mut Client, usize),
        disk: &SimDisk,
        steps: &[Step],
        piece_size: usize,
    ) -> Result<bool, String> {
        // On a full disk, a snapshot fails or succeeds depending on how much space its slot already
        // has. If the log is resuming, nothing becomes durable before the snapshot is adopted, so
        // `WAITAOF` would wait for space. Steps with such an uncertain outcome are replaced with
        // `BGREWRITEAOF`, which promises nothing.
        let told = |step: &Step| match step {
            Step::Save | Step::SaveInBackground | Step::Log(_) if self.space == Space::None => {
                Step::Rewrite
            }
            Step::WaitUntilDurable if self.space == Space::None && self.log == Log::Resuming => {
                Step::Rewrite
            }
            step => step.clone(),
        };
        let steps: Vec<Step> = steps.iter().map(told).collect();
        let mut requests = Vec::new();
        let counts: Vec<usize> = steps.iter().map(|step| step.encode(&mut requests)).collect();
        let mut is_alive = requests.chunks(piece_size).all(|piece| client.try_send_bytes(piece));
        for (index, (step, count)) in steps.iter().zip(counts).enumerate() {
            let asked = Instant::now();
            let replies: Option<Vec<Vec<u8>>> =
                (0..count).map(|_| is_alive.then(|| client.try_read())?).collect();
            if asked.elapsed() >= SILENCE_MAX {
                return Err(format!("{step:?} got no reply in time"));
            }
            // Replies that were read after the crash do not count.
            is_alive &= replies.is_some() && !disk.has_crashed();
            if is_refused(replies.as_deref()) {
                match step {
                    Step::Run(unit) if unit.commands == ["FLUSHALL"] => {
                        return Err("FLUSHALL, the only way out of a full log, was refused".into());
                    }
                    Step::Run(_) if self.space != Space::Enough => {
                        self.refused += 1;
                        continue;
                    }
                    _ => {}
                }
            }
            let expected = if let Step::Run(unit) = step {
                self.units.push((self.now_ms(), unit.clone()));
                let (expected, state) = self.oracle.run(unit);
                let before = self.states.last().map(|before| before.at(self.now_ms()));
                if before.as_ref() != Some(&state) {
                    self.wrote[index_of_client] = self.units.len();
                }
                self.states.push(state);
                Some(expected)
            } else {
                None
            };
            if !is_alive {
                continue;
            }
            let replies = replies.unwrap_or_default();
            if let Some(expected) = expected
                && replies != expected
            {
                let [replies, expected] = [replies, expected].map(|replies| shown(&replies));
                return Err(format!("the reply to {step:?} is {replies}, not {expected}"));
            }
            // A reply is subject to the policy that is in force when the reply leaves. This may
            // already be the policy at the end of the batch.
            let is_always =
                |step: &Step| !matches!(step, Step::Policy(policy) if *policy != "always");
            let stays_always = steps[index..].iter().all(is_always);
            self.acknowledged(step, index_of_client, &replies, stays_always)?;
        }
        if !is_alive && !disk.has_crashed() {
            return Err("the server closed the connection".into());
        }
        Ok(is_alive)
    }

    /// Notes what the reply to a step promises.
    fn acknowledged(
        &mut self,
        step: &Step,
        client: usize,
        replies: &[Vec<u8>],
        stays_always: bool,
    ) -> Result<(), String> {
        let executed = self.units.len();
        let reply = replies.last().map_or(&b""[..], |reply| &reply[..]);
        match step {
            Step::Run(unit) => {
                // A write waits until the log has ended, but a read does not.
                if unit.writes()
                    && let Some(ended_at) = self.ended_at.take()
                {
                    self.kept = self.kept.max(ended_at);
                    self.durable = self.durable.max(ended_at);
                }
                if self.log == Log::On {
                    self.kept = executed;
                    if self.policy == "always" && stays_always {
                        self.durable = executed;
                    }
                }
            }
            Step::Save if reply == b"+OK\r\n" => (self.kept, self.durable) = (executed, executed),
            Step::Save if reply.starts_with(b"-ERR Background save already") => {}
            Step::WaitUntilDurable if reply.starts_with(DURABLE) => {
                // `WAITAOF` does not wait for the writes of other clients.
                let wrote = self.wrote[client];
                (self.kept, self.durable) = (self.kept.max(wrote), self.durable.max(wrote));
            }
            Step::WaitUntilDurable
                if self.log == Log::Off && reply.starts_with(b"-ERR WAITAOF") => {}
            Step::Policy(policy) if reply == b"+OK\r\n" => self.policy = policy,
            Step::Log(is_on) if reply == b"+OK\r\n" => {
                self.is_log_wanted = *is_on;
                match (self.log, is_on) {
                    (Log::Off, true) => self.log = Log::Resuming,
                    (Log::On, false) => (self.log, self.ended_at) = (Log::Off, Some(executed)),
                    (Log::Resuming, false) => self.log = Log::Off,
                    (Log::On | Log::Resuming, true) | (Log::Off, false) => {}
                }
            }
            // These steps promise nothing, whether they were refused or not.
            Step::Rewrite | Step::SaveInBackground | Step::Full(_) => {}
            Step::Save | Step::WaitUntilDurable | Step::Policy(_) | Step::Log(_) => {
                return Err(format!("unexpected reply to {step:?}: {}", shown(replies)));
            }
        }
        Ok(())
    }
}

pub(crate) fn launch_on(
    media: SimMedia,
    exists: bool,
    config: Config,
    clock: WallClock,
) -> Starting {
    launch_at(config, clock, move |_| Ok(Some(storage(media, exists))))
}

/// Whether a unit was refused because the log had no room for it.
fn is_refused(replies: Option<&[Vec<u8>]>) -> bool {
    let reply = replies.and_then(<[_]>::last).map_or(&b""[..], |reply| &reply[..]);
    let full = [
        "-MISCONF The log is full",
        "-EXECABORT Transaction discarded because of: MISCONF The log is full",
    ];
    full.iter().any(|text| reply.starts_with(text.as_bytes()))
}

fn shown(replies: &[Vec<u8>]) -> String {
    let text: Vec<_> = replies.iter().map(|reply| String::from_utf8_lossy(reply)).collect();
    format!("{text:?}")
}
