//! Tests of the SSD from outside.

mod drive;
mod drive_file;
mod ftl;
mod naive;
mod replay;
mod steady;
