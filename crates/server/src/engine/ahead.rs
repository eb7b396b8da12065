//! Prefetches the entries that requests will look for. Several entries that are read from memory
//! at the same time take much less time than entries that are read one after the other. If an entry
//! is a large collection, prefetches the element that the request names, too.

use slimio_keyspace::{AHEAD_MAX, DbIndex, ElementAhead};
use slimio_resp::{Ahead, requests_ahead};

use super::Data;
use crate::net::{ConnId, Net};

impl Data {
    /// Prefetches what the next requests of a pipeline will look for. Returns where the last of
    /// these requests ends, or the end of the buffer if no request was found.
    pub(crate) fn bring_in_pipeline(&self, db: DbIndex, buffer: &[u8]) -> usize {
        let (mut elements, mut count) = ([ElementAhead::default(); AHEAD_MAX], 0);
        let mut seen = buffer.len();
        for ahead in requests_ahead(buffer).take(AHEAD_MAX) {
            elements[count] = self.element_of(&ahead);
            (count, seen) = (count + 1, ahead.end);
        }
        self.keyspace.bring_in(db, &elements[..count]);
        seen
    }

    /// Prefetches what the first request of each client will look for. `db_of` says which database
    /// the client of a connection has selected.
    pub(crate) fn bring_in_received(
        &self,
        net: &dyn Net,
        db_of: impl Fn(ConnId) -> Option<DbIndex>,
    ) {
        let (mut elements, mut count) = ([ElementAhead::default(); AHEAD_MAX], 0);
        let mut db = DbIndex(0);
        net.peek_received(&mut |conn, bytes| {
            let Some(selected) = db_of(conn) else { return };
            let Some(ahead) = requests_ahead(bytes).next() else { return };
            if count == AHEAD_MAX || count > 0 && selected != db {
                self.keyspace.bring_in(db, &elements[..count]);
                count = 0;
            }
            elements[count] = self.element_of(&ahead);
            (count, db) = (count + 1, selected);
        });
        // Prefetching for a single request gains nothing, because the request runs right away.
        if count > 1 {
            self.keyspace.bring_in(db, &elements[..count]);
        }
    }

    fn element_of<'a>(&self, ahead: &Ahead<'a>) -> ElementAhead<'a> {
        ElementAhead { hash: self.keyspace.hash(ahead.first), element: ahead.second }
    }
}
