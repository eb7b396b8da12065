//! Load generator, workloads, side-by-side runs against stock servers.
fn main() {}
