//! The library that `slimio shortcut run` makes the dynamic linker load into a program
//! (`LD_PRELOAD`).
//!
//! The library replaces libc's functions on descriptors. If a program opens a log whose path
//! matches a pattern, the library asks the keeper to take the log. The program's writes to this
//! descriptor then take the short path. Before a call that the short path can't serve, the library
//! gives the file back. For every other descriptor, a call costs one more load and branch.
//! (`slimio_shortcut` explains the short path, and the words *keeper*, *take*, *give back* and
//! *stage*.)
//!
//! The library does not see direct system calls, io_uring's operations, or the reads and writes of
//! libc's own streams (`FILE *`). So files that `fopen` opens are never taken. If `fdopen` makes a
//! stream of a taken log's descriptor, the library first gives the log back.

mod hooks;
mod meeting;
mod next;
mod open_logs;
mod whole_files;
