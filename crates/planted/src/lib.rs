//! Planted bugs: bugs that were put into the code on purpose, to see that the tests catch them.
//!
//! `planted-bugs.txt` beside this crate's manifest lists all planted bugs. A build with the feature
//! `bugs` contains all of them, and the environment variable `SLIMIO_PLANTED` makes at most one bug
//! active in a process. So one build is enough for all bugs, and the same build also shows that a
//! test passes while its bug is not active. A build without the feature contains no planted bug.

use std::env::VarError;
use std::io::Write;
use std::sync::OnceLock;

const VARIABLE: &str = "SLIMIO_PLANTED";
const LIST: &str = include_str!("../planted-bugs.txt");

/// Whether the bug of this name is active.
///
/// Without the feature `bugs`, no bug is active. With the feature, the first call in a process
/// reads `SLIMIO_PLANTED`. If the variable's value is not the name of a bug in the list, the call
/// aborts the process.
#[inline(always)]
#[expect(clippy::inline_always, reason = "without `bugs`, a constant even in unoptimised builds")]
pub fn is_planted(bug: &str) -> bool {
    cfg!(feature = "bugs") && chosen() == Some(bug)
}

fn chosen() -> Option<&'static str> {
    static CHOSEN: OnceLock<Option<&'static str>> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        known(std::env::var(VARIABLE)).unwrap_or_else(|sentence| {
            // A panic would look as if a test had caught the bug. `eprintln!` would lose the
            // sentence, because the test harness holds back the macro's output until the test ends.
            drop(writeln!(std::io::stderr(), "{sentence}"));
            std::process::abort()
        })
    })
}

/// The bug that the variable chooses; `None` if the variable is not set. If the list lacks this
/// bug, or if the value is not valid Unicode, the error is a sentence that says so.
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
