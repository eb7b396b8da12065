//! The states that a crash may leave on the medium.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use slimio_device::LBA_SIZE;

use crate::Random;

/// Contents of a block.
pub(crate) type Block = Arc<[u8; LBA_SIZE]>;

/// Blocks by space and LBA. A space is a file or a whole device on the simulated disk. Blocks that
/// were never written have no entry.
pub(crate) type Blocks = HashMap<(usize, u64), Block>;

/// A write that is not stable: a power cut may lose it.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) id: u64,
    pub(crate) space: usize,
    pub(crate) lba: u64,
    pub(crate) data: Vec<Block>,
    /// Whether the write's completion was reaped.
    pub(crate) is_reaped: bool,
}

impl Pending {
    /// A deallocation. It counts as a write that fills its blocks with [`DEALLOCATED`].
    pub(crate) fn deallocated(id: u64, space: usize, start: u64, end: u64) -> Self {
        let block: Block = Arc::new([DEALLOCATED; LBA_SIZE]);
        let data = vec![block; (end - start) as usize];
        Self { id, space, lba: start, data, is_reaped: true }
    }

    pub(crate) fn apply(&self, blocks: &mut Blocks) {
        for (lba, block) in (self.lba..).zip(&self.data) {
            blocks.insert((self.space, lba), block.clone());
        }
    }

    /// Applies only the bytes for which `kept` is true.
    fn apply_torn(&self, blocks: &mut Blocks, kept: impl Fn(usize) -> bool) {
        for (index, block) in self.data.iter().enumerate() {
            let key = (self.space, self.lba + index as u64);
            let mut bytes = blocks.get(&key).map_or([FRESH; LBA_SIZE], |old| **old);
            for (offset, byte) in block.iter().enumerate() {
                if kept(index * LBA_SIZE + offset) {
                    bytes[offset] = *byte;
                }
            }
            blocks.insert(key, Arc::new(bytes));
        }
    }

    fn size(&self) -> usize {
        self.data.len() * LBA_SIZE
    }
}

/// The byte that fills a block that was never written.
pub(crate) const FRESH: u8 = 0x5A;

/// The byte that fills a deallocated block.
const DEALLOCATED: u8 = 0xDD;

/// A space that was made shorter. Until a flush covers the shortening, a power cut may undo it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shrunk {
    pub(crate) id: u64,
    pub(crate) space: usize,
    pub(crate) before: u64,
    pub(crate) now: u64,
}

/// The state of a disk at the moment of a crash.
#[derive(Clone, Debug)]
pub struct Crash {
    pub(crate) space_lbas: Vec<u64>,
    pub(crate) holes: BTreeSet<(usize, u64)>,
    /// The shortenings of spaces that a power cut may undo, the oldest first.
    pub(crate) shrunk: Vec<Shrunk>,
    /// The space that was being made longer, if there is one, and its requested length.
    pub(crate) growing: Option<(usize, u64)>,
    pub(crate) stable: Blocks,
    /// Completed writes that are not stable, in the order in which they completed.
    pub(crate) cached: Vec<Pending>,
    /// Submitted writes that have not completed.
    pub(crate) flying: Vec<Pending>,
    /// For each page of mapped memory, all contents that it has had, the oldest first. The last
    /// entry is the current contents.
    pub(crate) pages: Vec<Vec<Block>>,
    pub(crate) seed: u64,
}

/// How many images are made of a crash, and of which kinds.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// If at most this many writes may survive, there is one image for each subset of these writes.
    pub exhaustive_max: usize,
    /// If more than [`exhaustive_max`](Self::exhaustive_max) writes may survive, there is an image
    /// with no write and an image with every write. For each write, there is an image with only
    /// this write, and an image with all other writes. In addition, this many random subsets have
    /// an image.
    pub random_count: usize,
    /// Whether there are also images with torn writes. In some of them, only the last surviving
    /// write is torn: each way of tearing it has an image. In others, all surviving writes are
    /// torn, each in a random way.
    pub torn: bool,
}

