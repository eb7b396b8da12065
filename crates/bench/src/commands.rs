//! The subcommands: flags in, text out.

pub mod load;
