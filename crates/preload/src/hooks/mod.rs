//! The functions that take the place of libc's.

mod asynchronous;
mod change;
mod descriptors;
mod open;
mod read;
mod variadic;
mod write;
