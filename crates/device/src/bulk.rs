//! The extras of a device's bulk paths: polling and registered memory. A path is a way to the
//! device. A bulk path carries much data that nothing urgent waits for. If a path lacks an extra,
//! this module notes the reason.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use slimio_ring::{Cause, Errno, Features, Refused, Ring, Setup};

use crate::polling::has_poll_queues;
use crate::pool::Pool;
use crate::{Buffer, PathOptions, Polling};

/// The extras that a path is opened with; none by default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extras {
    pub(crate) polling: Polling,
    /// Memory that the path's ring registers.
    pub(crate) pool: Option<Arc<Pool>>,
}

/// The setup of a path's ring.
pub(crate) fn path_setup(in_flight_max: u32, polling: Polling) -> Setup {
    Setup {
        submissions: in_flight_max,
        completions: 2 * in_flight_max,
        // The feature `deferred` is not used. With it, only the thread that submits operations
        // could wait for them or check for completions. But a path may be moved to another thread,
        // and other threads check whether its ring is readable. The price is that the kernel
        // interrupts the submitting thread to handle completions.
        avoid: Features { deferred: true, ..Features::NONE },
        polling: polling.for_ring(),
    }
}

/// Why a path could not be opened with its [`Extras`].
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The kernel makes no ring with these extras.
    Ring(Refused),
    /// The ring can't register the memory.
    Memory(Errno),
}

impl From<Errno> for Refusal {
    /// The refusal if a ring can't register the volume's claim, the lock that the kernel holds
    /// until the ring's last operation is over.
    fn from(errno: Errno) -> Self {
        Self::Ring(Refused { cause: Cause::Descriptors, errno: Some(errno) })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ring(refused) => refused.fmt(f),
            Self::Memory(errno) if errno.number() == libc::ENOMEM => {
                write!(f, "no more memory may be locked (ulimit -l): {errno}")
            }
            Self::Memory(errno) => errno.fmt(f),
        }
    }
}

impl Refusal {
    /// The refusal if a descriptor can't be duplicated for the path.
    pub(crate) fn of_file(error: &io::Error) -> Self {
        Self::Ring(Refused { cause: Cause::Descriptors, errno: Some(Errno::of(error)) })
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Ring(refused) => refused,
            Refusal::Memory(errno) => Self { cause: Cause::Memory, errno: Some(errno) },
        }
    }
}

impl Extras {
    /// Removes the refused extra, and returns a note about it; `None` if there is no extra to
    /// remove.
    fn give_up(&mut self, refusal: &Refusal) -> Option<String> {
        match refusal {
            Refusal::Memory(_) => {
                self.pool.take()?;
                Some(format!("buffers are not registered: {refusal}"))
            }
            Refusal::Ring(_) if self.polling.is_any() => {
                self.polling = Polling::default();
                Some(format!("nothing is polled for: {refusal}"))
            }
            Refusal::Ring(_) => None,
        }
    }
}

/// The [`Extras`] of a device's bulk paths, and how many paths have each extra.
#[derive(Debug, Default)]
pub(crate) struct Bulk {
    extras: Extras,
    /// Why extras are missing, in sentences without a full stop.
    why_not: Vec<String>,
    /// How many bulk paths were opened. `polled` counts those that poll, and `registered` counts
    /// those with registered memory.
    opened: u32,
    polled: u32,
    registered: u32,
}

impl Bulk {
    /// The extras for a device. `queue` is the device's directory `queue` in `/sys`, if it has one.
    pub(crate) fn of_device(options: &PathOptions, queue: Option<&Path>) -> Self {
        let mut bulk = Self::probed(options);
        if !queue.is_some_and(has_poll_queues) {
            bulk.poll_for_no_completions(
                "the driver has no queues for polling (for NVMe, the kernel parameter \
                 nvme.poll_queues sets how many)",
            );
        }
        bulk
    }

    /// The extras for files. The completions of file operations can't be polled for.
    pub(crate) fn of_files(options: &PathOptions) -> Self {
        let mut bulk = Self::probed(options);
        bulk.poll_for_no_completions("the volume is a directory of files");
        bulk
    }

    /// The requested extras, without those that a ring can't have on this machine.
    fn probed(options: &PathOptions) -> Self {
        let mut bulk =
            Self { extras: Extras { polling: options.polling, pool: None }, ..Self::default() };
        if options.polling.is_any()
            && let Err(refused) = slimio_ring::probe_polling(options.polling.for_ring())
        {
            bulk.poll_for_nothing(refused);
        }
        let setup = Setup { submissions: 4, completions: 8, ..Setup::default() };
        // If I/O is buffered, registering saves nothing, because the kernel copies the data and
        // pins no page. If no ring can be made, another module reports the failure.
        if options.direct
            && options.registered
            && let Ok(mut ring) = Ring::<(), Buffer>::new(setup)
        {
            match Pool::new().map_err(|error| Errno::of(&error)).and_then(|pool| {
                pool.register(&mut ring)?;
                Ok(pool)
            }) {
                Ok(pool) => bulk.extras.pool = Some(pool),
                Err(errno) => bulk.register_nothing(Refusal::Memory(errno)),
            }
        }
        bulk
    }

