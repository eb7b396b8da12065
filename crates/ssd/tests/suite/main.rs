//! Tests of the SSD from outside.

mod ftl;
mod naive;
mod steady;