/// A medium as the next process finds it.
#[derive(Clone, Debug)]
pub struct Image {
    pub(crate) space_lbas: Vec<u64>,
    pub(crate) holes: BTreeSet<(usize, u64)>,
    pub(crate) shrunk: Vec<Shrunk>,
    pub(crate) stable: Blocks,
    pub(crate) cached: Vec<Pending>,
    /// Writes of a dead process that are still in the kernel. Each of them either lands before the
    /// next process gets the [claim](crate::SimDisk::claim), or never lands.
    pub(crate) late: Vec<Pending>,
    /// The contents of mapped memory; empty if no memory is mapped, or if its contents are lost.
    pub mapped: Vec<u8>,
    /// The events that led to this image, as text for the messages of tests.
    pub origin: String,
}

impl Crash {
    /// States that the medium may have after power was lost at this moment. `limits` says how many
    /// of the possible states are returned.
    pub fn power_images(&self, limits: &Limits) -> Vec<Image> {
        let pending: Vec<&Pending> = self.cached.iter().chain(&self.flying).collect();
        let mut images = Vec::new();
        for (index, subset) in subsets(pending.len(), limits, self.seed).into_iter().enumerate() {
            let survivors: Vec<&Pending> = pending
                .iter()
                .zip(&subset)
                .filter_map(|(write, kept)| kept.then_some(*write))
                .collect();
            let mut stable = self.stable.clone();
            let last = survivors.split_last();
            if let Some((last, before)) = last {
                if limits.torn && !before.is_empty() {
                    let origin = format!(
                        "power cut; writes that survived: {subset:?}; each of them is torn"
                    );
                    images.push(self.power_image(self.all_torn(&survivors, index), index, origin));
                }
                for write in before {
                    write.apply(&mut stable);
                }
                for (how, kept) in tears(last.size()).into_iter().filter(|_| limits.torn) {
                    let mut torn = stable.clone();
                    last.apply_torn(&mut torn, kept);
                    let origin = format!(
                        "power cut; writes that survived: {subset:?}; the last is torn: {how}"
                    );
                    images.push(self.power_image(torn, index, origin));
                }
                last.apply(&mut stable);
            }
            let origin = format!("power cut; writes that survived: {subset:?}");
            images.push(self.power_image(stable, index, origin));
        }
        images
    }

    /// The stable blocks after a power cut that tears each surviving write in a random way.
    fn all_torn(&self, survivors: &[&Pending], index: usize) -> Blocks {
        let mut random = Random::new(self.seed ^ (index as u64) << 32);
        let mut torn = self.stable.clone();
        for write in survivors {
            let mut tears = tears(write.size());
            let (_, kept) = tears.swap_remove(random.below(tears.len() as u64) as usize);
            write.apply_torn(&mut torn, kept);
        }
        torn
    }

    fn power_image(&self, mut stable: Blocks, index: usize, mut origin: String) -> Image {
        let mut space_lbas = self.lengths(index, &mut origin);
        let mut random = Random::new(self.seed ^ (index as u64) << 16);
        // The newest shortening comes first, because a shortening can be undone only if all newer
        // shortenings are undone, too.
        for shrunk in self.shrunk.iter().rev() {
            if space_lbas[shrunk.space] != shrunk.now || random.coin() {
                break;
            }
            space_lbas[shrunk.space] = shrunk.before;
            origin += "; a space has its old length again";
        }
        stable.retain(|&(space, lba), _| lba < space_lbas[space]);
        Image {
            space_lbas,
            holes: self.holes.clone(),
            shrunk: Vec::new(),
            stable,
            cached: Vec::new(),
            late: Vec::new(),
            mapped: self.mapped_after_power_cut(index),
            origin,
        }
    }

    /// The lengths of the spaces. A space that was being made longer has its old length, the
    /// requested length, or a length in between.
    fn lengths(&self, index: usize, origin: &mut String) -> Vec<u64> {
        let mut space_lbas = self.space_lbas.clone();
        if let Some((space, lbas)) = self.growing {
            let before = space_lbas[space];
            space_lbas[space] = [before, lbas, before.midpoint(lbas)][index % 3];
            origin.push_str("; a space was being made longer");
        }
        space_lbas
    }

