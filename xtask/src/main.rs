//! `cargo x`: everything a developer runs by name.
fn main() {}
