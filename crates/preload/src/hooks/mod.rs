//! The functions that replace libc's functions of the same names.

mod asynchronous;
mod change;
mod descriptors;
mod open;
mod read;
mod variadic;
mod write;
