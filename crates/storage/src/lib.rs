//! What is on the volume: superblock, areas, write-ahead log, recovery. Payloads are opaque bytes.
