//! Tests of the target with a real listener and raw PDUs.

mod bring_up;
mod connections;
mod controllers;
mod host;
mod io;
mod malformed;
mod placement;
mod session;
