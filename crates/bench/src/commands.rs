//! The subcommands: flags in, text out.

pub mod compare;
pub mod ledger;
pub mod load;
pub mod trace;
pub mod waf;
