//! Gives each lifetime (a kind of data that is deleted together) one of the device's placements,
//! and reads the device's counters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use slimio_device::{FdpAccount, FdpStatistics, Layer, Lba, Op, PlacementId, WholeDevice};
use slimio_planted::is_planted;
use slimio_storage::{Area, DeviceCounts, Lifetime, PlacementMonitor, PlacementReport};

/// Time from one request for the device's counters to the next. Each request takes one admin
/// command.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// A handle's reclaim unit is nearly full if less than `1 / FRESH_UNIT_BELOW` of the unit is empty.
/// A snapshot that begins while its handle's unit is nearly full gets a fresh unit. Then almost no
/// space is lost, and the old unit does not hold the end of one snapshot together with a little of
/// the next. If more of the unit is empty, the handle keeps the unit, because the lost space would
/// cost more than a unit with parts of two snapshots.
const FRESH_UNIT_BELOW: u64 = 64;

const LIFETIMES: usize = Lifetime::ALL.len();

/// The placement of each lifetime, by the lifetime's index. If there are fewer placements than
/// lifetimes, lifetimes whose data dies at about the same time share a placement. With three
/// placements, the log and WAL-snapshots share a placement. With two placements, the superblock
/// shares that placement too. On-demand snapshots, which may live for weeks, share a placement only
/// if the device has just one.
///
/// If there are several placements, long-lived data does not get the first, because a device also
/// uses the first placement for writes that name no placement.
fn assign(placements: &[PlacementId]) -> [PlacementId; LIFETIMES] {
    let [superblock, wal, wal_snapshot, snapshot] = match placements.len() {
        0 => return [PlacementId::default(); LIFETIMES],
        1 => [0, 0, 0, 0],
        2 => [0, 0, 0, 1],
        3 => [0, 1, 1, 2],
        _ => [0, 1, 2, 3],
    };
    [superblock, wal, wal_snapshot, snapshot].map(|index: usize| placements[index])
}

/// The index of the placement that each lifetime gets on a device with this many placements, in the
/// order of [`Lifetime::ALL`].
pub fn placements_of_lifetimes(placement_count: u16) -> [u16; LIFETIMES] {
    let placements: Vec<PlacementId> = (0..placement_count).map(PlacementId).collect();
    assign(&placements).map(|id| id.0)
}

/// Whether a reclaim unit has so little room left that a snapshot should begin in a fresh unit.
fn is_nearly_full(blocks_left: u64, unit_blocks: u64) -> bool {
    blocks_left < unit_blocks / FRESH_UNIT_BELOW
}

/// Says which lifetimes share a placement on a device with this many placements, as a sentence
/// without a full stop. The text is empty if no lifetimes share a placement.
pub fn sharing(placement_count: usize) -> &'static str {
    match placement_count {
        1 => "the device has a single placement, which all lifetimes share",
        2 => "superblock, log and WAL-snapshots share one of the device's 2 placements",
        3 => "log and WAL-snapshots share one of the device's 3 placements",
        _ => "",
    }
}

/// The placements of a volume's device, and the bytes sent to each.
#[derive(Clone)]
pub(crate) struct Placements {
    count: usize,
    ids: [PlacementId; LIFETIMES],
    sent: Arc<[AtomicU64; LIFETIMES]>,
    /// Whether these are the placements of a path to a snapshot slot.
    is_snapshot: bool,
    /// Whether the path below is a recorder. If so, the placement field of each write has the
    /// number of a lifetime, which the recorder replaces with a placement.
    is_recorded: bool,
    /// The device's FDP account. When a snapshot begins, its thread asks the account how full the
    /// reclaim unit of the snapshot's handle is.
    account: Option<Arc<dyn FdpAccount>>,
}

impl Placements {
    pub(crate) fn of(device: &dyn WholeDevice) -> Self {
        let placements = device.placements();
        Self {
            count: placements.len(),
            ids: assign(placements),
            sent: Arc::default(),
            is_snapshot: false,
            is_recorded: false,
            account: device.fdp().map(Arc::from),
        }
    }