    fn poll_for_no_completions(&mut self, why: impl fmt::Display) {
        if self.extras.polling.completions {
            self.extras.polling.completions = false;
            self.note(format!("completions are not polled for: {why}"));
        }
    }

    fn poll_for_nothing(&mut self, why: impl fmt::Display) {
        if self.extras.polling.is_any() {
            self.extras.polling = Polling::default();
            self.note(format!("nothing is polled for: {why}"));
        }
    }

    fn register_nothing(&mut self, why: impl fmt::Display) {
        self.extras.pool = None;
        self.note(format!("buffers are not registered: {why}"));
    }

    /// Removes all extras. If polling was asked for, notes the reason.
    pub(crate) fn refuse(&mut self, why: impl fmt::Display) {
        self.without_pool();
        self.poll_for_nothing(why);
    }

    /// Makes later paths register no memory. There is no note about that: if I/O is buffered,
    /// registering would save nothing, and if no ring can be made, another module reports that.
    pub(crate) fn without_pool(&mut self) {
        self.extras.pool = None;
    }

    fn note(&mut self, note: String) {
        if !self.why_not.contains(&note) {
            self.why_not.push(note);
        }
    }

    /// Removes the extras with which `try_one` fails. This trial is necessary, because the kernel
    /// may make a ring with an extra, but fail the ring's operations later.
    pub(crate) fn try_out<E: fmt::Display>(
        &mut self,
        mut try_one: impl FnMut(Extras) -> Result<(), E>,
    ) {
        if let Some(pool) = self.extras.pool.clone()
            && let Err(error) = try_one(Extras { pool: Some(pool), ..Extras::default() })
        {
            self.register_nothing(error);
        }
        if self.extras.polling.completions
            && let Err(error) = try_one(self.extras.clone())
        {
            self.poll_for_no_completions(error);
        }
        if self.extras.polling.submissions_idle.is_some()
            && !self.extras.polling.completions
            && let Err(error) = try_one(self.extras.clone())
        {
            self.poll_for_nothing(error);
        }
    }

    /// Calls `open` to open a path with as many extras as possible. If this path can't have an
    /// extra, the reason is noted. For the next path, the extra is tried again.
    ///
    /// # Errors
    /// When no path can be opened at all.
    pub(crate) fn open<P>(
        &mut self,
        mut open: impl FnMut(&Extras) -> Result<P, Refusal>,
    ) -> Result<P, Refused> {
        let mut extras = self.extras.clone();
        self.opened += 1;
        loop {
            match open(&extras) {
                Ok(path) => {
                    self.polled += u32::from(extras.polling.is_any());
                    self.registered += u32::from(extras.pool.is_some());
                    return Ok(path);
                }
                Err(refusal) => match extras.give_up(&refusal) {
                    Some(note) => self.note(note),
                    None => return Err(refusal.into()),
                },
            }
        }
    }

    /// Notes that a path was opened without extras.
    pub(crate) fn opened_plainly(&mut self) {
        self.opened += 1;
    }

    /// The extras in words, as the end of a description of how I/O is done.
    pub(crate) fn describe(&self) -> String {
        let of = |count| match self.opened {
            opened if count == opened => String::new(),
            opened => format!(" on {count} of {opened} paths"),
        };
        let has = |is_wanted: bool, count| is_wanted && (self.opened == 0 || count > 0);
        let mut parts = Vec::new();
        if has(self.extras.pool.is_some(), self.registered) {
            parts.push(format!("has registered buffers{}", of(self.registered)));
        }
        if has(self.extras.polling.is_any(), self.polled) {
            parts.push(format!("polls for {}{}", self.extras.polling, of(self.polled)));
        }
        if parts.is_empty() {
            String::new()
        } else {
            format!("; for snapshots it {}", parts.join(" and "))
        }
    }

