//! The stage of a log: the bytes that a program has written to the log, and that are not in the
//! log's file yet.
//!
//! The stage is memory that processes share. If the stage outlives a process, so do the bytes that
//! the process has written: another process [mends](Stage::mend) the file. The kernel keeps the
//! stores of a killed process, in the order in which the process made them. So the field that says
//! where the staged bytes end is stored after the bytes themselves. And a staged byte is
//! overwritten only when it is in the file, or when a copy of it is elsewhere in the stage.
//!
//! The stage has three parts, each with a lock:
//!
//! * *staged*: a header, and the bytes of the log from a block's start to the place where the next
//!   byte is expected. This place is the end of the log, unless the program overwrites earlier
//!   bytes. The last block is filled up with the bytes that the file has there. (After the end of
//!   the log, these are zeros.) After that block, the memory may hold anything.
//! * *writing*: only the process that holds this part's lock writes to the file. The part has room
//!   for a copy of the bytes that are being written, so that others can append meanwhile.
//! * *keeper*: only the lock of this part is used. The keeper is the process that looks after the
//!   log. One of its threads holds the lock until this thread ends.
//!
//! `staged.rs` describes the header.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use slimio_device::{Part, SharedMemory};

use crate::Identity;
use crate::staged::{STAGE_LBAS, Staged};

/// The parts, and their sizes in blocks.
const STAGED: usize = 0;
const WRITING: usize = 1;
const KEEPER: usize = 2;
const PARTS: [usize; 3] = [1 + STAGE_LBAS, STAGE_LBAS, 0];

/// Shared memory for one log at a time.
#[derive(Clone, Debug)]
pub struct Stage {
    memory: Arc<SharedMemory>,
    /// How long this process waits for a lock of another process; `None` means without a limit.
    patience: Option<Duration>,
}

impl Stage {
    /// A stage without a name. Another process can use the stage only if it gets the stage's
    /// descriptor.
    ///
    /// # Errors
    /// If there is no memory for the stage.
    pub fn private() -> io::Result<Self> {
        Ok(Self::new(SharedMemory::private(c"stage", &PARTS)?))
    }

    /// A new, empty stage in a file, preferably in memory (tmpfs). The file's old contents are
    /// lost.
    ///
    /// # Errors
    /// If there is no room for the stage.
    pub fn create(file: &File) -> io::Result<Self> {
        Ok(Self::new(SharedMemory::create(file, &PARTS)?))
    }

    /// Opens the stage in a file, with its contents.
    ///
    /// # Errors
    /// If the file holds no stage (`InvalidData`).
    pub fn open(file: &File) -> io::Result<Self> {
        Ok(Self::new(SharedMemory::open(file, &PARTS)?))
    }

    fn new(memory: SharedMemory) -> Self {
        Self { memory: memory.into(), patience: None }
    }

    /// The same stage, for a process that must not wait long for others. A call that can't get a
    /// part's lock within `patience` fails with `TimedOut`, and has no effect.
    pub(crate) fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// Makes this thread the keeper of the log until the thread ends.
    ///
    /// # Errors
    /// If this thread is the keeper already.
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

    /// Whether the log has a keeper. This makes no system call.
    pub fn is_kept(&self) -> bool {
        self.memory.is_held(KEEPER)
    }

    /// The file whose log is staged; `None` if there is no log.
    ///
    /// # Errors
    /// If this thread has locked the stage already.
    pub fn file(&self) -> io::Result<Option<Identity>> {
        Ok(self.staged()?.file())
    }

    /// The path that the file had when its log began.
    ///
    /// # Errors
    /// If this thread has locked the stage already.
    pub fn path(&self) -> io::Result<PathBuf> {
        Ok(self.staged()?.path())
    }

    /// Takes the right to append. The holder must do nothing that takes long, unless it also has
    /// the right to [write](Self::writing), which it must have taken first.
    pub(crate) fn staged(&self) -> io::Result<Staged<'_>> {
        Ok(Staged::new(self.lock(STAGED)?))
    }

    /// Takes the right to write to the file. The part has room for a copy of the bytes to write.
    pub(crate) fn writing(&self) -> io::Result<Part<'_>> {
        self.lock(WRITING)
    }

    /// Takes the right to write. If somebody else holds the right, waits until that holder gives it
    /// up or some time has passed, and then returns `None`. The caller then tries again.
    pub(crate) fn writing_or_wait(&self) -> Option<Part<'_>> {
        self.memory.lock_or_wait(WRITING)
    }
}
