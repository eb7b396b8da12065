//! A driver for a keyspace, which the tests of commands share.

use slimio_keyspace::{
    Config, Context, DbIndex, Effects, Gather, Keyspace, Mode, Nothing, Outcome, Payload,
    command_table,
};
use slimio_resp::{OwnedRequest, Protocol, ReplyBuf};

/// A keyspace with a client.
pub(crate) struct Driver {
    pub(crate) keyspace: Keyspace,
    pub(crate) db: DbIndex,
    pub(crate) now_ms: i64,
    pub(crate) protocol: Protocol,
    /// The log payload of the last command, or of the transaction so far.
    pub(crate) payload: Payload,
    pub(crate) in_transaction: bool,
    /// Count of calls of [`check`](Self::check).
    checks: usize,
}

impl Driver {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            keyspace: Keyspace::new(Config::default(), u128::from(seed)),
            db: DbIndex(0),
            now_ms: 0,
            protocol: Protocol::Resp2,
            payload: Payload::default(),
            in_transaction: false,
            checks: 0,
        }
    }

    /// For tests of random steps: checks the invariants of the data set after every eighth step.
    pub(crate) fn check(&mut self) {
        self.checks += 1;
        if self.checks.is_multiple_of(8) {
            self.keyspace.check();
        }
    }

    /// Runs a command as a server would, and returns its reply.
    pub(crate) fn run<T: AsRef<[u8]>>(&mut self, args: &[T]) -> Vec<u8> {
        self.run_request(&OwnedRequest::from_args(args)).0
    }

    /// Like [`run`](Self::run), but also returns the effects of every step of the command.
    pub(crate) fn run_request(&mut self, request: &OwnedRequest) -> (Vec<u8>, Vec<Effects>) {
        let args = request.args();
        let mut reply = ReplyBuf::new(self.protocol);
        if !self.in_transaction {
            self.payload.begin(self.db);
        }
        let name = args.bytes(0);
        let command = command_table().lookup(&name).expect("a data command");
        if !command.accepts(args.len()) {
            let name = command.name;
            reply.error(&format!("ERR wrong number of arguments for '{name}' command"));
            return (bytes(&reply), Vec::new());
        }
        let mut steps = Vec::new();
        let mut outcome = None;
        loop {
            let mut effects = Effects::new();
            let mut context = Context {
                keyspace: &mut self.keyspace,
                db: self.db,
                args,
                now_ms: self.now_ms,
                reply: &mut reply,
                effects: &mut effects,
                mode: Mode::Client,
            };
            outcome = Some(match outcome.take() {
                None => (command.run)(&mut context),
                Some(Outcome::Yield(yielded)) => yielded.resume(&mut context),
                Some(other) => panic!("unexpected outcome: {other:?}"),
            });
            self.payload.add(&effects, args);
            if !self.in_transaction && steps.is_empty() {
                let mut gather = Gather::default();
                let parts = gather.parts(&effects, self.db, args);
                assert!(parts.as_slice().concat() == self.payload.bytes());
                assert_eq!(parts.size(), self.payload.bytes().len());
            }
            steps.push(effects);
            match outcome {
                Some(Outcome::Reply) => return (bytes(&reply), steps),
                Some(Outcome::Block(block)) => {
                    // A client in a transaction must not wait, so it gets its reply at once. Any
                    // other client gets the reply of a wait that has ended without a value.
                    let nothing =
                        if self.in_transaction { block.nothing } else { Nothing::NullArray };
                    nothing.reply(&mut reply);
                    return (bytes(&reply), steps);
                }
                _ => {}
            }
        }
    }
}

pub(crate) fn bytes(reply: &ReplyBuf) -> Vec<u8> {
    let segments: Vec<&[u8]> = reply.segments(0..reply.len()).collect();
    segments.concat()
}