    /// Why extras are missing, in sentences without a full stop.
    pub(crate) fn why_not(&self) -> &[String] {
        &self.why_not
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    const BOTH: Polling =
        Polling { submissions_idle: Some(Duration::from_millis(10)), completions: true };
    const SUBMISSIONS: Polling = Polling { completions: false, ..BOTH };

    fn bulk(polling: Polling) -> Bulk {
        let pool = Some(Pool::new().expect("there is memory"));
        Bulk { extras: Extras { polling, pool }, ..Bulk::default() }
    }

    #[test]
    fn completions_are_polled_for_only_where_the_driver_has_queues() {
        let directory = tempfile::tempdir().expect("a directory for the test");
        let set = |value| {
            fs::write(directory.path().join("io_poll"), value)
                .expect("the test's directory can be written to");
        };
        let both = PathOptions { polling: BOTH, ..PathOptions::default() };
        let notes_of_completions = |bulk: &Bulk| {
            bulk.why_not().iter().filter(|note| note.contains("completions")).cloned().collect()
        };
        for (value, in_force) in [("0\n", SUBMISSIONS), ("1\n", BOTH)] {
            set(value);
            let bulk = Bulk::of_device(&both, Some(directory.path()));
            assert_eq!(bulk.extras.polling, in_force);
            let notes: Vec<String> = notes_of_completions(&bulk);
            assert_eq!(notes.is_empty(), in_force == BOTH);
        }
        let unknown = Bulk::of_device(&both, None);
        assert_eq!(unknown.extras.polling, SUBMISSIONS);
        let notes: Vec<String> = notes_of_completions(&unknown);
        assert!(notes[0].contains("nvme.poll_queues"), "{notes:?}");
        assert_eq!(Bulk::of_files(&both).extras.polling, SUBMISSIONS);
        let submissions = PathOptions { polling: SUBMISSIONS, ..both };
        let asked_for = Bulk::of_device(&submissions, None);
        let notes: Vec<String> = notes_of_completions(&asked_for);
        assert!(notes.is_empty(), "there is no note about polling that was not asked for");
    }

    #[test]
    fn memory_is_registered_where_that_saves_something() {
        let registers = |options| Bulk::of_files(&options).extras.pool.is_some();
        let options = PathOptions::default();
        // Without rings, or if this process may lock too little memory, no memory is registered.
        if registers(options) {
            assert!(!registers(PathOptions { direct: false, ..options }));
            assert!(!registers(PathOptions { registered: false, ..options }));
        } else {
            eprintln!("SKIPPED: no memory can be registered on this machine");
        }
    }

    /// An extra may be granted and fail later: kernels before 6.1 make rings that poll for
    /// completions, but fail every command on such a ring. Such an extra must be removed.
    #[test]
    fn what_fails_when_it_is_tried_is_taken_back_and_said() {
        let mut works = bulk(BOTH);
        let mut tried = Vec::new();
        works.try_out(|extras| {
            tried.push((extras.polling, extras.pool.is_some()));
            Ok::<_, &str>(())
        });
        assert_eq!(tried, [(Polling::default(), true), (BOTH, true)]);
        assert!(works.why_not().is_empty());

        let mut old = bulk(BOTH);
        old.try_out(
            |extras| if extras.polling.completions { Err("no such thing") } else { Ok(()) },
        );
        assert_eq!(old.extras.polling, SUBMISSIONS);
        assert_eq!(old.why_not(), ["completions are not polled for: no such thing"]);
        assert!(old.extras.pool.is_some());

        let mut older = bulk(SUBMISSIONS);
        older.try_out(|extras| if extras.polling.is_any() { Err("no thread") } else { Ok(()) });
        assert_eq!(older.why_not(), ["nothing is polled for: no thread"]);

        let mut oldest = bulk(BOTH);
        oldest.try_out(|_| Err("nothing works"));
        assert_eq!(oldest.describe(), "");
        assert_eq!(oldest.why_not().len(), 3, "{:?}", oldest.why_not());
    }

    #[test]
    fn a_path_that_has_less_than_the_others_is_told_of() {
        let mut bulk = bulk(SUBMISSIONS);
        let all =
            "; for snapshots it has registered buffers and polls for submissions (SQPOLL, 10 ms)";
        assert_eq!(bulk.describe(), all);
        bulk.open(|_| Ok(())).expect("a path with all extras can be opened");
        assert_eq!(bulk.describe(), all);
        let no_ring = || Refusal::Ring(Refused { cause: Cause::Memory, errno: None });
        bulk.open(|extras| if extras.polling.is_any() { Err(no_ring()) } else { Ok(()) })
            .expect("a path without the refused extra can be opened");
        assert_eq!(bulk.describe(), format!("{all} on 1 of 2 paths"));
        assert!(
            bulk.why_not()[0]
                .starts_with("nothing is polled for: the kernel has too little memory")
        );
        let locked = || Refusal::Memory(Errno::new(libc::ENOMEM));
        bulk.open(|extras| if extras.pool.is_some() { Err(locked()) } else { Ok(()) })
            .expect("a path without the refused extra can be opened");
        let described = bulk.describe();
        assert!(
            described.contains("has registered buffers on 2 of 3 paths and polls"),
            "{described}"
        );
        assert!(described.ends_with("(SQPOLL, 10 ms) on 2 of 3 paths"), "{described}");
        assert!(bulk.why_not()[1].contains("ulimit -l"), "{:?}", bulk.why_not());
        let refused = bulk.open(|_| Err::<(), _>(no_ring())).expect_err("there is no ring");
        assert_eq!(refused.cause, Cause::Memory);
    }
}
