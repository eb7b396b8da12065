//! What a drive knows when it is opened: what it has remembered, or what can be told from its data.

use std::ops::Range;

use slimio_device::{Lba, LbaRange, OpenError};

use super::data::Data;
use super::journal::Journal;
use super::made::SavedConfig;
use super::request::Request;
use super::state_file::{Found, Lost, Recovered, StateFile};
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
    /// Blocks that were mapped into memory. Stores to them do not pass through the drive.
    pub(super) mapped: Range<u64>,
    /// Why the mapping is lost, if it is.
    pub(super) lost: Option<Lost>,
}

impl Remembered {
    /// Opens the state beside `data`, which may be new, of a drive that is now `made` this way.
    pub(super) fn open(data: &Data, is_new: bool, made: SavedConfig) -> Result<Self, Refusal> {
        let Some(beside) = data.beside() else {
            let ftl = fresh(&made)?;
            return Ok(Self { ftl, journal: None, mapped: 0..0, lost: None });
        };
        if is_new {
            let ftl = fresh(&made)?;
            return Self::begin(beside, made, ftl, None);
        }
        match beside.read()? {
            Found::Whole(recovered) => Self::go_on(data, made, recovered),
            Found::Part(before, ftl) => {
                let made = over(before.as_ref(), made)?;
                let lost = ftl.as_ref().err().copied();
                let ftl = match ftl {
                    Ok(ftl) => ftl.with_config(made.config.clone()),
                    Err(_) => of_data(data, &made)?,
                };
                Self::begin(beside, made, ftl, lost)
            }
        }
    }

    /// Begins a new journal.
    fn begin(
        beside: &StateFile,
        made: SavedConfig,
        ftl: Ftl,
        lost: Option<Lost>,
    ) -> Result<Self, Refusal> {
        let journal = Some(Journal::create(beside, &made, &ftl)?);
        Ok(Self { ftl, journal, mapped: made.mapped, lost })
    }

    /// Goes on with a journal.
    fn go_on(data: &Data, made: SavedConfig, recovered: Recovered) -> Result<Self, Refusal> {
        let Recovered { made: before, ftl, last, store, end } = recovered;
        let made = over(Some(&before), made)?;
        // A process that was killed in a deallocation may not have given back the space. What was
        // mapped into memory is not the drive's to give back.
        if let Some(Request::Deallocate { lba, count }) = last {
            let (start, end) = (u64::from(lba), u64::from(lba) + u64::from(count));
            if end <= made.mapped.start || made.mapped.end <= start {
                data.deallocate(LbaRange { start: Lba(start), end: Lba(end) });
            }
        }
        let ftl = ftl.with_config(made.config.clone());
        let journal = Journal::go_on(store, end, &made, &ftl).map_err(|error| {
            let path = data.to_string().into();
            Refusal::Open(OpenError::Device { doing: "writing beside", path, error })
        })?;
        Ok(Self { ftl, journal: Some(journal), mapped: made.mapped, lost: None })
    }
}

/// A drive that is `made` this way and was made as `before` says, if that is known.
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

/// A drive whose data counts as written by the first handle, in the order of the blocks.
fn of_data(data: &Data, made: &SavedConfig) -> Result<Ftl, Refusal> {
    let mut ftl = fresh(made)?;
    data.each_written(|lba| {
        if !made.mapped.contains(&lba) {
            ftl.preload(lba);
        }
    })?;
    let time = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    ftl.set_time(time.as_millis() as u64);
    ftl.note_handles_reset();
    Ok(ftl)
}
