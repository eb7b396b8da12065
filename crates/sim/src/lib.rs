//! A device for tests: reorders, tears, loses what was not flushed, rots, dies.
//!
//! A [`SimDisk`] is a medium with one or more spaces (files of a directory, or one device); each
//! [`SimDevice`] is a path to one of them. Everything that happens follows from the configuration
//! and its seed.
//!
//! # Fault model
//!
//! | what | may fail | must survive |
//! |---|---|---|
//! | completion order | any order, by the seed; an operation may be delayed for long | each operation completes once, its buffer comes back |
//! | a completed write, not durable, not flushed | lost by a power cut, or torn, in any combination with others | stays readable while there is power; survives the death of the process |
//! | a write in flight | after a power cut: nothing of it, all, or torn (whole sectors of 512 bytes from either end, or inside a sector). After the death of the process: nothing, all, or whole blocks of it; the rest may land at any later time until the [claim](SimDisk::claim) is free | – |
//! | a durable write that has completed | only by rot | power cuts; says nothing about other writes |
//! | a flush that has completed | – | all writes reaped, on any path, before it was submitted |
//! | a flush that has failed | what it was to cover stays readable, but no later flush saves it | – |
//! | a failed write | nothing of it reaches the medium | the buffer |
//! | a deallocation in flight | as a write in flight of those bytes | – |
//! | a space that is being made longer | as long as before, as it was to become, or between | once it is reported, it is stable, and so is how short the space was before |
//! | a space that was made shorter | after a power cut as long as before, until a flush covers it; its blocks there are then as they were | stays short while there is power |
//! | a flush of one space, where each is a file | – | covers that space only |
//! | deallocated blocks | read as anything: here as bytes `0xDD` | – |
//! | blocks that were never written | read as anything: here as bytes `0x5A` | – |
//! | mapped memory, process dies | – | every byte stored before |
//! | mapped memory, power is cut | each page is as it was at any time since it was mapped, or all of it is gone | – |
//! | any block, by request | rots (bits flip), can't be read; a write to it is lost, misdirected or fails | the data under the fault: lifting it brings the data back |
//! | the device, by request | is full, fails its flushes, fails deallocations half done, is gone | – |
//!
//! Two writes in flight that overlap are a bug of the caller: the simulation panics.

pub mod contract;
mod crash;
mod device;
mod disk;
mod fault;
mod random;

pub use crash::{Crash, Image, Limits};
pub use device::SimDevice;
pub use disk::{Order, SimConfig, SimDisk};
pub use fault::Faults;
pub use random::Random;
