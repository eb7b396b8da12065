//! Tests of the initiator against the target, over loopback.

mod commands;
mod queues;
mod target;
mod trouble;
