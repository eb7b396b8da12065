//! The subcommands: flags in, text out.

pub mod compare;
pub mod ledger;
pub mod load;
pub mod runtime;
pub mod trace;
pub mod waf;
