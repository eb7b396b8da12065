//! Tests of the SSD from outside.

mod drive;
mod ftl;
mod naive;
mod replay;
mod steady;
