//! `slimio drive stats` and `slimio drive top`

use std::io::BufRead as _;
use std::path::PathBuf;

use clap::Args;

use super::control::{PAGE_END, ask, unanswered};
use crate::tools::say;

/// Clears the terminal and goes to its upper left corner.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// The drive whose counts are shown.
#[derive(Debug, Args)]
struct Served {
    /// The drive's file; may be left out if only one drive is served on this machine
    drive: Option<PathBuf>,
}

/// `slimio drive stats`
#[derive(Debug, Args)]
pub(crate) struct Stats {
    #[command(flatten)]
    served: Served,
    /// Print one line of JSON instead of a page of text
    #[arg(long)]
    json: bool,
}

impl Stats {
    /// Shows the counts.
    ///
    /// # Errors
    /// If the drive does not answer. The error is a sentence for the user.
    pub(crate) fn run(&self) -> Result<(), String> {
        let word = if self.json { "json" } else { "page" };
        let mut answer = ask(self.served.drive.as_deref(), word)?;
        let mut bytes = Vec::new();
        answer
            .read_until(if self.json { b'\n' } else { PAGE_END }, &mut bytes)
            .map_err(|error| unanswered(&error))?;
        bytes.pop();
        say(String::from_utf8_lossy(&bytes).trim_end());
        Ok(())
    }
}

/// `slimio drive top`
#[derive(Debug, Args)]
pub(crate) struct Top {
    #[command(flatten)]
    served: Served,
}

impl Top {
    /// Shows the counts each second, until the drive is not served any more.
    ///
    /// # Errors
    /// If the drive does not answer. The error is a sentence for the user.
    pub(crate) fn run(&self) -> Result<(), String> {
        let mut answer = ask(self.served.drive.as_deref(), "page")?;
        loop {
            let mut page = Vec::new();
            let size = answer.read_until(PAGE_END, &mut page);
            if size.map_err(|error| unanswered(&error))? == 0 {
                return Ok(());
            }
            page.pop();
            say(&format!("{CLEAR}{}", String::from_utf8_lossy(&page)));
        }
    }
}