    /// Begins a snapshot in a fresh reclaim unit if that costs almost nothing, and if no other
    /// lifetime shares the placement. A failure does no harm.
    fn begin_snapshot(&self, lifetime: usize) {
        let id = self.ids[lifetime];
        let is_shared = self.ids.iter().filter(|other| **other == id).count() > 1;
        let Some(account) = self.account.as_ref().filter(|_| !is_shared) else { return };
        let begun = account.handles().and_then(|handles| {
            let handle = handles.iter().find(|handle| handle.placement == id.0);
            let unit_blocks = account.unit_blocks();
            match handle.zip(unit_blocks) {
                Some((handle, unit)) if is_nearly_full(handle.unit_blocks_left, unit) => {
                    account.start_fresh_unit(id)
                }
                _ => Ok(()),
            }
        });
        if let Err(error) = begun {
            log::debug!(
                "the snapshot may share a reclaim unit with the previous snapshot: {error}"
            );
        }
    }

    /// The placements of a path to an area.
    pub(crate) fn of_path(&self, area: Area) -> Self {
        Self { is_snapshot: matches!(area, Area::Snapshot(_)), ..self.clone() }
    }

    /// The same placements, for paths over a recorder. The placement field of each write to a
    /// recorder has the number of a lifetime, which the recorder replaces with a placement.
    pub(crate) fn of_recorded(self) -> Self {
        Self { is_recorded: true, ..self }
    }

    /// Whether these placements are for recorded paths: see [`of_recorded`](Self::of_recorded).
    pub(crate) fn are_recorded(&self) -> bool {
        self.is_recorded
    }

    /// The placement of each lifetime.
    pub(crate) fn of_lifetimes(&self) -> [PlacementId; LIFETIMES] {
        self.ids
    }

    /// Tells the user which lifetimes share a placement, as a sentence without a full stop. `None`
    /// if no lifetimes share a placement.
    pub(crate) fn note(&self) -> Option<String> {
        let sharing = sharing(self.count);
        (!sharing.is_empty()).then(|| sharing.to_owned())
    }
}

impl Layer for Placements {
    fn translate(&mut self, op: Op) -> Op {
        let Op::Write { lba, buffer, placement, durable } = op else { return op };
        let lifetime = Lifetime::of(placement).index();
        if lba == Lba(0) && self.is_snapshot {
            self.begin_snapshot(lifetime);
        }
        self.sent[lifetime].fetch_add(buffer.len() as u64, Ordering::Relaxed);
        let lifetime = if is_planted("placement-default") { 0 } else { lifetime };
        let placement =
            if self.is_recorded { PlacementId(lifetime as u16) } else { self.ids[lifetime] };
        Op::Write { lba, buffer, placement, durable }
    }
}

/// Asks a device for its counters. If the counters are kept in this process, the monitor reads them
/// for each report. Otherwise a thread asks the device once every `ASK_EVERY`.
pub(crate) struct Monitor {
    placements: Placements,
    counted: Arc<Mutex<Counted>>,
    /// The device's account, and the counters' values when the volume was opened. `None` if the
    /// counters are not kept in this process, or could not be read when the volume was opened.
    at_hand: Option<(Box<dyn FdpAccount>, FdpStatistics)>,
    /// Dropped to end the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The counters that were last read from the device, or why they can't be read.
type Counted = Result<DeviceCounts, String>;

impl Monitor {
    /// `None` if the device has neither placements nor counters.
    pub(crate) fn new(device: &dyn WholeDevice, placements: &Placements) -> Option<Self> {
        let account = device.fdp();
        if placements.count == 0 && account.is_none() {
            return None;
        }
        let Some(account) = account else {
            let why = "a block device does not pass on its drive's counters".to_owned();
            let counted = Arc::new(Mutex::new(Err(why)));
            return Some(Self::idle(placements, counted));
        };
        let at_open = account.statistics();
        let counted = at_open
            .as_ref()
            .map(|now| counts(*now, *now))
            .map_err(|error| format!("the device's counters can't be read: {error}"));
        let counted = Arc::new(Mutex::new(counted));
        if account.has_statistics_at_hand() {
            let mut monitor = Self::idle(placements, counted);
            monitor.at_hand = at_open.ok().map(|at_open| (account, at_open));
            return Some(monitor);
        }
        let (end, ended) = channel();
        // No thread is started if the counters can't be read now. A process that lacks the
        // permission to read them now will not have it later either.
        let thread = at_open.ok().and_then(|at_open| {
            let counted = counted.clone();
            let ask = move || {
                while ended.recv_timeout(ASK_EVERY) == Err(RecvTimeoutError::Timeout) {
                    ask_again(&*account, at_open, &counted);
                }
            };
            std::thread::Builder::new().name("placement".into()).spawn(ask).ok()
        });
        let mut monitor = Self::idle(placements, counted);
        (monitor.end, monitor.thread) = (Some(end), thread);
        Some(monitor)
    }

