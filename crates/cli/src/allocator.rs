//! Statistics of jemalloc.

use slimio_server::{Allocator, AllocatorBytes};
use tikv_jemalloc_ctl::{epoch, stats, stats_print, version};

/// The program's allocator, for INFO and `MEMORY`.
pub(crate) fn describe() -> Allocator {
    Allocator { name: name(), bytes, report }
}

/// The allocator's name as INFO shows it.
fn name() -> &'static str {
    // The text of the version looks like "5.3.1-0-g81034ce1…".
    match version::read().ok().and_then(|text: &str| text.split('-').next()) {
        Some(number) => format!("jemalloc-{number}").leak(),
        None => "jemalloc",
    }
}

fn bytes() -> Option<AllocatorBytes> {
    // jemalloc updates its counters only when its epoch advances.
    epoch::advance().ok()?;
    Some(AllocatorBytes {
        allocated: stats::allocated::read().ok()? as u64,
        active: stats::active::read().ok()? as u64,
        resident: stats::resident::read().ok()? as u64,
    })
}

fn report() -> String {
    let mut text = Vec::new();
    match stats_print::stats_print(&mut text, stats_print::Options::default()) {
        Ok(()) => String::from_utf8_lossy(&text).into_owned(),
        Err(error) => format!("the allocator's statistics cannot be read: {error}"),
    }
}
