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
    /// Where what was done is written down, for the log and for who watches keys.
    pub effects: &'a mut Effects,
    /// Under which circumstances the command runs.
    pub mode: Mode,
}

/// Under which circumstances a command runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// For a client.
    #[default]
    Client,
    /// For a client that cannot wait, in a transaction or a script: nothing yields.
    Atomic,
    /// For a client that only reads, in steps between which nothing goes. A key whose time is over is as
    /// if it were not there, but stays. Only commands that do not write may run.
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

/// What became of a command.
#[derive(Debug)]
pub enum Outcome {
    /// Done; the reply is written.
    Reply,
    /// The client waits until one of these keys changes or the time is over.
    Block {
        /// Keys waited for, in the client's database.
        keys: Vec<Vec<u8>>,
        /// Milliseconds since 1970; `None`: as long as it takes.
        deadline_ms: Option<i64>,
    },
    /// A long one: nothing is replied yet. To be resumed after others have had their turn, until
    /// it replies; the client's further requests wait.
    Yield(Yielded),
    /// Values of these keys have to be brought in, then the command is run again.
    NeedCold {
        /// Keys in the client's database.
        keys: Vec<Vec<u8>>,
    },
}

/// A command that goes on later.
#[derive(Debug)]
pub enum Yielded {
    /// `KEYS`.
    Keys(Box<KeysWalk>),
    /// `RANDOMKEY`, which has met many keys whose time was over.
    RandomKey,
    /// `HGETALL`, `HKEYS` or `HVALS` of a large hash.
    Fields(Box<FieldsWalk>),
    /// `HRANDFIELD` of many fields.
    RandomFields(Box<RandomFields>),
    /// `DEBUG POPULATE`.
    Populate(Box<Populate>),
    /// A command over many arguments, some of which were taken in.
    Args(Box<ArgsWalk>),
    /// `APPEND` or `SETRANGE` of a large argument, a part of which was written.
    Patch(Box<Patch>),
}

impl Yielded {
    /// Goes on for another bounded step. The context is made as for running the command, with the
    /// same arguments and database.
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

    /// Bytes of a record's payload that the next step makes at most; `None` if it changes nothing but
    /// for keys whose time is over, for which there is a [limit](Effects::limit), or if all steps are one
    /// change of the data set, whose size was known before the first.
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
