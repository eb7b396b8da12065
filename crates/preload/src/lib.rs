//! `slimio shortcut run` starts a program with this library: the dynamic linker loads the library
//! into the program (`LD_PRELOAD`).
//!
//! The library replaces libc's functions on descriptors. If a program opens a log whose path
//! matches a pattern, the library asks the *keeper* (the process `slimio shortcut run`) to *take*
//! the log. The program's writes to the log's descriptor then take the *short path*: they overwrite
//! the log's blocks on the device directly. Before a call that the short path can't serve, the
//! library *gives the file back*: from then on, the kernel writes the file. For every other
//! descriptor, a call costs one more load and branch. (`slimio_shortcut` explains these words in
//! full.)
//!
//! The library does not see direct system calls, io_uring's operations, or the reads and writes of
//! libc's own streams (`FILE *`). So files that `fopen` opens are never taken. If `fdopen` makes a
//! stream of a taken log's descriptor, the library first gives the log back.

mod hooks;
mod meeting;
mod next;
mod open_logs;
mod whole_files;