    /// A monitor without a thread.
    fn idle(placements: &Placements, counted: Arc<Mutex<Counted>>) -> Self {
        let placements = placements.clone();
        Self { placements, counted, at_hand: None, end: None, thread: None }
    }
}

fn ask_again(account: &dyn FdpAccount, at_open: FdpStatistics, counted: &Mutex<Counted>) {
    let now = match account.statistics() {
        Ok(now) => Ok(counts(now, at_open)),
        Err(error) => Err(format!("the device's counters can't be read any more: {error}")),
    };
    *counted.lock().unwrap_or_else(PoisonError::into_inner) = now;
}

fn counts(now: FdpStatistics, at_open: FdpStatistics) -> DeviceCounts {
    DeviceCounts {
        host_bytes: now.host_bytes,
        media_bytes: now.media_bytes,
        erased_bytes: now.erased_bytes,
        host_bytes_at_open: at_open.host_bytes,
        media_bytes_at_open: at_open.media_bytes,
    }
}

impl PlacementMonitor for Monitor {
    fn report(&self) -> PlacementReport {
        if let Some((account, at_open)) = &self.at_hand {
            ask_again(&**account, *at_open, &self.counted);
        }
        let counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut lifetimes = [(PlacementId::default(), 0); LIFETIMES];
        for (index, place) in lifetimes.iter_mut().enumerate() {
            let sent = self.placements.sent[index].load(Ordering::Relaxed);
            *place = (self.placements.ids[index], sent);
        }
        PlacementReport {
            placement_count: self.placements.count,
            lifetimes,
            why_not_counted: counted.as_ref().err().cloned().unwrap_or_default(),
            counted: counted.ok(),
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // An error of `join` means that the thread panicked. The panic was reported when it
            // happened.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use slimio_device::Buffer;

    use super::*;

    fn placements(count: u16) -> Vec<PlacementId> {
        // These placement ids are like those of a device with two reclaim groups.
        (0..count).map(|index| PlacementId(0x8000 | index)).collect()
    }

    fn assigned(count: u16) -> [u16; LIFETIMES] {
        assign(&placements(count)).map(|id| id.0)
    }

    #[test]
    fn with_enough_placements_each_lifetime_has_its_own() {
        for count in [4, 5, 8, 128] {
            assert_eq!(assigned(count), [0x8000, 0x8001, 0x8002, 0x8003]);
            assert_eq!(sharing(count.into()), "");
        }
    }

    #[test]
    fn those_that_die_together_share_first() {
        assert_eq!(assigned(3), [0x8000, 0x8001, 0x8001, 0x8002]);
        assert!(sharing(3).starts_with("log and WAL-snapshots share"));
        assert_eq!(assigned(2), [0x8000, 0x8000, 0x8000, 0x8001]);
        assert!(sharing(2).starts_with("superblock, log and WAL-snapshots share"));
        assert_eq!(assigned(1), [0x8000; LIFETIMES]);
        assert!(sharing(1).contains("a single placement"));
        assert_eq!(assigned(0), [0; LIFETIMES]);
        assert_eq!(sharing(0), "");
    }

    #[test]
    fn a_unit_is_left_only_when_next_to_nothing_is_left_of_it() {
        assert!(is_nearly_full(0, 16384));
        assert!(is_nearly_full(255, 16384));
        assert!(!is_nearly_full(256, 16384));
        assert!(!is_nearly_full(16384, 16384));
    }

    #[test]
    fn a_write_gets_its_lifetimes_placement_and_is_counted() {
        let ids = assign(&placements(4));
        let sent = Arc::default();
        let mut layer = Placements {
            count: 4,
            ids,
            sent,
            is_snapshot: false,
            is_recorded: false,
            account: None,
        };
        for (lbas, lifetime) in [(1, Lifetime::Superblock), (2, Lifetime::Snapshot)] {
            let placement = PlacementId(lifetime.index() as u16);
            let buffer = Buffer::zeroed(lbas);
            let op = Op::Write { lba: Lba(9), buffer, placement, durable: true };
            let Op::Write { lba: Lba(9), placement, durable: true, .. } = layer.translate(op)
            else {
                panic!("the layer changed more of the write than its placement")
            };
            assert_eq!(placement, ids[lifetime.index()]);
        }
        let sent: Vec<_> = layer.sent.iter().map(|sent| sent.load(Ordering::Relaxed)).collect();
        assert_eq!(sent, [4096, 0, 0, 8192]);
    }
}
