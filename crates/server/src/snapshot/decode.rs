//! Threads that check and decode the chunks of a snapshot while others are read.
//!
//! ```text
//!            ┌─► chunks 0, n, 2n ... ─► decode ─┐
//!  reader ───┼─► chunks 1, n+1 ...   ─► decode ─┼─► in order ─► keyspace (command thread)
//!            └─► ...                            ┘
//! ```
//!
//! Each thread has every n-th chunk, and gives back in the order in which it was given: so the order
//! of all is known without numbers.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use slimio_keyspace::{DecodeContext, Decoded, decode_chunk};
use slimio_storage::{Chunk, Error};

/// Most threads that decode: more than that, and putting in what they decoded takes longer.
const THREADS_MAX: usize = 8;
/// Chunks that may be with one thread, decoded or not.
const AHEAD: usize = 4;

/// What came of a chunk.
pub(crate) type Result = std::result::Result<Decoded, Error>;

/// The threads.
#[derive(Debug)]
pub(crate) struct Decoders {
    threads: Vec<DecoderThread>,
    /// Chunks handed over, and taken back.
    given: usize,
    taken: usize,
}

#[derive(Debug)]
struct DecoderThread {
    chunks: Option<SyncSender<Chunk>>,
    results: Receiver<Result>,
    thread: Option<JoinHandle<()>>,
}

impl Decoders {
    /// Starts one thread per processor, within reason.
    ///
    /// # Errors
    /// When none can be started.
    pub(crate) fn start(context: DecodeContext) -> std::io::Result<Self> {
        let count = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        let threads = (0..count).map(|_| DecoderThread::start(context));
        let threads = threads.collect::<std::io::Result<_>>()?;
        Ok(Self { threads, given: 0, taken: 0 })
    }

    /// Whether no more can be handed over before something is taken back.
    pub(crate) fn are_full(&self) -> bool {
        self.given - self.taken >= self.threads.len() * AHEAD
    }

    /// Hands over a chunk.
    pub(crate) fn give(&mut self, chunk: Chunk) {
        let thread = &self.threads[self.given % self.threads.len()];
        self.given += 1;
        let chunks = thread.chunks.as_ref().expect("it takes chunks until this is dropped");
        assert!(chunks.send(chunk).is_ok(), "a decoder thread has panicked");
    }

    /// What came of the next chunk; waits for it. `None` when all are taken back.
    pub(crate) fn take(&mut self) -> Option<Result> {
        if self.taken == self.given {
            return None;
        }
        let thread = &self.threads[self.taken % self.threads.len()];
        self.taken += 1;
        Some(thread.results.recv().expect("a decoder thread answers for each chunk"))
    }
}

impl DecoderThread {
    fn start(context: DecodeContext) -> std::io::Result<Self> {
        let (chunks, chunk_receiver) = sync_channel::<Chunk>(AHEAD);
        let (result_sender, results) = sync_channel(AHEAD);
        let thread = std::thread::Builder::new().name("decode".into()).spawn(move || {
            for chunk in chunk_receiver {
                let decoded = decode(&chunk, &context);
                if result_sender.send(decoded).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { chunks: Some(chunks), results, thread: Some(thread) })
    }
}

fn decode(chunk: &Chunk, context: &DecodeContext) -> Result {
    let index = chunk.index();
    let refused = |why: String| Error::ChunkRefused { index, why };
    let decoded = decode_chunk(chunk.payload()?, context).map_err(|e| refused(e.to_string()))?;
    if decoded.keys() != chunk.entry_count() as usize {
        let (found, expected) = (decoded.keys(), chunk.entry_count());
        return Err(refused(format!("it has {found} entries instead of {expected}")));
    }
    Ok(decoded)
}

impl Drop for Decoders {
    fn drop(&mut self) {
        for DecoderThread { chunks, results, thread } in self.threads.drain(..) {
            drop((chunks, results));
            if let Some(thread) = thread {
                // A panic was reported when it happened.
                let _ = thread.join();
            }
        }
    }
}
