//! Prefetches the entries that requests will look for, because reading the entries of several keys
//! from memory together takes much less time than reading one entry after the other. If such an
//! entry is a large collection, prefetches the element that the request names, too.

use slimio_keyspace::{AHEAD_MAX, DbIndex, ElementAhead};
use slimio_resp::{Ahead, requests_ahead};

use super::{Connections, Engine};
use crate::net::Net;

impl Engine {
    /// Prefetches what the next requests of a pipeline will look for. Returns where the last of
    /// these requests ends, or the end of the buffer if no request was found.
    pub(super) fn bring_in_pipeline(&self, db: DbIndex, buffer: &[u8]) -> usize {
        let (mut elements, mut count) = ([ElementAhead::default(); AHEAD_MAX], 0);
        let mut seen = buffer.len();
        for ahead in requests_ahead(buffer).take(AHEAD_MAX) {
            elements[count] = self.element_of(&ahead);
            (count, seen) = (count + 1, ahead.end);
        }
        self.keyspace.bring_in(db, &elements[..count]);
        seen
    }

    fn element_of<'a>(&self, ahead: &Ahead<'a>) -> ElementAhead<'a> {
        ElementAhead { hash: self.keyspace.hash(ahead.first), element: ahead.second }
    }
}

impl Connections {
    /// Prefetches what the first request of each client will look for.
    pub(crate) fn bring_in_received(&self, engine: &Engine, net: &dyn Net) {
        let (mut elements, mut count) = ([ElementAhead::default(); AHEAD_MAX], 0);
        let mut db = DbIndex(0);
        net.peek_received(&mut |conn, bytes| {
            let Some(client) = self.clients.get(conn) else { return };
            let Some(ahead) = requests_ahead(bytes).next() else { return };
            if count == AHEAD_MAX || count > 0 && client.db != db {
                engine.keyspace.bring_in(db, &elements[..count]);
                count = 0;
            }
            elements[count] = engine.element_of(&ahead);
            (count, db) = (count + 1, client.db);
        });
        // Prefetching for a single request gains nothing, because it runs right away.
        if count > 1 {
            engine.keyspace.bring_in(db, &elements[..count]);
        }
    }
}
