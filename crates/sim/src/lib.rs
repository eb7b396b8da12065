//! A simulated device for tests. It reorders operations, tears writes and loses unflushed writes.
//! It also has rot and other faults if a test asks for them.
//!
//! A [`SimDisk`] is a medium with one or more spaces (files of a directory, or one device). Each
//! [`SimDevice`] is a path to one of the spaces. The configuration and its seed determine all
//! behaviour.
//!
//! # Fault model
//!
//! | what | may fail | must survive |
//! |---|---|---|
//! | completion order | any order, by the seed; an operation may be delayed for long | each operation completes once, and its buffer comes back |
//! | a completed write that is neither durable nor flushed | a power cut loses or tears it, in any combination with other writes | stays readable while there is power; survives the death of the process |
//! | a write in flight | after a power cut: nothing of it, all, or torn (between sectors of 512 bytes, or inside a sector). After the death of the process: nothing, all, or whole blocks of it; the rest may land at any later time until the [claim](SimDisk::claim) is free | – |
//! | a durable write that has completed | only by rot | power cuts; does not make other writes durable |
//! | a flush that has completed | – | all writes that were reaped, on any path, before the flush was submitted |
//! | a flush that has failed | the writes that it should have covered stay readable, but no later flush makes them stable | – |
//! | a failed write | nothing of it reaches the medium | the buffer |
//! | a deallocation in flight | the same as a write in flight that fills the blocks with `0xDD` | – |
//! | a space that is being made longer | has the old length, the requested one, or one in between | once the new length is reported as done, it is stable, and a power cut can no longer undo an earlier shortening of the space |
//! | a space that was made shorter | until a flush covers it, a power cut may restore the old length with the old blocks | stays short while there is power |
//! | a flush of one space, if each space is a file | – | the writes to that space, but no others |
//! | deallocated blocks | may read as any bytes; here they read as `0xDD` | – |
//! | blocks that were never written | may read as any bytes; here they read as `0x5A` | – |
//! | mapped memory, process dies | – | every byte stored before |
//! | mapped memory, power is cut | each page has the contents that it had at some time since the memory was mapped, or the whole memory is lost | – |
//! | any block, by request | it rots (bits flip) or can't be read; a write to it fails, is lost or is misdirected | the data under rot or a read error: they are back once the fault is lifted |
//! | the device, by request | is full, fails its flushes, fails deallocations half done, is gone | – |
//!
//! If two writes in flight overlap, the caller has a bug, and the simulation panics.

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
