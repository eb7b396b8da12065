//! The state that a drive has when it is opened. The state comes from the state file. If that file
//! is of no use, the state is made from the data file.

use std::sync::Arc;

use slimio_device::{Lba, LbaRange, OpenError};
use slimio_planted::is_planted;

use super::data::{Data, ID_ATTRIBUTE};
use super::journal::Journal;
use super::made::SavedConfig;
use super::recovery::Recovered;
use super::state_file::{Found, Lost, StateFile};
use crate::Ftl;

/// Why a drive can't be opened.
pub(super) enum Refusal {
    /// The reason, as a sentence without a full stop.
    Unsuitable(String),
    Open(OpenError),
}

impl From<OpenError> for Refusal {
    fn from(error: OpenError) -> Self {
        Self::Open(error)
    }
}

/// A drive's mapping, and the journal that goes on from it.
pub(super) struct Remembered {
    pub(super) ftl: Ftl,
    /// `None` if the drive has no file with a name.
    pub(super) journal: Option<Journal>,
    /// Why the mapping is lost, if it is lost.
    pub(super) lost: Option<Lost>,
}

impl Remembered {
    /// Opens the state file beside `data`. `is_new` says whether the data file is new. `made` is
    /// the configuration that the drive is opened with.
    pub(super) fn open(data: &Arc<Data>, is_new: bool, made: SavedConfig) -> Result<Self, Refusal> {
        let Some(beside) = data.beside() else {
            let ftl = fresh(&made)?;
            return Ok(Self { ftl, journal: None, lost: None });
        };
        if is_new {
            let ftl = fresh(&made)?;
            return Self::begin(beside, data, &made, ftl, None);
        }
        match beside.read()? {
            Found::Whole(recovered) => Self::go_on(data, made, recovered),
            Found::Part(before, ftl) => {
                // A state file of an older format has no id, so a data file that belongs to it has
                // none either.
                if matches!(ftl, Ok(_) | Err(Lost::Mapping)) {
                    check_id(data, None)?;
                }
                let made = over(before.as_ref(), made)?;
                let lost = ftl.as_ref().err().copied();
                let ftl = match ftl {
                    Ok(ftl) => ftl.with_config(made.config.clone()),
                    Err(_) => of_data(data, &made)?,
                };
                Self::begin(beside, data, &made, ftl, lost)
            }
        }
    }

    /// Begins a new journal, which starts from the mapping `ftl`.
    fn begin(
        beside: &StateFile,
        data: &Arc<Data>,
        made: &SavedConfig,
        ftl: Ftl,
        lost: Option<Lost>,
    ) -> Result<Self, Refusal> {
        let journal = Some(Journal::create(beside, data, made, &ftl)?);
        Ok(Self { ftl, journal, lost })
    }

    /// Continues the journal from which `recovered` was read.
    fn go_on(data: &Arc<Data>, made: SavedConfig, recovered: Recovered) -> Result<Self, Refusal> {
        let Recovered { made: before, ftl, deallocated, is_cut, store, end } = recovered;
        let made = over(Some(&before), made)?;
        check_id(data, Some(end.id))?;
        // The data file may be a copy that lacks the id.
        data.set_id(end.id);
        let mut ftl = ftl.with_config(made.config.clone());
        let given = give_back(data, &made, &ftl, deallocated);
        if is_cut {
            // If the space of a deallocated block was not given back, `take_over` would take the
            // block for data.
            given?;
            take_over(data, &made, &mut ftl)?;
        }
        let journal = Journal::go_on(store, data, end, &made, &ftl).map_err(|error| {
            let path = data.to_string().into();
            Refusal::Open(OpenError::Device { doing: "writing beside", path, error })
        })?;
        let lost = is_cut.then_some(Lost::Tail);
        Ok(Self { ftl, journal: Some(journal), lost })
    }
}

/// Gives back to the file system the space of deallocated blocks that hold nothing. This is needed
/// if the previous process was killed before it gave the space back, or if the machine failed
/// before the file system had recorded this durably. If this call fails, the drive gives the space
/// back before the next write maps such a block.
fn give_back(
    data: &Data,
    made: &SavedConfig,
    ftl: &Ftl,
    mut deallocated: Vec<LbaRange>,
) -> Result<(), Refusal> {
    deallocated.sort_by_key(|range| range.start);
    let mut from = 0;
    let mut free: Vec<LbaRange> = Vec::new();
    for LbaRange { start, end } in deallocated {
        data.each_written_in(start.0.max(from)..end.0, |lba| {
            // A block that a process has mapped into its memory may hold bytes that the drive does
            // not know of, so the drive must not give its space back.
            if made.mapped.contains(&lba) || ftl.page_of(lba).is_some() {
                return;
            }
            match free.last_mut() {
                Some(last) if last.end.0 == lba => last.end.0 += 1,
                _ => free.push(LbaRange { start: Lba(lba), end: Lba(lba + 1) }),
            }
        })?;
        from = from.max(end.0);
    }
    for range in free {
        data.deallocate(range).map_err(|error| {
            let (doing, path) = ("deallocating in", data.to_string().into());
            OpenError::Device { doing, path, error }
        })?;
    }
    Ok(())
}

/// Checks that the state file belongs to the data file. `id` is the id of the state file. It is
/// `None` if the state file has no id.
fn check_id(data: &Data, id: Option<u64>) -> Result<(), Refusal> {
    let own = data.id();
    if own.is_none() || own == id || is_planted("state-of-another-drive") {
        return Ok(());
    }
    Err(Refusal::Unsuitable(format!(
        "the state file beside this file (its name ends in .mapping) belongs to another drive, or \
         the drive was last opened under another name: put back the drive's own state file, or use \
         that name. If both files were copied over the files of another drive, the two belong \
         together: confirm that with setfattr -x {ID_ATTRIBUTE} {data}"
    )))
}

/// The configuration of a drive that is opened with the configuration `made`. `before` is the
/// configuration that the drive had before, if that is known.
fn over(before: Option<&SavedConfig>, made: SavedConfig) -> Result<SavedConfig, Refusal> {
    let Some(before) = before else { return Ok(made) };
    if let Some(why) = before.difference(&made) {
        return Err(Refusal::Unsuitable(why));
    }
    Ok(SavedConfig { mapped: before.mapped.clone(), ..made })
}

fn fresh(made: &SavedConfig) -> Result<Ftl, Refusal> {
    Ftl::new(made.config.clone()).map_err(|error| Refusal::Unsuitable(error.to_string()))
}

/// A drive with a new mapping: its data counts as written by the first handle, in the order of the
/// blocks.
fn of_data(data: &Data, made: &SavedConfig) -> Result<Ftl, Refusal> {
    let mut ftl = fresh(made)?;
    take_over(data, made, &mut ftl)?;
    Ok(ftl)
}

/// Maps all blocks that have data but are not mapped, as if the first handle had written them. The
/// counters do not change. But an event is recorded, because the handles now refer to other units
/// than before.
fn take_over(data: &Data, made: &SavedConfig, ftl: &mut Ftl) -> Result<(), Refusal> {
    let mut blocks = Vec::new();
    data.each_written_in(0..made.config.lba_count, |lba| {
        if !made.mapped.contains(&lba) && ftl.page_of(lba).is_none() {
            blocks.push(lba);
        }
    })?;
    let time = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    ftl.set_time(time.as_millis() as u64);
    ftl.take_over(&blocks);
    ftl.note_handles_reset();
    Ok(())
}
