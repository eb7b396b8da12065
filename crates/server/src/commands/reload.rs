//! `DEBUG RELOAD`: encodes the whole data set as a snapshot would hold it, and decodes it again.

use slimio_keyspace::{
    CaptureBudget, CaptureKind, CaptureState, Chunk, ChunkEncoder, ChunkError, ChunkOptions,
    Loader, decode_chunk,
};
use slimio_resp::Args;

use crate::clients::Client;
use crate::engine::Engine;

/// The largest part of the data set that one step of the capture takes.
const STEP: CaptureBudget = CaptureBudget { size: 1 << 20, entries: 4096 };

pub(super) fn reload(engine: &mut Engine, client: &mut Client, args: Args<'_>) {
    if args.len() > 2 {
        let is_known = |option: &slimio_resp::Arg<'_>| {
            ["merge", "noflush", "nosave"].iter().any(|known| option.is(known))
        };
        // The second text is Redis's own error for an unknown option.
        client.out.error(if args.iter().skip(2).all(|option| is_known(&option)) {
            "ERR DEBUG RELOAD works in memory here: it reads no file, so it takes no options"
        } else {
            "ERR DEBUG RELOAD only supports the MERGE, NOFLUSH and NOSAVE options."
        });
        return;
    }
    match engine.reload() {
        Ok(()) => client.out.ok(),
        Err(error) => {
            log::error!("DEBUG RELOAD failed: {error}; the data set is unchanged");
            client.out.error("ERR Error trying to load the RDB dump, check server logs.");
        }
    }
}

impl Engine {
    /// Replaces the data set by the result of encoding and decoding all its chunks. Blocks the
    /// thread, and needs twice the memory of the data set. This is acceptable because only tests
    /// use this function, to check the contents of a snapshot.
    fn reload(&mut self) -> Result<(), ChunkError> {
        self.cancel_snapshot("DEBUG RELOAD");
        let mut taken = Vec::new();
        while self.data.keyspace.capture_state() != CaptureState::Idle {
            self.data.keyspace.capture_step(STEP, &mut taken);
        }
        let options = ChunkOptions {
            compresses: self.settings.compresses,
            eviction: *self.data.keyspace.eviction(),
            now_ms: self.clock.now_ms,
        };
        let mut reloaded = self.data.keyspace.emptied();
        let context = reloaded.decode_context(self.clock.now_ms);
        let (mut encoder, mut loader) = (ChunkEncoder::new(options), Loader::new());
        let mut load = |chunk: Chunk<'_>| -> Result<(), ChunkError> {
            reloaded.load(loader.join(decode_chunk(chunk.payload, &context)?, &context)?)
        };
        self.data.keyspace.begin_capture(CaptureKind::PointInTime);
        let mut outcome = Ok(());
        while outcome.is_ok() && self.data.keyspace.capture_state() == CaptureState::Running {
            self.data.keyspace.capture_step(STEP, &mut taken);
            outcome = taken.drain(..).try_for_each(|batch| encoder.encode(&batch, &mut load));
        }
        let outcome = outcome.and_then(|()| encoder.finish(&mut load));
        self.data.keyspace.end_capture();
        outcome?;
        loader.finish()?;
        self.data.keyspace = reloaded;
        Ok(())
    }
}
