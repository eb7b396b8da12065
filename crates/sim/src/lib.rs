//! A simulated device for tests. It reorders operations, tears writes and loses unflushed writes.
//! At a test's request, blocks rot and other faults happen.
//!
//! A [`SimDisk`] is a medium with one or more spaces (files of a directory, or one device). A
//! [`SimDevice`] is a path to one of these spaces, and submits operations to it. Several paths may
//! share a space. The configuration and its seed determine all behaviour.
//!
//! # Fault model
//!
//! | what | what may happen | what holds |
//! |---|---|---|
//! | completion order | any order, which the seed determines; an operation may take very long | each operation completes once, and its buffer comes back |
//! | a completed write that is neither durable nor flushed | a power cut loses or tears it, in any combination with other writes | it stays readable while there is power; it survives the death of the process |
//! | a write in flight | after a power cut, none of its data is on the medium, or all, or it is torn (between sectors of 512 bytes, or inside a sector). After the death of the process, none of the write's blocks are on the medium, or some, or all; missing blocks may be written later, until the next process gets the [claim](SimDisk::claim) | – |
//! | a durable write that has completed | its blocks may rot; other writes do not become durable through it | it survives power cuts |
//! | a flush that has completed | – | writes that were reaped before the flush was submitted survive, whatever their path |
//! | a flush that has failed | the writes that the flush should have covered never become stable, not even by a later flush | these writes stay readable while there is power |
//! | a failed write | none of its data is on the medium | its buffer comes back |
//! | a deallocation in flight | the same as for a write in flight that fills the blocks with `0xDD` | – |
//! | a space that is being made longer | it has the old length, the requested length, or a length in between | once the operation has completed, the new length is stable, and a power cut can no longer undo an earlier shortening |
//! | a space that was made shorter | until a flush covers the shortening, a power cut may restore the old length with the old blocks | the space stays short while there is power |
//! | a flush of one space, if each space is a file | writes to other spaces do not become stable | writes to that space become stable |
//! | deallocated blocks | may read as any bytes; here they read as `0xDD` | – |
//! | blocks that were never written | may read as any bytes; here they read as `0x5A` | – |
//! | mapped memory, process dies | – | every byte that was stored before is there |
//! | mapped memory, power is cut | each page has the contents that it had at some time since the memory was mapped, or the whole memory is lost | – |
//! | any block, by request | it rots (bits flip) or can't be read; a write to it fails, is lost or is misdirected | once the fault ends, the block's data is readable again |
//! | the device, by request | it is full, its flushes fail, a deallocation fails when it is half done, or the device is gone | – |
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
