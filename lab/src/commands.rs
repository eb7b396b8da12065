//! The subcommands of `slimio-lab`. Each one takes its flags, and returns the text to print.

pub mod compare;
pub mod drive;
pub mod ledger;
pub mod load;
pub mod map;
mod out;
pub mod runtime;
pub mod shortcut;
pub mod tenants;
pub mod trace;
pub mod validate;
pub mod waf;
