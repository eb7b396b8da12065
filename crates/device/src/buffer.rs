//! Memory for transfers: aligned for direct I/O, whole blocks long.

/// DMA-aligned memory whose length is whole LBAs.
///
/// Either private memory, or a piece of a [`MappedFile`].
#[derive(Debug)]
pub struct Buffer {}

/// A file mapped shared: what is written to its buffers outlives the process, though not power.
#[derive(Debug)]
pub struct MappedFile {}
