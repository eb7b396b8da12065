//! A naive model of NAND: an array of cells, with its own counters. The model only observes the
//! drive, and uses no state of the drive's mapping.

use std::collections::BTreeSet;

use slimio_ssd::{Config, NandPage, Observer, Victims};

/// What a NAND page holds: nothing because it is erased (`Erased`), padding (`Nothing`), or data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    Erased,
    Nothing,
    Data { lba: u64, version: u64, handle: u16 },
}

/// A naive drive: an array of cells, and for each block the page with its latest version.
#[derive(Debug)]
pub(crate) struct Naive {
    unit_pages: u32,
    groups: u32,
    victims: Victims,
    cells: Vec<Cell>,
    /// The latest version of each block. 0 if the block holds nothing.
    versions: Vec<u64>,
    places: Vec<Option<u32>>,
    next_version: u64,
    /// The handle of the write in progress.
    pub(crate) handle: u16,
    /// For each filled unit, how many pages the host had written when the unit became full, and the
    /// unit's place in the order in which units were filled.
    filled: Vec<Option<(u64, u64)>>,
    fills: u64,
    pub(crate) host_pages: Vec<u64>,
    pub(crate) copied_pages: Vec<u64>,
    pub(crate) padded_pages: u64,
    pub(crate) erased_units: u64,
}

impl Naive {
    pub(crate) fn new(config: &Config) -> Self {
        let handles = usize::from(config.handles);
        Self {
            unit_pages: config.geometry.unit_pages(),
            groups: config.groups.into(),
            victims: config.victims,
            cells: vec![Cell::Erased; config.geometry.page_count() as usize],
            versions: vec![0; config.lba_count as usize],
            places: vec![None; config.lba_count as usize],
            next_version: 0,
            handle: 0,
            filled: vec![None; config.geometry.unit_count() as usize],
            fills: 0,
            host_pages: vec![0; handles],
            copied_pages: vec![0; handles],
            padded_pages: 0,
            erased_units: 0,
        }
    }

    pub(crate) fn deallocate(&mut self, lba: u64, count: u64) {
        for lba in lba..lba + count {
            self.versions[lba as usize] = 0;
            self.places[lba as usize] = None;
        }
    }

    pub(crate) fn place(&self, lba: u64) -> Option<u32> {
        self.places[lba as usize]
    }

    pub(crate) fn mapped_count(&self) -> u64 {
        self.places.iter().flatten().count() as u64
    }

    /// The block that a page holds, if the page is valid.
    pub(crate) fn valid_lba(&self, page: u32) -> Option<u64> {
        match self.cells[page as usize] {
            Cell::Data { lba, version, .. }
                if self.versions[lba as usize] == version
                    && self.places[lba as usize] == Some(page) =>
            {
                Some(lba)
            }
            _ => None,
        }
    }

    pub(crate) fn valid_count(&self, unit: u32) -> u32 {
        self.pages(unit).filter(|page| self.valid_lba(*page).is_some()).count() as u32
    }

    pub(crate) fn written_count(&self, unit: u32) -> u32 {
        self.pages(unit).filter(|page| self.cells[*page as usize] != Cell::Erased).count() as u32
    }

    /// The handles whose pages are in a unit. Pages that are not valid count, too.
    pub(crate) fn handles_in(&self, unit: u32) -> BTreeSet<u16> {
        let handle = |page| match self.cells[page as usize] {
            Cell::Data { handle, .. } => Some(handle),
            _ => None,
        };
        self.pages(unit).filter_map(handle).collect()
    }

    fn pages(&self, unit: u32) -> std::ops::Range<u32> {
        unit * self.unit_pages..(unit + 1) * self.unit_pages
    }

    fn fill(&mut self, page: u32, cell: Cell) {
        assert_eq!(self.cells[page as usize], Cell::Erased, "page {page} is not erased");
        let in_unit = page % self.unit_pages;
        assert!(
            in_unit == 0 || self.cells[page as usize - 1] != Cell::Erased,
            "the page before page {page} is not programmed yet"
        );
        self.cells[page as usize] = cell;
        if in_unit == self.unit_pages - 1 {
            let now = self.host_pages.iter().sum();
            self.filled[(page / self.unit_pages) as usize] = Some((now, self.fills));
            self.fills += 1;
        }
    }

    /// How good a unit is as a victim. Higher is better.
    fn merit(&self, unit: u32) -> f64 {
        let (at, order) = self.filled[unit as usize].expect("only filled units are collected");
        let valid = f64::from(self.valid_count(unit)) / f64::from(self.unit_pages);
        match self.victims {
            Victims::Greedy => -valid,
            Victims::Fifo => -(order as f64),
            Victims::CostBenefit => {
                let now: u64 = self.host_pages.iter().sum();
                (1.0 - valid) / (1.0 + valid) * (now - at + 1) as f64
            }
        }
    }
}

impl Observer for Naive {
    fn program(&mut self, page: NandPage, lba: u64) {
        self.next_version += 1;
        let (version, handle) = (self.next_version, self.handle);
        self.host_pages[usize::from(handle)] += 1;
        self.fill(page.0, Cell::Data { lba, version, handle });
        self.versions[lba as usize] = version;
        self.places[lba as usize] = Some(page.0);
    }

    fn pad(&mut self, page: NandPage) {
        self.fill(page.0, Cell::Nothing);
        self.padded_pages += 1;
    }

    fn victim(&mut self, unit: u32) {
        let merit = self.merit(unit);
        let of_group = (unit % self.groups..self.filled.len() as u32).step_by(self.groups as usize);
        for other in of_group {
            if self.filled[other as usize].is_some() {
                let others = self.merit(other);
                // Scores that ought to be equal may differ in their last digit, because of
                // rounding.
                let is_as_good = others <= merit + 1e-9 * merit.abs();
                assert!(
                    is_as_good,
                    "unit {other} is a better victim than unit {unit}: the scores are {others} and {merit}"
                );
            }
        }
    }

    fn copy(&mut self, from: NandPage, to: NandPage) {
        let lba = self.valid_lba(from.0).expect("only valid pages are copied");
        let cell = self.cells[from.0 as usize];
        self.fill(to.0, cell);
        self.places[lba as usize] = Some(to.0);
        if let Cell::Data { handle, .. } = cell {
            self.copied_pages[usize::from(handle)] += 1;
        }
    }

    fn erase(&mut self, unit: u32) {
        assert!(self.filled[unit as usize].is_some(), "unit {unit} is not filled");
        assert_eq!(self.valid_count(unit), 0, "erasing unit {unit} loses data");
        for page in self.pages(unit) {
            self.cells[page as usize] = Cell::Erased;
        }
        self.filled[unit as usize] = None;
        self.erased_units += 1;
    }
}
