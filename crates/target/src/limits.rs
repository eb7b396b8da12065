//! Every limit of the target. Whatever a host does, these numbers bound what it can use.

use std::time::Duration;

/// Connections at the same time: one for each queue of each controller. Further connections are
/// closed at once.
pub const CONNECTIONS_MAX: usize = 288;
/// Connections that had no Connect yet. If another one comes, the oldest of them is closed.
pub const UNCONNECTED_MAX: usize = 32;
/// Controllers at the same time, including those for discovery.
pub const CONTROLLERS_MAX: usize = 64;
/// I/O queues of a controller. Ten hosts can have that many at the same time.
pub const IO_QUEUES_MAX: u16 = 24;
const _: () = assert!(10 * (1 + IO_QUEUES_MAX as usize) + UNCONNECTED_MAX <= CONNECTIONS_MAX);
/// Entries of a queue, admin or I/O.
pub const QUEUE_DEPTH_MAX: u16 = 128;
/// Data of one command, in bytes: NVMe's MDTS, 2^7 pages.
pub const TRANSFER_SIZE_MAX: usize = 512 << 10;
/// In-capsule data of a command, in bytes. A write of 4 KiB needs no R2T.
pub const IN_CAPSULE_SIZE_MAX: usize = 8192;
/// Data of one H2CData, in bytes: NVMe/TCP's MAXH2CDATA.
pub const H2C_DATA_SIZE_MAX: usize = 128 << 10;
/// Bytes that were received, but not processed yet. This is more than the longest PDU.
pub const INBOX_SIZE: usize = 256 << 10;
/// While this many bytes wait to be sent, no replies are made and nothing is received.
pub const OUTBOX_SIZE_MAX: usize = 256 << 10;
/// Memory for the data of one connection's commands, in bytes. In-capsule data does not count; it
/// is bounded by [`QUEUE_DEPTH_MAX`]. Commands for which no memory is left wait for it, in order.
pub const DATA_SIZE_MAX: usize = 8 << 20;
/// Memory for the data of all connections' commands, in bytes. In-capsule data does not count, nor
/// do two of the longest transfers for each connection.
pub const DATA_BUDGET: usize = 128 << 20;
/// Outstanding requests for asynchronous events, for each controller.
pub const ASYNC_REQUESTS_MAX: usize = 4;
/// Asynchronous events that wait for a request, for each controller. Further events are dropped.
pub const ASYNC_EVENTS_MAX: usize = 8;
/// Entries of the error log.
pub const ERRORS_MAX: usize = 64;
/// Blocks that Write Zeroes writes in one operation. A longer command takes several operations, one
/// after the other.
pub const ZEROED_AT_ONCE_LBAS: u64 = 32;
/// Blocks that one operation deallocates. The drive is locked meanwhile, so a longer range takes
/// several operations.
pub const DEALLOCATED_AT_ONCE_LBAS: u64 = 16 << 10;
/// Deallocations that a connection has in flight.
pub const DEALLOCATIONS_MAX: usize = 8;
// Even the smallest journal of a drive keeps room for 4096 deallocations that have no effect yet.
// The rest of the journal is enough for writes.
const _: () = assert!(CONNECTIONS_MAX * DEALLOCATIONS_MAX < 4096);
/// Names of hosts that are allowed.
pub const ALLOWED_MAX: usize = 1024;

/// How long a new connection may take until its Connect.
pub const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a host that was asked for data by R2T may send none at all.
pub const TRANSFER_TIME_MAX: Duration = Duration::from_secs(30);
/// How long the data of one transfer may fail to come while the data of others comes.
pub const ONE_TRANSFER_TIME_MAX: Duration = Duration::from_secs(600);
/// How long a host may take none of the bytes that wait for it.
pub const SEND_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a discovery controller without a keep alive timeout lives without a command.
pub const DISCOVERY_TIME_MAX: Duration = Duration::from_secs(120);
/// How long a host's machine may fail to answer, or be unreachable, until the host is given up.
pub const UNREACHABLE_TIME_MAX: Duration = Duration::from_secs(120);
/// The longest keep alive timeout that a host may ask for.
pub const KEEP_ALIVE_MAX: Duration = Duration::from_secs(3600);
