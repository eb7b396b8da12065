//! Which device a volume is on. A copy of a volume on another device is not the same volume, and
//! the name of one device may belong to another device later.

use slimio_planted::is_planted;

use crate::layout::superblock as at;
use crate::{Error, Media, Superblock};

/// The identity of a volume's device, as the superblock stores it; empty if the identity is
/// unknown.
pub(crate) fn of(media: &dyn Media) -> String {
    let found = media.identity().unwrap_or_default();
    let printable = found.chars().filter(|c| c.is_ascii_graphic() || *c == ' ');
    printable.take(at::IDENTITY_SIZE).collect()
}

/// Reads the identity from the bytes of a superblock.
pub(crate) fn decode(bytes: &[u8]) -> Result<String, String> {
    let field = &bytes[at::IDENTITY..at::IDENTITY + at::IDENTITY_SIZE];
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    let text = str::from_utf8(&field[..end]).ok().filter(|text| text.is_ascii());
    text.map(str::to_owned).ok_or_else(|| "the identity of the volume's device is not ASCII".into())
}

/// Checks that the volume was last written on this device. If it was last written on another device
/// and `is_accepted` is set, returns the other device's identity.
///
/// # Errors
/// [`Error::OtherDevice`] if the volume was last written on another device and `is_accepted` is not
/// set.
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
