//! Encodes and decodes the structures of NVMe and NVMe/TCP.
//!
//! Each structure has one table of its fields and their offsets. A macro makes both `encode` and
//! `decode` from that table, so the two agree. Reserved bytes are written as zero, and ignored when
//! read. All integers are little-endian. Nothing here does I/O, reads a clock or keeps state.
//!
//! | module | what it has | source |
//! |---|---|---|
//! | [`command`], [`completion`], [`status`], [`opcode`] | queue entries | NVMe base specification 2.1, 4.1 and 4.2 |
//! | [`fabrics`] | Connect, properties, Disconnect | base, 6 and 3.1.4 |
//! | [`identify`] | Identify | base, 5.1.13; NVM command set 1.1, 4.1.5 |
//! | [`log`], [`fdp`] | log pages, reclaim unit handles | base, 5.1.12 |
//! | [`feature`] | Get Features and Set Features | base, 5.1.25 |
//! | [`pdu`] | PDUs and their digests | TCP transport specification 1.1, 3.6 |
//!
//! ```
//! use slimio_nvme::{Command, Completion, Sgl, Status, opcode};
//!
//! let read = Command::new(opcode::nvm::READ, 7).nsid(1).sgl(Sgl::transport(4096)).cdw10(0x100);
//! assert_eq!(Command::decode(&read.encode()), read);
//! let reply = Completion { cid: 7, status: Status::LBA_OUT_OF_RANGE.dnr(), ..Completion::default() };
//! assert_eq!(reply.encode()[14..], [0x00, 0x81]);
//! ```

#[macro_use]
mod layout;

pub mod command;
pub mod completion;
pub mod fabrics;
pub mod fdp;
pub mod feature;
pub mod identify;
pub mod log;
pub mod opcode;
pub mod pdu;
pub mod status;

pub use command::{Command, Sgl, SglKind};
pub use completion::Completion;
pub use layout::{Ascii, Name, TooShort};
pub use status::Status;

/// The name that every discovery subsystem has. Source: base specification 2.1, 4.6.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Longest name of a host or subsystem, in bytes. Source: base specification 2.1, 4.6.
pub const NQN_SIZE_MAX: usize = 223;
/// The namespace number that stands for all namespaces. Source: base specification 2.1, 3.2.1.2.
pub const NSID_ALL: u32 = 0xffff_ffff;
