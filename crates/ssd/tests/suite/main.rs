//! Tests of the SSD through its public interface.

mod drive;
mod drive_file;
mod ftl;
mod naive;
mod queue;
mod replay;
mod steady;
