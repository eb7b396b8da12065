//! What was written to a log and is not in its file yet.
//!
//! The stage is memory that processes share. If it outlives the process, so does what the process has
//! written: whoever is left [mends](Stage::mend) the file. The kernel keeps the stores of a process that
//! was killed, in the order in which it made them; so the end is stored after the bytes, and the bytes
//! are only moved when all of them are in the file.
//!
//! It has three parts, each with a lock:
//!
//! * *staged*: a header, and the bytes of the log from a block's start to where the next byte is expected.
//!   That is the end of the log, unless the program writes over what is there. The last block is filled
//!   up with what the file has there: zeros behind the end of the log. Behind that block, there may be
//!   anything.
//! * *writing*: who holds it is the only one that writes to the file. It has room for what is written,
//!   so that others can append meanwhile.
//! * *keeper*: the process that looks after the log holds it as long as it lives.
//!
//! What is in the header, `staged.rs` says.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use slimio_device::{Part, SharedMemory};

use crate::Identity;
use crate::staged::{STAGE_LBAS, Staged};

/// The parts, and their blocks.
const STAGED: usize = 0;
const WRITING: usize = 1;
const KEEPER: usize = 2;
const PARTS: [usize; 3] = [1 + STAGE_LBAS, STAGE_LBAS, 0];

/// Shared memory for one log at a time.
#[derive(Clone, Debug)]
pub struct Stage {
    memory: Arc<SharedMemory>,
    /// How long this process waits for others; `None`: until they are ready.
    patience: Option<Duration>,
}

impl Stage {
    /// A stage that only processes have that were given it.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn private() -> io::Result<Self> {
        Ok(Self::new(SharedMemory::private(c"stage", &PARTS)?))
    }

    /// A new, empty stage in a file, best one in memory (tmpfs). What was in the file is lost.
    ///
    /// # Errors
    /// If there is no room for it.
    pub fn create(file: &File) -> io::Result<Self> {
        Ok(Self::new(SharedMemory::create(file, &PARTS)?))
    }

    /// The stage in a file, with what is in it.
    ///
    /// # Errors
    /// If it is no stage (`InvalidData`).
    pub fn open(file: &File) -> io::Result<Self> {
        Ok(Self::new(SharedMemory::open(file, &PARTS)?))
    }

    fn new(memory: SharedMemory) -> Self {
        Self { memory: memory.into(), patience: None }
    }

    /// The same stage, for a process that others must not keep waiting: a call that can't be made within
    /// this time fails with `TimedOut`, and has no effect.
    pub(crate) fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// This thread looks after the log until it ends.
    ///
    /// # Errors
    /// If it does already.
    pub(crate) fn keep(&self) -> io::Result<()> {
        self.memory.hold(KEEPER)
    }

    fn lock(&self, part: usize) -> io::Result<Part<'_>> {
        match self.patience {
            None => self.memory.lock(part),
            Some(patience) => {
                let locked = self.memory.lock_for(part, patience);
                locked.ok_or_else(|| io::ErrorKind::TimedOut.into())
            }
        }
    }

    /// Whether somebody looks after the log. This makes no system call.
    pub fn is_kept(&self) -> bool {
        self.memory.is_held(KEEPER)
    }

    /// The file whose log is staged; `None` if there is no log.
    ///
    /// # Errors
    /// If this thread holds the stage.
    pub fn file(&self) -> io::Result<Option<Identity>> {
        Ok(self.staged()?.file())
    }

    /// The path that the file had when its log began.
    ///
    /// # Errors
    /// If this thread holds the stage.
    pub fn path(&self) -> io::Result<PathBuf> {
        Ok(self.staged()?.path())
    }

    /// The right to append. Nothing that takes time happens while it is held, except by who also has
    /// the right to write, which is taken before.
    pub(crate) fn staged(&self) -> io::Result<Staged<'_>> {
        Ok(Staged::new(self.lock(STAGED)?))
    }

    /// The right to write to the file, and room for what is written.
    pub(crate) fn writing(&self) -> io::Result<Part<'_>> {
        self.lock(WRITING)
    }

    /// The right to write, or `None` after somebody else has written.
    pub(crate) fn writing_or_wait(&self) -> Option<Part<'_>> {
        self.memory.lock_or_wait(WRITING)
    }
}
