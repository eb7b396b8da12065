//! Commands that run in steps. Between their steps, other clients may use every key. In contrast, a
//! long request can hold keys between its steps. Most of the commands here read clones of large
//! values.

use std::time::{Duration, Instant};

use slimio_planted::is_planted;

use super::Connections;
use crate::clients::{LongCommand, State};
use crate::engine::{Admission, Engine, Purpose, STEP_TIME};
use crate::net::ConnId;
use crate::waiting::{Line, Reason, Then};

/// In one turn, the steps of all these commands together take about this long. Each step takes at
/// most about half a millisecond.
const STEPS_TIME: Duration = Duration::from_millis(2);

impl Connections {
    /// Runs one step of each command that runs in steps, as long as there is time. Commands whose
    /// last try found no room in the log try again. If there is a long request, all commands in
    /// steps run further steps, until together they have had as much time in this turn as the long
    /// request may take.
    pub(crate) fn resume_yielded(&mut self, engine: &mut Engine) {
        self.retry_steps(engine);
        if self.yielding.is_empty() {
            return;
        }
        let began = Instant::now();
        loop {
            let has_run = self.resume_each(engine, began + STEPS_TIME);
            if !has_run || !engine.data.has_long() || began.elapsed() >= STEP_TIME {
                return;
            }
        }
    }

    /// Runs one step of each command that runs in steps, until the time is up. Returns whether any
    /// step was run.
    fn resume_each(&mut self, engine: &mut Engine, until: Instant) -> bool {
        let mut has_run = false;
        for _ in 0..self.yielding.len() {
            if engine.clock.lap() > until && !is_planted("steps-without-end") {
                break;
            }
            let Some(conn) = self.yielding.pop_front() else { break };
            has_run |= self.resume_one(engine, conn);
        }
        has_run
    }

    /// Runs the next step of a client's command, unless the command has to wait. Returns whether a
    /// step was run.
    fn resume_one(&mut self, engine: &mut Engine, conn: ConnId) -> bool {
        let Some(mut client) = self.clients.take(conn) else { return false };
        let yielding = match std::mem::replace(&mut client.state, State::Running) {
            State::Yielding(yielding) => yielding,
            closing => {
                if !is_planted("closing-stepped") {
                    client.state = closing;
                }
                self.clients.put(client);
                return false;
            }
        };
        let log_size_max = yielding.steps.log_size_max();
        let writes = log_size_max.is_some();
        let has_all = yielding.steps.has_all() && !is_planted("reads-wait-for-long");
        let sees_part =
            engine.data.is_long_writing() && !has_all && !is_planted("stepped-within-long");
        let meets_long =
            writes && engine.data.is_long_holding() && !is_planted("populate-not-held");
        if meets_long || sees_part {
            // The step may write keys that the long request holds, or read what the long request
            // has written but not logged yet.
            client.state = State::Yielding(yielding);
            self.yielding.push_back(conn);
            self.clients.put(client);
            return false;
        }
        if let Some(size) = log_size_max {
            match engine.admit(Purpose::Any, size) {
                Admission::Granted => {}
                Admission::Wait => {
                    self.wait(engine, &mut client, Reason::RoomForStep, Then::GoOn(yielding));
                    self.clients.put(client);
                    return false;
                }
                Admission::Refused(text) => {
                    self.wait(engine, &mut client, Reason::RoomForStep, Then::Answer);
                    self.answer(engine, &mut client, |_, client| client.out.error(&text));
                    self.put_back(engine, client);
                    return false;
                }
            }
        }
        let LongCommand { request, steps, spent, is_counted } = *yielding;
        engine.clock.begin_lap(Instant::now());
        let args = request.args();
        let Ok(row) = crate::commands::find(args) else {
            unreachable!("the command's row was found when the command began")
        };
        let before = client.out.len();
        let (outcome, needs) = engine.run_step_of(&mut client, row, args, steps);
        self.waiting.again.is_counted = is_counted;
        self.conclude(engine, &mut client, args, outcome, needs, before);
        self.waiting.again.is_counted = false;
        engine.account(&mut client, row, args, spent, before, is_counted);
        if !is_planted("left-out-unless-long") {
            client.leave_out(before);
        }
        self.close_if_cut(engine, &mut client);
        if client.is_running() {
            self.resume(&mut client);
        }
        if client.made_size() > 0 {
            // The part of the reply that was made so far counts towards the output limit.
            self.look_at_output(&mut client);
        }
        self.put_back(engine, client);
        self.serve_waiting_for_keys(engine);
        true
    }

    /// Retries commands that wait until the log has room for their next step.
    fn retry_steps(&mut self, engine: &mut Engine) {
        if self.waiting.is_empty(Line::RoomForStep) {
            return;
        }
        let conns: Vec<ConnId> = self.waiting.in_line(Line::RoomForStep).collect();
        for conn in conns {
            let Some(mut client) = self.clients.take(conn) else { continue };
            if let Some(Then::GoOn(command)) =
                self.leave(engine, &mut client).map(|waiting| waiting.then)
            {
                client.state = State::Yielding(command);
                self.yielding.push_back(conn);
            }
            self.clients.put(client);
        }
    }

    /// Whether a command that runs in steps has a step to run. If so, the next turn must not sleep.
    pub(crate) fn has_yielding(&self) -> bool {
        !self.yielding.is_empty()
    }
}
