//! An emulated SSD whose power is cut at a given operation. The volume on the SSD is opened as the
//! server opens it.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slimio_device::{
    Completion, Contents, Device, FdpAccount, Layer, Layered, MappedFile, Op, OpenError,
    PlacementId, WholeDevice,
};
use slimio_sim::Random;
use slimio_ssd::{Clock, Deallocated, DriveOptions, EmulatedDrive};
use slimio_storage::{Area, Pool, SlotName, Storage};

use super::Disk;

/// An emulated drive whose contents survive power cuts. Clones share one drive.
#[derive(Clone)]
pub(crate) struct SwitchedDrive {
    plugged: Arc<Mutex<Plugged>>,
    placements: Vec<PlacementId>,
}

struct Plugged {
    drive: EmulatedDrive,
    /// Number of operations until the power is cut. An operation counts when it is submitted, and
    /// again when it completes.
    left: u64,
    has_power: bool,
    random: Random,
    /// Number of blocks in all deallocations that were submitted so far.
    deallocated: u64,
}

impl Plugged {
    fn step(&mut self) {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 && self.has_power {
            self.has_power = false;
            let random = &mut self.random;
            // Of the data that is not stable, the cut keeps nothing, everything or some.
            let share = random.below(3);
            self.drive.cut_power(|_| share == 1 || share == 2 && random.coin());
        }
    }
}

impl SwitchedDrive {
    pub(crate) fn new(spec: &str, seed: u64) -> Self {
        let options = DriveOptions::parse(spec, Clock::Virtual)
            .expect("the test's drive specification is valid");
        // A deallocated block reads as a pattern. So code that relies on zeros there fails.
        let deallocated = Deallocated::Pattern;
        let options = DriveOptions { can_lose_power: true, deallocated, ..options };
        let drive = EmulatedDrive::open(options).expect("the drive can be made");
        let placements = drive.placements().to_vec();
        let random = Random::new(seed);
        let plugged = Plugged { drive, left: u64::MAX, has_power: true, random, deallocated: 0 };
        Self { plugged: Arc::new(Mutex::new(plugged)), placements }
    }

    fn plugged(&self) -> MutexGuard<'_, Plugged> {
        self.plugged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Turns the power on. The power is cut after this many operations. If `operations` is `None`,
    /// only [`cut_now`](Self::cut_now) cuts the power.
    pub(crate) fn turn_on(&self, operations: Option<u64>) {
        let mut plugged = self.plugged();
        plugged.has_power = true;
        plugged.left = operations.unwrap_or(u64::MAX);
    }

    /// Cuts the power now, unless it is off already.
    pub(crate) fn cut_now(&self) {
        let mut plugged = self.plugged();
        plugged.left = 1;
        plugged.step();
    }

    /// Number of blocks in all deallocations that were submitted so far.
    pub(crate) fn deallocated(&self) -> u64 {
        self.plugged().deallocated
    }

    pub(crate) fn storage(&self) -> Storage {
        slimio_volume::open_on(Path::new("drive"), Box::new(self.clone()), u64::MAX)
            .expect("the drive is large enough")
    }

    fn path(&self) -> Result<Box<dyn Device + Send>, OpenError> {
        let path = self.plugged().drive.open_path()?;
        Ok(Box::new(Layered::new(self.clone(), path)))
    }
}

impl Layer for SwitchedDrive {
    fn translate(&mut self, op: Op) -> Op {
        let mut plugged = self.plugged();
        if let Op::Deallocate { range } = &op {
            plugged.deallocated += range.end.0 - range.start.0;
        }
        plugged.step();
        op
    }

    fn reaped(&mut self, completions: &mut Vec<Completion>, from: usize) {
        for _ in from..completions.len() {
            self.plugged().step();
        }
    }
}

impl Disk for SwitchedDrive {
    fn has_crashed(&self) -> bool {
        !self.plugged().has_power
    }

    fn open_slot(&self, pool: Option<&Pool>, slot: SlotName) -> Box<dyn Device + Send> {
        let pool = pool.expect("the volume is on a device");
        pool.path(Area::Snapshot(slot), self.path().expect("the drive opens any number of paths"))
    }
}

impl WholeDevice for SwitchedDrive {
    fn lba_count(&self) -> u64 {
        self.plugged().drive.lba_count()
    }

    fn contents(&self) -> Result<Contents, OpenError> {
        self.plugged().drive.contents()
    }

    fn open_path(&mut self) -> Result<Box<dyn Device + Send>, OpenError> {
        self.path()
    }

    fn map(&mut self, offset: u64, size: usize) -> Result<MappedFile, OpenError> {
        self.plugged().drive.map(offset, size)
    }

    fn placements(&self) -> &[PlacementId] {
        &self.placements
    }

    fn fdp(&self) -> Option<Box<dyn FdpAccount>> {
        // No test needs the drive's counters.
        None
    }

    fn is_best(&self) -> bool {
        true
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        self.plugged().drive.facts()
    }

    fn describe(&self) -> String {
        self.plugged().drive.describe()
    }

    fn notes(&self) -> Vec<String> {
        self.plugged().drive.notes()
    }
}
