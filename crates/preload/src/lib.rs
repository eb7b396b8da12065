//! The library that `slimio shortcut run` makes the dynamic linker load into a program
//! (`LD_PRELOAD`).
//!
//! The library takes the place of libc's functions on descriptors. If a program opens a log that
//! matches a pattern, the library asks the keeper to take the log. The program's writes to this
//! descriptor then go the short way. Before a call that the short way can't serve, the library
//! gives the file back. For every other descriptor, a call costs one more load and branch.
//!
//! The library does not see direct system calls, io_uring, or what libc's own streams (`FILE *`)
//! do. So files opened by `fopen` are never taken, and a file that `fdopen` turns into a stream is
//! given back.

mod hooks;
mod meeting;
mod next;
mod open_logs;
mod whole_files;
