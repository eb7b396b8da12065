//! The library that `slimio shortcut run` has loaded into a program (`LD_PRELOAD`).
//!
//! It takes the place of libc's functions on descriptors. If a program opens a log that is meant, the
//! keeper is asked to take it. What the program then writes to this descriptor goes the short way; a
//! call that the short way has no answer for gives the file back first. For every other descriptor, a
//! call costs one load and a branch.
//!
//! What does not go through these functions is not seen: system calls made directly, io_uring, and what
//! libc's own streams (`FILE *`) do. Files opened by `fopen` are therefore never taken, and one that is
//! turned into a stream by `fdopen` is given back.

mod hooks;
mod meeting;
mod next;
mod open_logs;
mod whole_files;
