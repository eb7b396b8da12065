//! The input and the outcome of a command.

use std::fmt;
use std::time::Duration;

use slimio_resp::{Args, ReplyBuf};

use crate::effects::Effects;
use crate::keyspace::{DbIndex, Keyspace};
use crate::kinds::ValueType;

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
    /// The command runs for a client.
    #[default]
    Client,
    /// The command runs for a client that has waited for a key. The number is the index of the
    /// argument that names this key. The command looks only at this key for what it wants.
    Woken(usize),
    /// The command runs for a client, but does not yield, because it is in a transaction or a
    /// script.
    Atomic,
    /// The command runs for a client, and nothing changes the data set between the command's steps.
    /// An expired key counts as absent, but is not deleted. Only commands that do not write may
    /// run.
    Frozen,
    /// The command comes from the log. No key expires, because the log says which keys expired. No
    /// command yields.
    Replay,
}

impl Mode {
    /// Whether a long command may stop and resume later.
    pub(crate) fn yields(self) -> bool {
        matches!(self, Mode::Client | Mode::Woken(_) | Mode::Frozen)
    }
}

/// The outcome of a command.
#[derive(Debug)]
pub enum Outcome {
    /// Done; the reply is written.
    Reply,
    /// Nothing was changed, and nothing is replied: the client waits for keys.
    Block(Block),
    /// A long command, which has not replied yet. Resume the command again and again until it
    /// replies. Serve other clients in between. The further requests of this client wait for the
    /// reply.
    Yield(Box<dyn Steps>),
    /// The values of these keys must be brought into memory. Then the command must be run again.
    NeedCold {
        /// Keys in the client's database.
        keys: Vec<Vec<u8>>,
    },
}

/// What a client waits for after its command found nothing to take. Once one of the keys holds a
/// value of the wanted type, the request is run again from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The first argument of the request that names a key, and how many such arguments there are.
    pub keys: (usize, usize),
    /// If the request moves an element to another key, the index of the argument that names this
    /// key.
    pub destination: Option<usize>,
    /// The type of value that ends the wait.
    pub wanted: ValueType,
    /// How long the client waits at most, counted from the first run of the request. Zero means no
    /// limit.
    pub timeout: Duration,
    /// The reply if the command must not wait, as in a transaction. If the command waits, and the
    /// wait ends without anything to take, the reply is always [`NullArray`](Nothing::NullArray),
    /// as in Redis.
    pub nothing: Nothing,
}

/// A reply that says that there was nothing to take. The two variants differ in RESP2 only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nothing {
    /// In place of an element.
    Null,
    /// In place of an array of elements.
    NullArray,
}

impl Nothing {
    /// Writes the reply.
    pub fn reply(self, reply: &mut ReplyBuf) {
        match self {
            Self::Null => reply.null(),
            Self::NullArray => reply.null_array(),
        }
    }
}

/// A command that resumes later: what it has done so far, and what is left.
pub trait Steps: fmt::Debug + Send {
    /// Runs another bounded step. The context must have the same arguments and database as that of
    /// the command's first run.
    fn resume(self: Box<Self>, context: &mut Context<'_>) -> Outcome;

    /// Whether the remaining steps neither look at the data set nor change it, because the command
    /// has clones of all values that it reads.
    fn has_all(&self) -> bool {
        false
    }

    /// The part of the reply that was made so far and that the command keeps until its end.
    fn made(&self) -> Option<&ReplyBuf> {
        None
    }

    /// Upper bound of the payload bytes that the next step logs. There are two cases in which this
    /// is `None`. Either the step only deletes expired keys, and these deletions have their own
    /// [limit](Effects::limit). Or all steps together make one change, and the size of that change
    /// was known before the first step.
    fn log_size_max(&self) -> Option<u64> {
        None
    }
}
