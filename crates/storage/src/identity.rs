//! Which device a volume is on: a copy of it is not the volume, and a name may be another's today.

use slimio_planted::is_planted;

use crate::layout::superblock as at;
use crate::{Error, Media, Superblock};

/// What the device of a volume is, as its superblock keeps it; empty where nothing tells.
pub(crate) fn of(media: &dyn Media) -> String {
    let found = media.identity().unwrap_or_default();
    let printable = found.chars().filter(|c| c.is_ascii_graphic() || *c == ' ');
    printable.take(at::IDENTITY_SIZE).collect()
}

/// Reads it from the bytes of a superblock.
pub(crate) fn decode(bytes: &[u8]) -> Result<String, String> {
    let field = &bytes[at::IDENTITY..at::IDENTITY + at::IDENTITY_SIZE];
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    let text = str::from_utf8(&field[..end]).ok().filter(|text| text.is_ascii());
    text.map(str::to_owned).ok_or_else(|| "its device has no proper name".into())
}

/// Looks whether the volume was last written on this device. Returns the other one's identity, if it
/// is another's and that is accepted.
///
/// # Errors
/// [`Error::OtherDevice`] when it is another's.
pub(crate) fn check(
    superblock: &Superblock,
    media: &dyn Media,
    is_accepted: bool,
) -> Result<Option<String>, Error> {
    let (made_on, found) = (superblock.identity.clone(), of(media));
    if made_on.is_empty() || made_on == found || is_planted("copy-unnoticed") {
        return Ok(None);
    }
    if is_accepted { Ok(Some(made_on)) } else { Err(Error::OtherDevice { made_on, found }) }
}
