//! Runs commands that take several steps, one step at a time.

use slimio_keyspace::{Context, DataFn, DbIndex, Effects, Mode, Outcome, Steps, command_table};
use slimio_resp::{OwnedRequest, ReplyBuf};

use crate::common::{self, Driver};

/// The function that runs a data command.
pub(crate) fn command(request: &OwnedRequest) -> DataFn {
    command_table().lookup(&request.args().bytes(0)).expect("a command").run
}

/// Runs the first or next step of a command. Returns its outcome and its effects.
pub(crate) fn step(
    driver: &mut Driver,
    run: DataFn,
    request: &OwnedRequest,
    before: Option<Box<dyn Steps>>,
    reply: &mut ReplyBuf,
) -> (Outcome, Effects) {
    let mut effects = Effects::new();
    let mut context = Context {
        keyspace: &mut driver.keyspace,
        db: DbIndex(0),
        args: request.args(),
        now_ms: 1,
        reply,
        effects: &mut effects,
        mode: Mode::Client,
    };
    let outcome = match before {
        None => run(&mut context),
        Some(yielded) => yielded.resume(&mut context),
    };
    (outcome, effects)
}

/// Runs a command to its end. Between its steps, calls `between` with the count of steps so far.
/// Returns the reply, the step count, and whether any step had an effect.
pub(crate) fn run_in_steps(
    driver: &mut Driver,
    run: DataFn,
    request: &OwnedRequest,
    mut between: impl FnMut(&mut Driver, usize),
) -> (Vec<u8>, usize, bool) {
    let mut reply = ReplyBuf::default();
    let (mut steps, mut yielded, mut has_effects) = (0, None, false);
    loop {
        steps += 1;
        let (outcome, effects) = step(driver, run, request, yielded.take(), &mut reply);
        has_effects |= !effects.is_empty();
        match outcome {
            Outcome::Reply => break,
            Outcome::Yield(next) => yielded = Some(next),
            other => panic!("unexpected outcome: {other:?}"),
        }
        assert!(reply.is_empty(), "nothing is replied before the end");
        between(driver, steps);
    }
    (common::bytes(&reply), steps, has_effects)
}
