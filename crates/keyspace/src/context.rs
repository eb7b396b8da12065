//! The input and the outcome of a command.

use std::fmt;

use slimio_resp::{Args, ReplyBuf};

use crate::commands::{ArgsWalk, KeysWalk, Patch, Populate, resume_randomkey};
use crate::effects::Effects;
use crate::keyspace::{DbIndex, Keyspace};

/// Everything a data command may look at and change. A command never sees a socket, a clock or a
/// disk.
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
    /// For a client, without yielding, because the command is in a transaction or a script.
    Atomic,
    /// For a client, while nothing changes the data set between the command's steps. An expired key
    /// counts as absent, but is not deleted. Only commands that do not write may run.
    Frozen,
    /// The command comes from the log. No key expires, because the log says which keys expired. No
    /// command yields.
    Replay,
}

impl Mode {
    /// Whether a long command may stop and resume later.
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
        /// The keys that the client waits for, in its database.
        keys: Vec<Vec<u8>>,
        /// Milliseconds since 1970; `None` if there is no deadline.
        deadline_ms: Option<i64>,
    },
    /// A long command, which has not replied yet. Resume the command again and again until it
    /// replies. Serve other clients in between. The further requests of this client wait for the
    /// reply.
    Yield(Yielded),
    /// The values of these keys must be brought into memory. Then the command must be run again.
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
    /// `RANDOMKEY`, which has found only expired keys so far.
    RandomKey,
    /// `DEBUG POPULATE`.
    Populate(Box<Populate>),
    /// A command over many arguments, some of which were processed.
    Args(Box<ArgsWalk>),
    /// `APPEND` or `SETRANGE` of a large argument, a part of which was written.
    Patch(Box<Patch>),
    /// Another command. All its steps together make one change of the data set, or no change.
    Steps(Box<dyn Steps>),
}

/// What a command that resumes later has done so far.
pub trait Steps: fmt::Debug + Send {
    /// Runs another bounded step. The context is made as for running the command.
    fn resume(self: Box<Self>, context: &mut Context<'_>) -> Outcome;

    /// Whether the remaining steps neither look at the data set nor change it, because the command
    /// has clones of all values that it reads.
    fn has_all(&self) -> bool {
        false
    }

    /// The part of the reply that was made so far.
    fn made(&self) -> Option<&ReplyBuf> {
        None
    }
}

impl Yielded {
    /// Runs another bounded step. The context is made as for running the command, with the same
    /// arguments and database.
    pub fn resume(self, context: &mut Context<'_>) -> Outcome {
        match self {
            Yielded::Keys(walk) => walk.resume(context),
            Yielded::RandomKey => resume_randomkey(context),
            Yielded::Populate(populate) => populate.resume(context),
            Yielded::Args(walk) => walk.resume(context),
            Yielded::Patch(patch) => patch.resume(context),
            Yielded::Steps(steps) => steps.resume(context),
        }
    }

    /// Whether the remaining steps neither look at the data set nor change it.
    pub fn has_all(&self) -> bool {
        match self {
            Yielded::Steps(steps) => steps.has_all(),
            Yielded::Keys(_)
            | Yielded::RandomKey
            | Yielded::Populate(_)
            | Yielded::Args(_)
            | Yielded::Patch(_) => false,
        }
    }

    /// The part of the reply that was made so far and that the command keeps until its end.
    pub fn made(&self) -> Option<&ReplyBuf> {
        match self {
            Yielded::Keys(walk) => Some(walk.made()),
            Yielded::Steps(steps) => steps.made(),
            Yielded::RandomKey | Yielded::Populate(_) | Yielded::Args(_) | Yielded::Patch(_) => {
                None
            }
        }
    }

    /// Upper bound of the payload bytes that the next step logs. `None` in two cases: if the step
    /// only deletes expired keys, because these deletions have their own [limit](Effects::limit);
    /// and if all steps together make one change, because the size of that change was known before
    /// the first step.
    pub fn log_size_max(&self) -> Option<u64> {
        match self {
            Yielded::Populate(populate) => Some(populate.step_size()),
            Yielded::Keys(_)
            | Yielded::RandomKey
            | Yielded::Args(_)
            | Yielded::Patch(_)
            | Yielded::Steps(_) => None,
        }
    }
}
