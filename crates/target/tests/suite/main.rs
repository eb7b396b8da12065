//! Tests of the target by a real listener and raw PDUs.

mod bring_up;
mod host;
mod io;
