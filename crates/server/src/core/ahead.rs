//! Prefetches the entries that requests will look for, because reading the entries of several keys
//! from memory together takes much less time than reading one entry after the other.

use slimio_keyspace::DbIndex;
use slimio_resp::first_args;

use super::Core;
use crate::net::Net;

/// At most this many keys are prefetched at once, because a processor can have about this many
/// memory reads in flight.
const AT_ONCE: usize = 16;

impl Core {
    /// Prefetches the keys of the next requests of a pipeline. Returns where the last of these
    /// requests ends, or the end of the buffer if no key was found.
    pub(super) fn bring_in_pipeline(&self, db: DbIndex, buffer: &[u8]) -> usize {
        let (mut hashes, mut count, mut seen) = ([0; AT_ONCE], 0, buffer.len());
        for (key, end) in first_args(buffer).take(AT_ONCE) {
            hashes[count] = self.keyspace.hash(key);
            (count, seen) = (count + 1, end);
        }
        self.keyspace.bring_in(db, &hashes[..count]);
        seen
    }

    /// Prefetches the key of the first request that each client has sent.
    pub(crate) fn bring_in_received(&self, net: &dyn Net) {
        let (mut hashes, mut count, mut db) = ([0; AT_ONCE], 0, DbIndex(0));
        net.peek_received(&mut |conn, bytes| {
            let Some(client) = self.clients.get(conn) else { return };
            let Some((key, _)) = first_args(bytes).next() else { return };
            if count == AT_ONCE || count > 0 && client.db != db {
                self.keyspace.bring_in(db, &hashes[..count]);
                count = 0;
            }
            hashes[count] = self.keyspace.hash(key);
            (count, db) = (count + 1, client.db);
        });
        // Prefetching a single key gains nothing, because the key is looked up right away.
        if count > 1 {
            self.keyspace.bring_in(db, &hashes[..count]);
        }
    }
}
