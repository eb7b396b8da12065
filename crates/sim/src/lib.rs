//! A device for tests: reorders, tears, loses what was not flushed, rots, dies.
