//! What a snapshot costs the machine: the peak memory of the server and its children, and how the
//! thread or process that saves spends its time. A thread samples while the load runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::{Doing as _, Result};
use crate::proc::{self, RunTime};
use crate::server::{Server, ServerKind};

/// Shortest time between two samples.
const SAMPLE_EVERY: Duration = Duration::from_millis(50);
/// Sampling may take at most 1 / `SAMPLE_SHARE` of the time, because the kernel walks all pages of
/// a process to report its memory.
const SAMPLE_SHARE: u32 = 50;
/// The names of SlimIO's threads that write snapshots begin with this text. The threads take turns.
const SNAPSHOT_THREADS: &str = "snapshot";

/// What a watch has seen between its start and its end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Memory of the server and its children at the start. A page that several processes share is
    /// divided by their number.
    pub pss_bytes_before: u64,
    /// The same memory at its peak.
    pub pss_bytes_peak: u64,
    /// How the child (stock Redis) or the threads (SlimIO) that save had spent their time when a
    /// sample last found them; `None` if no sample found them.
    pub saver: Option<RunTime>,
}

/// A running watch. Its thread ends on drop.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    pid: u32,
    kind: ServerKind,
    /// The time that the saving threads had already used at the start. It is zero if none of them
    /// existed.
    saver_before: RunTime,
    is_over: AtomicBool,
    seen: Mutex<Seen>,
}

impl Watch {
    /// Takes the first sample, and starts a thread that takes all further samples.
    pub fn start(server: &Server) -> Result<Self> {
        let (pid, kind) = (server.pid(), server.config().kind);
        let pss_bytes = pss_with_children(pid)?;
        let shared = Arc::new(Shared {
            pid,
            kind,
            saver_before: saver(pid, kind).unwrap_or_default(),
            is_over: AtomicBool::new(false),
            seen: Mutex::new(Seen {
                pss_bytes_before: pss_bytes,
                pss_bytes_peak: pss_bytes,
                saver: None,
            }),
        });
        let its_own = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("watch".into())
            .spawn(move || its_own.keep())
            .doing("starting the thread that samples memory")?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Ends the watch, and reads the times of the saving threads once more.
    pub fn finish(mut self) -> Seen {
        self.end();
        self.shared.look_at_saver();
        *self.shared.seen()
    }

    fn end(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn keep(&self) {
        while !self.is_over.load(Ordering::Relaxed) {
            let began = Instant::now();
            // If the server has ended, the thread that drives the load reports that.
            let pss_bytes = pss_with_children(self.pid).unwrap_or(0);
            let mut seen = self.seen();
            seen.pss_bytes_peak = seen.pss_bytes_peak.max(pss_bytes);
            drop(seen);
            self.look_at_saver();
            std::thread::park_timeout(SAMPLE_EVERY.max(began.elapsed() * SAMPLE_SHARE));
        }
    }

    fn look_at_saver(&self) {
        if let Some(saver) = saver(self.pid, self.kind) {
            self.seen().saver = Some(saver.since(self.saver_before));
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pss_with_children(pid: u32) -> Result<u64> {
    let children = proc::children(pid)?;
    // A child may have ended since it was listed. Its memory is not counted.
    let of_children: u64 = children.into_iter().filter_map(|pid| proc::pss_bytes(pid).ok()).sum();
    Ok(proc::pss_bytes(pid)? + of_children)
}

fn saver(pid: u32, kind: ServerKind) -> Option<RunTime> {
    match kind {
        ServerKind::Stock => {
            let child = *proc::children(pid).ok()?.first()?;
            RunTime::of_process(child).ok()
        }
        ServerKind::SlimIO => RunTime::of_threads(pid, SNAPSHOT_THREADS).ok().flatten(),
    }
}
