//! Threads that check and decode chunks of a snapshot while other chunks are read.
//!
//! ```text
//!            ┌─► chunks 0, n, 2n ... ─► decode ─┐
//!  reader ───┼─► chunks 1, n+1 ...   ─► decode ─┼─► in order ─► join ─► keyspace (command thread)
//!            └─► ...                            ┘
//! ```
//!
//! Each of n threads decodes every n-th chunk, and returns its results in the order of its chunks.
//! So the results of all threads can be put in order although the results have no numbers. One more
//! thread joins values that come in parts, so that a large hash is handed over whole.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use slimio_keyspace::{ChunkError, DecodeContext, Decoded, Loader, decode_chunk};
use slimio_storage::{Chunk, Error};

/// Largest number of threads that decode. More threads would not help, because with this number,
/// decoding is already faster than loading the decoded chunks.
const THREADS_MAX: usize = 8;
/// Largest number of chunks that one thread holds, decoded or not.
const AHEAD: usize = 4;

/// The outcome of decoding a chunk.
pub(crate) type Result = std::result::Result<Decoded, Error>;

#[derive(Debug)]
pub(crate) struct Decoders {
    threads: Vec<DecoderThread>,
    joined: Receiver<Result>,
    joiner: Option<JoinHandle<()>>,
    /// The number of chunks that were handed over, and the number of results that were taken back.
    given: usize,
    taken: usize,
}

#[derive(Debug)]
struct DecoderThread {
    /// `None` when there are no more chunks.
    chunks: Option<SyncSender<Chunk>>,
    thread: Option<JoinHandle<()>>,
}

impl Decoders {
    /// Starts one thread per processor, but at most [`THREADS_MAX`], and the thread that joins
    /// values.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub(crate) fn start(context: DecodeContext) -> std::io::Result<Self> {
        let count = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        let started = (0..count).map(|_| DecoderThread::start(context));
        let started = started.collect::<std::io::Result<Vec<_>>>()?;
        let (threads, results) = started.into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
        // The channel has room for all results that have not been taken, and for an error at the
        // end.
        let (sender, joined) = sync_channel(count * AHEAD + 1);
        let joiner = std::thread::Builder::new().name("join".into());
        let joiner = joiner.spawn(move || join(&results, &sender, &context))?;
        Ok(Self { threads, joined, joiner: Some(joiner), given: 0, taken: 0 })
    }

    /// Whether a result must be taken before the next chunk can be handed over.
    pub(crate) fn are_full(&self) -> bool {
        self.given - self.taken >= self.threads.len() * AHEAD
    }

    pub(crate) fn give(&mut self, chunk: Chunk) {
        let thread = &self.threads[self.given % self.threads.len()];
        self.given += 1;
        let chunks = thread.chunks.as_ref().expect("no chunk is handed over after `finish`");
        assert!(chunks.send(chunk).is_ok(), "a decoder thread has panicked");
    }

    /// Waits for the outcome of the next chunk. `None` if the outcomes of all chunks were taken.
    pub(crate) fn take(&mut self) -> Option<Result> {
        if self.taken == self.given {
            return None;
        }
        self.taken += 1;
        Some(self.joined.recv().expect("the joining thread sends an outcome for each chunk"))
    }

    /// Called when all results have been taken. Checks that every value that came in parts is
    /// complete. After this call, no more chunks can be handed over.
    ///
    /// # Errors
    /// When a value is not complete; reported only once.
    pub(crate) fn finish(&mut self) -> std::result::Result<(), Error> {
        for thread in &mut self.threads {
            thread.chunks = None;
        }
        self.joined.recv().map_or(Ok(()), |last| last.map(drop))
    }
}

/// Joins values that come in parts, until there are no more chunks.
fn join(results: &[Receiver<Result>], joined: &SyncSender<Result>, context: &DecodeContext) {
    let refused = |error: ChunkError| Error::ChunkRefused { index: None, why: error.to_string() };
    let mut loader = Loader::new();
    for results in results.iter().cycle() {
        let Ok(decoded) = results.recv() else { break };
        let decoded = decoded.and_then(|decoded| loader.join(decoded, context).map_err(refused));
        if joined.send(decoded).is_err() {
            return;
        }
    }
    if let Err(error) = loader.finish() {
        // The send fails only if recovery was given up.
        let _ = joined.send(Err(refused(error)));
    }
}

impl DecoderThread {
    /// Starts a thread. Also returns the receiver of the decoded chunks.
    fn start(context: DecodeContext) -> std::io::Result<(Self, Receiver<Result>)> {
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
        Ok((Self { chunks: Some(chunks), thread: Some(thread) }, results))
    }
}

fn decode(chunk: &Chunk, context: &DecodeContext) -> Result {
    let index = chunk.index();
    let refused = |why: String| Error::ChunkRefused { index: Some(index), why };
    let decoded = decode_chunk(chunk.payload()?, context).map_err(|e| refused(e.to_string()))?;
    if decoded.keys() != chunk.entry_count() as usize {
        let (found, expected) = (decoded.keys(), chunk.entry_count());
        return Err(refused(format!("the chunk has {found} entries instead of {expected}")));
    }
    Ok(decoded)
}

impl Drop for Decoders {
    fn drop(&mut self) {
        // The channels have room for all results, so no thread waits for a result to be taken.
        let threads = self.threads.drain(..).map(|DecoderThread { chunks, thread }| {
            drop(chunks);
            thread
        });
        let threads: Vec<_> = threads.chain([self.joiner.take()]).collect();
        for thread in threads.into_iter().flatten() {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}
