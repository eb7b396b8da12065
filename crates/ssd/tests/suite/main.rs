//! Tests of the SSD through its public interface.

mod damaged;
mod drive;
mod drive_file;
mod ftl;
mod groups;
mod killed;
mod model;
mod naive;
mod queue;
mod refused;
mod remember;
mod replay;
mod steady;
