//! Bugs put in on purpose, to see that a test catches them.
//!
//! `planted-bugs.txt` beside this crate's manifest names them all. A build with the feature `bugs`
//! holds every one; the environment variable `SLIMIO_PLANTED` chooses at most one for the process.
//! So one build serves all of them, and the test that must catch a bug is seen to pass without it
//! in the same program. In any other build nothing of this is left.

use std::env::VarError;
use std::io::Write;
use std::sync::OnceLock;

const VARIABLE: &str = "SLIMIO_PLANTED";
const LIST: &str = include_str!("../planted-bugs.txt");

/// Whether the bug of this name is active.
///
/// Constantly `false` without the feature `bugs`. With it, the first call of a process reads
/// `SLIMIO_PLANTED`, and aborts if that names no bug of the list.
#[inline(always)]
#[expect(clippy::inline_always, reason = "a constant even where nothing else is optimised")]
pub fn is_planted(bug: &str) -> bool {
    cfg!(feature = "bugs") && chosen() == Some(bug)
}

fn chosen() -> Option<&'static str> {
    static CHOSEN: OnceLock<Option<&'static str>> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        known(std::env::var(VARIABLE)).unwrap_or_else(|sentence| {
            // Not a panic, which would look as if a test had caught the bug; not `eprintln`, whose
            // output a test holds back until it ends.
            drop(writeln!(std::io::stderr(), "{sentence}"));
            std::process::abort()
        })
    })
}

/// The chosen bug, as the list has it; a sentence if the list lacks it.
fn known(value: Result<String, VarError>) -> Result<Option<&'static str>, String> {
    let wanted = match value {
        Ok(wanted) => wanted,
        Err(VarError::NotPresent) => return Ok(None),
        Err(error) => return Err(format!("{VARIABLE}: {error}")),
    };
    LIST.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_whitespace().next())
        .find(|&bug| bug == wanted)
        .map(Some)
        .ok_or_else(|| format!("{VARIABLE}: no planted bug is called `{wanted}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_bug_is_chosen_unless_one_is_named() {
        assert_eq!(known(Err(VarError::NotPresent)), Ok(None));
    }

    #[test]
    fn a_bug_of_the_list_is_known() {
        assert_eq!(known(Ok("no-epoch".into())), Ok(Some("no-epoch")));
    }

    #[test]
    fn any_other_name_is_refused() {
        for name in ["", "#", "no-epoc", "no-epochs", "slimio-storage"] {
            let sentence = known(Ok(name.into())).unwrap_err();
            assert_eq!(sentence, format!("SLIMIO_PLANTED: no planted bug is called `{name}`"));
        }
    }
}