    /// States that the medium may have after the process died at this moment. `limits` says how
    /// many of the possible states are returned. A write that had not landed when the process died
    /// may still land later, until the next process gets the [claim](crate::SimDisk::claim).
    pub fn process_images(&self, limits: &Limits) -> Vec<Image> {
        let mapped: Vec<u8> = self.pages.iter().flat_map(|page| now(page).to_vec()).collect();
        let image =
            |landed: Vec<Pending>, late: &[Pending], mut origin: String, index: usize| Image {
                space_lbas: self.lengths(index, &mut origin),
                holes: self.holes.clone(),
                shrunk: self.shrunk.clone(),
                stable: self.stable.clone(),
                // The kernel has completed the landed writes, so the next flush covers them.
                cached: self.cached.iter().cloned().chain(landed).map(Pending::reaped).collect(),
                late: late.to_vec(),
                mapped: mapped.clone(),
                origin,
            };
        let mut images = Vec::new();
        for (index, subset) in subsets(self.flying.len(), limits, self.seed).into_iter().enumerate()
        {
            let flying = || self.flying.iter().zip(&subset);
            let landed: Vec<Pending> =
                flying().filter(|(_, kept)| **kept).map(|(write, _)| write.clone()).collect();
            let mut late: Vec<Pending> =
                flying().filter(|(_, kept)| !**kept).map(|(write, _)| write.clone()).collect();
            if let Some((last, before)) =
                landed.split_last().filter(|(last, _)| last.data.len() > 1)
            {
                let mut cut = last.clone();
                cut.data.truncate(last.data.len() / 2);
                let partly = before.iter().cloned().chain([cut]).collect();
                late.push(last.clone());
                let origin =
                    format!("process died; writes that landed: {subset:?}; the last only partly");
                images.push(image(partly, &late, origin, index));
                late.pop();
            }
            images.push(image(
                landed,
                &late,
                format!("process died; writes that landed: {subset:?}"),
                index,
            ));
        }
        images
    }

    /// Mapped memory after a power cut: either all of the memory is lost, or each page has contents
    /// that it had at some time before the cut.
    fn mapped_after_power_cut(&self, index: usize) -> Vec<u8> {
        let mut random = Random::new(self.seed ^ index as u64);
        match index % 4 {
            0 => Vec::new(),
            1 => self.pages.iter().flat_map(|page| now(page).to_vec()).collect(),
            _ => {
                let pages = self.pages.iter();
                pages
                    .flat_map(|page| page[random.below(page.len() as u64) as usize].to_vec())
                    .collect()
            }
        }
    }
}

fn now(page: &[Block]) -> &Block {
    page.last().expect("each page has contents")
}

impl Pending {
    fn reaped(mut self) -> Self {
        self.is_reaped = true;
        self
    }
}

/// Which of `len` writes survive: every possible choice or, if there would be too many, the choices
/// that [`Limits`] describes.
fn subsets(len: usize, limits: &Limits, seed: u64) -> Vec<Vec<bool>> {
    if len <= limits.exhaustive_max {
        return (0..1_u64 << len)
            .map(|bits| (0..len).map(|index| bits >> index & 1 == 1).collect())
            .collect();
    }
    let mut random = Random::new(seed);
    let mut subsets = vec![vec![false; len], vec![true; len]];
    for index in 0..len {
        subsets.push((0..len).map(|other| other == index).collect());
        subsets.push((0..len).map(|other| other != index).collect());
    }
    for _ in 0..limits.random_count {
        subsets.push((0..len).map(|_| random.coin()).collect());
    }
    subsets
}

type Kept = Box<dyn Fn(usize) -> bool>;

/// The ways to tear a write of `size` bytes. Each way has a name, and a function that tells whether
/// the byte at an offset is on the medium.
fn tears(size: usize) -> Vec<(String, Kept)> {
    let sectors = size / 512;
    let mut tears: Vec<(String, Kept)> = Vec::new();
    let mut cuts = vec![1, sectors / 2, sectors - 1];
    cuts.dedup();
    for cut in cuts {
        tears.push((format!("first {cut} sectors"), Box::new(move |at| at < cut * 512)));
    }
    tears.push(("all but the first sector".into(), Box::new(|at| at >= 512)));
    tears.push(("every other sector".into(), Box::new(|at| at / 512 % 2 == 0)));
    tears.push(("first 100 bytes".into(), Box::new(|at| at < 100)));
    tears
}
