//! Bugs put in on purpose, to see that a test catches them.
//!
//! `planted-bugs.txt` beside this crate's manifest names them all. A build with the feature `bugs`
//! contains every one; the environment variable `SLIMIO_PLANTED` chooses at most one for the
//! process. So one build is enough for all bugs, and the same program also shows that a test passes
//! while its bug is not active. Any other build contains none of them.

use std::env::VarError;
use std::io::Write;
use std::sync::OnceLock;

const VARIABLE: &str = "SLIMIO_PLANTED";
const LIST: &str = include_str!("../planted-bugs.txt");

/// Whether the bug of this name is active.
///
/// Without the feature `bugs`, always `false`. With the feature, the first call in a process reads
/// `SLIMIO_PLANTED`. If the value of the variable is not a bug of the list, the call aborts the
/// process.
#[inline(always)]
#[expect(clippy::inline_always, reason = "a constant even where nothing else is optimised")]
pub fn is_planted(bug: &str) -> bool {
    cfg!(feature = "bugs") && chosen() == Some(bug)
}

fn chosen() -> Option<&'static str> {
    static CHOSEN: OnceLock<Option<&'static str>> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        known(std::env::var(VARIABLE)).unwrap_or_else(|sentence| {
            // This is not a panic, because a panic would look as if a test had caught the bug. It
            // is not `eprintln!`, because the test harness holds back the output of `eprintln!`
            // until the test ends.
            drop(writeln!(std::io::stderr(), "{sentence}"));
            std::process::abort()
        })
    })
}

/// The chosen bug; `None` if the variable is not set. If the list lacks the bug, the error is a
/// sentence that says so.
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
