//! An SSD's counters: how much hosts wrote, how much was written to the media, and how much was
//! erased.

use slimio_device::LBA_SIZE;

use super::Owner;

/// Exact counts since the drive was made, for the whole drive and for each handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    /// The counts of each handle, and then the counts of units with data of several handles.
    owners: Vec<HandleCounters>,
    host_pages: u64,
    unit_size: u64,
}

/// The counts of one handle. Pages have [`LBA_SIZE`] bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandleCounters {
    /// Number of pages that the host wrote.
    pub host_pages: u64,
    /// Number of pages that the collector copied.
    pub copied_pages: u64,
    /// Number of pages that were filled with padding when the host moved the handle to a fresh
    /// unit.
    pub padded_pages: u64,
    /// Number of reclaim units that were erased.
    pub erased_units: u64,
}

impl HandleCounters {
    /// Number of pages that were written to the media.
    pub fn media_pages(&self) -> u64 {
        self.host_pages + self.copied_pages + self.padded_pages
    }
}

/// Why pages were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Host,
    Collector,
    Padding,
}

impl Counters {
    pub(super) fn new(handles: u16, unit_size: u64) -> Self {
        let owners = vec![HandleCounters::default(); usize::from(handles) + 1];
        Self { owners, host_pages: 0, unit_size }
    }

    /// Number of pages that hosts wrote.
    pub fn host_pages(&self) -> u64 {
        self.host_pages
    }

    /// Number of bytes that hosts wrote. NVMe calls this number HBMW.
    pub fn host_bytes(&self) -> u64 {
        self.host_pages * LBA_SIZE as u64
    }

    /// Number of bytes that were written to the media. NVMe calls this number MBMW.
    pub fn media_bytes(&self) -> u64 {
        let pages: u64 = self.owners.iter().map(HandleCounters::media_pages).sum();
        pages * LBA_SIZE as u64
    }

    /// Number of bytes that the collector copied. They are a part of
    /// [`media_bytes`](Self::media_bytes).
    pub fn copied_bytes(&self) -> u64 {
        let pages: u64 = self.owners.iter().map(|owner| owner.copied_pages).sum();
        pages * LBA_SIZE as u64
    }

    /// Number of bytes that were erased. NVMe calls this number MBE.
    pub fn erased_bytes(&self) -> u64 {
        let units: u64 = self.owners.iter().map(|owner| owner.erased_units).sum();
        units * self.unit_size
    }

    /// Write amplification: media bytes divided by host bytes. `None` before the first write.
    pub fn waf(&self) -> Option<f64> {
        (self.host_pages > 0).then(|| self.media_bytes() as f64 / self.host_bytes() as f64)
    }

    /// The counts of each handle. With initially isolated handles, the collector puts pages of
    /// several handles into one unit. Everything that happens to such pages afterwards is counted
    /// in [`mixed`](Self::mixed).
    pub fn handles(&self) -> &[HandleCounters] {
        &self.owners[..self.owners.len() - 1]
    }

    /// The counts of units in which the collector mixed data of several handles.
    pub fn mixed(&self) -> &HandleCounters {
        &self.owners[self.owners.len() - 1]
    }

    /// Panics if a total is not the sum of its parts.
    pub(super) fn check(&self) {
        let host_pages: u64 = self.owners.iter().map(|owner| owner.host_pages).sum();
        assert_eq!(host_pages, self.host_pages, "the host's total must be the sum over handles");
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        let of_owners = self.owners.iter().flat_map(|owner| {
            [owner.host_pages, owner.copied_pages, owner.padded_pages, owner.erased_units]
        });
        std::iter::once(self.host_pages).chain(of_owners)
    }

    /// Makes counters from the numbers that `next` returns. `like` gives the number of handles and
    /// the unit size.
    pub(super) fn from_numbers(like: &Self, mut next: impl FnMut() -> Option<u64>) -> Option<Self> {
        let mut counters = like.clone();
        counters.host_pages = next()?;
        for owner in &mut counters.owners {
            let [host_pages, copied_pages] = [next()?, next()?];
            let [padded_pages, erased_units] = [next()?, next()?];
            *owner = HandleCounters { host_pages, copied_pages, padded_pages, erased_units };
        }
        Some(counters)
    }

    #[inline]
    pub(super) fn wrote(&mut self, owner: Owner, cause: Cause, pages: u64) {
        if cause == Cause::Host {
            self.host_pages += pages;
        }
        let counters = self.of(owner);
        match cause {
            Cause::Host => counters.host_pages += pages,
            Cause::Collector => counters.copied_pages += pages,
            Cause::Padding => counters.padded_pages += pages,
        }
    }

    pub(super) fn erased(&mut self, owner: Owner) {
        self.of(owner).erased_units += 1;
    }

    fn of(&mut self, owner: Owner) -> &mut HandleCounters {
        let index = match owner {
            Owner::Handle(handle) => usize::from(handle),
            Owner::Mixed => self.owners.len() - 1,
        };
        &mut self.owners[index]
    }
}
