//! The error log. Source: NVM Express base specification 2.1, section 5.1.12.1.2.

use std::collections::VecDeque;

use slimio_nvme::log::ErrorEntry;

use crate::limits::ERRORS_MAX;

/// The latest errors, newest first.
#[derive(Debug, Default)]
pub(crate) struct ErrorLog {
    latest: VecDeque<ErrorEntry>,
    count: u64,
}

impl ErrorLog {
    /// Adds an error, and sets the error's number.
    pub(crate) fn push(&mut self, entry: ErrorEntry) {
        self.count += 1;
        self.latest.truncate(ERRORS_MAX - 1);
        self.latest.push_front(ErrorEntry { error_count: self.count, ..entry });
    }

    /// Number of errors since the subsystem was made.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The log page, in which unused entries are zero.
    pub(crate) fn page(&self) -> Vec<u8> {
        let mut page: Vec<u8> = self.latest.iter().flat_map(ErrorEntry::encode).collect();
        page.resize(ERRORS_MAX * ErrorEntry::SIZE, 0);
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_error_is_first_and_the_oldest_goes() {
        let mut log = ErrorLog::default();
        for cid in 0..ERRORS_MAX as u16 + 2 {
            log.push(ErrorEntry { cid, ..ErrorEntry::default() });
        }
        let page = log.page();
        assert_eq!(page.len(), 64 * 64);
        let first = ErrorEntry::decode(&page).expect("the page has a whole entry");
        assert_eq!((first.error_count, first.cid), (66, 65));
        let last = ErrorEntry::decode(&page[63 * 64..]).expect("the page has a whole entry");
        assert_eq!((last.error_count, last.cid), (3, 2));
        assert_eq!(log.count(), 66);
    }
}
