//! What a command is given and what it gives back.

use slimio_resp::{Args, ReplyBuf};

use crate::commands::{
    ArgsWalk, FieldsWalk, KeysWalk, Patch, Populate, RandomFields, resume_randomkey,
};
use crate::effects::Effects;
use crate::keyspace::{DbIndex, Keyspace};

/// Everything a data command may look at and change. It never sees a socket, a clock or a disk.
#[derive(Debug)]
pub struct Context<'a> {
    /// The data set.
    pub keyspace: &'a mut Keyspace,
    /// The database that the client has selected.
    pub db: DbIndex,
    /// The request; argument 0 is the command's name.
    pub args: Args<'a>,
    /// Milliseconds since 1970. A transaction keeps one time for all its commands.
    pub now_ms: i64,
    /// Where the reply goes.
    pub reply: &'a mut ReplyBuf,
    /// Where effects are noted, for the log and for clients that watch keys.
    pub effects: &'a mut Effects,
    /// The circumstances in which the command runs.
    pub mode: Mode,
}

/// The circumstances in which a command runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// For a client.
    #[default]
    Client,
    /// For a client that cannot wait, in a transaction or a script: nothing yields.
    Atomic,
    /// For a client that only reads, with no changes between its steps. An expired key counts as
    /// absent, but is not deleted. Only commands that do not write may run.
    Frozen,
    /// From the log. Nothing expires; the log says what did. Nothing yields.
    Replay,
}

impl Mode {
    /// Whether a long command may go on later.
    pub(crate) fn yields(self) -> bool {
        matches!(self, Mode::Client | Mode::Frozen)
    }
}

/// The outcome of a command.
#[derive(Debug)]
pub enum Outcome {
    /// Done; the reply is written.
    Reply,
    /// The client waits until one of these keys changes or the deadline passes.
    Block {
        /// Keys waited for, in the client's database.
        keys: Vec<Vec<u8>>,
        /// Milliseconds since 1970; `None`: there is no deadline.
        deadline_ms: Option<i64>,
    },
    /// A long command: nothing is replied yet. Resume it after others have had their turn, until it
    /// replies; the client's further requests wait.
    Yield(Yielded),
    /// The values of these keys must be brought into memory, then the command is run again.
    NeedCold {
        /// Keys in the client's database.
        keys: Vec<Vec<u8>>,
    },
}

/// A command that resumes later.
#[derive(Debug)]
pub enum Yielded {
    /// `KEYS`.
    Keys(Box<KeysWalk>),
    /// `RANDOMKEY`, which has found many expired keys.
    RandomKey,
    /// `HGETALL`, `HKEYS` or `HVALS` of a large hash.
    Fields(Box<FieldsWalk>),
    /// `HRANDFIELD` of many fields.
    RandomFields(Box<RandomFields>),
    /// `DEBUG POPULATE`.
    Populate(Box<Populate>),
    /// A command over many arguments, some of which were processed.
    Args(Box<ArgsWalk>),
    /// `APPEND` or `SETRANGE` of a large argument, a part of which was written.
    Patch(Box<Patch>),
}

impl Yielded {
    /// Runs another bounded step. The context is made as for running the command, with the same
    /// arguments and database.
    pub fn resume(self, context: &mut Context<'_>) -> Outcome {
        match self {
            Yielded::Keys(walk) => walk.resume(context),
            Yielded::RandomKey => resume_randomkey(context),
            Yielded::Fields(walk) => walk.resume(context),
            Yielded::RandomFields(walk) => walk.resume(context),
            Yielded::Populate(populate) => populate.resume(context),
            Yielded::Args(walk) => walk.resume(context),
            Yielded::Patch(patch) => patch.resume(context),
        }
    }

    /// Most bytes of a record's payload that the next step makes. `None` if it changes nothing but
    /// expired keys, which have a [limit](Effects::limit), or if all steps are one change of the
    /// data set, whose size was known before the first.
    pub fn log_size_max(&self) -> Option<u64> {
        match self {
            Yielded::Populate(populate) => Some(populate.step_size()),
            Yielded::Keys(_)
            | Yielded::RandomKey
            | Yielded::Fields(_)
            | Yielded::RandomFields(_)
            | Yielded::Args(_)
            | Yielded::Patch(_) => None,
        }
    }
}
